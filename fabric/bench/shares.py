"""What a client that floods the hub costs another one: how long a single publish takes to be confirmed, alone, beside
clients that publish as much as they can, and beside each kind of flood in `floods`.

With the time goes the CPU that the hub has used meanwhile: on a busy machine it tells more than the time.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.bench import floods
from fabric.bench.crew import Line, Task, run, shared_counter
from fabric.bench.figures import JOURNALED, Figure, median_figure, percentile
from fabric.bench.parts import Bench
from fabric.cli.support.hub_process import cpu_clock

FLOODING: Final = (1, 4)  # clients that publish
FLOOD_BYTES: Final = 1_024
PAUSE_S: Final = 0.005  # between two publishes of the other client
MARGIN_S: Final = 0.5  # of flooding, before anything is measured


class _Waits(NamedTuple):
    p50_ms: float
    p99_ms: float
    cpu_ms: float  # of the hub, from a publish until it is confirmed: p50
    foreign: float


def part_shares(bench: Bench) -> Iterator[Figure]:
    repeats = range(bench.settings.repeats)
    alone = [_measure(bench, []) for _ in repeats]
    yield from _figures("alone", alone)
    for count in FLOODING:
        waits = [_measure(bench, [_publishing(bench)] * count) for _ in repeats]
        yield from _figures(f"beside {count} flooding", waits, alone)
    for kind, chosen in floods.FLOODS.items():
        waits = [_measure(bench, [Task(floods.flood, {"kind": kind, "name": bench.fresh("flood")})]) for _ in repeats]
        yield from _figures(f"beside a flood of {chosen.what}", waits, alone)


def _figures(where: str, waits: list[_Waits], alone: Sequence[_Waits] = ()) -> Iterator[Figure]:
    foreign = max(one.foreign for one in waits)
    for word, unit, runs in (
        ("p50", "ms", [one.p50_ms for one in waits]),
        ("p99", "ms", [one.p99_ms for one in waits]),
        ("CPU of the hub meanwhile, p50", "ms", [one.cpu_ms for one in waits]),
        ("of alone, p50", "x", [one.p50_ms / base.p50_ms for one, base in zip(waits, alone, strict=False)]),
    ):
        if runs:
            yield median_figure("shares", f"one publish, {where}, {word}", unit, JOURNALED, runs, foreign=foreign)


def _publishing(bench: Bench) -> Task:
    return Task(flood, {"topic": bench.fresh("bench.shares")})


def _measure(bench: Bench, flooding: list[Task]) -> _Waits:
    shared = {"url": bench.url, "done": shared_counter()}
    own = {"topic": bench.fresh("bench.shares"), "seconds": bench.settings.seconds, "hub_pid": bench.hub.pid}
    tasks = [Task(task.work, {**task.arguments, **shared}) for task in flooding]
    result = run([*tasks, Task(publish_singly, {**own, **shared})], bench.hub)
    waits, cpu = result.results[-1]["waits_ms"], result.results[-1]["cpu_ms"]
    return _Waits(percentile(waits, 0.5), percentile(waits, 0.99), percentile(cpu, 0.5), result.foreign)


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


def publish_singly(line: Line, *, url: str, topic: str, seconds: float, hub_pid: int, done: Any) -> dict[str, Any]:
    """Publish one message at a time and note how long each takes to be confirmed."""
    waits: list[float] = []
    cpu: list[float] = []
    hub_clock = cpu_clock(hub_pid)
    with fabric_client.connect(url) as fab:
        line.ready()
        time.sleep(MARGIN_S)
        cpu_s, begun = time.process_time(), time.monotonic()
        while time.monotonic() < begun + seconds or not waits:
            used_s, sent = time.clock_gettime(hub_clock), time.monotonic()
            fab.publish(topic, b"x")
            waits.append((time.monotonic() - sent) * 1000)
            cpu.append((time.clock_gettime(hub_clock) - used_s) * 1000)
            time.sleep(PAUSE_S)
        ended = time.monotonic()
        done.value = 1
    return {
        "count": len(waits), "begun": begun, "ended": ended, "waits_ms": sorted(waits), "cpu_ms": sorted(cpu),
        "cpu_before_s": cpu_s,
    }  # fmt: skip
