"""ADMIN, INFO and GET over real connections and a real journal, also after a restart."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fabric.hub import Hub, HubOptions
from fabric.journal.tables import chunks
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.kit import Talker, eventually, talker


class House:
    """A hub in a thread, and its peers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hub = self._start()
        self._peers: list[Talker] = []

    def _start(self) -> Hub:
        return Hub(self._folder / "journal", HubOptions(binds=[f"inproc://{uuid.uuid4()}"], drain_s=0)).start()

    def talker(self, **hello: Any) -> Talker:
        self._peers.append(talker(self.hub.context, self.hub.binds[0], **hello))
        return self._peers[-1]

    def close(self) -> None:
        for peer in self._peers:
            peer._socket.close()
        self._peers = []
        self.hub.stop()

    def restart(self) -> None:
        self.close()
        self.hub = self._start()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def admin(peer: Talker, op: str, **fields: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Admin(rid, {"op": op, **fields}))
    return dict(peer.until(m.Ok, rid).fields)


def ask(peer: Talker, what: str, **fields: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Info(rid, {"what": what, **fields}))
    return dict(peer.until(m.Ok, rid).fields)


def get(peer: Talker, **fields: Any) -> tuple[list[bytes], dict[str, Any]]:
    rid = peer.next_rid()
    peer.send(m.Get(rid, fields))
    answer = peer.until(m.Ok, rid).fields
    bodies: list[bytes] = []
    while len(bodies) < answer["count"]:
        block = Block(peer.until(m.Got, rid).block)
        block.verify()
        block.verify_stamp()
        bodies += block.payloads()
    return bodies, dict(answer)


def reject(peer: Talker, first: int, last: int) -> None:
    rid = peer.next_rid()
    peer.send(m.Settle(1, rid, ((m.Verdict.REJECT, first, last, "bad currency"),)))
    peer.until(m.Ok, rid)


def test_dead_letters_are_listed_redriven_and_discarded_across_restarts(house: House) -> None:
    peer = house.talker()
    peer.subscribe("job.#", group="mail")
    peer.publish("job.x", *(b"%d" % i for i in range(6)))
    peer.take(6)
    reject(peer, 2, 5)
    house.restart()

    peer = house.talker()
    answer = admin(peer, "dlq.list", group="mail.DLQ")
    assert (answer["count"], [row["origin_seq"] for row in answer["letters"]]) == (4, [2, 3, 4, 5])
    assert answer["letters"][0]["error"] == "bad currency"
    seqs = [row["seq"] for row in answer["letters"]]
    assert admin(peer, "dlq.discard", group="mail", seqs=seqs[:1])["discarded"] == 1
    assert admin(peer, "dlq.redrive", group="mail", seqs=seqs[1:3])["redriven"] == 2
    house.restart()

    peer = house.talker()
    assert get(peer, topic="$dlq.mail", n=10)[0] == [b"4"]
    assert ask(peer, "dlq", group="mail")["count"] == 1
    peer.subscribe(group="mail")
    blocks: list[Block] = []
    while sum(block.count for block in blocks) < 4:  # 0 and 5 were not settled, 2 and 3 are redriven
        blocks.append(Block(peer.until(m.Deliver).block))
    found = {body: headers for block in blocks for body, headers in zip(block.payloads(), block.headers(), strict=True)}
    assert {name for block in blocks for name in block.topic_names()} == {"job.x"}
    assert found == {b"0": {}, b"5": {}, b"2": {"fabric-redriven": "1"}, b"3": {"fabric-redriven": "1"}}


def test_groups_and_settings_that_were_made_by_command_survive_a_restart(house: House) -> None:
    peer = house.talker()
    admin(peer, "group.create", group="g", patterns=["a.#"], backoff="linear", order="key", start="new")
    admin(peer, "group.update", group="g", lease_ms=1234)
    admin(peer, "group.pause", group="g")
    admin(peer, "group.create", group="h", patterns=["b"])
    admin(peer, "group.delete", group="h")
    admin(peer, "hub.update", events=True, advisories=False)
    house.restart()
    peer = house.talker()
    group = ask(peer, "group", name="g")
    assert (group["paused"], group["settings"]["lease_ms"], group["settings"]["order"]) == (True, 1234, "key")
    assert [row["group"] for row in ask(peer, "groups")["groups"] if row["durable"]] == ["g"]
    settings = ask(peer, "settings")
    assert (settings["events"], settings["advisories"]) == (True, False)


def test_a_long_history_is_read_page_by_page(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "BLOCKS_MAX", 5)
    peer = house.talker()
    for i in range(60):
        peer.publish("odd" if i % 2 else "even", *(b"%d.%d" % (i, j) for j in range(20)))
    house.restart()
    peer = house.talker()
    bodies, seq, more = list[bytes](), 0, True
    while more:
        page, answer = get(peer, topic="odd", n=70, seq=seq)
        bodies += page
        seq, more = answer["next"], answer["more"]
    assert bodies == [b"%d.%d" % (i, j) for i in range(1, 60, 2) for j in range(20)]
    assert get(peer, topic="even", n=3, last=True)[0] == [b"58.17", b"58.18", b"58.19"]
    assert (
        get(peer, topic="even", n=45, last=True)[0]
        == [b"%d.%d" % (i, j) for i in (54, 56, 58) for j in range(20)][-45:]
    )


def test_new_patterns_of_a_group_are_searched_on_disk_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's index remembers what a group wants; it must not remember that for longer than it is so."""
    monkeypatch.setattr(chunks, "BLOCKS_MAX", 5)
    peer = house.talker()
    for i in range(100):
        peer.publish("a" if i == 99 else "b", b"%d" % i * 300_000)  # more than memory holds
    peer.subscribe("a", group="g", credit=0)
    rid = peer.next_rid()
    peer.send(m.Fetch(1, rid, 1, 0))
    peer.until(m.End, rid)
    admin(peer, "group.update", group="g", patterns=["a", "b"])
    admin(peer, "group.seek", group="g", to="first")
    peer.send(m.Credit(1, 1000, 1 << 40))
    first = Block(peer.until(m.Deliver).block)
    if first.topics == ("a",):  # the FETCH had it
        first = Block(peer.until(m.Deliver).block)
    assert first.topics == ("b",)
    assert first.base_seq == 1


def test_advisories_are_heard_by_an_ephemeral_subscription(house: House) -> None:
    listener, peer = house.talker(), house.talker()
    listener.subscribe("$sys.group.*")
    admin(peer, "group.create", group="g", patterns=["a"])
    message = listener.until(m.Deliver)
    block = Block(message.block)
    assert (block.topics, block.base_seq, message.first_ordinal) == (("$sys.group.created",), 0, 1)
    assert json.loads(block.payloads()[0]) == {"group": "g"}


def test_a_kicked_client_hears_of_it_and_may_come_back(house: House) -> None:
    victim, peer = house.talker(client="victim"), house.talker()
    victim.subscribe("a", group="g")
    assert admin(peer, "session.kick", client="victim") == {"kicked": 1}
    assert victim.until(m.Notice).kind == "kicked"
    eventually(lambda: ask(peer, "group", name="g")["members"] == 0, "the seat is free")
    victim.send(m.Ping(7))
    assert victim.refused(7) == Code.NO_SESSION
    victim.hello(client="victim")


def test_admin_is_refused_in_words(house: House) -> None:
    peer = house.talker()
    for fields, code in (
        ({"op": "group.crate"}, Code.NOT_FOUND),
        ({"op": "group.pause", "group": "nobody"}, Code.NOT_FOUND),
        ({"op": "group.create", "group": "g", "patterns": ["a"], "leasems": 5}, Code.BAD_OPTION),
        ({"op": "dlq.redrive", "group": "nobody", "all": True}, Code.NOT_FOUND),
    ):
        rid = peer.next_rid()
        peer.send(m.Admin(rid, fields))
        assert peer.refused(rid) == code
