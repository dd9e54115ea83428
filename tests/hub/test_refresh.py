"""Refreshes and delivery events through a real hub and a real journal."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric import event_block as events
from fabric.journal.journal import Journal
from fabric_protocol import messages as m
from fabric_protocol.messages import Happening
from tests.hub.kit import Child, Talker, sockets, talker


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child.start(drain_s=0.1)


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def administer(peer: Talker, op: str, **fields: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Admin(rid, {"op": op, **fields}))
    return dict(peer.until(m.Ok, rid).fields)


def reset(peer: Talker) -> tuple[int, str, int]:
    fields = peer.until(m.Reset).fields
    return fields["refresh"], fields["phase"], fields["target"]


def test_a_refresh_survives_a_killed_hub(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with talker(context, child.url) as consumer:
        consumer.subscribe("a", group="copy")
        consumer.publish("a", b"1", b"2")
        consumer.take(2)
        consumer.ack(1, 2)
        assert administer(consumer, "group.refresh", group="copy")["target"] == 2
        assert reset(consumer) == (1, "begin", 2)
        assert [body for _, body in consumer.take(2)] == [b"1", b"2"]
    child.kill()
    child.start(drain_s=0.1)
    with talker(context, child.url) as consumer:
        consumer.subscribe("a", group="copy")
        assert reset(consumer) == (1, "begin", 2)
        consumer.publish("a", b"3")
        ordinals = [ordinal for ordinal, body in consumer.take(3) if body != b"3"]
        for ordinal in ordinals:
            consumer.ack(ordinal, ordinal)
        assert reset(consumer) == (1, "end", 2)
        consumer.send(m.Ready(1, 77, 1))
        assert consumer.until(m.Ok, 77).fields == {"refresh": 1, "phase": "ready"}


def kinds(path: Path) -> list[tuple[int, str, int, int]]:
    """(number, what, first seq, last seq) of all events on disk."""
    journal = Journal.open(path, create=False)
    try:
        reader, rows, number = journal.reader(), list[events.Event](), 1
        while (raw := reader.events.block_from(number)) is not None:
            rows += events.rows(raw)
            number = rows[-1].number + 1
        assert {(row.group, row.client) for row in rows} == {("g", "witness")}
        assert [row.ts_us for row in rows] == sorted(row.ts_us for row in rows)
        return [(row.number, Happening(row.kind).name, row.first_seq, row.last_seq) for row in rows]
    finally:
        journal.close()


def test_events_are_on_disk_and_the_switch_is_remembered(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    with talker(context, child.url, client="witness") as witness:
        witness.subscribe("a", group="g")
        witness.publish("a", b"not noted")
        witness.take(1)
        administer(witness, "hub.update", events=True)
        witness.ack(1, 1)
        witness.publish("a", b"2", b"3")
        witness.take(2)
        witness.ack(2, 3)
    assert _stop(child) == 0
    assert kinds(child.journal)[:3] == [(1, "ACK", 1, 1), (2, "DELIVER", 2, 3), (3, "ACK", 2, 3)]
    before = len(kinds(child.journal))
    child.start(drain_s=0.1)
    with talker(context, child.url, client="witness") as witness:
        witness.subscribe(group="g")
        witness.publish("a", b"4")
        witness.take(1)
    assert _stop(child) == 0
    assert kinds(child.journal)[before] == (before + 1, "DELIVER", 4, 4)


def _stop(child: Child) -> int:
    child.signal(signal.SIGTERM)
    return child.wait()
