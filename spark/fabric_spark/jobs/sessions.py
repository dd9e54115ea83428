"""Sessions: runs of messages of one key that follow one another closely."""

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import (
    BUCKET,
    COMMON,
    TOPICS,
    Chart,
    Job,
    Parameter,
    Settings,
    Tables,
    bucket_of,
    bucket_seconds,
    hub_keys,
    percentiles,
    read,
)

BY = Parameter("by", "What a session belongs to: key, topic, or header:NAME.", default="key")


def belonging(by: str) -> tuple[Column, str]:
    """The column that names what a message belongs to, as text, and the column of the journal that it needs."""
    if by in ("key", "topic"):
        return F.col(by).cast("string"), by
    if by.startswith("header:") and by.removeprefix("header:"):
        return F.col("headers")[by.removeprefix("header:")].cast("string"), "headers"
    raise SourceError(f"by is {by!r}", "choose key, topic or header:NAME")


def run(spark: SparkSession, settings: Settings) -> Tables:
    hub = hub_keys(settings)
    who, column = belonging(settings["by"])
    columns = list(dict.fromkeys([*hub, "seq", "topic", "ts", "payload_len", column]))
    rows = read(spark, settings, "journal", ",".join(columns)).withColumn("who", who).where(F.col("who").isNotNull())
    sessions = (
        rows.groupBy(*hub, "who", F.session_window("ts", f"{settings['gap']} seconds").alias("window"))
        .agg(
            F.min("ts").alias("begin"),
            F.max("ts").alias("end"),
            F.count("*").alias("messages"),
            F.sum(F.col("payload_len").cast("long")).alias("bytes"),
            F.count_distinct("topic").alias("topics"),
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
        )
        .drop("window")
        .withColumn("seconds", (F.unix_micros("end") - F.unix_micros("begin")) / 1e6)
    )
    summary = sessions.groupBy(*hub).agg(
        F.count("*").alias("sessions"),
        F.count_distinct("who").alias("keys"),
        *percentiles(F.col("seconds"), "seconds"),
        *percentiles(F.col("messages"), "messages"),
    )
    timeline = (
        sessions.groupBy(bucket_of(F.col("begin"), bucket_seconds(settings)).alias("time"))
        .agg(F.count("*").alias("sessions"))
        .orderBy("time")
    )
    return {
        "summary": summary,
        "timeline": timeline,
        "sessions": sessions.orderBy(F.desc("messages"), "who", "begin").limit(settings["top"]),
    }


JOB = Job(
    name="sessions",
    title="Sessions",
    about="Runs of messages of one key with no long pause between them: how many, how long, how large.",
    run=run,
    parameters=(
        *COMMON,
        TOPICS,
        BUCKET,
        BY,
        Parameter("gap", "A pause of this length ends a session.", "span", "30 minutes"),
        Parameter("top", "So many sessions, the largest first.", "number", 1000),
    ),
    charts=(Chart("timeline", "lines", "Sessions begun", "time", ("sessions",)),),
    units={"seconds": "s", "bytes": "B", **{f"seconds_{p}": "s" for p in ("p50", "p90", "p99", "max")}},
)
