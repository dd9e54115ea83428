"""Order by key and strict order, when messages fail and consumers join and leave."""

from typing import Any

from fabric.router.sessions.session import GRACE_S
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B = b"\0prod", b"\0aaaa", b"\0bbbb"


def world(*peers: bytes, order: str = "key", credit: int = 1000, **fields: Any) -> World:
    w = World()
    w.hello(P)
    for peer in peers:
        w.hello(peer, ttl_ms=600_000)
        w.sub(peer, 1, "job", group="g", credit=credit, order=order, **fields)
    return w


def pub(w: World, *words: str) -> None:
    """Each word is key and body: `a1` has key `a`; `-1` has none."""
    keys = [word[0].encode() if word[0] != "-" else b"" for word in words]
    raw = encode("job", [word.encode() for word in words], keys=keys)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, raw))


def ack(w: World, peer: bytes, *bodies: str, verdict: Verdict = Verdict.ACK, arg: Any = None) -> None:
    """Settle the latest delivery of each body."""
    for body in bodies:
        ordinal = max(row[0] for row in w.delivered(peer) if row[3] == body)
        w.settle(peer, 1, verdict, ordinal, ordinal, arg)


def test_a_key_stays_with_its_holder_and_other_keys_flow() -> None:
    w = world(A, B)
    pub(w, "a1", "b1")
    assert {tuple(w.bodies(A)), tuple(w.bodies(B))} == {("a1",), ("b1",)}
    holder, other = (A, B) if w.bodies(A) == ["a1"] else (B, A)
    pub(w, "a2", "a3", "b2")
    assert w.bodies(holder) == ["a1", "a2", "a3"]
    assert w.bodies(other) == ["b1", "b2"]
    ack(w, holder, "a1", "a2", "a3")
    assert w.router.groups["g"].keys is not None
    assert list(w.router.groups["g"].keys.locks) == [b"b"], "a key with nothing outstanding costs nothing"


def test_messages_without_a_key_are_shared_as_ever() -> None:
    w = world(A, B)
    pub(w, "-1", "-2", "-3", "-4")
    assert sorted(w.bodies(A) + w.bodies(B)) == ["-1", "-2", "-3", "-4"]
    assert w.bodies(A)
    assert w.bodies(B)


def test_a_full_holder_parks_its_key_and_blocks_no_other() -> None:
    w = world(A, B, credit=1)
    pub(w, "a1", "b1")
    holder, other = (A, B) if w.bodies(A) == ["a1"] else (B, A)
    ack(w, other, "b1")
    w.say(other, m.Credit(1, 10, 1 << 40))
    pub(w, "a2", "b2", "a3")
    assert w.bodies(other) == ["b1", "b2"]
    w.say(holder, m.Credit(1, 10, 1 << 40))
    assert w.bodies(holder) == ["a1", "a2", "a3"]


def test_a_failed_message_takes_back_what_follows_of_its_key_and_comes_first_again() -> None:
    w = world(A, backoff_ms=1000, jitter_pct=0)
    pub(w, "a1", "b1", "a2", "a3")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    notices = [n for n in w.said[A] if isinstance(n, m.Notice)]
    assert [n.fields["ordinals"] for n in notices] == [[[3, 4]]]
    pub(w, "a4", "b2")
    assert w.bodies(A) == ["a1", "b1", "a2", "a3", "b2"]
    w.pass_time(1.1)
    assert w.bodies(A)[5:] == ["a1"], "one by one until it is settled"
    ack(w, A, "a1")
    assert w.bodies(A)[6:] == ["a2", "a3", "a4"]
    ack(w, A, "a2", "a3", "a4", "b1", "b2")
    assert not w.router.groups["g"].open


def test_a_dead_letter_unblocks_its_key() -> None:
    w = world(A, attempts_max=1)
    pub(w, "a1", "a2")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    assert w.bodies(A) == ["a1", "a2", "a2"]
    ack(w, A, "a2")
    assert not w.router.groups["g"].open


def test_a_lost_holder_gives_its_keys_to_the_others_in_order() -> None:
    w = world(A, backoff_ms=1000, jitter_pct=0, lease_ms=10_000_000)
    pub(w, "a1", "a2", "b1")
    w.hello(B)
    w.sub(B, 1, group="g")
    w.router.peer_gone(A)
    w.pass_time(0)
    assert w.bodies(B) == ["b1"], "a1 can have been begun, so it stays, and a2 behind it"
    w.pass_time(GRACE_S)
    assert w.bodies(B) == ["b1"], "a1 has failed, so it waits, and a2 behind it"
    w.pass_time(1.1)
    assert w.bodies(B) == ["b1", "a1"]
    ack(w, B, "a1")
    assert w.bodies(B) == ["b1", "a1", "a2"]


def test_a_failed_message_blocks_its_key_across_a_restart() -> None:
    w = world(A, backoff_ms=10_000, backoff="fixed", jitter_pct=0)
    pub(w, "a1", "a2", "b1")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["b1"]
    w.pass_time(10.1)
    assert w.bodies(A) == ["b1", "a1"]
    ack(w, A, "a1")
    assert w.bodies(A) == ["b1", "a1", "a2"]


def test_a_suspect_of_a_key_is_alone_and_first() -> None:
    w = world(A, backoff_ms=0)
    pub(w, "a1", "a2", "b1")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    ack(w, A, "b1")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    assert w.bodies(A)[-1] == "a1"
    assert [row[2] for row in w.delivered(A)][-1] == 3
    pub(w, "c1")
    assert w.bodies(A)[-1] == "a1", "nothing beside it"
    ack(w, A, "a1")
    assert w.bodies(A)[-2:] == ["a2", "c1"]


def test_one_hot_key_does_not_get_stuck() -> None:
    w = world(A, B, credit=4)
    pub(w, *[f"a{n}" for n in range(9)])
    got: list[str] = []
    for _ in range(40):
        for peer in (A, B):
            rows = [row for row in w.delivered(peer) if row[3] not in got]
            for ordinal, _, _, body in rows:
                got.append(body)
                w.say(peer, m.Credit(1, ordinal + 4, 1 << 40))
                w.settle(peer, 1, Verdict.ACK, ordinal, ordinal)
    assert got == [f"a{n}" for n in range(9)]


def test_strict_has_one_consumer_and_the_next_takes_over() -> None:
    w = world(A, B, order="strict")
    pub(w, "a1", "b1", "c1")
    assert w.bodies(A) == ["a1", "b1", "c1"]
    ack(w, A, "a1")
    w.say(A, m.Goodbye(1))
    assert w.bodies(B) == ["b1", "c1"]


def test_strict_waits_for_a_failed_message() -> None:
    w = world(A, order="strict", backoff_ms=1000, jitter_pct=0)
    pub(w, "a1", "b1", "c1")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    pub(w, "d1")
    assert w.bodies(A) == ["a1", "b1", "c1"]
    w.pass_time(1.1)
    assert w.bodies(A)[3:] == ["a1", "b1", "c1", "d1"]


def test_strict_fails_over_when_a_lease_lapses() -> None:
    w = world(A, B, order="strict", lease_ms=1000, backoff_ms=0)
    pub(w, "a1", "b1")
    w.pass_time(1.0)
    assert w.bodies(B) == ["a1", "b1"]


def test_strict_delivers_a_suspect_alone() -> None:
    w = world(A, order="strict", backoff_ms=0)
    pub(w, "a1", "b1")
    ack(w, A, "a1", verdict=Verdict.RETRY)
    ack(w, A, "a1", verdict=Verdict.RETRY)
    assert w.bodies(A) == ["a1", "b1", "a1", "b1", "a1"]
    ack(w, A, "a1")
    assert w.bodies(A)[5:] == ["b1"]


def test_strict_order_does_not_look_at_priorities() -> None:
    w = world(A, order="strict")
    pub(w, "a1")
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("job", [b"b1"], priority=9)))
    w.say(A, m.Goodbye(1))
    w.hello(B)
    w.sub(B, 1, group="g")
    assert w.bodies(B) == ["a1", "b1"]


def test_a_retry_of_several_deliveries_at_once_is_applied_to_all() -> None:
    w = world(A, order="strict", backoff_ms=0)
    for word in ("a1", "b1", "c1"):
        pub(w, word)
    answer = w.settle(A, 1, Verdict.RETRY, 1, 3)
    assert m.Ok(1, 7, {"applied": 3, "stale": []}) in answer
    assert w.bodies(A)[3:] == ["a1", "b1", "c1"]


def test_order_needs_a_group() -> None:
    w = World()
    w.hello(A)
    (answer,) = w.sub(A, 1, "job", order="key")
    assert isinstance(answer, m.Err)
    assert answer.text == "order 'key' needs a group, because a subscription without a group settles nothing"


def test_strict_gives_nothing_to_the_next_while_the_last_one_holds_something() -> None:
    w = world(A, B, order="strict", lease_ms=1000, backoff_ms=0)
    pub(w, "a1")
    pub(w, "b1")
    w.pass_time(0.9)
    w.settle(A, 1, Verdict.TOUCH, 1, 1)
    w.pass_time(0.2)
    assert w.bodies(B) == []
    ack(w, A, "a1")
    assert w.bodies(B) == ["b1"]


def test_after_a_restart_nothing_overtakes_an_earlier_message_of_its_key() -> None:
    w = world(A, backoff_ms=0)
    pub(w, "a1")
    pub(w, "a2")
    ack(w, A, "a2", verdict=Verdict.RETRY)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["a1"] or w.bodies(A) == ["a1", "a2"]


def counts(w: World) -> dict[str, int]:
    answer = w.say(P, m.Info(3, {"what": "group", "group": "g"}))[-1]
    assert isinstance(answer, m.Ok), answer
    names = ("behind", "outstanding", "redelivering", "waiting", "suspects", "parked")
    return {name: answer.fields[name] for name in names if answer.fields[name]}


def test_info_counts_what_waits_behind_a_failed_message() -> None:
    w = world(A, backoff_ms=1_000, jitter_pct=0)
    pub(w, *[f"a{n}" for n in range(68)])
    assert counts(w) == {"outstanding": 16, "behind": 52, "parked": 52}
    ack(w, A, "a0", verdict=Verdict.RETRY)
    assert counts(w) == {"redelivering": 16, "waiting": 1, "behind": 52, "parked": 68}
    w.pass_time(1)
    assert counts(w) == {"outstanding": 1, "redelivering": 15, "behind": 52, "parked": 67}
    ack(w, A, "a0", verdict=Verdict.RETRY)
    w.pass_time(2)
    assert counts(w) == {"outstanding": 1, "redelivering": 15, "behind": 52, "parked": 67}
    w.say(A, m.Unsubscribe(1, 6))
    assert counts(w) == {"redelivering": 16, "behind": 52, "suspects": 1, "parked": 68}


def test_info_counts_messages_and_not_ranges() -> None:
    w = world(A, order="none", backoff_ms=1_000)
    pub(w, *[f"-{n}" for n in range(10)])
    w.settle(A, 1, Verdict.RETRY, 1, 7)
    assert counts(w) == {"outstanding": 3, "redelivering": 7, "waiting": 7}
    w.say(A, m.Unsubscribe(1, 6))
    assert counts(w) == {"redelivering": 7, "waiting": 7, "behind": 3}
