"""Messages that are there more than once: by idempotency key, by payload, by key and payload, or by a header.

The hub stores an id once on a topic within the topic's window; the same id later, or on another topic, is a message of
its own. This finds what that lets through, and what producers without ids have sent twice.
"""

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import COMMON, TOPICS, Chart, Job, Parameter, Settings, Tables, hub_keys, read


def _identity(by: str) -> tuple[Column, list[str]]:
    """What makes two messages the same, as text, and the columns that it takes."""
    match by.split(":", 1):
        case ["id"]:
            return F.hex("id"), ["id"]
        case ["payload"]:
            return F.sha2("payload", 256), ["payload"]
        case ["key+payload"]:
            return F.sha2(F.concat(F.coalesce(F.col("key"), F.lit(b"")), F.lit(b"\0"), "payload"), 256), [
                "key",
                "payload",
            ]
        case ["header", name] if name:
            return F.col("headers")[name].cast("string"), ["headers"]
    raise SourceError(f"by is {by!r}", "choose id, payload, key+payload or header:NAME")


def run(spark: SparkSession, settings: Settings) -> Tables:
    keys = [*hub_keys(settings), *([] if settings["across_topics"] else ["topic"])]
    same, needed = _identity(settings["by"])
    columns = dict.fromkeys([*hub_keys(settings), "seq", "topic", "ts", "payload_len", *needed])
    rows = read(spark, settings, "journal", ",".join(columns)).select(
        *hub_keys(settings), "seq", "topic", "ts", "payload_len", same.alias("same")
    )
    sets = (
        rows.where(F.col("same").isNotNull())
        .groupBy(*keys, "same")
        .agg(
            F.count("*").alias("copies"),
            F.min("seq").alias("first_seq"),
            F.max("seq").alias("last_seq"),
            F.sum(F.col("payload_len").cast("long")).alias("bytes"),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
        )
        .cache()
    )
    twice = F.col("copies") > 1
    topics = (
        sets.groupBy(*keys)
        .agg(
            F.sum("copies").alias("messages"),
            F.count("*").alias("distinct"),
            (F.sum("copies") - F.count("*")).alias("duplicates"),
            F.sum(
                F.when(twice, (F.col("bytes") * (F.col("copies") - 1) / F.col("copies")).cast("long")).otherwise(0)
            ).alias("duplicate_bytes"),
        )
        .withColumn("share", 100.0 * F.col("duplicates") / F.col("messages"))
        .orderBy(F.desc("duplicates"), *keys)
    )
    apart = ((F.unix_micros("last") - F.unix_micros("first")) / 1e6).alias("seconds_apart")
    worst = (
        sets.where(twice)
        .select(*keys, "same", "copies", "first_seq", "last_seq", "first", "last", apart)
        .orderBy(F.desc("copies"), "first_seq")
        .limit(settings["top"])
    )
    return {"topics": topics, "duplicates": worst}


JOB = Job(
    name="dedupe-audit",
    title="Duplicates",
    about="Messages that are there more than once: how many, on which topics, and how far apart.",
    run=run,
    parameters=(
        *COMMON,
        TOPICS,
        Parameter("by", "What makes two the same: id, payload, key+payload or header:NAME.", default="payload"),
        Parameter("across_topics", "The same on two topics counts as well.", "flag", False),
        Parameter("top", "So many duplicates, the most frequent first.", "number", 100),
    ),
    charts=(Chart("topics", "bars", "Duplicates by topic", "topic", ("duplicates",)),),
    units={"share": "%", "duplicate_bytes": "B", "seconds_apart": "s"},
)
