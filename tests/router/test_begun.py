"""Which messages count as begun when a consumer is lost: by message, by delivery, by key, and without information."""

from typing import Any

import pytest

from fabric.router.sessions.session import GRACE_S
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import BIG, World

P, A, B = b"\0p", b"\0a", b"\0b"


def world(*words: str, blocks: int = 1, **fields: Any) -> World:
    """One consumer, and a message for each word; in order by key the first letter is the key."""
    w = World()
    w.hello(P, ttl_ms=600_000)
    w.hello(A, ttl_ms=600_000)
    w.sub(A, 1, "t", group="g", attempts_max=1, lease_ms=10_000, **fields)
    size = len(words) // blocks
    for at in range(0, len(words), size):
        part = words[at : at + size]
        keys = [word[0].encode() for word in part] if fields.get("order") == "key" else None
        w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("t", [word.encode() for word in part], keys=keys)))
    return w


def dead(w: World) -> list[str]:
    blocks = [block for block in w.reader.blocks if block.topics == ("$dlq.g",)]
    return [body.decode() for block in blocks for body in block.payloads()]


def lost(w: World, who: bytes = A) -> list[str]:
    """A consumer is lost; the dead letters."""
    w.router.peer_gone(who)
    w.pass_time(GRACE_S)
    return dead(w)


def counted(w: World) -> list[str]:
    """Messages with failures that are no dead letters."""
    rows = w.router.groups["g"].failures.all()
    bodies = [body.decode() for block in w.reader.blocks if block.topics == ("t",) for body in block.payloads()]
    return [bodies[seq - 1] for first, row in rows for seq in range(first, row.last + 1)]


def test_the_oldest_without_a_verdict_are_begun() -> None:
    w = world(*"12345", concurrency=2)
    w.settle(A, 1, Verdict.ACK, 2, 2)
    assert lost(w) == []
    assert counted(w) == ["1", "3"]


def test_a_consumer_that_begins_whole_deliveries_has_begun_the_first() -> None:
    w = world(*"123456", blocks=3, batches=True)
    w.settle(A, 1, Verdict.ACK, 1, 2)
    assert lost(w) == []
    assert counted(w) == ["3", "4"]


def test_of_a_key_only_the_oldest_is_begun() -> None:
    w = world("a1", "a2", "b1", "b2", "c1", order="key", concurrency=2)
    assert lost(w) == []
    assert counted(w) == ["a1", "b1"]


def test_in_strict_order_one_is_begun() -> None:
    assert lost(world(*"123", order="strict", concurrency=2)) == ["1"]


def test_of_an_unsure_consumer_nothing_counts() -> None:
    w = world(*"12345")
    w.say(A, m.Credit(1, 1000, BIG, unsure=2))
    assert lost(w) == []
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    assert [row[2:] for row in w.delivered(B)] == [(2, body) for body in "12345"]


def test_an_unsure_consumer_without_a_connection_keeps_what_it_may_have_begun() -> None:
    w = world(*"12345")
    w.say(A, m.Credit(1, 1000, BIG, unsure=2))
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    w.router.peer_gone(A)
    w.pass_time(0)
    assert w.bodies(B) == ["3", "4", "5"]
    w.pass_time(GRACE_S)
    assert sorted(w.bodies(B)) == ["1", "2", "3", "4", "5"]


def test_a_consumer_that_is_sure_again_counts() -> None:
    w = world(*"123")
    w.say(A, m.Credit(1, 1000, BIG, unsure=2))
    w.say(A, m.Credit(1, 1000, BIG))
    assert lost(w) == ["1"]


def test_what_an_unsure_consumer_alone_holds_counts() -> None:
    w = world(*"12", unsure=1000)
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert lost(w) == ["2"]


def test_the_third_loss_counts_also_of_unsure_consumers() -> None:
    w = world(*"12", unsure=1000)
    for n in (1, 2):
        assert lost(w) == []
        w.hello(A + bytes([n]), ttl_ms=600_000)
        w.sub(A + bytes([n]), 1, group="g", unsure=1000)
        w.router.peer_gone(A + bytes([n]))
        w.pass_time(GRACE_S)
    assert dead(w) == []
    assert counted(w) == ["1", "2"]


@pytest.mark.parametrize("fields", [{"concurrency": 3}, {"batches": True}, {"order": "key", "concurrency": 3}])
def test_of_several_that_were_begun_the_one_that_kills_is_dead(fields: dict[str, Any]) -> None:
    w = world("a1", "b1", "c1", "a2", **fields)
    assert lost(w) == []
    for who in (B, B + b"2"):
        w.pass_time(1)  # the wait after a failure
        w.hello(who, ttl_ms=600_000)
        w.sub(who, 1, group="g", concurrency=3, batches="batches" in fields)
        while (held := w.bodies(who)) and held[-1] != "b1" and w.router.groups["g"].open:
            w.settle(who, 1, Verdict.ACK, len(held), len(held))
        if held[-1] == "b1":
            assert w.router.groups["g"].members[0].outstanding == 1, "it comes alone"
            assert lost(w, who) == ["b1"]
    assert not w.router.groups["g"].open
    assert dead(w) == ["b1"]


def test_a_shared_failure_is_counted_after_a_restart() -> None:
    w = world(*"12", concurrency=2)
    assert lost(w) == []
    w.restart()
    w.pass_time(1)
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g", concurrency=2)
    assert w.bodies(B) == ["1"], "alone"
    assert lost(w, B) == ["1"]


def test_what_lapses_together_is_dead_when_it_lapses_alone() -> None:
    w = world("1", "2", blocks=2, concurrency=2)
    w.pass_time(10)
    assert (dead(w), counted(w)) == ([], ["1", "2"])
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    w.say(A, m.Unsubscribe(1, 9))
    w.pass_time(1)
    assert w.bodies(B) == ["1"]
    w.pass_time(10)
    assert dead(w) == ["1"]


def test_a_lease_of_an_unsure_consumer_lapses_uncounted() -> None:
    w = world(*"12", unsure=1000)
    w.pass_time(10)
    assert dead(w) == []
    assert [row[2] for row in w.delivered(A)] == [1, 1, 2, 2]


@pytest.mark.parametrize("fields", [{"unsure": -1}, {"unsure": "1"}, {"unsure": True}, {"batches": 1}])
def test_a_wrong_wish_is_refused(fields: dict[str, Any]) -> None:
    w = World()
    w.hello(A)
    (answer,) = w.sub(A, 1, "t", group="g", **fields)
    assert isinstance(answer, m.Err)
    assert "g" not in w.router.groups
