"""What a principal that floods costs another one: the rate of the other one, alone and beside a flood that the limits
of its role hold back."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import fabric_client
from fabric.bench import workers
from fabric.bench.crew import Line, Run, Task, run
from fabric.bench.figures import JOURNALED, Figure, median_figure
from fabric.bench.keyed import ROLES, KeyedBench
from fabric.bench.parts import KIB, Bench, consuming, end_to_end, worst

FLOODING: Final = "flooding"
LIMIT: Final = "1k/s"
FILL_S: Final = 2.0
LIMITED: Final = f"""
[role.limited]
publish = ["#"]
limits = {{ rate = "{LIMIT}", bytes = "1MB/s", sessions = 10 }}
"""


def part_tenants(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size
    with KeyedBench(bench.settings, ROLES + LIMITED, **{FLOODING: "limited"}) as keyed:
        flooded: list[tuple[float, Run]] = []

        def measure(count: int) -> tuple[float, Run]:
            alone = end_to_end(keyed, count, size)
            flooded.append(_beside(keyed, count, size))
            return alone

        rates, runs, count = keyed.repeated(measure)
    beside = flooded[-len(rates) :]  # without the trials
    foreign = max(worst(runs), worst([done for _, done in beside]))
    what, note = f"publish + deliver + ack, {size} B, of one principal", f"{count:,} messages"
    with_flood = [rate for rate, _ in beside]
    yield median_figure("tenants", f"{what}, alone", "msg/s", JOURNALED, rates, note=note, foreign=foreign)
    where = f"beside another that floods and may publish {LIMIT}"
    yield median_figure("tenants", f"{what}, {where}", "msg/s", JOURNALED, with_flood, note=note, foreign=foreign)
    shares = [100 * rate / base for rate, base in zip(with_flood, rates, strict=True)]
    yield median_figure("tenants", "so the flood leaves, of the rate alone", "%", JOURNALED, shares, foreign=foreign)


def _beside(keyed: KeyedBench, count: int, size: int) -> tuple[float, Run]:
    """The run of `end_to_end`, while the other principal floods."""
    topic = keyed.fresh("bench.tenants")
    (consumer,) = consuming(keyed, keyed.declare(topic), count, 1)
    producer = Task(workers.produce, {"url": keyed.url, "topics": [topic], "count": count, "size": size})
    its = {"credentials": keyed.credentials(FLOODING), "topic": keyed.fresh("bench.flood")}
    done = run(
        [producer, consumer, Task(flood, {**its, "done": consumer.arguments["done"], "until": count})], keyed.hub
    )
    produced, consumed, _ = done.results
    return count / (max(produced["ended"], consumed["ended"]) - produced["begun"]), done


def flood(line: Line, *, credentials: Path, topic: str, done: Any, until: int) -> dict[str, Any]:
    """Keep the buffer full until the consumer of the other principal has its messages. It is full before the run
    begins: a flood from another machine does not take the cores of this one."""
    body, count = bytes(KIB), 0
    fab = fabric_client.connect(credentials=credentials)
    try:
        filled = time.monotonic() + FILL_S
        while time.monotonic() < filled:
            fab.publish_nowait(topic, body)
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        while done.value < until:
            fab.publish_nowait(topic, body)  # waits for room
            count += 1
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}
    finally:
        with contextlib.suppress(fabric_client.FabricError):  # what was held back is of no use
            fab.close(timeout=0)
