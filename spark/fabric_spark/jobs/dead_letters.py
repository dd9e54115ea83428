"""Dead letters by cause, and the newest dead letters. Their headers have all fields, so events are not needed."""

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.jobs.base import (
    BUCKET,
    COMMON,
    Chart,
    Job,
    Parameter,
    Settings,
    Tables,
    bucket_of,
    bucket_seconds,
    hub_keys,
    read,
)

PREVIEW = 80  # bytes of a payload that are shown


def header(name: str) -> Column:
    """A header as text; null when it is absent."""
    return F.col("headers")[name].cast("string")


def run(spark: SparkSession, settings: Settings) -> Tables:
    hub = hub_keys(settings)
    rows = read(
        spark, settings, "journal", ",".join([*hub, "seq", "topic", "ts", "key", "headers", "payload"]), topics="$dlq.#"
    )
    letters = rows.select(
        *hub,
        F.substring_index("topic", "$dlq.", -1).alias("group"),
        header("fabric-reason").alias("reason"),
        header("fabric-topic").alias("origin"),
        header("fabric-error").alias("error"),
        header("fabric-attempts").try_cast("int").alias("attempts"),
        header("fabric-hops").try_cast("int").alias("hops"),
        header("fabric-seq").try_cast("long").alias("origin_seq"),
        "seq",
        F.col("ts").alias("died"),
        F.timestamp_micros(header("fabric-time").try_cast("long")).alias("published"),
        F.decode(F.substring("payload", 1, PREVIEW), "utf-8").alias("payload"),
    )
    keys = [*hub, "group", "reason", "origin"]
    age = (F.unix_micros("died") - F.unix_micros("published")) / 1e6
    causes = (
        letters.groupBy(*keys)
        .agg(
            F.count("*").alias("letters"),
            F.max("attempts").alias("attempts_max"),
            F.max("hops").alias("hops_max"),
            F.percentile_approx(age, 0.5).alias("age_p50"),
            F.min("died").alias("first"),
            F.max("died").alias("last"),
            F.max_by("error", "seq").alias("latest_error"),
        )
        .orderBy(F.desc("letters"), *keys)
    )
    timeline = (
        letters.groupBy(*hub, "group", bucket_of(F.col("died"), bucket_seconds(settings)).alias("time"))
        .agg(F.count("*").alias("letters"))
        .orderBy("time", *hub, "group")
    )
    newest = letters.orderBy(F.desc("seq")).limit(settings["top"])
    return {"causes": causes, "timeline": timeline, "letters": newest}


JOB = Job(
    name="dead-letters",
    title="Dead letters",
    about="Dead letters by group, reason and topic, over time, and the newest with what they say.",
    run=run,
    parameters=(*COMMON, BUCKET, Parameter("top", "So many letters, the newest first.", "number", 50)),
    charts=(
        Chart("causes", "bars", "Letters by reason", "reason", ("letters",), "group"),
        Chart("timeline", "lines", "Letters over time", "time", ("letters",), "group"),
    ),
    units={"age_p50": "s"},
)
