"""Growth: many topics, many groups, a long journal, each as a ratio to the small case.

Both sides of a ratio are measured in the same run, on the same hub, because the speed of a machine varies.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

import fabric_client
from fabric.bench import workers
from fabric.bench.crew import Run, Task, run
from fabric.bench.figures import JOURNALED, MIB, Figure, median_figure
from fabric.bench.parts import Bench, end_to_end, worst
from fabric.bench.singles import GroupMaker

TOPICS: Final = 10_000
GROUPS: Final = 1_000
GROUPS_PER_SESSION: Final = 100


def part_topics(bench: Bench) -> Iterator[Figure]:
    """On the large side each message has another topic, so the client cannot use its fast path."""
    size = bench.settings.size
    word = bench.fresh("bench.topics")
    many = [f"{word}.{index}" for index in range(TOPICS)]
    yield from _ratio(
        bench, "topics", f"1 -> {TOPICS:,} topics",
        lambda n: end_to_end(bench, n, size),
        lambda n: end_to_end(bench, n, size, many, f"{word}.*"),
    )  # fmt: skip


def part_groups(bench: Bench) -> Iterator[Figure]:
    """One group consumes; the other groups have the same patterns and no consumers."""
    size = bench.settings.size
    small = bench.repeated(lambda n: end_to_end(bench, n, size))
    names = [bench.fresh("idle") for _ in range(GROUPS - 1)]
    GroupMaker(bench.url).make(names, "bench.#", GROUPS_PER_SESSION)
    large = bench.repeated(lambda n: end_to_end(bench, n, size))
    yield from _compared("groups", f"1 -> {GROUPS:,} groups", small, large)


def part_journal(bench: Bench) -> Iterator[Figure]:
    """A journal with many queued messages: memory, speed, and the restart after kill -9."""
    size, queued = bench.settings.size, bench.settings.queued
    small = bench.repeated(lambda n: end_to_end(bench, n, size))
    topic = bench.fresh("bench.queued")
    bench.declare(topic)
    filling = {"url": bench.url, "topics": [topic], "count": queued, "size": size}
    run([Task(workers.produce, filling)], bench.hub)
    memory = bench.hub.memory()
    note = f"and {memory.mapped / MIB:,.0f} MiB of the journal's file, mapped, which the kernel takes back at need"
    yield Figure("journal", f"memory of the hub, {queued:,} queued", memory.own / MIB, "MiB", JOURNALED, note=note)
    large = bench.repeated(lambda n: end_to_end(bench, n, size))
    yield from _compared("journal", f"journal of 0 -> {queued:,} messages", small, large)
    back = [restart_s(bench) for _ in range(bench.settings.repeats)]
    note = "from the start of the process to the first confirm, after kill -9"
    yield median_figure("journal", f"restart with {queued:,} queued", "s", JOURNALED, back, note=note)


def restart_s(bench: Bench) -> float:
    bench.hub.kill()
    begun = time.monotonic()
    bench.hub.start()
    with fabric_client.connect(bench.url) as fab:
        fab.publish("bench.restart", b"first")
        return time.monotonic() - begun


def _ratio(
    bench: Bench,
    part: str,
    what: str,
    small: Callable[[int], tuple[float, Run]],
    large: Callable[[int], tuple[float, Run]],
) -> Iterator[Figure]:
    yield from _compared(part, what, bench.repeated(small), bench.repeated(large))


def _compared(
    part: str, what: str, small: tuple[list[float], list[Run], int], large: tuple[list[float], list[Run], int]
) -> Iterator[Figure]:
    for side, (rates, runs, count) in (("small", small), ("large", large)):
        note = f"{count:,} messages; {cpu_each(runs[-1], count)}"
        what_side = f"{what}: {side}, end to end"
        yield median_figure(part, what_side, "msg/s", JOURNALED, rates, note=note, foreign=worst(runs))
    ratio = 100 * statistics.median(large[0]) / statistics.median(small[0])
    foreign = max(worst(small[1]), worst(large[1]))
    yield Figure(part, f"{what}: large keeps", ratio, "%", JOURNALED, foreign=foreign)


def cpu_each(done: Run, count: int) -> str:
    """The CPU time of hub, producer and consumer for each message."""
    producer_s, consumer_s = (result["cpu_s"] for result in done.results)
    hub, producer, consumer = (spent / count * 1e6 for spent in (done.hub_cpu_s, producer_s, consumer_s))
    return f"CPU each: hub {hub:.2f}, producer {producer:.2f}, consumer {consumer:.2f} µs"
