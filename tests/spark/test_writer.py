"""Publishing a DataFrame: every row is stored once, also if the frame is written twice."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_spark.errors import SourceError
from fabric_spark.jobs import ask, find, settings_for
from fabric_spark.writer import layout_of, target_of
from tests.spark import story

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "data", HubOptions(binds=["tcp://127.0.0.1:*"])) as hub:
        yield hub


def url_of(hub: Hub) -> str:
    return hub.binds[0]


def stored(hub: Hub) -> list[tuple[str, bytes, str | None, dict[str, Any]]]:
    """What the hub has, of all topics."""
    with fabric_client.connect(url_of(hub)) as fab:
        return [(m.topic, m.body, m.key, dict(m.headers)) for m in fab.get("#", seq=1, n=1000)]


def write(frame: "DataFrame", hub: Hub, **options: str) -> None:
    frame.write.format("fabric").mode("append").option("url", url_of(hub)).options(**options).save()


def test_rows_become_messages(spark: "SparkSession", hub: Hub) -> None:
    frame = spark.sql("""
        select 'orders' topic, cast('one' as binary) payload, 'k1' key, map('trace', 't1') headers
        union all select 'audit', cast('two' as binary), null, null
    """)
    write(frame.coalesce(1), hub)
    assert stored(hub) == [("orders", b"one", "k1", {"trace": "t1"}), ("audit", b"two", None, {})]


def test_writing_twice_adds_nothing(spark: "SparkSession", hub: Hub, tmp_path: Path) -> None:
    frame = spark.range(1000).selectExpr("cast(id as string) value").repartition(3)
    report = tmp_path / "report.json"
    options = {"topic": "numbers", "idPrefix": "monday", "report": str(report)}
    write(frame, hub, **options)
    done = json.loads(report.read_text())
    assert (done["rows"], done["stored"], done["duplicates"]) == (1000, 1000, 0)
    write(frame, hub, **options)
    done = json.loads(report.read_text())
    assert (done["rows"], done["stored"], done["duplicates"]) == (1000, 0, 1000)
    assert sorted(int(body) for _, body, _, _ in stored(hub)) == list(range(1000))


def test_a_task_that_is_run_again_adds_only_the_rest(spark: "SparkSession", hub: Hub, tmp_path: Path) -> None:
    """The first try of the only task dies half way, after a block or two has reached the hub."""
    from pyspark.sql import functions as F  # noqa: N812

    marker = tmp_path / "died"

    def die_once(rows: Any) -> Any:
        for i, row in enumerate(rows):
            if i == 20_000 and not marker.exists():
                marker.touch()
                raise RuntimeError("planned")
            yield row

    frame = spark.range(0, 30_000, 1, 1).select(F.rpad(F.col("id").cast("string"), 40, " ").alias("value"))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5000")
    try:
        done = publish_with_retry(
            spark, spark.createDataFrame(frame.rdd.mapPartitions(die_once), frame.schema), hub, marker
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert done >= 1
    with fabric_client.connect(url_of(hub)) as fab:
        assert fab.info("hub")["last_seq"] == 30_000


def publish_with_retry(spark: "SparkSession", frame: "DataFrame", hub: Hub, marker: Path) -> int:
    """In local mode Spark runs a task once, so the query is what is run again, with the same prefix."""
    from pyspark.errors import PySparkException

    for tries in range(3):
        try:
            write(frame, hub, topic="numbers", idPrefix="q1")
        except PySparkException:
            assert marker.exists()
        else:
            return tries
    raise AssertionError("never written")


def test_own_ids_are_kept(spark: "SparkSession", hub: Hub) -> None:
    frame = spark.sql("select 'same' id, 'a' value union all select 'same', 'b' union all select 'other', 'c'")
    write(frame.coalesce(1), hub, topic="t")
    assert [body for _, body, _, _ in stored(hub)] == [b"a", b"c"]


def test_a_stream_is_published_once(spark: "SparkSession", hub: Hub, tmp_path: Path) -> None:
    spark.range(20).selectExpr("cast(id as string) value").write.parquet(str(tmp_path / "in"))
    for _ in range(2):
        stream = spark.readStream.schema("value string").parquet(str(tmp_path / "in"))
        query = (
            stream.writeStream.format("fabric")
            .options(url=url_of(hub), topic="t", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        for commit in (tmp_path / "checkpoint" / "commits").glob("*"):  # as after a crash: the batch is run again
            commit.unlink()
    assert sorted(int(body) for _, body, _, _ in stored(hub)) == list(range(20))


def test_replay_publishes_what_is_picked_once(spark: "SparkSession", hub: Hub, tmp_path: Path) -> None:
    snapshot = story.write_snapshot(tmp_path)
    job = find("replay")
    given = {"snapshot": str(snapshot), "url": url_of(hub), "where": "seq in (1, 2, 9)", "topics": "orders,$dlq.#"}
    first = ask(spark, job, settings_for(job, given))
    assert first.tables["published"].rows[0][:3] == (3, 3, 0)
    again = ask(spark, job, settings_for(job, given))
    assert again.tables["published"].rows[0][:3] == (3, 0, 3)
    assert stored(hub) == [
        ("orders", b"p1", "a", {}),
        ("orders", b"p2", "b", {}),
        ("orders", b"p2", None, {"trace": "t1"}),
    ]
    dry = ask(spark, job, settings_for(job, {**given, "dry_run": "true", "prefix": "again."}))
    assert dry.tables["would_publish"].rows == [("again.orders", 3, 1, 9)]
    with pytest.raises(SourceError, match="condition in SQL"):
        ask(spark, job, settings_for(job, {**given, "where": "nonsense ="}))


@pytest.mark.parametrize(
    ("columns", "options", "match"),
    [
        ("1 value", {"topic": "t"}, "value is int"),
        ("'a' value", {}, "no topic"),
        ("'a' topic", {}, "no column payload"),
        ("'a' value, 1 colour", {"topic": "t"}, "'colour' is no part"),
        ("'a' value, array(1) headers", {"topic": "t"}, "headers is array<int>"),
        ("'a' value, 'b' payload", {"topic": "t"}, "mean the same"),
        ("'a' value", {"topic": "t.*"}, "topic"),
        ("'a' value", {"topic": "t", "urls": "x"}, "unknown option 'urls'"),
        ("'a' value", {"topic": "t", "timeout": "soon"}, "timeout is 'soon'"),
    ],
)
def test_bad_writes_are_refused_before_anything_is_sent(
    spark: "SparkSession", columns: str, options: dict[str, str], match: str
) -> None:
    with pytest.raises(SourceError, match=match):
        layout_of(spark.sql(f"select {columns}").schema, target_of(options))


def test_no_hub(spark: "SparkSession") -> None:
    from pyspark.errors import PySparkException

    frame = spark.sql("select 'a' value")
    with pytest.raises(PySparkException, match=r"tcp://127\.0\.0\.1:1"):
        frame.write.format("fabric").mode("append").options(url="tcp://127.0.0.1:1", topic="t", timeout="0.5").save()


def test_a_journal_is_not_overwritten(spark: "SparkSession") -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="append"):
        spark.sql("select 'a' value").write.format("fabric").mode("overwrite").options(topic="t").save()


def test_a_row_without_a_topic_is_named(spark: "SparkSession", hub: Hub) -> None:
    from pyspark.errors import PySparkException

    frame = spark.sql("select 'a' value, 't' topic union all select 'b', null").coalesce(1)
    with pytest.raises(PySparkException, match="row 1 of partition 0: its topic is null"):
        write(frame, hub)
