"""The measurements of half a minute. Each takes a Bench and yields Figures.

A trial run with few messages comes first. Its speed gives the number of messages for a run of the wanted length.
"""

import itertools
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.bench import raw, singles, workers
from fabric.bench.crew import Run, Task, Watch, run, shared_counter
from fabric.bench.figures import JOURNALED, NO_HUB, RECEIVED, Figure, median_figure, percentile
from fabric.cli.support.hub_process import HubProcess
from fabric_client.options import Level

TRIAL: Final = 20_000  # messages of the trial run
COUNT_MAX: Final = 50_000_000
KIB: Final = 1024
CONNECTIONS: Final = 50
PACED_RATE: Final = 2_000
COMMITS_TIMED: Final = 200


class Settings(NamedTuple):
    size: int = 128
    seconds: float = 2.0
    messages: int = 0  # of one run; 0: as many as take `seconds`
    repeats: int = 1
    queued: int = 1_000_000  # messages in the journal for the part `journal`
    folder: Path | None = None


class Bench:
    """A hub in a temporary folder, and runs against it on fresh topics and groups."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._temporary = tempfile.TemporaryDirectory(prefix="fabric-bench-", dir=settings.folder)
        self.folder = Path(self._temporary.name)
        self.hub = HubProcess(self.folder / "journal")
        self._numbers = itertools.count()

    def __enter__(self) -> "Bench":
        try:
            self.hub.start()
        except BaseException:
            self._temporary.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hub.kill()  # the folder is removed anyway
        self._temporary.cleanup()

    @property
    def url(self) -> str:
        """The address for clients."""
        return self.hub.url

    def fresh(self, word: str) -> str:
        """A new name."""
        return f"{word}-{next(self._numbers)}"

    def declare(self, pattern: str, *, level: Level | None = None) -> str:
        """Create a group that gets all messages that are published from now on."""
        group = self.fresh("group")
        with fabric_client.connect(self.url) as fab, fab.consume(pattern, group=group, start="new", level=level):
            return group

    def counters(self) -> dict[str, int]:
        with fabric_client.connect(self.url) as fab:
            return {name: int(value) for name, value in fab.info("counters").items() if isinstance(value, int)}

    def repeated(self, measure: Callable[[int], tuple[float, Run]]) -> tuple[list[float], list[Run], int]:
        """Call `measure(count)`, which returns messages per second and a Run: for trials, then `repeats` times."""
        settings = self.settings
        count = settings.messages
        if not count:
            rate, _ = measure(TRIAL)
            # The first trial is slower than a run, because it begins cold: a second trial is a quarter of a run.
            rate, _ = measure(max(TRIAL, min(COUNT_MAX, int(rate * settings.seconds / 4))))
            count = max(TRIAL, min(COUNT_MAX, int(rate * settings.seconds)))
        measured = [measure(count) for _ in range(settings.repeats)]
        return [rate for rate, _ in measured], [run for _, run in measured], count


def worst(runs: list[Run]) -> float:
    return max(run.foreign for run in runs)


def publish(bench: Bench, count: int, size: int, topics: list[str]) -> tuple[float, Run]:
    """One producer, no consumer."""
    done = run([Task(workers.produce, _producing(bench, count, size, topics))], bench.hub)
    (result,) = done.results
    return count / (result["ended"] - result["begun"]), done


def drain(bench: Bench, count: int, size: int, consumers: int) -> tuple[float, Run]:
    """Consumers of one group receive and ack messages that were published before."""
    topic = bench.fresh("bench.drain")
    group = bench.declare(topic)
    publish(bench, count, size, [topic])
    tasks = consuming(bench, group, count, consumers)
    done = run(tasks, bench.hub)
    begun = min(result["begun"] for result in done.results)
    return count / (max(result["ended"] for result in done.results) - begun), done


def end_to_end(
    bench: Bench, count: int, size: int, topics: list[str] | None = None, pattern: str | None = None
) -> tuple[float, Run]:
    """One producer and one consumer at the same time, from the first publish to the last ack on disk."""
    topics = topics or [bench.fresh("bench.e2e")]
    group = bench.declare(pattern or topics[0])
    tasks = [Task(workers.produce, _producing(bench, count, size, topics)), *consuming(bench, group, count, 1)]
    done = run(tasks, bench.hub)
    produced, consumed = done.results
    return count / (max(produced["ended"], consumed["ended"]) - produced["begun"]), done


def _producing(bench: Bench, count: int, size: int, topics: list[str]) -> dict[str, Any]:
    return {"url": bench.url, "topics": topics, "count": count, "size": size}


def consuming(bench: Bench, group: str, total: int, consumers: int) -> list[Task]:
    arguments = {"url": bench.url, "group": group, "total": total, "done": shared_counter()}
    return [Task(workers.consume, arguments) for _ in range(consumers)]


# The parts.


def part_e2e(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size
    rates, runs, count = bench.repeated(lambda n: end_to_end(bench, n, size))
    what = f"publish + deliver + ack, {size} B, 1 producer, 1 consumer"
    yield median_figure("e2e", what, "msg/s", JOURNALED, rates, note=f"{count:,} messages", foreign=worst(runs))
    cpu_us = [done.hub_cpu_s / count * 1e6 for done in runs]
    yield median_figure("e2e", "CPU of the hub for each of them", "µs", JOURNALED, cpu_us, foreign=worst(runs))


def part_publish(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size
    rates, runs, count = bench.repeated(lambda n: publish(bench, n, size, [bench.fresh("bench.publish")]))
    what = f"publish alone, {size} B, 1 producer"
    yield median_figure("publish", what, "msg/s", JOURNALED, rates, note=f"{count:,} messages", foreign=worst(runs))


def part_drain(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size
    for consumers in (1, 2):
        rates, runs, count = bench.repeated(lambda n, k=consumers: drain(bench, n, size, k))  # type: ignore[misc]
        what = f"deliver + ack alone, {size} B, {consumers} consumer{'s' if consumers > 1 else ''}"
        note = f"{count:,} messages, acks on disk"
        yield median_figure("drain", what, "msg/s", JOURNALED, rates, note=note, foreign=worst(runs))


def part_kib(bench: Bench) -> Iterator[Figure]:
    """1 KiB end to end, and after each run LMDB alone with the same number of blocks and commits."""
    alone: list[float] = []
    disturbed: list[float] = []
    written: list[tuple[int, int]] = []

    def measure(count: int) -> tuple[float, Run]:
        before = bench.counters()
        rate, done = end_to_end(bench, count, KIB)
        after = bench.counters()
        blocks, commits = (after[name] - before.get(name, 0) for name in ("publishes", "commits"))
        watch = Watch()
        folder = bench.folder / bench.fresh("raw")
        alone.append(raw.write_rate(folder, messages=count, blocks=blocks, commits=commits, size=KIB))
        disturbed.append(watch.foreign())
        written.append((blocks, commits))
        return rate, done

    rates, runs, count = bench.repeated(measure)
    alone, disturbed = alone[-len(rates) :], disturbed[-len(rates) :]  # without the trials
    what = "publish + deliver + ack, 1 KiB, 1 producer, 1 consumer"
    yield median_figure("kib", what, "msg/s", JOURNALED, rates, note=f"{count:,} messages", foreign=worst(runs))
    note = "{:,} blocks in {:,} commits, as in the last run".format(*written[-1])
    what = "the same blocks into LMDB alone"
    yield median_figure("kib", what, "msg/s", NO_HUB, alone, note=note, foreign=max(disturbed))
    shares = [100 * rate / limit for rate, limit in zip(rates, alone, strict=True)]
    what = "so the fabric reaches, of LMDB alone"
    yield median_figure("kib", what, "%", JOURNALED, shares, foreign=max(worst(runs), *disturbed))


def part_singles(bench: Bench) -> Iterator[Figure]:
    size = bench.settings.size

    def measure(count: int) -> tuple[float, Run]:
        arguments = {
            "url": bench.url, "topic": bench.fresh("bench.single"), "connections": CONNECTIONS, "count": count,
            "size": size,
        }  # fmt: skip
        done = run([Task(singles.speak, arguments)], bench.hub)
        (result,) = done.results
        return result["count"] / (result["ended"] - result["begun"]), done

    rates, runs, count = bench.repeated(measure)
    what = f"single messages, {size} B, {CONNECTIONS} connections, pipelined"
    hub_us, load_us = (spent_s / count * 1e6 for spent_s in (runs[-1].hub_cpu_s, runs[-1].results[0]["cpu_s"]))
    note = f"{count:,} messages, each a block of its own; CPU each: hub {hub_us:.1f}, load {load_us:.1f} µs"
    yield median_figure("singles", what, "msg/s", JOURNALED, rates, note=note, foreign=worst(runs))


def part_latency(bench: Bench) -> Iterator[Figure]:
    size = max(bench.settings.size, workers.STAMP.size)
    what = f"latency at {PACED_RATE:,} msg/s, publish to handler, {size} B"
    levels: list[tuple[Level, str]] = [("journaled", JOURNALED), ("received", RECEIVED)]
    for level, durability in levels:
        paced = [_paced(bench, size, level) for _ in range(bench.settings.repeats)]
        foreign = max(one.foreign for one in paced)
        p50s, p99s = [one.p50_us for one in paced], [one.p99_us for one in paced]
        yield median_figure("latency", f"{what}, p50", "µs", durability, p50s, foreign=foreign)
        yield median_figure("latency", f"{what}, p99", "µs", durability, p99s, foreign=foreign)
        if level == "journaled":
            commits = [one.commit_us for one in paced]
            yield median_figure("latency", "one synced LMDB commit, p50", "µs", NO_HUB, commits, foreign=foreign)
            ratios = [one.p50_us / one.commit_us for one in paced]
            yield median_figure(
                "latency", "so a message takes, in commits, p50", "x", durability, ratios, foreign=foreign
            )
            own = [one.hub_commit_us for one in paced]
            yield median_figure(
                "latency", "one commit of the hub meanwhile, mean", "µs", durability, own, foreign=foreign
            )


class _Paced(NamedTuple):
    p50_us: float
    p99_us: float
    commit_us: float  # median of LMDB's synced commits before and after the run
    hub_commit_us: float  # mean of the hub's commits during the run
    foreign: float


def _paced(bench: Bench, size: int, level: Level) -> _Paced:
    messages = bench.settings.messages
    seconds = messages / PACED_RATE if messages else bench.settings.seconds
    topic = bench.fresh("bench.paced")
    group = bench.declare(topic, level=level)
    commits, before = _commits(bench, size), bench.counters()
    pace = {"topic": topic, "rate": PACED_RATE, "seconds": seconds, "size": size, "level": level}
    consuming = {"group": group, "total": round(PACED_RATE * seconds)}
    done = run(
        [
            Task(workers.produce_paced, {"url": bench.url, **pace}),
            Task(workers.consume_paced, {"url": bench.url, **consuming}),
        ],
        bench.hub,
    )
    after = bench.counters()
    commits += _commits(bench, size)
    delays = done.results[1]["delays_us"]
    own_us = (after["commit_us"] - before.get("commit_us", 0)) / (after["commits"] - before.get("commits", 0))
    p50_us, p99_us = percentile(delays, 0.5), percentile(delays, 0.99)
    return _Paced(p50_us, p99_us, statistics.median(commits), own_us, done.foreign)


def _commits(bench: Bench, size: int) -> list[float]:
    return raw.commit_us(bench.folder / bench.fresh("raw"), size=size, commits=COMMITS_TIMED)
