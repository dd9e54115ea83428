"""Promises of PROTOCOL.md, with plain frames to a running hub: sessions, windows, leases, verdicts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.hostile import HubProcess, Peer


class House:
    """One hub process, which can be started again over the same journal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.hub = HubProcess(folder)

    def restart(self) -> None:
        assert self.hub.stop() == 0
        self.hub = HubProcess(self._folder)

    def peer(self) -> Peer:
        return Peer(self.context, self.hub.url)

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.hub.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("says"))
    yield house
    house.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[House]:
    """A hub that a test may stop."""
    house = House(tmp_path)
    yield house
    house.close()


def subscribe(peer: Peer, topic: str, chan: int = 1, **fields: Any) -> m.Ok:
    rid = peer.next_rid()
    peer.send(m.Subscribe(chan, rid, {"patterns": [topic], "credit": [1000, 1 << 24], **fields}))
    return peer.until(m.Ok, rid)


def publish(peer: Peer, topic: str, *payloads: bytes, pseq: int = 0) -> tuple[int, int, int]:
    """(first seq, stored, duplicates)."""
    rid = peer.next_rid()
    peer.send(m.Publish(rid, pseq, 0, b.encode(topic, list(payloads))))
    while True:
        for row in peer.until(m.PubOk).confirms:
            if row[0] == rid:
                return row[1], row[2], row[3]


def settle(peer: Peer, verdict: m.Verdict, first: int, last: int, arg: Any = None, chan: int = 1) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Settle(chan, rid, ((verdict, first, last, arg),)))
    return dict(peer.until(m.Ok, rid).fields)


def take(peer: Peer, count: int) -> list[m.Deliver]:
    """Deliveries of `count` messages in all, whose ordinals follow each other."""
    found: list[m.Deliver] = []
    while count > 0:
        found.append(peer.until(m.Deliver))
        Block(found[-1].block).verify_stamp()
        count -= Block(found[-1].block).count
    assert count == 0
    return found


def payloads(deliveries: list[m.Deliver]) -> list[bytes]:
    return [payload for one in deliveries for payload in Block(one.block).payloads()]


def test_a_message_is_confirmed_and_delivered_with_its_seq(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        assert subscribe(peer, "says.plain", group="says-plain").fields["created"]
        first_seq, stored, duplicates = publish(peer, "says.plain", b"one", b"two")
        (delivery,) = take(peer, 2)
        assert (stored, duplicates) == (2, 0)
        assert (delivery.first_ordinal, delivery.attempt, delivery.seqs) == (1, 1, ())
        assert Block(delivery.block).base_seq == first_seq
        assert payloads([delivery]) == [b"one", b"two"]
        assert settle(peer, m.Verdict.ACK, 1, 2) == {"applied": 2, "stale": []}
        assert settle(peer, m.Verdict.ACK, 1, 2) == {"applied": 0, "stale": [[1, 2]]}


def test_a_picked_block_lists_its_seqs(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.odd", group="says-odd")
        rid = peer.next_rid()
        topics = ["says.odd", "says.even", "says.odd", "says.odd", "says.even"]
        peer.send(m.Publish(rid, 0, 0, b.encode(topics, [b"1", b"2", b"3", b"4", b"5"])))
        first_seq = peer.until(m.PubOk).confirms[0][1]
        (delivery,) = take(peer, 3)
        assert Block(delivery.block).flags & b.SPARSE
        assert delivery.seqs == (first_seq, 1, first_seq + 2, 2)
        assert payloads([delivery]) == [b"1", b"3", b"4"]


def test_credit_is_cumulative_and_a_block_is_cut_to_it(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.credit", group="says-credit", credit=[2, 1 << 20])
        publish(peer, "says.credit", *(b"%d" % i for i in range(5)))
        assert payloads(take(peer, 2)) == [b"0", b"1"]
        peer.still_served()
        peer.send(m.Credit(1, 3, 1 << 20))
        assert payloads(take(peer, 1)) == [b"2"]
        peer.send(m.Credit(1, 5, 1 << 20))
        assert take(peer, 2)[0].first_ordinal == 4


def test_a_block_larger_than_the_byte_credit_comes_when_nothing_is_outstanding(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.bytes", group="says-bytes", credit=[10, 100])
        publish(peer, "says.bytes", bytes(5000))
        publish(peer, "says.bytes", bytes(5000))
        take(peer, 1)
        settle(peer, m.Verdict.ACK, 1, 1)
        assert take(peer, 1)[0].first_ordinal == 2


def test_verdicts_and_attempts(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.verdict", group="says-verdict", attempts_max=2)
        publish(peer, "says.verdict", b"x")
        assert take(peer, 1)[0].attempt == 1
        settle(peer, m.Verdict.RELEASE, 1, 1)
        assert take(peer, 1)[0].attempt == 1, "a release is not counted"
        settle(peer, m.Verdict.RETRY, 2, 2, 1)
        assert take(peer, 1)[0].attempt == 2
        assert settle(peer, m.Verdict.TOUCH, 3, 3)["applied"] == 1
        subscribe(peer, "$dlq.says-verdict", chan=2)
        settle(peer, m.Verdict.RETRY, 3, 3)
        dead = peer.until(m.Deliver)
        assert dead.chan == 2, "two failures are all that attempts_max allows"
        headers = Block(dead.block).headers()[0]
        assert (headers["fabric-group"], headers["fabric-topic"]) == ("says-verdict", "says.verdict")
        assert {"fabric-reason", "fabric-seq", "fabric-attempts"} <= set(headers)


def test_a_rejected_message_is_a_dead_letter_with_its_reason(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.reject", group="says-reject")
        first_seq, _, _ = publish(peer, "says.reject", b"bad")
        take(peer, 1)
        settle(peer, m.Verdict.REJECT, 1, 1, "no such customer")
        subscribe(peer, "$dlq.says-reject", chan=2, start="first")
        dead = Block(peer.until(m.Deliver).block)
        assert dead.payloads() == [b"bad"]
        assert dead.headers()[0]["fabric-reason"] == "rejected"
        assert dead.headers()[0]["fabric-error"] == "no such customer"
        assert dead.headers()[0]["fabric-seq"] == str(first_seq)


def test_a_lapsed_lease_is_offered_again_and_its_ordinals_are_stale(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.lapse", group="says-lapse", lease_ms=100)
        publish(peer, "says.lapse", b"x")
        assert take(peer, 1)[0].attempt == 1
        again = take(peer, 1)[0]
        assert (again.first_ordinal, again.attempt) == (2, 2)
        assert settle(peer, m.Verdict.ACK, 1, 1)["stale"] == [[1, 1]]


def test_members_share_and_groups_do_not(shared: House) -> None:
    with shared.peer() as one, shared.peer() as two, shared.peer() as other:
        for peer, group in ((one, "says-share"), (two, "says-share"), (other, "says-other")):
            peer.hello()
            subscribe(peer, "says.share", group=group, credit=[1, 1 << 20])
        publish(other, "says.share", b"1")
        publish(other, "says.share", b"2")
        assert sorted(payloads(take(one, 1)) + payloads(take(two, 1))) == [b"1", b"2"]
        assert payloads(take(other, 1)) == [b"1"]
        other.send(m.Credit(1, 2, 1 << 20))
        assert payloads(take(other, 1)) == [b"2"]


def test_a_member_that_leaves_gives_back_what_it_held(shared: House) -> None:
    with shared.peer() as one, shared.peer() as two:
        one.hello()
        subscribe(one, "says.leave", group="says-leave")
        publish(one, "says.leave", b"1", b"2")
        take(one, 2)
        two.hello()
        subscribe(two, "says.leave", group="says-leave")
        one.send(m.Unsubscribe(1, 9))
        one.until(m.Ok, 9)
        given = take(two, 2)
        assert payloads(given) == [b"1", b"2"]
        assert given[0].attempt == 1


@pytest.mark.parametrize(
    ("start", "expected"), [("first", [b"1", b"2", b"3"]), ("last", [b"3"]), ("new", []), ("seq", [b"2", b"3"])]
)
def test_a_new_group_starts_where_it_is_told(shared: House, start: str, expected: list[bytes]) -> None:
    topic = f"says.start.{start}"
    with shared.peer() as peer:
        peer.hello()
        first_seq = publish(peer, topic, b"1")[0]
        publish(peer, topic, b"2")
        publish(peer, topic, b"3")
        where = {"seq": first_seq + 1} if start == "seq" else start
        for chan, group in ((1, f"says-start-{start}"), (2, None)):
            subscribe(peer, topic, chan=chan, start=where, **({"group": group} if group else {}))
        publish(peer, topic, b"4")
        heard: dict[int, list[bytes]] = {1: [], 2: []}
        while not all(messages and messages[-1] == b"4" for messages in heard.values()):
            delivery = peer.until(m.Deliver)
            heard[delivery.chan] += Block(delivery.block).payloads()
        assert heard == {1: [*expected, b"4"], 2: [*expected, b"4"]}


def test_fetch_ends_when_it_is_full_or_over(shared: House) -> None:
    with shared.peer() as peer:
        peer.hello()
        subscribe(peer, "says.fetch", group="says-fetch", credit=[0, 0])
        publish(peer, "says.fetch", b"1", b"2", b"3")
        peer.send(m.Fetch(1, 7, 2, 60_000))
        assert payloads(take(peer, 2)) == [b"1", b"2"]
        assert peer.until(m.End, 7).sent == 2
        peer.send(m.Fetch(1, 8, 5, 50))
        assert payloads(take(peer, 1)) == [b"3"]
        assert peer.until(m.End, 8).sent == 1
        peer.send(m.Fetch(1, 9, 1, 0))
        assert peer.until(m.End, 9).sent == 0


def test_a_resend_is_a_duplicate_with_the_first_seq(shared: House) -> None:
    with shared.peer() as peer:
        welcome = peer.hello(producer={"name": "says-dup"})
        assert welcome.fields["producer"]["last_pseq"] == 0
        first = publish(peer, "says.dup", b"1", b"2", pseq=1)
        second = publish(peer, "says.dup", b"3", pseq=3)
        assert publish(peer, "says.dup", b"1", b"2", pseq=1) == (first[0], 0, 2)
        assert publish(peer, "says.dup", b"3", pseq=3) == (second[0], 0, 1)
    with shared.peer() as peer:
        producer = peer.hello(producer={"name": "says-dup"}).fields["producer"]
        assert (producer["last_pseq"], producer["last_seq"]) == (3, second[0])
    with shared.peer() as peer:
        peer.send(m.Hello(1, {"proto": 1, "producer": {"name": "says-dup", "epoch": producer["epoch"] - 1}}))
        assert peer.refused(1) is Code.FENCED


def test_a_resumed_session_gets_what_it_has_not_seen(shared: House) -> None:
    with shared.peer() as lost, shared.peer() as back:
        secret = lost.hello().fields["session"]
        subscribe(lost, "says.resume", group="says-resume")
        subscribe(lost, "says.resume", chan=2)
        publish(lost, "says.resume", b"1")
        publish(lost, "says.resume", b"2")
        ordinals: list[int] = []
        while len(ordinals) < 2:
            delivery = lost.until(m.Deliver)
            ordinals += [delivery.first_ordinal] * (delivery.chan == 1)
        welcome = back.hello(resume={"session": secret, "subs": [[1, 1], [2, 2]]})
        assert welcome.fields["resumed"]
        assert welcome.fields["subs"] == [1], "without a group, nothing is kept"
        (again,) = take(back, 1)
        assert (again.first_ordinal, again.attempt, payloads([again])) == (2, 1, [b"2"])
        assert settle(back, m.Verdict.ACK, 1, 2)["applied"] == 2
        assert lost.until(m.Notice).kind == "taken_over"
        lost.send(m.Ping(7))
        assert lost.refused(7) is Code.NO_SESSION


def test_on_a_resumed_connection_ordinals_may_jump_over_lapsed_leases(shared: House) -> None:
    with shared.peer() as lost, shared.peer() as back:
        secret = lost.hello().fields["session"]
        subscribe(lost, "says.jump", group="says-jump", lease_ms=100)
        publish(lost, "says.jump", b"x")
        take(lost, 1)
        lapsed = take(lost, 1)[0].first_ordinal
        while not settle(lost, m.Verdict.TOUCH, lapsed, lapsed, 600_000)["applied"]:
            lapsed = take(lost, 1)[0].first_ordinal
        back.hello(resume={"session": secret, "subs": [[1, 0]]})
        assert take(back, 1)[0].first_ordinal == lapsed > 1


def test_goodbye_ends_the_session(shared: House) -> None:
    with shared.peer() as peer:
        secret = peer.hello().fields["session"]
        peer.send(m.Goodbye(7))
        peer.until(m.Ok, 7)
        peer.send(m.Ping(8))
        assert peer.refused(8) is Code.NO_SESSION
    with shared.peer() as peer:
        assert not peer.hello(resume={"session": secret, "subs": []}).fields["resumed"]


def test_after_a_restart_nothing_confirmed_is_missing(own: House) -> None:
    with own.peer() as peer:
        first = peer.hello(producer={"name": "says"}).fields
        subscribe(peer, "says.restart", group="says")
        seq = publish(peer, "says.restart", b"1", b"2", b"3", pseq=1)[0]
        take(peer, 3)
        settle(peer, m.Verdict.ACK, 1, 1)
    own.restart()
    with own.peer() as peer:
        resume = {"session": first["session"], "subs": [[1, 3]]}
        producer = {"name": "says", "epoch": first["producer"]["epoch"]}
        second = peer.hello(producer=producer, resume=resume).fields
        assert not second["resumed"]
        assert second["journal"] == first["journal"]
        assert second["epoch"] == first["epoch"], "only a restored backup has a new one"
        assert second["producer"] == {"epoch": producer["epoch"], "last_pseq": 3, "last_seq": seq + 2}
        assert publish(peer, "says.restart", b"1", b"2", b"3", pseq=1) == (seq, 0, 3)
        assert not subscribe(peer, "says.restart", group="says").fields["created"]
        again = take(peer, 2)
        assert (again[0].first_ordinal, again[0].attempt) == (1, 2)
        assert payloads(again) == [b"2", b"3"]


def test_a_stopping_hub_says_so(own: House) -> None:
    with own.peer() as peer:
        peer.hello()
        assert own.hub.stop() == 0
        assert peer.until(m.Notice).kind == "drain"
