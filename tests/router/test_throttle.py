"""The settings `max_in_flight` and `rate` of a group, in every way in which messages are delivered."""

from itertools import pairwise
from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import BIG, World

P, A, B, ADMIN = b"P", b"A", b"B", b"ADMIN"
ORDERS = pytest.mark.parametrize("order", ["none", "key", "strict"])


def world(**settings: Any) -> World:
    w = World()
    for peer in (P, A, B, ADMIN):
        w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
    w.sub(A, 1, "t", group="g", backoff_ms=0, jitter_pct=0, **settings)
    return w


def publish(w: World, count: int) -> None:
    keys = [b"k%d" % (n % 3) for n in range(count)]
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("t", [b"%d" % n for n in range(count)], keys=keys)))


def held(w: World) -> int:
    return sum(member.outstanding for member in w.router.groups["g"].members)


def delivered(w: World, peer: bytes = A) -> int:
    return sum(Block(x.block).count for x in w.said[peer] if isinstance(x, m.Deliver))


def settle(w: World, verdict: Verdict, first: int, last: int, arg: Any = None, peer: bytes = A) -> None:
    w.say(peer, m.Settle(1, 7, ((verdict, first, last, arg),)))


def update(w: World, **settings: Any) -> None:
    answer = w.say(ADMIN, m.Admin(3, {"op": "group.update", "group": "g", **settings}))[-1]
    assert isinstance(answer, m.Ok), answer


# max_in_flight.


@ORDERS
def test_all_consumers_together_hold_no_more_than_max_in_flight(order: str) -> None:
    w = world(order=order, max_in_flight=4)
    w.sub(B, 1, group="g")
    publish(w, 10)
    assert held(w) == 4
    settle(w, Verdict.ACK, 1, 1)
    assert held(w) == 4
    assert delivered(w) + delivered(w, B) == 5


def test_the_room_of_a_group_is_shared_by_its_consumers() -> None:
    w = world(max_in_flight=4)
    w.sub(B, 1, group="g")
    publish(w, 10)
    assert (delivered(w), delivered(w, B)) == (2, 2)


@ORDERS
def test_max_in_flight_holds_for_redeliveries_and_suspects(order: str) -> None:
    w = world(order=order, max_in_flight=2, attempts_max=0)
    publish(w, 6)
    first, most = 1, 0
    for _ in range(40):
        last = delivered(w)
        most = max(most, held(w))
        settle(w, Verdict.RETRY if last % 3 else Verdict.ACK, first, last, 0 if last % 3 else None)
        first = last + 1
    assert most <= 2
    assert delivered(w) > 12  # no standstill


@ORDERS
def test_lowered_and_raised_again_nothing_stands_still(order: str) -> None:
    w = world(order=order)
    publish(w, 10)
    before = held(w)
    assert before > 3
    update(w, max_in_flight=3)
    settle(w, Verdict.ACK, 1, before - 3)
    assert held(w) == 3
    assert delivered(w) == before
    settle(w, Verdict.ACK, before - 2, before - 2)
    assert held(w) == min(3, 10 - (before - 2))
    update(w, max_in_flight=0)
    for last in range(1, 11):
        settle(w, Verdict.ACK, last, min(last, delivered(w)))
    assert w.router.groups["g"].floor == 10


def test_max_in_flight_holds_for_a_fetch_and_after_a_restart() -> None:
    w = world(max_in_flight=3)
    publish(w, 10)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g", credit=0)
    heard = w.say(A, m.Fetch(1, 5, 8, 1000, 1))
    assert m.End(1, 5, 3) in heard
    assert held(w) == 3


def test_max_in_flight_needs_leases() -> None:
    w = World()
    w.hello(A)
    for fields in ({"group": "g", "ack": "auto"}, {}):
        (answer,) = w.say(A, m.Subscribe(1, 2, {"patterns": ["t"], "max_in_flight": 3, **fields}))
        assert isinstance(answer, m.Err)
        assert (answer.code, "ack 'explicit'" in answer.text) == (Code.BAD_OPTION, True)


# rate.


def times(w: World, seconds: float, *, ack: bool = True) -> list[float]:
    """When each message is delivered, if the hub wakes when its router says so."""
    found, end = [w.now] * delivered(w), w.now + seconds
    wakes = 0
    while (due := max(w.router.next_deadline(), w.now)) <= end:
        before, wakes = delivered(w), wakes + 1
        assert wakes < 400, "the router keeps the hub busy"
        w.pass_time(due - w.now)
        found += [w.now] * (delivered(w) - before)
        if ack and delivered(w) > before:
            settle(w, Verdict.ACK, before + 1, delivered(w))
            found += [w.now] * (delivered(w) - len(found))
    w.pass_time(end - w.now)
    return found


@ORDERS
def test_a_rate_spreads_messages_over_the_time(order: str) -> None:
    w = world(order=order, rate=10, rate_ms=1000)
    publish(w, 30)
    found = times(w, 2.05)
    assert len(found) == 21  # one at once, then ten in each second
    assert all(0.099 < b - a < 0.102 for a, b in pairwise(found))


@ORDERS
@pytest.mark.parametrize(("rate", "rate_ms"), [(40, 1000), (7, 3000), (300, 1000)])
def test_no_window_has_more_than_burst_and_rate(order: str, rate: int, rate_ms: int) -> None:
    w = world(order=order, rate=rate, rate_ms=rate_ms)
    publish(w, 200)
    found, burst = times(w, 0.5), max(rate * 100 // rate_ms, 1)
    assert len(found) >= min(0.45 * rate * 1000 / rate_ms, 200)
    for at, begin in enumerate(found):
        for count, end in enumerate(found[at:], 1):
            assert count <= burst + (end - begin) * 1000 * rate / rate_ms + 1e-6


def test_redeliveries_count_for_the_rate() -> None:
    w = world(rate=1, attempts_max=0)
    publish(w, 1)
    settle(w, Verdict.RETRY, 1, 1, 0)
    assert delivered(w) == 1
    w.pass_time(1.1)
    assert delivered(w) == 2


def test_a_restart_gives_no_burst_and_takes_no_message() -> None:
    w = world(rate=1, rate_ms=10_000)
    publish(w, 3)
    assert delivered(w) == 1
    w.pass_time(9.0)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert delivered(w) == 0
    w.pass_time(1.1)
    assert delivered(w) == 1


def test_a_clock_that_was_set_back_delays_a_rate_for_one_burst_at_most() -> None:
    w = world(rate=1, rate_ms=10_000)
    publish(w, 3)
    row = w.groups["g"]
    w.groups["g"] = row._replace(paced_us=row.paced_us + 10**12)
    w.restart()
    w.hello(A, ttl_ms=600_000)
    w.sub(A, 1, group="g")
    w.pass_time(10.1)
    assert delivered(w) == 1


def test_a_changed_rate_begins_with_a_full_burst_and_another_setting_changes_nothing() -> None:
    w = world(rate=1, rate_ms=10_000)
    publish(w, 9)
    update(w, lease_ms=60_000)
    assert delivered(w) == 1
    update(w, rate=50, rate_ms=1000)
    assert delivered(w) == 6
    update(w, rate=0)
    assert delivered(w) == 9


def test_a_paused_group_with_a_rate_does_not_keep_the_hub_busy() -> None:
    w = world(rate=10)
    publish(w, 30)
    w.say(ADMIN, m.Admin(3, {"op": "group.pause", "group": "g"}))
    assert len(times(w, 5.0, ack=False)) == 1
    w.say(ADMIN, m.Admin(3, {"op": "group.resume", "group": "g"}))
    assert delivered(w) == 2


def test_a_rate_holds_without_a_group_and_without_leases() -> None:
    for fields in ({"group": "g", "ack": "auto"}, {}):
        w = World()
        for peer in (P, A):
            w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
        w.sub(A, 1, "t", rate=10, credit=BIG, **fields)
        publish(w, 30)
        assert len(times(w, 1.05, ack=False)) == 11
