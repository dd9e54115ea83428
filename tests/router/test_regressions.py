"""Cases in which the router was once wrong."""

from typing import Any

import pytest

from fabric.router.timers import TIMERS_MIN
from fabric_protocol import messages as m
from fabric_protocol.block import BLOCK_BYTES_MAX, Block, encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import BIG, World

P, A, B = b"\0p", b"\0a", b"\0b"


def world(*patterns: str, credit: int = 1000, **fields: Any) -> World:
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, *patterns, group="g", credit=credit, **fields)
    return w


@pytest.mark.parametrize("credit", [1000, 1])
def test_after_a_crash_nothing_stays_open_that_is_not_the_groups(credit: int) -> None:
    """What lies between a narrow group's messages counts as open while they are; it must not stay so for ever."""
    w = world("a")
    w.pub(P, ["a", "b", "a", "b", "a", "b", "a"], *"1234567")
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.settle(A, 1, Verdict.ACK, 4, 4)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g", credit=credit)
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.say(A, m.Credit(1, 2, BIG))
    w.settle(A, 1, Verdict.ACK, 2, 2)
    assert w.bodies(A) == ["3", "5"]
    assert not w.router.groups["g"].open
    assert w.router.groups["g"].floor == 7


def test_retention_takes_the_start_of_a_range_and_not_the_rest() -> None:
    w = world("#")
    for i in range(1, 6):
        w.pub(P, "a", str(i))
    w.settle(A, 1, Verdict.ACK, 5, 5)
    w.restart()
    del w.reader.blocks[:2]
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == ["3", "4"]
    assert [x for x in w.said[A] if isinstance(x, m.Gap)] == [m.Gap(1, 1, 2, "removed by retention")]


def test_member_without_bytes_does_not_hold_up_another() -> None:
    """The one with the fewest messages is asked first, but it may hold large ones."""
    w = World()
    w.hello(P)
    w.hello(A)
    w.say(A, m.Subscribe(1, 5, {"group": "g", "patterns": ["#"], "credit": [100, 3000]}))
    w.pub(P, "x", "L" * 2500)
    w.hello(B)
    w.sub(B, 1, group="g")
    for _ in range(3):
        w.pub(P, "x", "s" * 1000)
    assert len(w.bodies(A)) == 1
    assert len(w.bodies(B)) == 3


def test_bytes_stop_an_ephemeral_subscriber_too() -> None:
    w = World()
    w.hello(P)
    w.hello(A)
    w.say(A, m.Subscribe(1, 5, {"patterns": ["#"], "credit": [100, 2500]}))
    for _ in range(5):
        w.pub(P, "x", "b" * 1000)
    got = len(w.bodies(A))
    assert 1 <= got <= 3
    w.say(A, m.Credit(1, 100, BIG))
    assert len(w.bodies(A)) == 5


def test_timers_of_settled_deliveries_do_not_pile_up() -> None:
    w = world("#", lease_ms=43_200_000)
    for i in range(1, 2 * TIMERS_MIN):
        w.pub(P, "a", "x")
        w.settle(A, 1, Verdict.ACK, i, i)
    assert len(w.router.dispatcher.timers) <= TIMERS_MIN


def test_one_timer_serves_all_that_wait_in_a_group() -> None:
    w = world("#")
    w.pub(P, "a", *["x"] * 100)
    w.settle(A, 1, Verdict.RETRY, 1, 1, 60_000)
    before = len(w.router.dispatcher.timers)
    for i in range(2, 101):
        w.settle(A, 1, Verdict.ACK, i, i)
    assert len(w.router.dispatcher.timers) <= before + 1
    w.now += 1
    for _ in range(61):
        w.pass_time(1)
        w.say(A, m.Ping(0))
    assert w.delivered(A)[-1][1:3] == (1, 2)


def test_a_sooner_retry_is_not_kept_waiting_by_a_later_one() -> None:
    w = world("#")
    w.pub(P, "a", "1", "2")
    w.settle(A, 1, Verdict.RETRY, 1, 1, 20_000)
    w.settle(A, 1, Verdict.RETRY, 2, 2, 1_000)
    w.pass_time(1)
    assert w.bodies(A) == ["1", "2", "2"]


def test_rejecting_a_large_block_writes_each_letter_once() -> None:
    w = world("#", credit=BIG)
    w.pub(P, ["a", "b"] * 5000, *[str(i) for i in range(10_000)])
    for _ in range(5):
        w.commit()  # so many at once are handed out when it is on disk that they are
    w.settle(A, 1, Verdict.REJECT, 1, 10_000, "all of them")
    w.commit()  # so many letters take several turns
    letters = [block for block in w.reader.blocks if block.topics == ("$dlq.g",)]
    assert [body for block in letters for body in block.payloads()] == [str(i).encode() for i in range(10_000)]
    headers = [row for block in letters for row in block.headers()]
    assert [row["fabric-seq"] for row in headers] == [str(i) for i in range(1, 10_001)]
    assert {row["fabric-topic"] for row in headers} == {"a", "b"}


def test_letter_of_a_message_that_fills_a_block_points_to_it() -> None:
    """It is written by the clock, when the last lease lapses: an error there would end the hub."""
    w = world("#", credit=BIG, attempts_max=1)
    size = next(n for n in range(BLOCK_BYTES_MAX - 200, 0, -8) if _fits(n))
    w.pub(P, "a", "x" * size)
    w.pass_time(30)
    (letter,) = (block for block in w.reader.blocks if block.topics == ("$dlq.g",))
    (headers,) = letter.headers()
    assert headers["fabric-seq"] == "1"
    assert headers["fabric-reason"] == "lease lapsed"
    assert str(size) in str(headers["fabric-omitted"])
    assert letter.payloads() == [b""]


def _fits(size: int) -> bool:
    try:
        Block(encode("a", [bytes(size)]))
    except Exception:
        return False
    return True


@pytest.mark.parametrize("name", ["two words", "a..b", "*", "a.#", "ж" * 128, "\x00", ".".join("g" * 16)])
def test_group_whose_dead_letters_would_have_no_topic_is_refused(name: str) -> None:
    w = World()
    w.hello(A)
    answer = w.sub(A, 1, "#", group=name)[0]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION
    assert w.router.groups == {}


def test_unsubscribing_ends_an_open_fetch_in_silence() -> None:
    w = world("#", credit=0)
    w.say(A, m.Fetch(1, 11, 5, 5000))
    w.say(A, m.Unsubscribe(1, 6))
    w.sub(A, 1, group="g")
    w.pass_time(6)
    assert not [x for x in w.said[A] if isinstance(x, m.End)]
