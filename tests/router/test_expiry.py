"""Expired messages are settled in time, with or without a consumer."""

from typing import Any

import pytest

from fabric.router.groups.description import describe
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A = b"\0prod", b"\0aaaa"
TTL_MS = 1_000


class Queue(World):
    """A queue `q` without consumers."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.hello(P, ttl_ms=600_000)
        self.hello(A, ttl_ms=600_000)
        answer = self.say(P, m.Admin(3, {"op": "queue.create", "queue": "q", **settings}))[-1]
        assert isinstance(answer, m.Ok), answer

    def put(self, body: str, *, ttl_ms: int = 0, priority: int = 4, key: str = "") -> m.ToClient:
        block = encode("q", [body.encode()], priority=priority, ids=[key.encode()] if key else None)
        return self.say(P, m.Publish(9, 0, 0, block, {"ttl_ms": ttl_ms} if ttl_ms else {}))[-1]

    def stored(self, body: str, **how: Any) -> int:
        answer = self.put(body, **how)
        assert isinstance(answer, m.PubOk), answer
        return answer.confirms[0][2]

    def later(self) -> None:
        self.pass_time(2 * TTL_MS / 1000)
        self.pass_time(0.1)  # and the floor is raised with the next commit
        self.commit()
        self.pass_time(0.1)

    @property
    def floor(self) -> int:
        return self.router.groups["q"].floor


@pytest.mark.parametrize("order", ["none", "key", "strict"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_queue_of_messages_that_are_too_old_has_room_again(order: str, restarted: bool) -> None:
    w = Queue(max_msgs=2, order=order)
    assert [w.stored(body, ttl_ms=TTL_MS) for body in "ab"] == [1, 1]
    assert isinstance(w.put("c"), m.Err)
    if restarted:
        w.restart()
        w.hello(P, ttl_ms=600_000)
    w.later()
    assert w.floor == 2
    assert w.stored("c") == 1


def test_the_rest_of_a_block_is_too_old_though_a_consumer_has_the_beginning() -> None:
    w = Queue()
    w.sub(A, 1, group="q", credit=1)
    block = encode("q", [b"a", b"b", b"c"])
    w.say(P, m.Publish(9, 0, 0, block, {"ttl_ms": TTL_MS}))
    assert w.bodies(A) == ["a"]
    w.later()
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert w.floor == 3


@pytest.mark.parametrize("priority", [0, 9])
def test_a_lane_of_another_priority_is_not_held_up_by_what_is_too_old(priority: int) -> None:
    w = Queue(max_msgs=2)
    w.put("old", ttl_ms=TTL_MS, priority=priority)
    w.put("new")
    w.later()
    assert w.floor == 1
    assert w.stored("c") == 1


def test_messages_become_dead_letters_when_they_expire_and_not_when_a_consumer_asks() -> None:
    w = Queue(on_expire="dead")
    w.put("old", ttl_ms=TTL_MS)
    before = w.router.counters["dead_letters"]
    w.later()
    assert (before, w.router.counters["dead_letters"]) == (0, 1)


def test_a_job_with_the_id_of_one_that_is_too_old_is_stored() -> None:
    """It waits behind another message, so no lane has come to it yet."""
    w = Queue(dedupe="until_ack")
    w.put("first")
    assert w.stored("old", ttl_ms=TTL_MS, key="x") == 1
    assert w.stored("same", key="x") == 0
    w.later()
    assert w.stored("new", key="x") == 1
    w.sub(A, 1, group="q")
    assert w.bodies(A) == ["first", "new"]


def test_a_job_with_the_id_of_one_that_a_consumer_has_is_a_duplicate_however_old() -> None:
    w = Queue(dedupe="until_ack")
    w.sub(A, 1, group="q")
    w.stored("old", ttl_ms=TTL_MS, key="x")
    w.later()
    assert w.stored("new", key="x") == 0


@pytest.mark.parametrize("order", ["none", "key", "strict"])
@pytest.mark.parametrize("comes_back", ["retry", "retry much later", "release", "lapse", "restart"])
def test_what_came_back_and_is_too_old_is_settled_in_time(order: str, comes_back: str) -> None:
    w = Queue(max_msgs=1, order=order, lease_ms=1_000, on_expire="dead")
    block = encode("q", [b"a"], keys=[b"k"])
    w.say(P, m.Publish(9, 0, 0, block, {"ttl_ms": 5_000}))
    w.sub(A, 1, group="q", credit=1)
    assert w.bodies(A) == ["a"]
    match comes_back:
        case "retry":
            w.settle(A, 1, Verdict.RETRY, 1, 1, 0)
        case "retry much later":
            w.settle(A, 1, Verdict.RETRY, 1, 1, 3_600_000)
        case "release":
            w.settle(A, 1, Verdict.RELEASE, 1, 1)
        case "lapse":
            w.pass_time(2)
        case "restart":
            w.restart()
            w.hello(P, ttl_ms=600_000)
    assert w.floor == 0
    assert isinstance(w.put("b"), m.Err)
    w.pass_time(5)
    w.later()
    group = describe(w.router.groups["q"])
    assert (group["expired"], group["redelivering"], group["parked"], group["failed"]) == (1, 0, 0, 0)
    assert w.reader.blocks[-1].topics[0] == "$dlq.q"
    assert w.stored("b") == 1


def test_what_a_consumer_has_is_its_own_however_old() -> None:
    w = Queue(lease_ms=600_000)
    w.stored("a", ttl_ms=TTL_MS)
    w.sub(A, 1, group="q", credit=2)
    w.settle(A, 1, Verdict.RETRY, 1, 1, 0)
    assert w.bodies(A) == ["a", "a"]
    w.later()
    assert w.floor == 0
    assert w.settle(A, 1, Verdict.ACK, 2, 2) == [m.Ok(1, 7, {"applied": 1, "stale": []})]
    assert describe(w.router.groups["q"])["expired"] == 0


def test_what_waits_behind_a_key_is_settled_in_time() -> None:
    w = Queue(order="key", lease_ms=600_000)
    for body in "ab":
        w.say(P, m.Publish(9, 0, 0, encode("q", [body.encode()], keys=[b"k"]), {"ttl_ms": TTL_MS}))
    w.sub(A, 1, group="q", credit=1)
    w.sub(P, 1, group="q", credit=1)
    assert w.bodies(A) + w.bodies(P) == ["a"]
    w.later()
    group = describe(w.router.groups["q"])
    assert (group["expired"], group["parked"], group["outstanding"]) == (1, 0, 1)


def test_what_comes_back_again_and_again_takes_no_more_memory() -> None:
    group = (w := Queue()).router.groups["q"]
    w.stored("a", ttl_ms=60_000)
    w.sub(A, 1, group="q", credit=100)
    for ordinal in range(1, 100):
        w.settle(A, 1, Verdict.RELEASE, ordinal, ordinal)
    assert len(group.expiring) == 1


def test_a_clock_that_is_set_back_lets_a_message_wait_on() -> None:
    w = Queue()
    w.put("old", ttl_ms=TTL_MS)
    w.router.begin(w.router.shared.clock.wall_us(w.now) - 3_600_000_000, w.now)
    w.later()
    assert w.floor == 0


@pytest.mark.parametrize("on_expire", ["drop", "dead"])
def test_messages_of_others_do_not_expire_with_those_of_a_restored_delivery(on_expire: str) -> None:
    """The row of a group has a delivery as one range, also if messages that do not match lie between."""
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, "mine", group="g", on_expire=on_expire)
    block = encode(["mine", "other", "mine", "mine"], [b"1", b"2", b"3", b"4"])
    w.say(P, m.Publish(9, 0, 0, block, {"ttl_ms": TTL_MS}))
    assert w.bodies(A) == ["1", "3", "4"]
    w.settle(A, 1, Verdict.ACK, 3, 3)
    assert w.groups["g"].open == ((1, 3),)
    w.now += 2 * TTL_MS / 1000
    w.restart()
    w.pass_time(0.1)
    w.commit()
    group, letters = w.router.groups["g"], w.router.dead_letters.by_group.get("g")
    assert (group.tally.expired, group.tally.dead) == (2, 2 if on_expire == "dead" else 0)
    assert (letters.count(w.router.shared.committed_seq) if letters else 0) == group.tally.dead
    assert not group.open
