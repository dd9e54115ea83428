"""Redeliveries by cause, by group and consumer, and the messages with most of them. Needs delivery events."""

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_spark.jobs.base import (
    COMMON,
    Chart,
    Job,
    Parameter,
    Settings,
    Tables,
    each_seq,
    hub_keys,
    read,
    width,
)

CAUSES = ("retry", "release", "lapse", "lost")


def _counts() -> list[Column]:
    kind, again = F.col("kind"), F.col("attempt") > 1
    delivered = F.when(kind == "deliver", width()).otherwise(0)
    return [
        F.sum(delivered).alias("deliveries"),
        F.sum(F.when((kind == "deliver") & again, width()).otherwise(0)).alias("redeliveries"),
        *(F.sum(F.when(kind == name, width()).otherwise(0)).alias(name) for name in (*CAUSES, "dead", "expired")),
        F.max("attempt").alias("attempts_max"),
    ]


def run(spark: SparkSession, settings: Settings) -> Tables:
    hub = hub_keys(settings)
    columns = [*hub, "ts", "kind", "group", "client", "attempt", "first_seq", "last_seq"]
    told = read(spark, settings, "events", ",".join(columns))
    share = F.when(F.col("deliveries") > 0, 100.0 * F.col("redeliveries") / F.col("deliveries"))
    groups = told.groupBy(*hub, "group").agg(*_counts()).withColumn("share", share).orderBy(*hub, "group")
    clients = (
        told.where(F.col("client") != "")
        .groupBy(*hub, "group", "client")
        .agg(*_counts())
        .withColumn("share", share)
        .orderBy(F.desc("redeliveries"), *hub, "group", "client")
        .limit(settings["top"])
    )
    worst = (
        each_seq(told.where((F.col("attempt") > 1) | F.col("kind").isin("dead", *CAUSES)))
        .groupBy(*hub, "group", "seq")
        .agg(
            F.max("attempt").alias("attempts"),
            *(F.sum(F.when(F.col("kind") == name, 1).otherwise(0)).alias(name) for name in (*CAUSES, "dead")),
            F.min("ts").alias("first"),
            F.max("ts").alias("last"),
        )
        .orderBy(F.desc("attempts"), *hub, "group", "seq")
        .limit(settings["top"])
    )
    topics = read(spark, settings, "journal", ",".join([*hub, "seq", "topic"]))
    messages = topics.join(F.broadcast(worst), [*hub, "seq"]).orderBy(F.desc("attempts"), *hub, "group", "seq")
    return {"groups": groups, "clients": clients, "messages": messages}


JOB = Job(
    name="redelivery",
    title="Redeliveries",
    about="How often groups and clients had messages again, by cause, and the messages that fail most.",
    run=run,
    parameters=(*COMMON, Parameter("top", "So many clients and messages, the worst first.", "number", 50)),
    charts=(
        Chart("groups", "bars", "Why messages came back", "group", CAUSES),
        Chart("groups", "bars", "Deliveries that were not the first", "group", ("share",), unit="%"),
    ),
    units={"share": "%"},
)
