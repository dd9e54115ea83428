"""How long messages take: from publish to the first delivery, from the last delivery to the ack, and from end to end.

Needs delivery events (`fabric setting set events on`). A message counts when both ends of a stretch are known: what was
delivered before events were switched on is not guessed at.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.jobs.base import (
    BUCKET,
    COMMON,
    TOPICS,
    Chart,
    Job,
    Settings,
    Tables,
    bucket_of,
    bucket_seconds,
    each_seq,
    hub_keys,
    millis,
    percentiles,
    read,
)

STRETCHES = ("to_deliver", "to_ack", "total")


def journeys(spark: SparkSession, settings: Settings) -> DataFrame:
    """A row for each message and group: topic, times of publish, deliveries and ack, and the stretches between."""
    hub = hub_keys(settings)
    later = {**settings, "end_time": None}  # what was published before the end may be acked after it
    told = read(spark, later, "events", ",".join([*hub, "ts", "kind", "group", "attempt", "first_seq", "last_seq"]))
    kind, ts = F.col("kind"), F.col("ts")
    ends = (
        each_seq(told.where(kind.isin("deliver", "ack")))
        .groupBy(*hub, "group", "seq")
        .agg(
            F.min(F.when((kind == "deliver") & (F.col("attempt") <= 1), ts)).alias("delivered"),
            F.max(F.when(kind == "deliver", ts)).alias("delivered_last"),
            F.max(F.when(kind == "ack", ts)).alias("acked"),
            F.max("attempt").alias("attempts"),
        )
    )
    published = read(spark, settings, "journal", ",".join([*hub, "seq", "topic", "ts"]))
    return (
        ends.join(published, [*hub, "seq"])
        .withColumn("to_deliver", millis(F.col("ts"), F.col("delivered")))
        .withColumn("to_ack", millis(F.col("delivered_last"), F.col("acked")))
        .withColumn("total", millis(F.col("ts"), F.col("acked")))
    )


def run(spark: SparkSession, settings: Settings) -> Tables:
    keys = [*hub_keys(settings), "group", "topic"]
    seconds = bucket_seconds(settings)
    rows = journeys(spark, settings).select(*keys, "ts", *STRETCHES).cache()
    figures = [column for name in STRETCHES for column in percentiles(F.col(name), name)]
    groups = rows.groupBy(*keys).agg(F.count("*").alias("messages"), *figures).orderBy(*keys)
    timeline = (
        rows.groupBy(*keys[:-1], bucket_of(F.col("ts"), seconds).alias("time"))
        .agg(F.count("*").alias("messages"), *percentiles(F.col("total"), "total"))
        .orderBy("time", *keys[:-1])
    )
    spread = (
        rows.where(F.col("total").isNotNull())
        .groupBy(*keys[:-1], F.pow(2.0, F.ceil(F.log2(F.greatest(F.lit(0.125), "total")))).alias("up_to"))
        .agg(F.count("*").alias("messages"))
        .orderBy("up_to", *keys[:-1])
    )
    return {"latency": groups, "timeline": timeline, "spread": spread}


JOB = Job(
    name="latency",
    title="Latency",
    about="Publish to deliver to ack: percentiles for each group and topic, and over time.",
    run=run,
    parameters=(*COMMON, TOPICS, BUCKET),
    charts=(
        Chart("latency", "bars", "From publish to ack", "group,topic", ("total_p50", "total_p99"), unit="ms"),
        Chart("timeline", "lines", "From publish to ack, 99 of 100", "time", ("total_p99",), "group", "ms"),
        Chart("spread", "bars", "Messages by latency, up to so many ms", "up_to", ("messages",), "group"),
    ),
    units={
        "up_to": "ms",
        **{f"{name}_{p}": "ms" for name in STRETCHES for p in ("p50", "p90", "p99", "max")},
    },
)
