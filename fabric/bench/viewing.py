"""What a viewer costs the hub: INFO `pulse` four times a second, with 1,000 groups of which some or all change.

Before each question, a message is published to each group that is to change, in one block. The control publishes the
same and asks nothing; both take turns, and the difference of the hub's CPU is the cost of the viewer. Viewers in many
windows cost as much as one if one poller asks for all of them: the hub answers the poller alone.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.bench.crew import Line, Task, run
from fabric.bench.figures import JOURNALED, Figure, median_figure, percentile
from fabric.bench.parts import Bench
from fabric.cli.support.hub_process import cpu_clock

GROUPS: Final = 1_000
CHANGING: Final = (50, GROUPS)
RATE: Final = 4  # pulses in a second
STRETCH: Final = 4  # a run is so many times --seconds long, because a pulse is rare
PAIRS_MIN: Final = 3


class _Viewed(NamedTuple):
    share: float  # of a core, in percent
    pulses_ms: list[float]  # CPU of the hub for each pulse, ascending
    foreign: float


def part_pulse(bench: Bench) -> Iterator[Figure]:
    word = bench.fresh("bench.pulse")
    with fabric_client.connect(bench.url) as fab:
        for number in range(GROUPS):
            fab.admin.ask("group.create", group=f"{word}-{number}", patterns=[f"{word}.{number}"])
    for changing in CHANGING:
        topics = [f"{word}.{number}" for number in range(changing)]
        repeats = range(max(bench.settings.repeats, PAIRS_MIN))
        pairs = [(_view(bench, topics, asks=False), _view(bench, topics, asks=True)) for _ in repeats]
        yield from _figures(changing, pairs)


def _figures(changing: int, pairs: list[tuple[_Viewed, _Viewed]]) -> Iterator[Figure]:
    foreign = max(one.foreign for pair in pairs for one in pair)
    what = f"a pulse {RATE} times a second, {changing:,} of {GROUPS:,} groups change"
    control = statistics.median(without.share for without, _ in pairs)
    note = f"of one core; without the viewer, the publishes take {control:.2f} %"
    shares = [viewed.share - without.share for without, viewed in pairs]
    yield median_figure("pulse", f"{what}: CPU of the hub", "%", JOURNALED, shares, note=note, foreign=foreign)
    each = [percentile(viewed.pulses_ms, 0.5) for _, viewed in pairs]
    yield median_figure("pulse", f"{what}: CPU of one pulse, p50", "ms", JOURNALED, each, foreign=foreign)


def _view(bench: Bench, topics: list[str], *, asks: bool) -> _Viewed:
    seconds = STRETCH * bench.settings.seconds
    arguments = {"url": bench.url, "hub_pid": bench.hub.pid, "topics": topics, "seconds": seconds, "asks": asks}
    done = run([Task(change_and_ask, arguments)], bench.hub)
    (result,) = done.results
    share = 100 * result["hub_cpu_s"] / (result["ended"] - result["begun"])
    return _Viewed(share, result["pulses_ms"], done.foreign)


def change_and_ask(
    line: Line, *, url: str, hub_pid: int, topics: list[str], seconds: float, asks: bool
) -> dict[str, Any]:
    """Let groups change at a steady rate, and ask for a pulse after each change."""
    clock, pulses_ms = cpu_clock(hub_pid), list[float]()
    with fabric_client.connect(url) as fab:
        version = _pulse(fab, 0)  # all rows; and without a viewer, the hub notes changes for a minute
        line.ready()
        cpu_s, begun, hub_s = time.process_time(), time.monotonic(), time.clock_gettime(clock)
        for step in range(max(1, round(seconds * RATE))):
            time.sleep(max(0.0, begun + step / RATE - time.monotonic()))
            for topic in topics:
                fab.publish_nowait(topic, b"x")
            fab.flush()
            before_s = time.clock_gettime(clock)
            if asks:
                version = _pulse(fab, version)
            pulses_ms.append((time.clock_gettime(clock) - before_s) * 1000)
        time.sleep(max(0.0, begun + seconds - time.monotonic()))
        return {
            "begun": begun, "ended": time.monotonic(), "hub_cpu_s": time.clock_gettime(clock) - hub_s,
            "pulses_ms": sorted(pulses_ms), "cpu_before_s": cpu_s,
        }  # fmt: skip


def _pulse(fab: fabric_client.Client, version: int) -> int:
    """All pages of a pulse; returns the version for the next one."""
    while True:
        pulse = fab.info("pulse", since=version)
        version = pulse["version"]
        if not pulse["more"]:
            return version
