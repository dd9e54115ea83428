"""Streams: every message once in the sink, with stops, replays and a move from the journal to a snapshot."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from fabric.journal.journal import Journal
from fabric.journal.limits import Limits
from fabric.journal.pins import pinned
from fabric.journal.rows import SEQ_MAX
from fabric.snapshot import create
from tests.spark.sample import T0, Author

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


class Query:
    """A query from a fabric into Parquet, with its checkpoint."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self._spark = spark
        self.sink = folder / "sink"
        self.checkpoint = folder / "checkpoint"

    def run(self, path: Path, **options: object) -> list[int]:
        """Read all that there is; how many rows each batch had."""
        reader = self._spark.readStream.format("fabric").option("columns", "seq,topic")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load(str(path))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.sink))
        )
        try:
            assert query.awaitTermination(120)
            return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
        finally:
            query.stop()

    def seqs(self) -> list[int]:
        return sorted(row.seq for row in self._spark.read.parquet(str(self.sink)).select("seq").collect())

    def forget_last_commit(self) -> None:
        """As if the process had died after the batch was written, and before that was written down."""
        last = max((f for f in (self.checkpoint / "commits").iterdir() if f.name.isdigit()), key=lambda f: int(f.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark: "SparkSession", tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_each_message_is_in_parquet_once(query: Query, tmp_path: Path) -> None:
    """From a live journal, over a crash, and on from a snapshot, with one checkpoint."""
    author = Author(tmp_path / "journal").write(blocks=10, messages=30)
    assert query.run(author.path, maxRecordsPerTrigger=120) == [120, 120, 60]
    assert query.seqs() == list(range(1, 301))
    query.forget_last_commit()
    author.write(blocks=2, messages=30)
    query.run(author.path)
    assert query.seqs() == list(range(1, 361))
    query.forget_last_commit()
    author.write(blocks=1, messages=30)
    create(author.path, tmp_path / "snapshots" / "a")
    query.run(tmp_path / "snapshots" / "a")
    assert query.seqs() == list(range(1, 391))
    author.write(blocks=1, messages=30)
    create(author.path, tmp_path / "snapshots" / "b", tmp_path / "snapshots" / "a")
    assert query.run(tmp_path / "snapshots") == [30]
    assert query.run(tmp_path / "snapshots" / "a") == []  # an older one has nothing new
    assert query.seqs() == list(range(1, 421))
    other = Author(tmp_path / "other").write(blocks=20, messages=30)
    with pytest.raises(Exception, match="the checkpoint is of journal"):
        query.run(other.path)


def test_a_stream_begins_where_it_is_told_and_takes_what_it_wants(query: Query, tmp_path: Path) -> None:
    author = Author(tmp_path / "journal").write(blocks=6, messages=30)
    query.run(author.path, startTime=T0 + 2_000_000, topics="orders.*", endSeq=151)
    wanted = [m.seq for m in author.sent if 60 < m.seq < 151 and m.topic in ("orders.new", "orders.paid")]
    assert query.seqs() == wanted


def test_a_pin_keeps_what_the_query_has_not_read(query: Query, tmp_path: Path) -> None:
    limits = Limits(max_messages=60)
    author = Author(tmp_path / "journal", limits).write(blocks=6, messages=30)
    query.run(author.path, pin="lake", endSeq=91)
    assert query.seqs() == list(range(1, 91))
    now_us = _pin_time(author.path)
    assert pinned(author.path, now_us) <= 91
    journal = Journal.open(author.path, limits)
    _trim(journal, now_us)
    assert 1 <= journal.first_seq <= 91
    _trim(journal, now_us + 2 * 86_400_000_000)  # the pin has ended
    assert journal.first_seq == 121
    journal.close()
    assert pinned(author.path, now_us + 2 * 86_400_000_000) == SEQ_MAX
    with pytest.raises(Exception, match=r"are gone from .*, which begins at 121"):
        query.run(author.path)
    query.run(author.path, failOnDataLoss="false")
    assert query.seqs() == [*range(1, 91), *range(121, 181)]


def _trim(journal: Journal, now_us: int) -> None:
    for _ in range(20):
        journal.trim_step(now_us)


def _pin_time(path: Path) -> int:
    import time

    return time.time_ns() // 1000


def test_what_cannot_be_streamed_is_refused(query: Query, tmp_path: Path) -> None:
    author = Author(tmp_path / "journal").write(blocks=1, messages=5)
    for options, words in (
        ({"stream": "groups", "columns": "group"}, "groups are no stream"),
        ({"startSeq": 9, "endSeq": 3}, "startSeq 9 is after endSeq 3"),
    ):
        with pytest.raises(Exception, match=words):
            query.run(author.path, **options)
