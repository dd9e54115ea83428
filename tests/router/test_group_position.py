"""The position of a group depends on messages only: not on credit, on consumers, or on priorities in other topics."""

from typing import Any

import pytest

from fabric.router import block_store
from fabric.router.groups import lanes
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A = b"\0prod", b"\0aaaa"
PLENTY = 1 << 40


class Works(World):
    """A publisher, and a consumer that fetches one message at a time from the group `g`."""

    def __init__(self, *patterns: str, **group: Any) -> None:
        super().__init__()
        self.hello(P)
        self.hello(A, ttl_ms=600_000)
        if patterns:
            self.sub(A, 1, *patterns, group="g", credit=0, **group)

    def admin(self, op: str, **fields: Any) -> dict[str, Any]:
        answer = self.say(P, m.Admin(3, {"op": op, **fields}))[-1]
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def put(self, topic: str, body: str, *, priority: int = 4, key: bytes = b"") -> m.ToClient:
        block = encode(topic, [body.encode()], priority=priority, ids=[key] if key else None)
        return self.say(P, m.Publish(9, 0, m.Level.JOURNALED, block))[-1]

    def stored(self, topic: str, body: str, *, priority: int = 4, key: bytes = b"") -> int:
        answer = self.put(topic, body, priority=priority, key=key)
        assert isinstance(answer, m.PubOk), answer
        return answer.confirms[0][2]

    def fetch(self) -> list[str]:
        before = len(self.bodies(A))
        self.say(A, m.Fetch(1, 8, 1, 0))
        self.pass_time(0.01)
        return self.bodies(A)[before:]

    def ack(self) -> None:
        sent = self.delivered(A)[-1][0]
        self.settle(A, 1, Verdict.ACK, sent, sent)

    def info(self) -> dict[str, Any]:
        answer = self.say(P, m.Info(3, {"what": "group", "group": "g"}))[-1]
        assert isinstance(answer, m.Ok), answer
        return dict(answer.fields)

    def gaps(self) -> list[tuple[int, int]]:
        return [(said.first_seq, said.last_seq) for said in self.said[A] if isinstance(said, m.Gap)]


@pytest.mark.parametrize("other", [0, 9])
@pytest.mark.parametrize("own", [0, 4, 9])
def test_a_queue_is_empty_when_all_is_acked(own: int, other: int) -> None:
    w = Works()
    w.admin("queue.create", queue="q", max_msgs=3)
    w.sub(A, 1, group="q", credit=0)
    w.router.groups["g"] = w.router.groups["q"]
    w.put("elsewhere", "x", priority=other)
    for n in range(10):
        assert w.stored("q", f"job {n}", priority=own) == 1
        assert w.fetch() == [f"job {n}"]
        w.ack()
        w.pass_time(0.01)


@pytest.mark.parametrize("other", [0, 9])
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_new_job_with_the_id_of_a_done_one_is_stored(other: int, leaves: bool, restarts: bool) -> None:
    w = Works("q")
    w.admin("topic.create", topic="q", dedupe="until_ack")
    w.put("elsewhere", "x", priority=other)
    for n in range(5):
        assert w.stored("q", f"job {n}", key=b"k") == 1
        assert w.stored("q", "too early", key=b"k") == 0
        assert w.fetch() == [f"job {n}"]
        assert w.stored("q", "too early", key=b"k") == 0
        w.ack()
        if leaves:
            w.say(A, m.Unsubscribe(1, 6))
        if restarts:
            w.restart()
            w.hello(P)
            w.hello(A, ttl_ms=600_000)
        assert w.stored("q", f"next {n}", key=b"k") == 1
        if leaves or restarts:
            w.sub(A, 1, group="g", credit=0)
        assert w.fetch() == [f"next {n}"]
        w.ack()


def test_a_done_job_counts_as_done_while_another_priority_waits() -> None:
    w = Works("q")
    w.admin("topic.create", topic="q", dedupe="until_ack")
    w.put("q", "later", priority=0)
    w.put("q", "job", key=b"k")
    assert w.fetch() == ["job"]
    assert w.stored("q", "too early", key=b"k") == 0
    w.ack()
    assert w.stored("q", "again", key=b"k") == 1
    assert w.fetch() == ["again"]
    assert w.fetch() == ["later"]


def test_a_paused_group_has_settled_what_it_has_settled() -> None:
    w = Works("q")
    w.put("elsewhere", "x", priority=0)
    w.put("q", "job")
    assert w.fetch() == ["job"]
    w.admin("group.pause", group="g")
    w.ack()
    assert w.info()["floor"] == 2
    assert w.info()["behind"] == 0


@pytest.mark.parametrize("order", ["none", "key", "strict"])
def test_a_group_without_credit_is_not_behind_what_it_does_not_want(order: str) -> None:
    w = Works("q", order=order)
    w.put("q", "job")
    assert w.fetch() == ["job"]
    w.ack()
    for n in range(5):
        w.put("other", str(n), priority=n)
    assert w.info()["behind"] == 0
    w.put("q", "next", priority=2)
    w.put("q", "last")
    assert w.info()["behind"] == 2


def test_a_refresh_ends_without_credit_to_spare() -> None:
    w = Works("q")
    w.put("q", "row")
    for n in range(5):
        w.put("other", str(n), priority=n)
    w.admin("group.refresh", group="g")
    assert w.fetch() == ["row"]
    w.ack()
    w.pass_time(0.01)
    assert [said.fields["phase"] for said in w.said[A] if isinstance(said, m.Reset)] == ["begin", "end"]


def test_a_group_without_consumers_moves_on_in_small_steps() -> None:
    w = Works("q")
    w.say(A, m.Unsubscribe(1, 6))
    for n in range(1_000):
        w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("other", [b"x"])), commit=n % 50 == 49)
    w.restart()
    assert w.router.groups["g"].position() == 1
    for _ in range(10):
        w.pass_time(1)
    assert w.router.groups["g"].position() == 1_001


def test_what_was_acked_is_no_gap_when_retention_removes_it() -> None:
    w = Works("q")
    w.put("elsewhere", "x", priority=0)
    for n in range(5):
        w.put("q", str(n))
        assert w.fetch() == [str(n)]
        w.ack()
    w.put("other", "x")
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.trimmed(6)
    out += w.router.take_frames()
    assert out == []
    assert w.router.counters["groups_overtaken"] == 0
    w.commit()
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.gaps() == []


def test_a_position_is_written_down_when_the_journal_begins_after_it() -> None:
    w = Works("q")
    w.say(A, m.Credit(1, 100, PLENTY))
    w.put("q", "job")
    w.ack()
    for n in range(5):
        w.put("other", str(n))
    w.router.trimmed(5)
    w.router.take_frames()
    w.commit()
    w.restart_at(5)
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.gaps() == []


def test_what_was_acked_is_no_gap_when_its_topic_is_trimmed() -> None:
    w = Works("q", "late")
    w.put("late", "waits", priority=0)
    for n in range(5):
        w.put("q", str(n))
        assert w.fetch() == [str(n)]
        w.ack()
    w.restart()
    w.hello(P)
    w.hello(A)
    w.admin("topic.create", topic="q", max_msgs=1, on_full="drop_old")
    for _ in range(5):
        w.pass_time(1)
    assert [block.base_seq for block in w.reader.blocks] == [1, 6]
    w.sub(A, 1, group="g")
    assert w.gaps() == []
    assert w.bodies(A) == ["waits"]


def test_a_position_does_not_fall_when_credit_comes_after_much_that_does_not_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that has looked at all messages does not search them again, in steps."""
    monkeypatch.setattr(block_store, "SCAN_BLOCKS_MAX", 1)
    monkeypatch.setattr(lanes, "SCAN_BLOCKS_MAX", 1)
    w = Works("mine")
    w.pass_time(1)
    for number in range(10):
        w.put("other", str(number))
    assert (w.info()["cursor"], w.info()["floor"]) == (11, 10)
    w.router.step(m.Credit(1, 5, PLENTY), A, w.now)
    w.router.dispatcher.serve(w.now, w.router.turn)
    assert (w.router.groups["g"].position(), w.router.groups["g"].floor) == (11, 10)
