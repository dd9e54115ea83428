"""A consumer that does not read: others go on, memory stays bounded, and later it gets every message."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import zmq

from fabric.hub.router_socket import SOCKET_OPTIONS
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from tests.hub.kit import Child, Talker, eventually, sockets, talker

BODY: Final = bytes(32 << 10)
BLOCKS: Final = 1_500  # 47 MB: more than queues and kernel buffers hold
GROWTH_MB_MAX: Final = 120.0  # the block store, the send queue, Python's slack; far below what two readers would need


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    with sockets() as folder, Child(tmp_path, folder) as child:
        yield child.start(drain_s=0.5)


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)


class Deaf(Talker):
    """Reads only what it must, and buffers next to nothing."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", url: str) -> None:
        super().__init__(context, "inproc://nowhere")
        self._socket.close()
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, 1)
        self._socket.setsockopt(zmq.RCVBUF, 4096)
        self._socket.connect(url)
        self.hello(hb_ms=60_000, ttl_ms=600_000)


def publish_all(producer: Talker, first: int, count: int) -> None:
    """Blocks of one message each, with a few under way at a time."""
    for number in range(first, first + count):
        producer.send(m.Publish(number, 0, 0, b.encode("t", [b"%d " % number + BODY])))
        if number - first >= 32:
            producer.confirmed(number - 32)
    for number in range(max(first, first + count - 32), first + count):
        producer.confirmed(number)


def numbers(message: m.Deliver) -> list[int]:
    return [int(body.split(b" ", 1)[0]) for body in Block(message.block).payloads()]


def test_a_consumer_that_does_not_read_harms_no_other(child: Child, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with (
        Deaf(context, child.url) as deaf,
        talker(context, child.url) as reader,
        talker(context, child.url) as producer,
    ):
        deaf.subscribe("t", group="deaf", lease_ms=600_000)
        reader.subscribe("t", group="reader", lease_ms=600_000)
        before = child.anonymous_mb()
        seen = 0
        for first in range(1, BLOCKS + 1, 100):
            publish_all(producer, first, 100)
            while seen < first + 99:  # the other group gets everything meanwhile
                for number in numbers(reader.until(m.Deliver)):
                    seen += 1
                    assert number == seen
            reader.ack(1, seen)
        assert producer.info("counters")["send_queue_full"] >= 1, "the test did not fill the queue"
        (session,) = (s for s in producer.info("sessions")["sessions"] if s["blocked"])
        assert session["outstanding"] < BLOCKS, "a full connection is not handed more and more"
        assert session["outstanding"] <= 4 * SOCKET_OPTIONS[zmq.SNDHWM]
        assert child.anonymous_mb() - before < GROWTH_MB_MAX

        ordinal = 0
        while ordinal < BLOCKS:  # now it reads, and gets everything in order
            message = deaf.until(m.Deliver)
            assert message.first_ordinal == ordinal + 1
            assert numbers(message) == list(range(ordinal + 1, ordinal + 1 + len(numbers(message))))
            ordinal += len(numbers(message))
        assert deaf.ack(1, BLOCKS)["applied"] == BLOCKS
        eventually(lambda: not any(s["blocked"] for s in producer.info("sessions")["sessions"]), "nobody is blocked")


def test_a_consumer_that_does_not_read_does_not_keep_the_hub_from_ending(
    child: Child, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    with Deaf(context, child.url) as deaf, talker(context, child.url) as producer:
        deaf.subscribe("t", group="deaf", lease_ms=600_000)
        for first in range(1, BLOCKS, 100):
            publish_all(producer, first, 100)
            if producer.info("counters").get("send_queue_full", 0):
                break
        else:
            pytest.fail("the queue was never full")
        child.process.terminate()
        assert child.wait() == 0
