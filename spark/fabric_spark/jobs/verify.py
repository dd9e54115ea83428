"""Whether snapshots are whole: every shard against the manifest, its checksums, its order and its times.

The checks are those of `fabric snapshot verify`; here executors share the shards. A damaged file can kill the process
that reads it, so each shard is checked in a child process: its death is a finding and does not end the job.
"""

import json
import os
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric.journal.directory import DATA_FILE
from fabric.snapshot.check_shard import Finding, walk
from fabric.snapshot.folder import find
from fabric.snapshot.manifest import MANIFEST_FILE, EventShard, Manifest, Shard, decode, load
from fabric.snapshot.verify import killed, order_findings
from fabric_protocol.errors import FabricError
from fabric_spark import remote
from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import LOSS, SNAPSHOT, Chart, Job, Parameter, Settings, Tables
from fabric_spark.options import parse

_FOUND = "snapshot string, file string, messages long, bytes long, first_seq long, last_seq long, why string"


def run(spark: SparkSession, settings: Settings) -> Tables:
    """`findings` has what is wrong; `snapshots` the verdict on each. Nothing wrong: `findings` is empty."""
    quick = bool(settings["quick"])
    known: list[tuple[str, int]] = []
    early: list[tuple[Any, ...]] = []
    for _, given in parse({"path": settings["snapshot"]}).paths:
        path, manifest = _manifest(given)
        known += [(path, place) for place in range(len(manifest.files))]
        early += [
            (path, one.file, None, None, one.first_seq, one.last_seq, one.why) for one in order_findings(manifest)
        ]
    tasks = max(1, min(len(known), settings["tasks"] or 4 * spark.sparkContext.defaultParallelism))
    shards = spark.sparkContext.parallelize(known, tasks)
    found = shards.flatMap(lambda shard: _rows(*shard, quick))  # mapInArrow would need pandas
    walked = spark.createDataFrame(found.union(spark.sparkContext.parallelize(early, 1)), _FOUND).cache()
    findings = walked.where(F.col("why").isNotNull()).drop("messages", "bytes").orderBy("snapshot", "first_seq", "file")
    snapshots = (
        walked.groupBy("snapshot")
        .agg(
            F.count_distinct(F.when(F.col("messages").isNotNull(), F.col("file"))).alias("shards"),
            F.sum("messages").alias("messages"),
            F.sum("bytes").alias("bytes"),
            F.count("why").alias("findings"),
        )
        .withColumn("verdict", F.when(F.col("findings") == 0, "whole").otherwise("DAMAGED"))
        .orderBy("snapshot")
    )
    return {"snapshots": snapshots, "findings": findings}


def _manifest(path: str) -> tuple[str, Manifest]:
    """A snapshot's path, of a folder of them that of the newest, and its manifest."""
    if remote.is_remote(path):
        url, text = remote.manifest(path)
        return url, decode(text, url)
    folder = Path(path.removeprefix("file://"))
    if not (folder / MANIFEST_FILE).exists():
        if (folder / DATA_FILE).exists():
            raise SourceError(f"{path} is a live journal", "check it with 'fabric journal verify'")
        folder = find(folder).path
    return str(folder), load(folder, check_files=False)


def _rows(path: str, place: int, quick: bool) -> list[tuple[Any, ...]]:
    """One row for the shard, and one for each finding in it."""
    shard = _manifest(path)[1].files[place]
    messages = shard.rows if isinstance(shard, Shard) else 0
    rows: list[tuple[Any, ...]] = [(path, shard.file, messages, shard.bytes, None, None, None)]
    found = _in_child(path, shard, quick)
    return rows + [(path, one.file, None, None, one.first_seq, one.last_seq, one.why) for one in found]


def _in_child(path: str, shard: Shard | EventShard, quick: bool) -> list[Finding]:
    """The findings of a child in a shard, or the signal that killed it. A fork is much quicker than to import Spark."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as out:
                json.dump([list(one) for one in _findings(path, shard, quick)], out)
            os._exit(0)
        finally:
            os._exit(1)  # the child must never go on as a second worker
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return [Finding(*one) for one in json.loads(text)]
    code = os.waitstatus_to_exitcode(status)
    return [killed(shard, -code) if code < 0 else Finding(shard.file, 0, 0, "the check of it has failed")]


def _findings(path: str, shard: Shard | EventShard, quick: bool) -> list[Finding]:
    try:
        if remote.is_remote(path):
            copy = remote.local_copy(f"{path.rstrip('/')}/{shard.file}", shard.sha256, shard.bytes)
            return [
                f._replace(file=shard.file) for f in walk(copy.parent, shard._replace(file=copy.name), quick, _quiet)
            ]
        return walk(Path(path.removeprefix("file://")), shard, quick, _quiet)
    except (FabricError, OSError) as error:
        return [Finding(shard.file, 0, 0, str(error))]


def _quiet(seq: int) -> None:
    """The job reports no progress."""


JOB = Job(
    name="verify",
    title="Verification",
    about="Gaps, order, CRC, times going back, and the manifest against the shards.",
    run=run,
    parameters=(
        SNAPSHOT,
        LOSS,
        Parameter("quick", "Look at the heads of blocks only, not at all bytes.", "flag", False),
        Parameter("tasks", "In so many tasks; found by itself.", "number", 0),
    ),
    charts=(Chart("snapshots", "bars", "Messages checked", "snapshot", ("messages",)),),
    units={"bytes": "B"},
)
