"""The cost of ids: the same load without ids, with an id on every message, and when the hub knows many ids.

All are measured in the same run, on the same hub, because the speed of a machine varies.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final

import zmq

import fabric_client
from fabric.bench.crew import Line, Run, Task, run
from fabric.bench.figures import JOURNALED, MIB, Figure, median_figure
from fabric.bench.growth import cpu_each, restart_s
from fabric.bench.parts import Bench, consuming, end_to_end, worst
from fabric.bench.singles import POLL_MS, connect
from fabric.bench.workers import STUCK_S
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import encode
from fabric_protocol.errors import FabricError

BATCH: Final = 1000
AHEAD: Final = 32  # unconfirmed blocks of known ids


def part_ids(bench: Bench) -> Iterator[Figure]:
    size, known = bench.settings.size, bench.settings.queued
    without = bench.repeated(lambda n: end_to_end(bench, n, size))
    yield _figure("no ids, end to end", without)
    few = bench.repeated(lambda n: with_ids(bench, n, size))
    yield _figure("an id on every message, end to end", few)
    yield _ratio("so with ids it keeps", few, without)
    learn(bench, known)
    many = bench.repeated(lambda n: with_ids(bench, n, size))
    yield _figure(f"an id on every message, {known:,} ids known", many)
    yield _ratio(f"so with {known:,} ids known it keeps", many, few)
    yield Figure("ids", f"memory of the hub, {known:,} ids known", bench.hub.memory().own / MIB, "MiB", JOURNALED)
    back = [restart_s(bench) for _ in range(bench.settings.repeats)]
    note = "from the start of the process to the first confirm, after kill -9"
    yield median_figure("ids", f"restart with {known:,} ids known", "s", JOURNALED, back, note=note)


def _figure(what: str, measured: tuple[list[float], list[Run], int]) -> Figure:
    rates, runs, count = measured
    note = f"{count:,} messages; {cpu_each(runs[-1], count)}"
    return median_figure("ids", what, "msg/s", JOURNALED, rates, note=note, foreign=worst(runs))


def _ratio(what: str, one: tuple[list[float], list[Run], int], other: tuple[list[float], list[Run], int]) -> Figure:
    ratio = 100 * statistics.median(one[0]) / statistics.median(other[0])
    return Figure("ids", what, ratio, "%", JOURNALED, foreign=max(worst(one[1]), worst(other[1])))


def with_ids(bench: Bench, count: int, size: int) -> tuple[float, Run]:
    """One producer and one consumer at the same time, from the first publish to the last ack on disk."""
    topic = bench.fresh("bench.ids")
    group = bench.declare(topic)
    producing = {"url": bench.url, "topic": topic, "count": count, "size": size}
    done = run([Task(produce, producing), *consuming(bench, group, count, 1)], bench.hub)
    produced, consumed = done.results
    return count / (max(produced["ended"], consumed["ended"]) - produced["begun"]), done


def produce(line: Line, *, url: str, topic: str, count: int, size: int) -> dict[str, Any]:
    """Publish message by message, each with an id of its own, and wait until all are confirmed."""
    body = bytes(size)
    with fabric_client.connect(url) as fab:
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        publish = fab.publish_nowait
        for number in range(count):
            publish(topic, body, id=b"order-%d" % number)
        fab.flush(STUCK_S)
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}


def learn(bench: Bench, count: int) -> None:
    """Publish `count` messages with ids, by the wire protocol: the client's time does not matter here."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket, topic = connect(context, bench.url).socket, bench.fresh("bench.known")
        sent = confirmed = 0
        while confirmed < count:
            while sent < count and sent - confirmed < AHEAD * BATCH:
                ids = [b"known-%d" % number for number in range(sent, min(sent + BATCH, count))]
                publish = m.Publish(sent + 1, sent + 1, m.Level.JOURNALED, encode(topic, [b""] * len(ids), ids=ids))
                socket.send_multipart(wire.encode(publish))
                sent += len(ids)
            if not socket.poll(POLL_MS):
                raise FabricError("the hub stopped confirming")
            answer = wire.decode(socket.recv_multipart())
            if isinstance(answer, m.PubOk):
                confirmed += sum(row[2] for row in answer.confirms)
            elif not isinstance(answer, m.Flow):
                raise FabricError(f"the hub answered {answer!r:.200}")
    finally:
        context.destroy(linger=0)
