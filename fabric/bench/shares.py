"""What a client that publishes as much as it can costs another one: how long a single publish takes to be confirmed,
alone and beside one or several flooding clients."""

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.bench.crew import Line, Task, run, shared_counter
from fabric.bench.figures import JOURNALED, Figure, median_figure, percentile
from fabric.bench.parts import Bench

FLOODING: Final = (0, 1, 4)  # clients
FLOOD_BYTES: Final = 1_024
PAUSE_S: Final = 0.005  # between two publishes of the other client
MARGIN_S: Final = 0.5  # of flooding, before anything is measured


class _Waits(NamedTuple):
    p50_ms: float
    p99_ms: float
    foreign: float


def part_shares(bench: Bench) -> Iterator[Figure]:
    alone: list[float] = []
    for flooding in FLOODING:
        waits = [_measure(bench, flooding) for _ in range(bench.settings.repeats)]
        foreign = max(one.foreign for one in waits)
        beside = f"beside {flooding} flooding" if flooding else "alone"
        p50s, p99s = [one.p50_ms for one in waits], [one.p99_ms for one in waits]
        yield median_figure("shares", f"one publish, {beside}, p50", "ms", JOURNALED, p50s, foreign=foreign)
        yield median_figure("shares", f"one publish, {beside}, p99", "ms", JOURNALED, p99s, foreign=foreign)
        if not flooding:
            alone = p50s
        else:
            ratios = [p50 / base for p50, base in zip(p50s, alone, strict=True)]
            yield median_figure("shares", "so it takes, of alone, p50", "x", JOURNALED, ratios, foreign=foreign)


def _measure(bench: Bench, flooding: int) -> _Waits:
    url, done = bench.hub.url, shared_counter()
    seconds = bench.settings.seconds
    topic = bench.fresh("bench.shares")
    floods = [Task(flood, {"url": url, "topic": topic, "done": done}) for _ in range(flooding)]
    other = Task(publish_singly, {"url": url, "topic": topic, "seconds": seconds, "done": done})
    result = run([*floods, other], bench.hub)
    waits = result.results[-1]["waits_ms"]
    return _Waits(percentile(waits, 0.5), percentile(waits, 0.99), result.foreign)


def flood(line: Line, *, url: str, topic: str, done: Any) -> dict[str, Any]:
    """Publish as much as the hub takes until the other client is done."""
    body, count = bytes(FLOOD_BYTES), 0
    with fabric_client.connect(url) as fab:
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        while not done.value:
            for _ in range(100):
                fab.publish_nowait(topic, body)
            count += 100
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}


def publish_singly(line: Line, *, url: str, topic: str, seconds: float, done: Any) -> dict[str, Any]:
    """Publish one message at a time and note how long each takes to be confirmed."""
    waits: list[float] = []
    with fabric_client.connect(url) as fab:
        line.ready()
        time.sleep(MARGIN_S)
        cpu_s, begun = time.process_time(), time.monotonic()
        while time.monotonic() < begun + seconds or not waits:
            sent = time.monotonic()
            fab.publish(topic, b"x")
            waits.append((time.monotonic() - sent) * 1000)
            time.sleep(PAUSE_S)
        ended = time.monotonic()
        done.value = 1
    return {"count": len(waits), "begun": begun, "ended": ended, "waits_ms": sorted(waits), "cpu_before_s": cpu_s}
