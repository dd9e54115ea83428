"""Delayed publishes through a real hub: due, cancelled, listed; and a hub that is killed while they are due."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import zmq

from fabric.hub import Hub, HubOptions
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.kit import Child, Talker, bodies_on_disk, eventually, sockets, talker

COUNT: Final = 1500
KILLS: Final = 3


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "journal", HubOptions(binds=[f"inproc://{uuid.uuid4()}"], drain_s=0)) as hub:
        yield hub


@pytest.fixture
def peer(hub: Hub) -> Iterator[Talker]:
    """Closed in the end: the hub's own context waits for all its sockets."""
    with talker(hub.context, hub.binds[0], producer={"name": "p"}) as peer:
        yield peer


def schedule(peer: Talker, body: bytes, *, pseq: int = 0, **options: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Publish(rid, pseq, 0, b.encode("t", [body]), options))
    return dict(peer.until(m.Ok, rid).fields)


def ask(peer: Talker, message: Any, **fields: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(message(rid, fields))
    return dict(peer.until(m.Ok, rid).fields)


def test_it_comes_when_it_is_due_and_not_before(peer: Talker) -> None:
    peer.subscribe("t")
    before_us = time.time_ns() // 1000
    answer = schedule(peer, b"late", delay_ms=200)
    assert answer["due_us"] >= before_us + 200_000
    delivered = Block(peer.until(m.Deliver).block)
    assert delivered.payloads() == [b"late"]
    assert delivered.ts_us >= answer["due_us"]
    assert time.time_ns() // 1000 >= answer["due_us"]


def test_a_time_to_live_is_stamped_by_the_hub(peer: Talker) -> None:
    peer.subscribe("t")
    before_us = time.time_ns() // 1000
    rid = peer.next_rid()
    peer.send(m.Publish(rid, 0, 0, b.encode("t", [b"short"]), {"ttl_ms": 60_000}))
    assert peer.confirmed(rid) == 1
    assert (
        before_us + 60_000_000 <= Block(peer.until(m.Deliver).block).expires_us <= time.time_ns() // 1000 + 60_010_000
    )


def test_cancelled_and_listed(peer: Talker) -> None:
    numbers = [schedule(peer, b"%d" % i, delay_ms=600_000 - 60_000 * i)["schedule"] for i in range(5)]
    page = ask(peer, m.Info, what="schedules", n=3)
    assert [row["id"] for row in page["schedules"]] == numbers[:1:-1]
    assert (page["count"], page["messages"], page["topics"], page["more"]) == (5, 5, {"t": 5}, True)
    rest = ask(peer, m.Info, what="schedules", after=page["next"])
    assert [row["id"] for row in rest["schedules"]] == numbers[1::-1]
    assert ask(peer, m.Cancel, id=numbers[0])["cancelled"] is True
    assert ask(peer, m.Info, what="schedules")["count"] == 4
    rid = peer.next_rid()
    peer.send(m.Cancel(rid, {"id": numbers[0]}))
    assert peer.refused(rid) == Code.NOT_FOUND


def test_again_and_again_until_it_is_cancelled(peer: Talker) -> None:
    peer.subscribe("t")
    schedule(peer, b"tick", every_ms=100, name="clock")
    bodies: list[bytes] = []
    while len(bodies) < 3:  # a busy hub may deliver two of them at once
        bodies += Block(peer.until(m.Deliver).block).payloads()
    assert set(bodies) == {b"tick"}
    assert ask(peer, m.Cancel, name="clock")["cancelled"] is True
    assert ask(peer, m.Info, what="schedules")["count"] == 0


def test_a_hub_that_is_killed_again_and_again_fires_each_once(tmp_path: Path) -> None:
    """Some are due while it is down, some while it comes up; none is lost, none comes twice."""
    with sockets() as folder, Child(tmp_path, folder) as child:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            child.start()
            due_us = 0
            for first in range(0, COUNT, COUNT // KILLS):
                fired = stored(context, child)
                due_us = fill(context, child, first, due_us)
                eventually(lambda least=fired: stored(context, child) > least, "some are fired")  # type: ignore[misc]
                child.kill()
                child.start()
            eventually(lambda: stored(context, child) == COUNT, "all are fired")
            with talker(context, child.url, producer={"name": "p"}) as peer:
                assert ask(peer, m.Info, what="schedules")["count"] == 0
            child.kill()
        finally:
            context.destroy(linger=0)
        bodies = bodies_on_disk(child.journal)
    assert sorted(bodies, key=int) == [b"%d" % i for i in range(COUNT)]
    assert bodies == sorted(bodies, key=int), "in the order in which they were due"


def fill(context: "zmq.Context[zmq.Socket[bytes]]", child: Child, first: int, after_us: int) -> int:
    """Schedule messages from a number on, for a second that begins soon, and not before a time. Returns its end."""
    with talker(context, child.url, producer={"name": "p"}) as peer:
        due_us = max(time.time_ns() // 1000 + 200_000, after_us)
        for start in range(first, first + COUNT // KILLS, 50):
            rids = [peer.next_rid() for _ in range(50)]
            for i, rid in enumerate(rids, start):
                options = {"at_us": due_us + 2000 * (i - first)}
                peer.send(m.Publish(rid, i + 1, 0, b.encode("t", [b"%d" % i]), options))
            for rid in rids:
                peer.until(m.Ok, rid)
    return due_us + 2000 * COUNT // KILLS


def stored(context: "zmq.Context[zmq.Socket[bytes]]", child: Child) -> int:
    with talker(context, child.url) as peer:
        return int(peer.info("hub")["last_seq"])
