"""How far behind groups were, over time: in messages, and in seconds since the oldest of these was published.

A message lags in a group from its publish until the group has settled it (ack, dead, expired; in groups that ack by
themselves, the delivery). When a message was settled is in the delivery events; what is not settled is in the state of
groups that a snapshot has. What was settled while no events were written counts as never having lagged.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from fabric.snapshot.manifest import GroupState
from fabric_protocol.names import REDRIVE
from fabric_spark.catalog import Place
from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import (
    BUCKET,
    BUCKETS_MAX,
    COMMON,
    Chart,
    Job,
    Parameter,
    Settings,
    Tables,
    bucket_of,
    bucket_seconds,
    each_seq,
    hub_keys,
    places_of,
    read,
)


def pattern_regex(pattern: str) -> str:
    """A canonical pattern as a regular expression for whole topics."""
    if pattern == "#":
        return r"^[^$].*$"
    text, words = "", pattern.split(".")
    for i, word in enumerate(words):
        if word == "#":
            text += r"(\.[^.]+)*" if i else r"([^.]+\.)*"
        else:
            before = "" if not i or (i == 1 and words[0] == "#") else r"\."
            text += before + (
                r"[^.]+" if word == "*" else "".join(f"\\{c}" if c in "$^+?()[]{}|\\" else c for c in word)
            )
    return rf"^{text}$" if words[0] not in ("*", "#") else rf"^(?!\$){text}$"


def _wants(state: GroupState) -> Column:
    patterns = [*map(pattern_regex, state.settings.patterns)]
    found = reduce(lambda a, b: a | b, (F.col("topic").rlike(text) for text in patterns), F.lit(False))
    return found | (F.col("topic") == f"{REDRIVE}{state.group}")


def _is_beyond(state: GroupState) -> Column:
    """Whether the group has not come to a message yet; a priority may have a cursor of its own."""
    cases: Column | None = None
    for priority, at in state.lanes:
        test = F.col("priority") == priority
        cases = F.when(test, F.lit(at)) if cases is None else cases.when(test, F.lit(at))
    cursor = F.lit(state.cursor)
    return F.col("seq") >= (cursor if cases is None else cases.otherwise(cursor))


def _taker(state: GroupState) -> Column:
    """What a group makes of a message; null when it does not want it."""
    return F.when(_wants(state), F.struct(F.lit(state.group).alias("group"), _is_beyond(state).alias("beyond")))


def _pending(spark: SparkSession, groups: tuple[GroupState, ...]) -> DataFrame:
    """What groups have come to and not settled."""
    ranges = [(state.group, first, last) for state in groups for first, last in state.open]
    frame = spark.createDataFrame(ranges, "group string, first_seq long, last_seq long")
    return each_seq(frame).select("group", "seq", F.lit(True).alias("pending"))


def _lives(spark: SparkSession, settings: Settings, place: Place, groups: tuple[GroupState, ...]) -> DataFrame:
    """A row for each message and group that wanted it: when it was published, and when settled; null: never."""
    ours = {**settings, "snapshot": place.path}
    told = read(spark, {**ours, "end_time": None}, "events", "ts,kind,group,first_seq,last_seq")
    auto = [state.group for state in groups if state.settings.ack == "auto"]
    when_sent = (F.col("kind") == "deliver") & F.col("group").isin(*auto, "")
    settles = F.col("kind").isin("ack", "dead", "expired") | when_sent
    settled = each_seq(told.where(settles)).groupBy("group", "seq").agg(F.min("ts").alias("settled"))
    lanes = any(state.lanes for state in groups)
    messages = read(spark, ours, "journal", "seq,topic,ts,priority" if lanes else "seq,topic,ts")
    takers = F.array_compact(F.array(*map(_taker, groups)))  # one scan, however many groups there are
    wanted = messages.select("seq", F.col("ts").alias("published"), F.explode(takers).alias("taker")).select(
        F.col("taker.group").alias("group"), "seq", "published", F.col("taker.beyond").alias("beyond")
    )
    is_open = F.col("beyond") | F.coalesce(F.col("pending"), F.lit(False))
    lives = (
        wanted.join(settled, ["group", "seq"], "left")
        .join(_pending(spark, groups), ["group", "seq"], "left")
        .withColumn("open", is_open)
        .where(F.col("open") | F.col("settled").isNotNull())
    )
    settled_at = F.when(~F.col("open"), F.greatest("settled", "published"))
    return lives.select(F.lit(place.hub).alias("hub"), "group", "published", settled_at.alias("settled"))


def _history(lives: DataFrame, seconds: int) -> DataFrame:
    keys = ["hub", "group"]
    published = lives.groupBy(*keys, bucket_of(F.col("published"), seconds).alias("time")).agg(
        F.count("*").alias("published")
    )
    # What is settled later, and the oldest of it: that is what lags until then. Never settled: after all buckets.
    settled = lives.groupBy(*keys, bucket_of(F.col("settled"), seconds).alias("time")).agg(
        F.count("*").alias("settled"), F.min("published").alias("oldest")
    )
    never = settled.where(F.col("time").isNull()).select(*keys, F.col("oldest").alias("stuck"))
    ends = lives.groupBy(*keys).agg(
        F.min("published").alias("first"), F.max(F.greatest("published", "settled")).alias("last")
    )
    step = F.expr(f"interval {seconds} seconds")
    steps = ends.select(
        *keys,
        F.explode(F.sequence(bucket_of(F.col("first"), seconds), bucket_of(F.col("last"), seconds), step)).alias(
            "time"
        ),
    )
    past = Window.partitionBy(*keys).orderBy("time").rowsBetween(Window.unboundedPreceding, 0)
    future = Window.partitionBy(*keys).orderBy("time").rowsBetween(1, Window.unboundedFollowing)
    end = F.col("time") + step
    rows = (
        steps.join(published, [*keys, "time"], "left")
        .join(settled.where(F.col("time").isNotNull()), [*keys, "time"], "left")
        .join(never, keys, "left")
        .fillna(0, ["published", "settled"])
        .withColumn("lag_messages", F.sum("published").over(past) - F.sum("settled").over(past))
        .withColumn("oldest", F.least(F.min("oldest").over(future), F.col("stuck")))
    )
    age = F.when(F.col("oldest") < end, (F.unix_micros(end) - F.unix_micros("oldest")) / 1e6).otherwise(0.0)
    return rows.select(*keys, "time", "published", "settled", "lag_messages", age.alias("lag_seconds"))


def run(spark: SparkSession, settings: Settings) -> Tables:
    hub, seconds = hub_keys(settings), bucket_seconds(settings)
    chosen = [name.strip() for name in (settings["groups"] or "").split(",") if name.strip()]
    found: list[DataFrame] = []
    names: set[str] = set()
    for place in places_of(settings):
        groups = tuple(state for state in place.groups if not chosen or state.group in chosen)
        names.update(state.group for state in place.groups)
        if groups:
            _require_few_steps(place, seconds)
            found.append(_history(_lives(spark, settings, place, groups).cache(), seconds))
    if not found:
        raise SourceError(
            f"there is no group {', '.join(chosen)}" if chosen else "there are no groups in the snapshot",
            f"it has {', '.join(sorted(names))}" if names else "only groups have a lag: subscribe with a group first",
        )
    history = reduce(DataFrame.unionByName, found)
    history = (history if hub else history.drop("hub")).orderBy("time", *hub, "group").cache()
    keys = [*hub, "group"]
    worst = history.groupBy(*keys).agg(
        F.sum("published").alias("published"),
        F.sum("settled").alias("settled"),
        F.max_by("lag_messages", "time").alias("lag_messages_now"),
        F.max("lag_messages").alias("lag_messages_max"),
        F.max_by("lag_seconds", "time").alias("lag_seconds_now"),
        F.max("lag_seconds").alias("lag_seconds_max"),
        F.max_by("time", "lag_seconds").alias("worst_at"),
    )
    return {"groups": worst.orderBy(*keys), "history": history}


def _require_few_steps(place: Place, seconds: int) -> None:
    if place.shards and (place.shards[-1].last_ts_us - place.shards[0].first_ts_us) / 1e6 / seconds > BUCKETS_MAX:
        raise SourceError(f"steps of {seconds} seconds are more than {BUCKETS_MAX}", "choose a longer bucket")


JOB = Job(
    name="lag-history",
    title="Lag",
    about="How far behind each group was over time, in messages and in seconds.",
    run=run,
    parameters=(*COMMON, BUCKET, Parameter("groups", "Only these groups, separated by commas.")),
    charts=(
        Chart("history", "lines", "Messages behind", "time", ("lag_messages",), "group"),
        Chart("history", "lines", "Seconds behind", "time", ("lag_seconds",), "group", "s"),
    ),
    units={"lag_seconds": "s", "lag_seconds_now": "s", "lag_seconds_max": "s"},
)
