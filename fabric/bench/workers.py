"""The functions of the processes of a measurement. Each returns its times in a dictionary.

Times are of the monotonic clock, which all processes share on Linux, so they can be compared.
"""

import struct
import time
from typing import Any, Final

import fabric_client
from fabric.bench.crew import Line
from fabric_protocol.errors import FabricError

STAMP: Final = struct.Struct("<q")  # the first bytes of a body: the time of its publish in ns
IDLE_S: Final = 0.2  # how often an idle consumer checks whether all messages were consumed
PACE_S: Final = 0.0002
STUCK_S: Final = 120.0  # a worker fails when nothing comes for this time


def produce(
    line: Line, *, url: str, topics: list[str], count: int, size: int, level: str | None = None
) -> dict[str, Any]:
    """Publish message by message, and wait until all are confirmed."""
    body = bytes(size)
    options = {} if level is None else {"level": level}
    with fabric_client.connect(url) as fab:
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        publish = fab.publish_nowait
        if len(topics) == 1 and not options:
            topic = topics[0]
            for _ in range(count):
                publish(topic, body)
        else:
            for index in range(count):
                publish(topics[index % len(topics)], body, **options)  # type: ignore[arg-type]
        fab.flush(STUCK_S)
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}


def consume(line: Line, *, url: str, group: str, total: int, done: Any) -> dict[str, Any]:
    """Consume and ack as a member of a group, with an object for each message, until the group has had `total`."""
    with fabric_client.connect(url) as fab:
        batches = fab.consume_batches(group=group, timeout=IDLE_S)
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        mine = size = 0
        ended = give_up = begun
        while done.value < total:
            for batch in batches:
                for message in batch:
                    size += len(message.body)
                batch.ack()
                mine += batch.count
                ended = time.monotonic()
                with done.get_lock():
                    done.value += batch.count
                if done.value >= total:
                    fab.flush(STUCK_S)  # until the last acks are on disk
                    ended = time.monotonic()
                    break
            else:
                if time.monotonic() - max(ended, give_up) > STUCK_S:
                    raise FabricError(f"only {done.value} of {total} messages came")
                batches = fab.consume_batches(group=group, timeout=IDLE_S)
        return {"count": mine, "bytes": size, "begun": begun, "ended": ended, "cpu_before_s": cpu_s}


def produce_paced(
    line: Line, *, url: str, topic: str, rate: int, seconds: float, size: int, level: str
) -> dict[str, Any]:
    """Publish at a steady rate. The stamp of a message is the time at which it should be published, so that a stall of
    the client counts; after an overlong sleep it is the present time."""
    padding = bytes(size - STAMP.size)
    options = {} if level == "journaled" else {"level": level}
    with fabric_client.connect(url) as fab:
        line.ready()
        cpu_s = time.process_time()
        step_ns, count = round(1e9 / rate), round(rate * seconds)
        begun = idle_since = time.monotonic_ns()
        for index in range(count):
            due = begun + index * step_ns
            while (now := time.monotonic_ns()) < due:
                idle_since = now
                time.sleep(PACE_S)
            stamp = due if due <= idle_since else now
            fab.publish_nowait(topic, STAMP.pack(min(stamp, now)) + padding, **options)  # type: ignore[arg-type]
        fab.flush(STUCK_S)
        return {"count": count, "begun": begun / 1e9, "ended": time.monotonic(), "cpu_before_s": cpu_s}


def consume_paced(line: Line, *, url: str, group: str, total: int) -> dict[str, Any]:
    """Consume message by message; returns the delay of each in microseconds."""
    delays: list[float] = []
    with fabric_client.connect(url) as fab:
        consumer = fab.consume(group=group, count=total, timeout=STUCK_S)
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        for message in consumer:
            delays.append((time.monotonic_ns() - STAMP.unpack_from(message.body)[0]) / 1000)
            message.ack()
        ended = time.monotonic()
        fab.flush(STUCK_S)
    if len(delays) < total:
        raise FabricError(f"only {len(delays)} of {total} messages came")
    return {"count": total, "begun": begun, "ended": ended, "delays_us": sorted(delays), "cpu_before_s": cpu_s}
