"""The journal as Parquet files by date and topic, for repeated queries.

Every run adds the messages since the last run, all of them or none:

    <out>/_staging/<run>/…                                 while Spark writes
    <out>/date=2026-11-16/topic=orders/<run>-00001.parquet    moved there when it is written
    <out>/_fabric/<run>.json                               then the record of the run, and it counts

A run is named by journal and seqs. A run that was killed leaves its staging folder: the next run removes the files
that it had moved, and starts from the same seq. Files are about as large as `file_mb`: rows are shuffled by date and
topic, and Spark splits large partitions and joins small ones.
"""

import time
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.catalog import Place
from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import LOSS, SNAPSHOT, TOPICS, Chart, Job, Parameter, Settings, Tables, places_of, read
from fabric_spark.jobs.store import Store, store_at

COLUMNS: Final = "seq,topic,ts,key,id,headers,payload"
_RECORDS: Final = "_fabric"
_STAGING: Final = "_staging"
_FORMAT: Final = 1
_RUNS: Final = (
    "hub string, first_seq long, last_seq long, messages long, files long, bytes long, seconds double, state string"
)
_ADVISORY: Final = "spark.sql.adaptive.advisoryPartitionSizeInBytes"


class Run(NamedTuple):
    """Seqs of one journal that became files."""

    journal: str
    epoch: int
    first_seq: int
    last_seq: int
    messages: int
    files: int
    bytes: int
    topics: str
    made_us: int

    @property
    def name(self) -> str:
        return name_of(self.journal, self.first_seq, self.last_seq)


def name_of(journal: str, first_seq: int, last_seq: int) -> str:
    return f"{journal[:12]}-{first_seq:020d}-{last_seq:020d}"


def run(spark: SparkSession, settings: Settings) -> Tables:
    if not settings["out"]:
        raise SourceError("job lake needs a target", "name the folder of the lake with --out")
    store = store_at(spark, settings["out"])
    known = [
        Run(*(store.read(f"{_RECORDS}/{name}")[f] for f in Run._fields))
        for name in store.names(_RECORDS)
        if name.endswith(".json")
    ]
    rows = []
    for place in places_of(settings):
        _clear(store, place, known)
        rows.append(_add(spark, settings, store, place, [one for one in known if one.journal == place.journal]))
    return {"runs": spark.createDataFrame(rows, _RUNS), "partitions": _partitions(spark, store)}


def _clear(store: Store, place: Place, known: list[Run]) -> None:
    """Remove the files of runs that were killed."""
    done = {one.name for one in known}
    for name in store.names(_STAGING):
        if name.startswith(f"{place.journal[:12]}-"):
            if name not in done:
                store.remove_matching(f"date=*/topic=*/{name}-*.parquet")
            store.remove(f"{_STAGING}/{name}")


def _add(spark: SparkSession, settings: Settings, store: Store, place: Place, known: list[Run]) -> tuple[Any, ...]:
    """Bring the lake up to the end of a snapshot; a row for the table of runs."""
    began = time.monotonic()
    topics = settings["topics"] or ""
    for one in known:
        if one.epoch != place.epoch:
            raise SourceError(
                f"{place.path} is of epoch {place.epoch} of its journal, and the lake has epoch {one.epoch}",
                "the journal was restored meanwhile and may have used seqs again: start a new lake",
            )
        if one.topics != topics:
            raise SourceError(f"the lake was made with topics={one.topics!r}", "use the same topics, or another lake")
    first = max((one.last_seq + 1 for one in known), default=place.first_seq)
    last = place.last_seq
    if first > last:
        return (place.hub, first, last, 0, 0, 0, 0.0, "up to date")
    name = name_of(place.journal, first, last)
    staging = f"{_STAGING}/{name}"
    messages = _write(spark, settings, place, first, last, f"{store.root}/{staging}")
    moved = size = 0
    for path, length in list(store.files(staging)):
        folder = path.rpartition("/")[0]
        store.move(f"{staging}/{path}", f"{folder}/{name}-{moved + 1:05d}.parquet")
        moved, size = moved + 1, size + length
    made_us = time.time_ns() // 1000
    done = Run(place.journal, place.epoch, first, last, messages, moved, size, topics, made_us)
    store.write(f"{_RECORDS}/{name}.json", {"format": _FORMAT, "hub": place.hub, **done._asdict()})
    store.remove(staging)
    return (place.hub, first, last, messages, moved, size, time.monotonic() - began, "added")


def _write(spark: SparkSession, settings: Settings, place: Place, first: int, last: int, target: str) -> int:
    """Write a range of seqs as Parquet; how many messages there were."""
    ours = {**settings, "snapshot": place.path, "start_seq": first, "end_seq": last + 1}
    counted = Observation()
    frame = read(spark, ours, "journal", COLUMNS).observe(counted, F.count(F.lit(1)).alias("messages"))
    file_bytes = settings["file_mb"] << 20
    before = spark.conf.get(_ADVISORY, None)
    spark.conf.set(_ADVISORY, str(file_bytes))
    try:
        (
            arranged(frame.withColumn("hub", F.lit(place.hub)))
            .write.mode("overwrite")
            .option("compression", settings["compression"])
            .partitionBy("date", "topic")
            .parquet(target)
        )
    finally:
        if before is None:
            spark.conf.unset(_ADVISORY)
        else:
            spark.conf.set(_ADVISORY, before)
    return int(counted.get["messages"])


def arranged(frame: DataFrame) -> DataFrame:
    """Rows together that go into one file, in order of seq there, so that ranges of seq and time are found quickly."""
    dated = frame.withColumn("date", F.to_date("ts"))
    return dated.hint("rebalance", F.col("date"), F.col("topic")).sortWithinPartitions("date", "topic", "seq")


def _partitions(spark: SparkSession, store: Store) -> DataFrame:
    """Files and bytes of each date; the lake's own listing, so that it costs no scan."""
    sums: dict[str, list[int]] = {}
    for date in store.names(""):
        if not date.startswith("date="):
            continue
        for _, size in store.files(date):
            total = sums.setdefault(date.removeprefix("date="), [0, 0])
            total[0], total[1] = total[0] + 1, total[1] + size
    rows = [(date, files, size) for date, (files, size) in sorted(sums.items())]
    return spark.createDataFrame(rows, "date string, files long, bytes long")


JOB = Job(
    name="lake",
    title="Lake",
    about="Parquet by date and topic: what has come since the last run is added, once.",
    run=run,
    parameters=(
        SNAPSHOT,
        LOSS,
        TOPICS,
        Parameter("out", "The folder of the lake, or a URL that Spark knows (s3a://, hdfs://)."),
        Parameter("file_mb", "About so many megabytes for a file.", "number", 128),
        Parameter("compression", "Of the Parquet files.", default="zstd", choices=("zstd", "snappy", "gzip", "none")),
    ),
    charts=(Chart("partitions", "bars", "Bytes by date", "date", ("bytes",), unit="B"),),
    units={"bytes": "B", "seconds": "s"},
)
