"""Publish again what a journal has: some topics, a range of seqs or times, whatever a condition in SQL picks.

A message is known by the seq that it had, so a replay that is run twice adds nothing twice, as long as the hub
remembers ids (ten minutes unless the topic says more). Dead letters go back to the topic that they came from.
"""

import json
import tempfile
from pathlib import Path

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from fabric_protocol.names import DEAD
from fabric_spark.errors import SourceError
from fabric_spark.jobs.base import COMMON, TOPICS, Chart, Job, Parameter, Settings, Tables, places_of, read

_DONE = "rows long, stored long, duplicates long, bytes long"


def selection(spark: SparkSession, settings: Settings) -> DataFrame:
    """What would be published: topic, key, headers, payload and id."""
    found = places_of(settings)
    if len(found) > 1:
        raise SourceError("a replay reads one journal", "run it once for each journal")
    rows = read(spark, settings, "journal", "seq,topic,ts,key,headers,payload", headers="raw")
    if settings["where"]:
        try:
            rows = rows.where(settings["where"])
        except (AnalysisException, ParseException) as error:
            raise SourceError(
                f"where is {settings['where']!r}: {str(error).splitlines()[0]}",
                "write a condition in SQL on seq, topic, ts, key, headers and payload",
            ) from error
    if settings["limit"]:
        rows = rows.orderBy("seq").limit(settings["limit"])
    name = f"{settings['name']}/{found[0].journal[:12]}/"
    kept = F.filter("headers", lambda pair: ~F.startswith(pair["name"], F.lit("fabric-")))
    return rows.select(
        "seq",
        _target(settings).alias("topic"),
        "key",
        kept.alias("headers"),
        "payload",
        F.concat(F.lit(name), F.col("seq").cast("string")).alias("id"),
    )


def _target(settings: Settings) -> Column:
    """The topic to publish on: the given topic, or the topic of the message; of a dead letter, its first topic."""
    if settings["to"]:
        return F.lit(settings["to"])
    origin = F.filter("headers", lambda pair: pair["name"] == "fabric-topic")[0]["value"].cast("string")
    own = F.when(F.startswith("topic", F.lit(DEAD)), F.coalesce(origin, "topic")).otherwise(F.col("topic"))
    return F.concat(F.lit(settings["prefix"]), own) if settings["prefix"] else own


def run(spark: SparkSession, settings: Settings) -> Tables:
    chosen = selection(spark, settings)
    topics = chosen.groupBy("topic").agg(
        F.count("*").alias("messages"), F.min("seq").alias("first_seq"), F.max("seq").alias("last_seq")
    )
    if settings["dry_run"]:
        return {"would_publish": topics.orderBy("topic")}
    with tempfile.TemporaryDirectory(prefix="fabric-replay-") as folder:
        report = Path(folder) / "report.json"
        writer = chosen.drop("seq").coalesce(settings["tasks"]).write.format("fabric").mode("append")
        if settings["url"]:
            writer = writer.option("url", settings["url"])
        writer.option("report", str(report)).save()
        told = json.loads(report.read_text())
    row = (told["rows"], told["stored"], told["duplicates"], told["bytes"])
    return {"published": spark.createDataFrame([row], _DONE)}


JOB = Job(
    name="replay",
    title="Replay",
    about="Publish again what a condition picks; a second run adds nothing twice.",
    run=run,
    parameters=(
        *COMMON,
        TOPICS,
        Parameter("where", "A condition in SQL, as \"key = 'a' and seq > 100\"."),
        Parameter("limit", "Most messages to publish, the first first.", "number", 0),
        Parameter("url", "The hub to publish to.  Default: that of the current context."),
        Parameter("to", "Publish on this topic instead of the messages' own."),
        Parameter("prefix", "Put this before the messages' own topics, as 'again.'."),
        Parameter("name", "Of this replay: another name publishes the same messages once more.", default="replay"),
        Parameter("tasks", "So many tasks publish at once; 1 keeps the order.", "number", 1),
        Parameter("dry_run", "Publish nothing, tell what would be.", "flag", False),
    ),
    charts=(Chart("would_publish", "bars", "Messages by topic", "topic", ("messages",)),),
    units={"bytes": "B"},
)
