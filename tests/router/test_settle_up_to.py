"""ADMIN group.settle: all messages of a group up to a seq are settled, and later messages stay as they are."""

from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, C, A = b"P", b"C", b"A"
ORDERS = pytest.mark.parametrize("order", ["none", "key", "strict"])


def world(order: str = "none", count: int = 8, **fields: Any) -> World:
    w = World()
    for peer in (P, C, A):
        w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
    keys = [b"k%d" % (n % 2) for n in range(count)]
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("t", [b"%d" % (n + 1) for n in range(count)], keys=keys)))
    w.sub(C, 1, "t", group="g", order=order, backoff_ms=0, jitter_pct=0, attempts_max=3, lease_ms=600_000, **fields)
    return w


def settle(w: World, up_to: Any, **fields: Any) -> m.ToClient:
    heard = w.say(A, m.Admin(3, {"op": "group.settle", "group": "g", "up_to": up_to, **fields}))
    return next(x for x in heard if getattr(x, "rid", 0) == 3)


def settled(w: World, up_to: int, **fields: Any) -> dict[str, Any]:
    answer = settle(w, up_to, **fields)
    assert isinstance(answer, m.Ok), answer
    return {name: answer.fields[name] for name in ("before", "floor", "settled", "leased", "up_to")}


@ORDERS
def test_what_is_leased_below_is_stale_and_told(order: str) -> None:
    w = world(order)
    assert settled(w, 5) == {"before": 0, "floor": 5, "settled": 5, "leased": 5, "up_to": 5}
    (lost,) = [x for x in w.said[C] if isinstance(x, m.Notice) and x.kind == "lease_lost"]
    assert (lost.fields["ordinals"], lost.fields["why"]) == ([[1, 5]], "the group was settled up to seq 5")
    answer = w.settle(C, 1, Verdict.ACK, 1, 8)[-1]
    assert isinstance(answer, m.Ok)
    assert (answer.fields["applied"], answer.fields["stale"]) == (3, [[1, 5]])
    w.restart()
    w.hello(C)
    w.sub(C, 1, group="g")
    assert w.bodies(C) == []


@ORDERS
def test_later_messages_are_delivered_as_before(order: str) -> None:
    w = world(order, credit=2)
    settled(w, 5)
    w.say(C, m.Credit(1, 1000, 1 << 40))
    assert w.bodies(C) == ["1", "2", "6", "7", "8"]
    w.settle(C, 1, Verdict.ACK, 3, 5)
    assert w.router.groups["g"].floor == 8


@ORDERS
def test_what_waits_or_is_suspect_is_settled_and_its_failures_are_forgotten(order: str) -> None:
    w = world(order, credit=3)
    for ordinal, delay in ((1, 60_000), (2, 0), (3, 0)):
        w.settle(C, 1, Verdict.RETRY, ordinal, ordinal, delay)
    w.say(C, m.Credit(1, 4, 1 << 40))
    settled(w, 3)
    assert w.failures == {}
    assert not w.router.groups["g"].pending
    w.say(C, m.Credit(1, 1000, 1 << 40))
    w.pass_time(61.0)
    assert sorted(set(w.bodies(C)[4:])) in (["4", "5", "6", "7", "8"], ["5", "6", "7", "8"])
    w.settle(C, 1, Verdict.ACK, 1, len(w.delivered(C)))
    assert w.router.groups["g"].floor == 8


@ORDERS
def test_a_dry_run_changes_nothing(order: str) -> None:
    w = world(order)
    row = w.groups["g"]
    assert settled(w, 99, dry_run=True) == {"before": 0, "floor": 0, "settled": 8, "leased": 8, "up_to": 8}
    assert w.groups["g"] == row
    assert not [x for x in w.said[C] if isinstance(x, m.Notice)]


def test_nothing_is_left_to_settle_and_a_group_does_not_go_back() -> None:
    w = world()
    settled(w, 6)
    assert settled(w, 3) == {"before": 6, "floor": 6, "settled": 0, "leased": 0, "up_to": 3}
    assert settled(w, 0)["settled"] == 0
    assert settled(w, 1 << 60) == {"before": 6, "floor": 8, "settled": 2, "leased": 2, "up_to": 8}
    w.pub(P, "t", "9")
    assert w.bodies(C)[-1] == "9"


@pytest.mark.parametrize("up_to", [None, -1, "5", 1.5, True, 1 << 63])
def test_a_wrong_seq_is_refused(up_to: Any) -> None:
    answer = settle(world(), up_to)
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION


def test_lanes_of_all_priorities_are_settled() -> None:
    w = World()
    for peer in (P, C, A):
        w.hello(peer)
    for priority in (4, 9, 0, 4, 9):
        w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("t", [b"%d" % priority], priority=priority)))
    w.say(A, m.Admin(3, {"op": "group.create", "group": "g", "patterns": ["t"]}))
    settled(w, 3)
    w.sub(C, 1, group="g")
    assert w.bodies(C) == ["9", "4"]


def test_a_dead_letter_that_was_decided_before_is_written() -> None:
    w = world()
    w.settle(C, 1, Verdict.REJECT, 1, 2)
    settled(w, 8)
    answer = w.say(A, m.Admin(3, {"op": "dlq.list", "group": "g"}))[-1]
    assert isinstance(answer, m.Ok)
    assert answer.fields["count"] == 2
