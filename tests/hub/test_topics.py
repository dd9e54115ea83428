"""Topics and queues with settings, through a real hub and a real journal: removed messages leave the disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from fabric.journal.journal import Journal
from fabric.journal.tools.verify import verify
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.hub.kit import Child, Talker, eventually, sockets, talker

BODY = bytes(2_000)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


def admin(peer: Talker, op: str, **fields: Any) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Admin(rid, {"op": op, **fields}))
    return dict(peer.until(m.Ok, rid).fields)


def topic(peer: Talker, name: str) -> dict[str, Any]:
    rid = peer.next_rid()
    peer.send(m.Info(rid, {"what": "topic", "name": name}))
    return dict(peer.until(m.Ok, rid).fields)


def messages_on_disk(path: Path) -> list[tuple[str, bytes]]:
    """(topic, payload) of all messages in a journal without a hub, removed messages included."""
    journal = Journal.open(path, create=False)
    try:
        reader, found = journal.reader(), list[tuple[str, bytes]]()
        block, seq = reader.next_block(1, lambda _: True)
        while block is not None:
            assert isinstance(block, Block)
            found += zip(block.topic_names(), block.payloads(), strict=True)
            block, seq = reader.next_block(seq, lambda _: True)
        return found
    finally:
        journal.close()


def end(child: Child) -> None:
    child.kill()
    report = verify(child.journal)
    assert report.findings == ()


def test_a_queue_is_worked_off_and_leaves_nothing_on_disk(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start()
    peer, worker = talker(context, child.url), talker(context, child.url)
    admin(peer, "queue.create", queue="jobs", max_msgs=40, lease_ms=60_000)
    peer.publish("history", b"this one stays")
    for round_ in range(5):
        for n in range(10):
            peer.publish("jobs", *(b"%d %d %d" % (round_, n, i) + BODY for i in range(4)))
        rid = peer.next_rid()
        peer.send(m.Publish(rid, 0, 0, b.encode("jobs", [b"one too many"])))
        assert peer.refused(rid) == Code.TOPIC_FULL
        if round_ == 0:
            worker.subscribe(group="jobs")
        rows = worker.take(40)
        worker.ack(rows[0][0], rows[-1][0])
        eventually(lambda: topic(peer, "jobs")["msgs"] == 0, "the queue is empty")
    peer.publish("history", b"and this one")
    eventually(lambda: peer.info("counters")["blocks_discarded"] >= 40, "blocks are discarded")
    peer.publish("history", b"and so does the last")
    end(child)
    left = messages_on_disk(child.journal)
    assert [body for name, body in left if name == "history"] == [
        b"this one stays",
        b"and this one",
        b"and so does the last",
    ]
    assert len(left) < 30


def test_limits_hold_after_a_crash(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start()
    peer = talker(context, child.url)
    admin(peer, "topic.create", topic="few", max_msgs=5, on_full="drop_old")
    admin(peer, "topic.create", topic="some", max_bytes=10)
    for n in range(20):
        peer.publish("few", b"%d" % n)
    peer.publish("some", b"12345", b"678")
    eventually(lambda: topic(peer, "few")["msgs"] == 5, "the oldest are dropped")
    end(child)
    child.start()
    again = talker(context, child.url)
    row = topic(again, "few")
    assert (row["msgs"], row["bytes"], row["counting"]) == (5, 10, False)
    assert topic(again, "some")["bytes"] == 8
    rid = again.next_rid()
    again.send(m.Publish(rid, 0, 0, b.encode(["some", "few"], [b"901", b"x"])))
    assert again.refused(rid) == Code.TOPIC_FULL
    again.subscribe("few", start="first")
    assert [body for _, body in again.take(5)] == [b"%d" % n for n in range(15, 20)]


def test_the_latest_of_each_key_survives_a_crash(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start()
    peer = talker(context, child.url)
    admin(peer, "topic.create", topic="state", keep="last_per_key")
    for n in range(50):
        rid = peer.next_rid()
        rows = [b"%d of %d" % (n, key) for key in range(10)]
        peer.send(m.Publish(rid, 0, 0, b.encode("state", rows, keys=[b"k%d" % key for key in range(10)])))
        peer.confirmed(rid)
    eventually(lambda: peer.info("counters").get("blocks_discarded", 0) >= 20, "old blocks are discarded")
    end(child)
    child.start()
    again = talker(context, child.url)
    eventually(lambda: not topic(again, "state")["counting"], "the index is there again")
    assert topic(again, "state")["msgs"] == 10
    again.subscribe("state", start="first")
    assert [body for _, body in again.take(10)] == [b"49 of %d" % key for key in range(10)]


def test_messages_grow_old_while_nothing_happens(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    child.start()
    peer = talker(context, child.url)
    admin(peer, "topic.create", topic="young", max_age_ms=300)
    peer.publish("young", b"1", b"2")
    eventually(lambda: topic(peer, "young")["msgs"] == 0, "they are too old")


def test_the_journal_is_trimmed_and_the_counts_stay_exact(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    child.start(limits={"max_messages": 30})
    peer = talker(context, child.url)
    admin(peer, "topic.create", topic="a")
    for n in range(40):
        peer.publish("a", b"%d" % n)
        peer.publish("b", b"b")
    eventually(lambda: peer.info("hub")["first_seq"] >= 51, "the journal is trimmed")
    first_seq = peer.info("hub")["first_seq"]
    assert topic(peer, "a")["msgs"] == len(range(first_seq | 1, 81, 2))  # every other one, from 1 on
    end(child)
    found = messages_on_disk(child.journal)
    child.start()
    again = talker(context, child.url)
    assert topic(again, "a")["msgs"] == [name for name, _ in found].count("a")
