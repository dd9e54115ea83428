"""Delayed publishes: their memory in the hub, and their lateness when many are due at once.

Each message is a publish and a schedule of its own, which costs most. Lateness is the time from the due time of a
message to its arrival in the consumer, with the commit.
"""

import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import zmq

import fabric_client
from fabric.bench.crew import Line, Task, run
from fabric.bench.figures import JOURNALED, MIB, Figure, median_figure, percentile
from fabric.bench.parts import Bench
from fabric.bench.singles import POLL_MS, WINDOW, connect
from fabric.bench.workers import STUCK_S
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import encode
from fabric_protocol.errors import FabricError

DUE_RATE: Final = 10_000  # messages due in a second
FAR_US: Final = 3_600_000_000  # waiting messages are due from an hour on, within an hour
SPEAKERS: Final = 4  # connections that publish the waiting messages
LEAD_S: Final = 1.0  # from the last publish to the first due time
PUBLISH_RATE: Final = 4_000  # publishes per second that every machine reaches
STAMP: Final = struct.Struct("<q")  # the first bytes of a body: the due time in microseconds since 1970


def part_delayed(bench: Bench) -> Iterator[Figure]:
    """Lateness in a hub without other schedules, then memory, then lateness with all waiting schedules."""
    queued = bench.settings.queued
    yield from _lateness(bench, "nothing else waits")
    before = bench.hub.memory()
    topic, share = bench.fresh("bench.far"), -(-queued // SPEAKERS)
    done = run([Task(schedule_far, {"url": bench.url, "topic": topic, "count": share})] * SPEAKERS, bench.hub)
    begun, ended = min(r["begun"] for r in done.results), max(r["ended"] for r in done.results)
    rate = share * SPEAKERS / (ended - begun)
    what = f"delayed publishes, each a schedule of its own, {SPEAKERS} connections"
    note = f"{queued:,} messages; CPU each: hub {done.hub_cpu_s / queued * 1e6:.1f} µs"
    yield Figure("delayed", what, rate, "msg/s", JOURNALED, note=note, foreign=done.foreign)
    after = bench.hub.memory()
    grown = max(after.own - before.own, 0) / MIB
    own, mapped = f"{before.own / MIB:,.0f} before, {after.own / MIB:,.0f} after", f"{after.mapped / MIB:,.0f} MiB"
    note = f"{own}; and {mapped} of the journal's file, mapped"
    yield Figure("delayed", f"memory of the hub that {queued:,} of them take", grown, "MiB", JOURNALED, note=note)
    yield from _lateness(bench, f"{queued:,} others wait")


def _lateness(bench: Bench, beside: str) -> Iterator[Figure]:
    count = bench.settings.messages or round(DUE_RATE * bench.settings.seconds)
    runs = []
    for _ in range(bench.settings.repeats):
        topic = bench.fresh("bench.due")
        group = bench.declare(topic)
        tasks = [
            Task(schedule_soon, {"url": bench.url, "topic": topic, "count": count}),
            Task(consume_due, {"url": bench.url, "group": group, "total": count}),
        ]
        runs.append(run(tasks, bench.hub))
    foreign = max(done.foreign for done in runs)
    late_us = [done.results[1]["late_us"] for done in runs]
    for name, share in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0)):
        values = [percentile(late, share) / 1000 for late in late_us]
        what = f"lateness at {DUE_RATE:,} due/s, {beside}, {name}"
        yield median_figure("delayed", what, "ms", JOURNALED, values, note=f"{count:,} messages", foreign=foreign)


# Run in the workers.


def schedule_far(line: Line, *, url: str, topic: str, count: int) -> dict[str, Any]:
    """Publish messages that are due in an hour, not in the order of their due times."""
    start_us = time.time_ns() // 1000 + FAR_US
    block = encode(topic, [bytes(128)])
    stride = 7_919 if count % 7_919 else 7_907  # a prime, so that each due time comes once
    return _schedule(line, url, count, lambda i: (start_us + (i * stride % count) * FAR_US // count, block))


def schedule_soon(line: Line, *, url: str, topic: str, count: int) -> dict[str, Any]:
    """Publish messages that are due at a steady rate, shortly after all of them were published."""
    start_us = 0

    def publish(index: int) -> tuple[int, bytes]:
        nonlocal start_us
        if not start_us:
            start_us = time.time_ns() // 1000 + int((LEAD_S + count / PUBLISH_RATE) * 1e6)
        due_us = start_us + index * 1_000_000 // DUE_RATE
        return due_us, encode(topic, [STAMP.pack(due_us) + bytes(120)])

    return _schedule(line, url, count, publish)


def _schedule(line: Line, url: str, count: int, publish: Callable[[int], tuple[int, bytes]]) -> dict[str, Any]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        speaker = connect(context, url)
        socket = speaker.socket
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        sent = confirmed = 0
        while confirmed < count:
            while sent < count and sent - confirmed < min(WINDOW, speaker.window):
                due_us, block = publish(sent)
                sent += 1
                socket.send_multipart(wire.encode(m.Publish(sent, sent, m.Level.JOURNALED, block, {"at_us": due_us})))
            if not socket.poll(POLL_MS):
                raise FabricError("the hub stopped confirming")
            answer = wire.decode(socket.recv_multipart())
            if isinstance(answer, m.Err):
                raise FabricError(f"the hub refused a delayed message: {answer.text}")
            confirmed += isinstance(answer, m.Ok)
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}
    finally:
        context.destroy(linger=0)


def consume_due(line: Line, *, url: str, group: str, total: int) -> dict[str, Any]:
    """Consume the due messages; returns the lateness of each in microseconds."""
    late_us: list[float] = []
    with fabric_client.connect(url) as fab:
        batches = fab.consume_batches(group=group, timeout=STUCK_S)
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        for batch in batches:
            now_us = time.time_ns() / 1000
            late_us += [now_us - STAMP.unpack_from(message.body)[0] for message in batch]
            batch.ack()
            if len(late_us) >= total:
                break
        ended = time.monotonic()
        fab.flush(STUCK_S)
    if len(late_us) < total:
        raise FabricError(f"only {len(late_us)} of {total} messages came")
    return {"count": total, "begun": begun, "ended": ended, "late_us": sorted(late_us), "cpu_before_s": cpu_s}
