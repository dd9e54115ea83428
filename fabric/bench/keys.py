"""The cost of order by key: the same run with 10,000 keys, in a group with order `key` and in one without."""

import time
from collections.abc import Iterator
from typing import Any, Final, Literal

import fabric_client
from fabric.bench import workers
from fabric.bench.crew import Line, Run, Task, run, shared_counter
from fabric.bench.figures import JOURNALED, Figure, median_figure
from fabric.bench.parts import Bench, worst

KEYS: Final = 10_000
STRIDE: Final = 7_919  # a prime, so that successive messages have different keys and all keys are used


def part_keys(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size
    plain: list[float] = []
    for order, consumers in (("none", 1), ("key", 1), ("key", 2)):
        rates, runs, count = bench.repeated(lambda n, o=order, k=consumers: _measure(bench, n, o, k))  # type: ignore[misc]
        who = f"{consumers} consumer{'s' if consumers > 1 else ''}"
        what = f"publish + deliver + ack, {size} B, {KEYS:,} keys, order {order}, {who}"
        yield median_figure("keys", what, "msg/s", JOURNALED, rates, note=f"{count:,} messages", foreign=worst(runs))
        if order == "none":
            plain = rates
        else:
            shares = [100 * rate / base for rate, base in zip(rates, plain, strict=True)]
            what = "so it keeps, of the rate without an order and with 1 consumer"
            yield median_figure("keys", what, "%", JOURNALED, shares, foreign=worst(runs))


def _measure(bench: Bench, count: int, order: Literal["none", "key"], consumers: int) -> tuple[float, Run]:
    topic, group = bench.fresh("bench.keys"), bench.fresh("group")
    with fabric_client.connect(bench.url) as fab, fab.consume(topic, group=group, start="new", order=order):
        pass
    url = bench.url
    consuming = {"url": url, "group": group, "total": count, "done": shared_counter()}
    producing = {"url": url, "topic": topic, "count": count, "size": bench.settings.size}
    done = run([Task(produce_keyed, producing), *[Task(workers.consume, consuming)] * consumers], bench.hub)
    ended = max(result["ended"] for result in done.results)
    return count / (ended - done.results[0]["begun"]), done


def produce_keyed(line: Line, *, url: str, topic: str, count: int, size: int) -> dict[str, Any]:
    """Publish message by message, each with one of many keys, and wait until all are confirmed."""
    body, keys = bytes(size), [f"key-{n}".encode() for n in range(KEYS)]
    with fabric_client.connect(url) as fab:
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        publish = fab.publish_nowait
        for index in range(count):
            publish(topic, body, key=keys[index * STRIDE % KEYS])
        fab.flush(workers.STUCK_S)
        return {"count": count, "begun": begun, "ended": time.monotonic(), "cpu_before_s": cpu_s}
