"""The setting `expires_ms`: a group is deleted when it had no consumer for so long."""

import json
from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, C, A = b"P", b"C", b"A"


def world(**settings: Any) -> World:
    w = World()
    for peer in (P, C, A):
        w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
    w.sub(A, 9, "$sys.group.expired")
    admin(w, "group.create", group="g", patterns=["t"], expires_ms=10_000, **settings)
    return w


def admin(w: World, op: str, **fields: Any) -> m.ToClient:
    return next(x for x in w.say(A, m.Admin(3, {"op": op, **fields})) if getattr(x, "rid", 0) == 3)


def has_group(w: World) -> bool:
    assert ("g" in w.router.groups) == ("g" in w.groups)
    return "g" in w.groups


def wait(w: World, seconds: float) -> None:
    """Let time pass as a hub does, which calls when the router has said."""
    end = w.now + seconds
    for _ in range(10_000):
        if (due := w.router.next_deadline()) > end:
            break
        w.now = max(due, w.now) + 1e-6
        w.pass_time(0.0)
    else:
        raise AssertionError("the router keeps the hub busy")
    w.now = end
    w.pass_time(0.0)


def test_a_group_without_a_consumer_ends_after_its_time() -> None:
    w = world()
    wait(w, 9.9)
    assert has_group(w)
    wait(w, 0.2)
    assert not has_group(w)
    (told,) = [Block(x.block).payloads()[0] for x in w.said[A] if isinstance(x, m.Deliver)]
    assert {"group": "g", "expires_ms": 10_000}.items() <= json.loads(told).items()


def test_a_group_with_a_consumer_does_not_end() -> None:
    w = world()
    w.sub(C, 1, group="g")
    wait(w, 100.0)
    assert has_group(w)
    w.say(C, m.Unsubscribe(1, 4))
    wait(w, 9.0)
    w.sub(C, 1, group="g")
    wait(w, 9.0)
    assert has_group(w)
    w.say(C, m.Unsubscribe(1, 4))
    wait(w, 9.9)
    assert has_group(w)
    wait(w, 0.2)
    assert not has_group(w)


def test_a_consumer_that_may_come_back_is_a_consumer() -> None:
    w = world()
    w.sub(C, 1, group="g")
    w.router.peer_gone(C)
    wait(w, 1.3)  # within the grace
    assert w.groups["g"].idle_us == 0
    wait(w, 10.0)
    assert has_group(w)
    wait(w, 1.0)
    assert not has_group(w)


@pytest.mark.parametrize(("down", "left"), [(0.0, 6.0), (3.0, 3.0), (50.0, 0.0)])
def test_the_wait_goes_on_across_a_restart(down: float, left: float) -> None:
    w = world()
    wait(w, 4.0)
    w.now += down
    w.restart()
    w.commit()
    if left:
        wait(w, left - 0.1)
        assert has_group(w)
        w.restart()
    wait(w, 0.2)
    assert not has_group(w)


def test_a_group_with_a_consumer_at_a_crash_waits_from_the_start_of_the_hub() -> None:
    w = world()
    w.sub(C, 1, group="g")
    wait(w, 30.0)
    w.now += 100.0
    w.restart()
    w.commit()
    wait(w, 9.8)
    assert has_group(w)
    wait(w, 0.3)
    assert not has_group(w)


def test_a_change_of_the_time_begins_the_wait_anew() -> None:
    w = world()
    wait(w, 9.0)
    admin(w, "group.update", group="g", expires_ms=5_000)
    wait(w, 4.9)
    assert has_group(w)
    admin(w, "group.update", group="g", lease_ms=5_000)  # changes nothing
    wait(w, 0.2)
    assert not has_group(w)
    w = world()
    admin(w, "group.update", group="g", expires_ms=0)
    wait(w, 100.0)
    assert has_group(w)


def test_dead_letters_stay_and_a_new_group_of_the_name_begins_anew() -> None:
    w = world()
    w.sub(C, 1, group="g")
    w.pub(P, "t", "1", "2")
    w.settle(C, 1, Verdict.REJECT, 1, 1)
    w.say(C, m.Unsubscribe(1, 4))
    wait(w, 10.1)
    assert not has_group(w)
    answer = admin(w, "dlq.list", group="g")
    assert isinstance(answer, m.Ok)
    assert answer.fields["count"] == 1
    w.sub(C, 1, "t", group="g")
    assert w.bodies(C)[-2:] == ["1", "2"]


def test_a_draining_hub_deletes_no_group() -> None:
    from fabric.router.publish.publishing import Refusal

    w = world()
    w.router.drain(Refusal(Code.SHUTTING_DOWN, "the hub stops", 100))
    wait(w, 20.0)
    assert has_group(w)


def test_only_a_group_expires_and_not_that_of_a_queue() -> None:
    w = world()
    (answer,) = w.say(C, m.Subscribe(1, 2, {"patterns": ["t"], "expires_ms": 3000}))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION
    refused = admin(w, "queue.create", queue="q", expires_ms=3000)
    assert isinstance(refused, m.Err)
    assert refused.code == Code.BAD_OPTION
