"""The columns of origins: of foreign messages in a live journal and in its snapshot, null for all others."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from fabric.journal.environment import open_environment, open_tables
from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.records import Append, SaveOrigin
from fabric.snapshot import create
from fabric_protocol.block import encode, stamp
from fabric_protocol.origin import Origin
from tests.spark.sample import SECOND, T0, Author

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

BORN = Origin(b"\x0f" * 16, 3, 700, T0 - 5 * SECOND)
COLUMNS = "seq,origin_journal,origin_epoch,origin_seq,origin_ts"


def journal_with_origins(path: Path) -> list[tuple[object, ...]]:
    """Blocks of five messages, the second and the third of another journal; the rows that a query returns."""
    rows: list[tuple[object, ...]] = []
    with closing(Journal.open(path)) as journal:
        for n, born in enumerate([None, BORN, BORN._replace(journal=b"\xa0" * 16, seq=9), None]):
            base = journal.last_seq + 1
            foreign = [SaveOrigin(base, born)] if born is not None else []
            journal.commit([Append(stamp(encode("a", [b"x" * 20_000] * 5), base, T0 + n * SECOND)), *foreign])
            for i in range(5):
                told = (born.journal.hex(), born.epoch, born.seq + i, born.time_us) if born else (None,) * 4
                rows.append((base + i, *told))
    return rows


def read(spark: "SparkSession", path: Path, columns: str = COLUMNS, **options: str) -> "DataFrame":
    return spark.read.format("fabric").options(columns=columns, **options).load(str(path))


def told(frame: "DataFrame") -> list[tuple[object, ...]]:
    from pyspark.sql.functions import unix_micros

    return [tuple(row) for row in frame.withColumn("origin_ts", unix_micros("origin_ts")).orderBy("seq").collect()]


def place(where: str, tmp_path: Path) -> Path:
    if where == "live":
        return tmp_path / "journal"
    create(tmp_path / "journal", tmp_path / "snapshot", shard_bytes=1 << 16)
    return tmp_path / "snapshot"


@pytest.mark.parametrize("where", ["live", "snapshot"])
def test_each_message_tells_its_own_origin(where: str, spark: "SparkSession", tmp_path: Path) -> None:
    rows = journal_with_origins(tmp_path / "journal")
    path = place(where, tmp_path)
    frame = read(spark, path)
    assert dict(frame.dtypes) == {
        "seq": "bigint",
        "origin_journal": "string",
        "origin_epoch": "bigint",
        "origin_seq": "bigint",
        "origin_ts": "timestamp",
    }
    assert told(frame) == rows
    assert told(read(spark, path, startSeq="8", endSeq="13")) == rows[7:12]  # parts of blocks
    assert told(frame.where("origin_seq between 702 and 703")) == rows[7:9]


@pytest.mark.parametrize("where", ["live", "snapshot"])
def test_columns_of_a_journal_without_foreign_blocks_are_null(
    where: str, spark: "SparkSession", tmp_path: Path
) -> None:
    Author(tmp_path / "journal").write(blocks=2, messages=10)
    assert told(read(spark, place(where, tmp_path))) == [(seq, None, None, None, None) for seq in range(1, 21)]


def test_a_damaged_origin_fails_the_queries_that_ask_for_it(spark: "SparkSession", tmp_path: Path) -> None:
    rows = journal_with_origins(tmp_path / "journal")
    with closing(open_environment(tmp_path / "journal")) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as txn:
            txn.put(seq_key(6), b"damaged row", db=tables.origins)
    path = place("snapshot", tmp_path)
    with pytest.raises(Exception, match=r"origin of seqs 6\.\.10"):
        told(read(spark, path))
    lost = [(seq, None, None, None, None) for seq in range(6, 11)]
    assert told(read(spark, path, failOnDataLoss="false")) == [*rows[:5], *lost, *rows[10:]]
    assert read(spark, path, "seq").count() == 20
