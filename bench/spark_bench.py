"""The figures of Spark on snapshots, as ratios in one run: `python bench/spark_bench.py [--messages N]`.

Every figure is set against something measured in the same minute on the same machine, and timings that are compared
take turns, so that a busy machine slows both. The best of a few rounds counts.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.journal.journal import Journal
from fabric.journal.limits import Limits
from fabric.records import Append
from fabric.snapshot import create, load, verify
from fabric.snapshot.check_shard import walk
from fabric_protocol import block
from fabric_spark import session
from fabric_spark.jobs import ask, find, settings_for
from fabric_spark.jobs.lake import COLUMNS, arranged

TOPICS: Final = [f"{area}.{what}" for area in ("orders", "audit", "mail", "stock") for what in "abcde"]
PER_BLOCK: Final = 512
T0: Final = 1_700_000_000_000_000
PAYLOAD: Final = 120


class Figure(NamedTuple):
    name: str
    value: float
    wanted: float
    at_least: bool = True
    note: str = ""
    or_else: bool = False  # another figure, which would do as well, is reached

    @property
    def good(self) -> bool:
        return self.or_else or self.value >= self.wanted if self.at_least else self.value <= self.wanted


def write_journal(path: Path, messages: int) -> None:
    """Messages of 20 topics in blocks of a few topics each, with a header, over four days."""
    filler = os.urandom(1 << 16).hex().encode()
    journal = Journal.open(path, Limits())
    seq, number, records = 1, 0, []
    step_us = 4 * 86_400_000_000 // max(1, messages // PER_BLOCK)
    while seq <= messages:
        count = min(PER_BLOCK, messages + 1 - seq)
        names = [TOPICS[(number + i * 7) % len(TOPICS)] for i in range(4)]
        payloads = [filler[(seq + i) % 60_000 :][:PAYLOAD] for i in range(count)]
        headers: list[Any] = [{"trace": f"{seq + i:016x}"} for i in range(count)]
        raw = block.encode([names[i % 4] for i in range(count)], payloads, headers=headers)
        records.append(Append(block.stamp(raw, seq, T0 + number * step_us)))
        seq, number = seq + count, number + 1
        if len(records) == 64:
            journal.commit(records)
            records = []
    if records:
        journal.commit(records)
    journal.close()


def timed(what: Callable[[], object]) -> float:
    start = time.perf_counter()
    what()
    return time.perf_counter() - start


def best(rounds: int, **contenders: Callable[[], object]) -> dict[str, float]:
    """The best time of each, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(timed(run))
    return {name: min(found) for name, found in times.items()}


# Scans.


def scan_figures(spark: Any, snapshot: Path, parquet: Path, messages: int, rounds: int) -> Iterator[Figure]:
    def read(**options: str) -> Any:
        return spark.read.format("fabric").options(**options).load(str(snapshot))

    def drain(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    columns = "seq,topic,ts,headers,payload"
    middle = messages // 2
    narrow = f"seq >= {middle} and seq < {middle + messages // 20} and topic = '{TOPICS[3]}'"
    times = best(
        rounds,
        parquet=lambda: drain(spark.read.parquet(str(parquet)).select(*columns.split(","))),
        fabric=lambda: drain(read(columns=columns)),
        parquet_count=lambda: spark.read.parquet(str(parquet)).count(),
        fabric_count=lambda: read(columns="seq,topic,ts").count(),
        narrow=lambda: drain(read(columns=columns).where(narrow)),
    )
    rate = messages / times["fabric"] / 1e6
    yield Figure("full scan against Parquet", times["parquet"] / times["fabric"], 0.55, note=f"{rate:.2f} M rows/s")
    counted = messages / times["fabric_count"] / 1e6
    against = times["parquet_count"] / times["fabric_count"]
    note = f"{counted:.2f} M rows/s; 3.00 would do as well"
    yield Figure("pruned count against Parquet", against, 0.25, note=note, or_else=counted >= 3.0)
    yield Figure("narrow query against full scan", times["narrow"] / times["fabric"], 0.25, at_least=False)


def lake_figures(spark: Any, snapshot: Path, parquet: Path, folder: Path, rounds: int) -> Iterator[Figure]:
    job = find("lake")

    def lake() -> None:
        shutil.rmtree(folder / "lake", ignore_errors=True)
        ask(spark, job, settings_for(job, {"snapshot": str(snapshot), "out": str(folder / "lake")}))

    def copy() -> None:
        frame = arranged(spark.read.parquet(str(parquet)).selectExpr("*", "'here' as hub"))
        writer = frame.write.mode("overwrite").option("compression", "zstd").partitionBy("date", "topic")
        writer.parquet(str(folder / "copy"))

    times = best(rounds, copy=copy, lake=lake)
    files = len(list((folder / "lake").rglob("*.parquet")))
    yield Figure("lake against Parquet to Parquet", times["copy"] / times["lake"], 0.7, note=f"{files} files")


# Without Spark.


def snapshot_figures(journal: Path, folder: Path, messages: int) -> Iterator[Figure]:
    seconds = timed(lambda: create(journal, folder / "snapshot"))
    scaled = seconds * 2_000_000 / messages
    yield Figure("snapshot of 2 M messages, s", scaled, 3.0, at_least=False, note=f"{messages:,} in {seconds:.2f} s")


def verify_figures(snapshot: Path, messages: int) -> Iterator[Figure]:
    manifest = load(snapshot)

    def heads() -> None:
        assert not [found for shard in manifest.shards for found in walk(snapshot, shard, True, lambda seq: None)]

    times = best(3, heads=heads, quick=lambda: verify(snapshot, quick=True), full=lambda: verify(snapshot))
    note = f"{times['quick']:.2f} s with the start of the child; all bytes {messages / times['full'] / 1e6:.1f} M/s"
    yield Figure("verify, M messages/s", messages / times["heads"] / 1e6, 20.0, note=note)


@contextmanager
def running_hub(data: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fabric-bench-") as sockets:
        url = f"ipc://{sockets}/hub"
        process = subprocess.Popen(
            [sys.executable, "-m", "fabric", "hub", "--data", str(data), "--bind", url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield url
        finally:
            process.terminate()
            process.wait()


def publish_rate(url: str, seconds: float) -> float:
    """Messages a second that one producer gets confirmed."""
    payloads = [os.urandom(PAYLOAD) for _ in range(1024)]
    with fabric_client.connect(url) as fab:
        fab.publish_many("orders.a", payloads)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            for payload in payloads:
                fab.publish_nowait("orders.a", payload)
            count += len(payloads)
        fab.flush()
        return count / (time.perf_counter() - start)


def disturbance_figures(journal: Path, folder: Path, seconds: float) -> Iterator[Figure]:
    """How a producer at full speed fares while snapshots are taken, as a command with low priority takes them.

    First the whole journal, then what has come since: the way of every later snapshot.
    """
    target, found = folder / "during", []
    shutil.rmtree(target, ignore_errors=True)
    command = ["nice", "-n", "15", sys.executable, "-m", "fabric", "snapshot", "create", str(target)]
    with running_hub(journal) as url:
        publish_rate(url, 0.5)
        for _ in range(2):
            taking = subprocess.Popen([*command, "--data", str(journal)], stdout=subprocess.DEVNULL)
            during = publish_rate(url, seconds)
            taking.wait()
            found.append((during, publish_rate(url, seconds)))
    shutil.rmtree(target, ignore_errors=True)
    during, alone = max(found, key=lambda pair: pair[0] / pair[1])
    note = "; ".join(f"{during:,.0f} of {alone:,.0f} messages/s" for during, alone in found)
    yield Figure("publish rate during a snapshot", during / alone, 0.8, note=note)


def show(figures: list[Figure]) -> None:
    print(f"\n{'figure':36} {'found':>8}   {'wanted':>8}")
    for figure in figures:
        sign = "≥" if figure.at_least else "≤"
        verdict = "ok  " if figure.good else "MISS"
        print(f"{figure.name:36} {figure.value:8.2f}  {sign}{figure.wanted:8.2f}  {verdict}  {figure.note}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measured publish")
    parser.add_argument("--folder", type=Path, help="keep the data here; a temporary folder unless told")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fabric-spark-bench-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        journal, snapshot, parquet = folder / "journal", folder / "snapshot", folder / "parquet"
        shutil.rmtree(snapshot, ignore_errors=True)
        if not journal.exists():
            print(f"writing {given.messages:,} messages", file=sys.stderr)
            write_journal(journal, given.messages)
        figures = list(snapshot_figures(journal, folder, given.messages))
        figures += verify_figures(snapshot, given.messages)
        spark = session("fabric bench", conf={"spark.ui.enabled": False, "spark.log.level": "ERROR"})
        whole = spark.read.format("fabric").option("columns", COLUMNS).load(str(snapshot))
        whole.write.mode("overwrite").option("compression", "snappy").parquet(str(parquet))
        figures += scan_figures(spark, snapshot, parquet, given.messages, given.rounds)
        figures += lake_figures(spark, snapshot, parquet, folder, given.rounds)
        spark.stop()
        shutil.rmtree(parquet)
        figures += disturbance_figures(journal, folder, given.seconds)
    show(figures)
    return 0 if all(figure.good for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
