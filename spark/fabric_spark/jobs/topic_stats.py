"""Messages and bytes of each topic: how many, how large, how fast, and when."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

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


def run(spark: SparkSession, settings: Settings) -> Tables:
    keys = [*hub_keys(settings), "topic"]
    seconds = bucket_seconds(settings)
    rows = read(spark, settings, "journal", ",".join([*keys, "ts", "payload_len"]))
    span = F.greatest(F.lit(1.0), (F.unix_micros(F.max("ts")) - F.unix_micros(F.min("ts"))) / 1e6)
    topics = (
        rows.groupBy(*keys)
        .agg(
            F.count("*").alias("messages"),
            F.sum(F.col("payload_len").cast("long")).alias("bytes"),
            (F.count("*") / span).alias("per_second"),
            *percentiles(F.col("payload_len"), "size"),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
        )
        .orderBy(F.desc("messages"), *keys)
    )
    timeline = (
        rows.groupBy(*keys, bucket_of(F.col("ts"), seconds).alias("time"))
        .agg(F.count("*").alias("messages"), F.sum(F.col("payload_len").cast("long")).alias("bytes"))
        .withColumn("per_second", F.col("messages") / seconds)
        .orderBy("time", *keys)
    )
    return {"topics": topics.limit(settings["top"]), "timeline": timeline}


JOB = Job(
    name="topic-stats",
    title="Topics",
    about="Messages, bytes, rates and sizes of each topic, and how they went over time.",
    run=run,
    parameters=(*COMMON, TOPICS, BUCKET, Parameter("top", "So many topics, the busiest first.", "number", 1000)),
    charts=(
        Chart("topics", "bars", "Messages by topic", "topic", ("messages",)),
        Chart("topics", "bars", "Bytes by topic", "topic", ("bytes",), unit="B"),
        Chart("timeline", "lines", "Messages per second", "time", ("per_second",), "topic", "/s"),
    ),
    units={
        "bytes": "B",
        "per_second": "/s",
        **{f"size_{name}": "B" for name in ("p50", "p90", "p99", "max")},
    },
)
