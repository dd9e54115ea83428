"""`attempt` 1 means: certainly the first delivery, also after a crash of the hub; a backlog keeps it if possible."""

from typing import Any

import pytest

from fabric.router.groups.handed_out import STEP_MAX, STEP_MIN, HandedOut
from fabric.router.publish.publishing import Refusal
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B = b"\0prod", b"\0aaaa", b"\0bbbb"
PLENTY = 1 << 40


class Dying(World):
    """A publisher, and a consumer of the group `g`."""

    def __init__(self, credit: int = 1_000, **group: Any) -> None:
        super().__init__()
        self.arrive()
        self.sub(A, 1, "a", group="g", credit=credit, **group)

    def arrive(self) -> None:
        for peer in (P, A, B):
            self.hello(peer, ttl_ms=600_000)

    def put(self, *bodies: str, priority: int = 4) -> None:
        self.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("a", [b.encode() for b in bodies], priority=priority)))

    def die(self, credit: int = 1_000) -> dict[str, int]:
        """The hub dies, and comes back with what is on disk; the attempt of each body that the consumer gets then."""
        self.restart()
        self.arrive()
        self.sub(A, 1, group="g", credit=credit)
        for _ in range(6):  # much is handed out in several steps
            self.commit()
        return self.attempts()

    def attempts(self) -> dict[str, int]:
        return {body: attempt for _, _, attempt, body in self.delivered(A)}


@pytest.mark.parametrize("order", ["none", "key", "strict"])
@pytest.mark.parametrize("ack", ["explicit", "auto"])
@pytest.mark.parametrize("level", ["journaled", "received"])
def test_what_may_have_been_handed_out_is_no_first_attempt(order: str, ack: str, level: str) -> None:
    if ack == "auto" and order != "none":
        return
    w = Dying(order=order, ack=ack, level=level)
    w.put("1", "2")
    w.put("3")
    assert w.attempts() == {"1": 1, "2": 1, "3": 1}
    rows = dict(w.groups)
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.groups = rows  # it dies before the commit that would know of it
    assert set(w.die().values()) <= {2}
    w.put("4")
    assert w.attempts()["4"] == 1


def test_what_was_handed_out_without_any_verdict_is_no_first_attempt() -> None:
    w = Dying()
    w.put("1")
    w.pass_time(20)
    assert w.die() == {"1": 2}
    assert w.failures == {}, "nothing is counted by this"


def test_nothing_leaves_before_it_is_on_disk_that_it_will() -> None:
    w = Dying()
    w.say(A, m.Unsubscribe(1, 6))
    w.put("1")
    w.say(A, m.Subscribe(1, 5, {"group": "g", "credit": [9, PLENTY]}), commit=False)
    assert w.attempts() == {}
    w.commit()
    assert w.attempts() == {"1": 1}
    w.restart()
    w.arrive()
    w.say(A, m.Subscribe(1, 5, {"group": "new", "patterns": ["a"], "credit": [9, PLENTY]}), commit=False)
    assert w.attempts() == {}
    w.commit()
    assert w.attempts() == {"1": 1}


def test_a_backlog_that_was_never_delivered_is_a_first_attempt() -> None:
    w = Dying()
    w.put("1")
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.say(A, m.Unsubscribe(1, 6))
    w.put("2", "3")
    assert w.die() == {"2": 1, "3": 1}


def test_of_a_long_backlog_only_the_beginning_is_marked() -> None:
    w = Dying(credit=0)
    for n in range(40):
        w.put(*[f"{n}.{i}" for i in range(100)])
    w.say(A, m.Credit(1, 10, PLENTY))
    w.settle(A, 1, Verdict.ACK, 1, 5)
    attempts = w.die(PLENTY)
    assert len(attempts) == 3_995
    assert [attempts[f"0.{i}"] for i in range(5, 10)] == [2] * 5
    assert sum(attempt == 2 for attempt in attempts.values()) <= 2 * STEP_MIN
    assert attempts["39.99"] == 1


def test_each_priority_is_marked_apart() -> None:
    w = Dying(credit=0)
    for n in range(20):
        w.put(*[f"low {n}.{i}" for i in range(100)], priority=0)
    w.put("urgent", priority=9)
    w.say(A, m.Credit(1, 1, PLENTY))
    assert w.attempts() == {"urgent": 1}
    attempts = w.die(PLENTY)
    assert attempts["urgent"] == 2
    assert attempts["low 19.99"] == 1


def test_a_hub_that_stopped_in_good_order_marks_what_was_held_and_no_more() -> None:
    w = Dying(credit=2)
    w.put("1", "2", "3", "4")
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.router.drain(Refusal(0, "the hub is stopping", 500))  # type: ignore[arg-type]
    w.router.take_frames()
    w.commit()
    assert w.die() == {"2": 2, "3": 1, "4": 1}


def test_a_mark_outlives_a_second_death_and_a_good_end() -> None:
    w = Dying()
    w.put("1", "2")
    w.restart()
    w.arrive()
    w.router.drain(Refusal(0, "the hub is stopping", 500))  # type: ignore[arg-type]
    w.router.take_frames()
    w.commit()
    w.restart()
    assert w.die() == {"1": 2, "2": 2}


def test_a_group_that_is_moved_begins_anew() -> None:
    w = Dying()
    w.put("1", "2", "3")
    w.settle(A, 1, Verdict.ACK, 1, 3)
    w.say(P, m.Admin(3, {"op": "group.seek", "group": "g", "to": "first"}))
    assert [row[2] for row in w.delivered(A)] == [1] * 6
    assert w.die() == {"1": 2, "2": 2, "3": 2}


@pytest.mark.parametrize(("clean", "attempt"), [(True, 1), (False, 2)])
def test_rows_of_an_older_hub_say_nothing_of_it(clean: bool, attempt: int) -> None:
    w = Dying()
    w.put("1")
    w.groups = {"g": w.groups["g"]._replace(handed=None, untold=())}
    w._come_back(was_clean=clean)
    w.arrive()
    w.sub(A, 1, group="g")
    assert w.attempts() == {"1": attempt}


def test_a_fetch_of_what_is_there_now_waits_for_the_commit() -> None:
    w = Dying()
    w.put("1")
    w.say(B, m.Subscribe(1, 5, {"group": "h", "patterns": ["a"], "credit": [0, 0]}), commit=False)
    w.say(B, m.Fetch(1, 8, 1, 0), commit=False)
    w.pass_time(0.005)
    assert w.bodies(B) == ["1"]
    assert [said.sent for said in w.said[B] if isinstance(said, m.End)] == [1]


def test_a_fetch_ends_though_the_disk_is_slow() -> None:
    w = Dying()
    w.put("1")
    w.say(B, m.Subscribe(1, 5, {"group": "h", "patterns": ["a"], "credit": [0, 0]}), commit=False)
    w.say(B, m.Fetch(1, 8, 1, 0), commit=False)
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.tick(w.now + 1)
    out += w.router.take_frames()
    assert [said.sent for _, said in out if isinstance(said, m.End)] == [0]


def test_steps_grow_while_a_lane_has_to_wait() -> None:
    handed, at = HandedOut(), 0
    for _ in range(20):
        while handed.allows(at + 1_000):
            at += 1_000
        number = handed.write(at + 1, at + 1, active=True)
        assert number is not None
        handed.written(number)
    assert STEP_MAX <= handed.limit - at <= STEP_MAX + 1_000
    assert handed.write(at + 1, at + 1, active=False) is None
    assert handed.limit == at


def test_a_row_that_is_written_anyway_moves_the_mark_before_the_lane_asks_for_it() -> None:
    handed, at = HandedOut(), 0
    assert not handed.allows(1)
    for _ in range(20):
        number = handed.write(at + 1, at + 1, active=True)
        assert number is not None
        handed.written(number)
        at += STEP_MIN // 4
        assert handed.allows(at)
        assert not handed.is_low(at)  # so no row is written for the mark alone
    handed.written(handed.write(at + 1, at + 1, active=True) or 0)
    assert handed.write(at + 2, at + 2, active=True) is None  # it is far enough


def test_an_older_row_that_comes_to_disk_later_allows_nothing() -> None:
    handed = HandedOut()
    assert not handed.allows(100)
    first = handed.write(1, 1, active=True)
    assert first is not None
    handed.write(1, 1, active=False)
    assert not handed.allows(1)
    second = handed.write(1, 1, active=True)
    assert second is not None
    handed.written(first)
    assert not handed.allows(1)
    handed.written(second)
    assert handed.allows(1)
