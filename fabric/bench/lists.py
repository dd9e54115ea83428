"""The lists of a hub with much in it: INFO `groups` of 1,000 groups and INFO `topics` of 10,000 topics over a long
journal, and `fabric group list` as a command.

The groups have different patterns and positions; some have consumers, some have dead letters. The lists are asked for
while the hub still counts, when all counts are exact, and after kill -9. With the time goes the CPU that the hub has
used meanwhile: on a busy machine it tells more than the time.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.bench import workers
from fabric.bench.crew import Task, Watch, run
from fabric.bench.figures import JOURNALED, Figure, median_figure, percentile
from fabric.bench.parts import Bench
from fabric.cli.support.connect import all_rows
from fabric.cli.support.hub_process import HubProcess, cpu_clock
from fabric_protocol.errors import FabricError

AREAS: Final = 100
KINDS: Final = 100  # topics of one area
ROW: Final = 20  # messages of one topic that follow each other
GROUPS: Final = 1_000
WITH_CONSUMERS: Final = 100
HELD: Final = 10  # messages of each of these groups that are in flight
WITH_DEAD_LETTERS: Final = 50
LISTS_MIN: Final = 30  # of one state of the hub, for a percentile
COMMANDS_MIN: Final = 7  # starts of a command: single starts differ by half
COMMANDS: Final = (("group", "list", "-o", "table"), ("group", "list", "--json"), ("topic", "list", "-o", "table"))
EXACT_S: Final = 600.0  # longest wait for exact counts

Rows = list[dict[str, Any]]


class _Spent(NamedTuple):
    wall_s: float
    cpu_s: float


class _Asked(NamedTuple):
    wall_ms: list[float]  # ascending
    cpu_ms: list[float]  # of the hub, ascending
    rows: int
    estimates: int  # rows of the first list whose counts are not exact


def part_info(bench: Bench) -> Iterator[Figure]:
    queued, word = bench.settings.queued, bench.fresh("bench.info")
    yield _filled(bench, word, queued)
    with ExitStack() as stack:
        fab = stack.enter_context(fabric_client.connect(bench.url))
        _make_groups(fab, word, queued)
        yield from _until_exact(bench, fab, "groups", f"after {GROUPS:,} groups were made over {queued:,} messages")
        _use_groups(fab, stack)
        yield from _until_exact(bench, fab, "topics", f"after the first question, {AREAS * KINDS:,} topics")
        for what in ("groups", "topics"):
            yield from _figures(what, "all exact", _ask_often(bench, fab, what))
        yield from _commands(bench)
        bench.hub.kill()
        bench.hub.start()
        fab.info("hub", timeout=60.0)
        for what in ("groups", "topics"):
            yield from _until_exact(bench, fab, what, "after kill -9")


# What the hub has.


def _topics(word: str) -> list[str]:
    return [f"{word}.{area}.{kind}" for area in range(AREAS) for kind in range(KINDS)]


def _filled(bench: Bench, word: str, queued: int) -> Figure:
    topics = [topic for topic in _topics(word) for _ in range(ROW)]
    filling = {"url": bench.url, "topics": topics, "count": queued, "size": bench.settings.size}
    done = run([Task(workers.produce, filling)], bench.hub)
    (result,) = done.results
    rate = queued / (result["ended"] - result["begun"])
    what = f"publish of {queued:,} messages on {AREAS * KINDS:,} topics"
    return Figure("info", what, rate, "msg/s", JOURNALED, foreign=done.foreign)


def _pattern(word: str, number: int) -> str:
    """Of a hundred groups one gets everything, 49 an area, 30 a kind of all areas, and 20 one topic."""
    place, area, kind = number % 100, number * 7 % AREAS, number * 11 % KINDS
    if place == 0:
        return f"{word}.#"
    if place < 50:
        return f"{word}.{area}.*"
    return f"{word}.*.{kind}" if place < 80 else f"{word}.{area}.{kind}"


def _group(number: int) -> str:
    return f"info-{number}"


def _make_groups(fab: fabric_client.Client, word: str, queued: int) -> None:
    """Groups at positions all over the journal: the first is at its begin."""
    for number in range(GROUPS):
        start = {"seq": 1 + number * queued // GROUPS}
        fab.admin.ask("group.create", group=_group(number), patterns=[_pattern(word, number)], start=start)


def _use_groups(fab: fabric_client.Client, stack: ExitStack) -> None:
    """Consumers hold messages of some groups, and others have dead letters. In a short journal, some have none."""
    for number in range(WITH_CONSUMERS):
        consumer = fab.consume(group=_group(number), prefetch=HELD)
        stack.enter_context(consumer)
    for number in range(WITH_CONSUMERS, WITH_CONSUMERS + WITH_DEAD_LETTERS):
        for message in fab.fetch(group=_group(number), count=HELD, timeout=0.1):
            message.reject("for the benchmark")
    fab.flush(workers.STUCK_S)


# What the lists cost.


def _ask(bench: Bench, fab: fabric_client.Client, what: str) -> tuple[Rows, float, float]:
    """All pages of a list, and the milliseconds of waiting and of the hub's CPU."""
    clock = cpu_clock(bench.hub.pid)
    cpu_s, begun = time.clock_gettime(clock), time.monotonic()
    rows = all_rows(fab, what, what)
    return rows, (time.monotonic() - begun) * 1000, (time.clock_gettime(clock) - cpu_s) * 1000


def _inexact(what: str, rows: Rows) -> int:
    return sum(not row["ready_exact"] if what == "groups" else row["counting"] for row in rows)


def _ask_often(bench: Bench, fab: fabric_client.Client, what: str) -> _Asked:
    lists = [_ask(bench, fab, what) for _ in range(max(bench.settings.repeats, LISTS_MIN))]
    return _asked(what, lists)


def _asked(what: str, lists: list[tuple[Rows, float, float]]) -> _Asked:
    rows, walls, cpus = zip(*lists, strict=True)
    return _Asked(sorted(walls), sorted(cpus), len(rows[-1]), _inexact(what, rows[0]))


def _until_exact(bench: Bench, fab: fabric_client.Client, what: str, when: str) -> Iterator[Figure]:
    """Ask for a list until its counts are exact."""
    begun, lists = time.monotonic(), list[tuple[Rows, float, float]]()
    while not lists or _inexact(what, lists[-1][0]):
        if time.monotonic() - begun > EXACT_S:
            raise FabricError(f"the counts of INFO {what} were not exact after {EXACT_S:g} s")
        lists.append(_ask(bench, fab, what))
    seconds = time.monotonic() - begun
    asked = _asked(what, lists)
    note = f"{asked.estimates:,} of {asked.rows:,} rows of the first list were estimates, marked"
    yield Figure("info", f"INFO {what}, {when}: exact after", seconds, "s", JOURNALED, note=note)
    yield from _figures(what, f"{when}, until exact", asked, len(lists))


def _figures(what: str, when: str, asked: _Asked, lists: int = 0) -> Iterator[Figure]:
    note = f"{asked.rows:,} rows, all pages" + (f"; lists: {lists:,}" if lists else "")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        for word, values in (("", asked.wall_ms), ("CPU of the hub, ", asked.cpu_ms)):
            value = percentile(values, share)
            yield Figure("info", f"INFO {what}, {when}, {word}{name}", value, "ms", JOURNALED, note=note)


def _commands(bench: Bench) -> Iterator[Figure]:
    """Lists as commands, with the time of the same command on a hub that has nothing taken off: so the start of
    Python, the imports and the connection do not count."""
    with HubProcess(bench.folder / "empty") as empty:
        for words in COMMANDS:
            watch, spent = Watch(), list[tuple[_Spent, _Spent]]()
            for _ in range(max(bench.settings.repeats, COMMANDS_MIN)):
                spent.append((_command(empty.url, *words), _command(bench.url, *words)))
            for word, field in (("", 0), (", its CPU", 1)):
                values = [(full[field] - bare[field]) * 1000 for bare, full in spent]
                start = statistics.median(bare[field] for bare, _ in spent) * 1000
                note = f"more than on an empty hub, where it takes {start:,.0f} ms"
                what = f"fabric {' '.join(words)}{word}"
                yield median_figure("info", what, "ms", JOURNALED, values, note=note, foreign=watch.foreign())


def _command(url: str, *words: str) -> _Spent:
    """Run a command of `fabric`."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    environment = {**os.environ, "FABRIC_URL": url}
    subprocess.run([sys.executable, "-m", "fabric", *words], stdout=subprocess.DEVNULL, env=environment, check=True)
    wall_s, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return _Spent(wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
