"""Every job on a journal with known contents."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from fabric_spark.errors import SourceError
from fabric_spark.jobs import ask, find, jobs, settings_for
from fabric_spark.jobs.answer import Answer, document, text, write_json
from fabric_spark.jobs.lag_history import pattern_regex
from fabric_spark.jobs.report import page
from fabric_spark.topics import matches
from tests.spark import story
from tests.spark.sample import damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return story.write_snapshot(tmp_path_factory.mktemp("story"))


def answer_to(spark: "SparkSession", name: str, snapshot: Path | str, **given: Any) -> Answer:
    job = find(name)
    return ask(spark, job, settings_for(job, {"snapshot": str(snapshot), **given}))


def rows(answer: Answer, table: str) -> list[dict[str, Any]]:
    found = answer.tables[table]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def picked(answer: Answer, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows(answer, table)]


def at(second: int) -> datetime:
    return datetime.fromtimestamp(story.T0 / 1e6 + second, UTC).replace(tzinfo=None)


def test_topic_stats(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "topic-stats", snapshot, bucket="10 seconds")
    assert picked(answer, "topics", "topic", "messages", "bytes") == [("orders", 10, 21), ("$dlq.billing", 2, 4)]
    assert rows(answer, "topics")[0]["size_max"] == 6
    assert picked(answer, "timeline", "time", "topic", "messages", "per_second") == [
        (at(0), "orders", 4, 0.4),
        (at(10), "orders", 4, 0.4),
        (at(20), "$dlq.billing", 2, 0.2),
        (at(60), "orders", 2, 0.2),
    ]


def test_latency(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "latency", snapshot)
    columns = ("group", "topic", "messages", "to_deliver_max", "to_ack_max", "total_p50", "total_max")
    assert picked(answer, "latency", *columns) == [
        ("audit", "orders", 4, 10_000.0, None, None, None),
        ("billing", "orders", 8, 1000.0, 10_000.0, 2000.0, 20_000.0),
    ]
    assert sum(row["messages"] for row in rows(answer, "spread")) == 8


def test_lag_history(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "lag-history", snapshot, bucket="5s", groups="billing")
    lag = {time: (n, s) for time, n, s in picked(answer, "history", "time", "lag_messages", "lag_seconds")}
    assert lag[at(0)] == (0, 0)  # acked at 2 s
    assert lag[at(10)] == (1, 5.0)  # at 15 s, only seq 5 of 10 s is left
    assert lag[at(25)] == (1, 20.0)
    assert lag[at(30)] == (0, 0)
    assert lag[at(60)] == (2, 5.0)  # 11 and 12 were never delivered
    assert picked(answer, "groups", "lag_messages_now", "lag_messages_max", "lag_seconds_max") == [(2, 2, 20.0)]


def test_lag_of_a_group_that_settles_when_sent(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "lag-history", snapshot, bucket="5s", groups="audit")
    (now,) = picked(answer, "groups", "published", "settled", "lag_messages_now")
    assert now == (10, 4, 6)  # of topics that are not the hub's own


def test_lag_by_the_state_of_a_group_alone(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "lag-history", snapshot, bucket="5s", groups="mail")
    (now,) = picked(answer, "groups", "lag_messages_now", "lag_seconds_now")
    assert now == (2, 65.0)  # 3 and 12; the end of the last step is 65 s after the first message
    with pytest.raises(SourceError, match="there is no group post"):
        answer_to(spark, "lag-history", snapshot, groups="post")


def test_redelivery(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "redelivery", snapshot)
    assert picked(answer, "groups", "group", "deliveries", "redeliveries", "retry", "attempts_max") == [
        ("audit", 4, 0, 0, 1),
        ("billing", 9, 1, 1, 2),
    ]
    assert picked(answer, "messages", "seq", "topic", "group", "attempts", "retry") == [(5, "orders", "billing", 2, 1)]


def test_dead_letters(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "dead-letters", snapshot)
    columns = ("group", "reason", "origin", "letters", "attempts_max", "age_p50", "latest_error")
    assert picked(answer, "causes", *columns) == [("billing", "attempts", "orders", 2, 5, 20.0, "boom")]
    assert picked(answer, "letters", "seq", "origin_seq", "payload") == [(10, 2, "p2"), (9, 2, "p2")]


def test_dedupe_audit(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "dedupe-audit", snapshot, topics="orders")
    assert picked(answer, "topics", "topic", "messages", "distinct", "duplicates") == [("orders", 10, 8, 2)]
    assert picked(answer, "duplicates", "first_seq", "last_seq", "copies", "seconds_apart") == [
        (1, 5, 2, 10.0),
        (2, 6, 2, 10.0),
    ]
    across = answer_to(spark, "dedupe-audit", snapshot, topics="orders,$dlq.#", across_topics="true")
    assert rows(across, "duplicates")[0]["copies"] == 4


def test_sessions(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "sessions", snapshot, gap="30s", topics="orders")
    assert picked(answer, "sessions", "who", "begin", "messages", "seconds") == [
        ("a", at(0), 4, 10.0),
        ("b", at(0), 4, 10.0),
        ("a", at(60), 1, 0.0),
        ("b", at(60), 1, 0.0),
    ]
    assert picked(answer, "summary", "sessions", "keys") == [(4, 2)]


def test_verify_finds_nothing_wrong(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "verify", snapshot)
    assert picked(answer, "snapshots", "messages", "findings", "verdict") == [(12, 0, "whole")]
    assert rows(answer, "findings") == []


def test_verify_names_the_damage(spark: "SparkSession", tmp_path: Path) -> None:
    path = story.write_snapshot(tmp_path)
    (shard,) = [file for file in (path / "shards").iterdir() if not file.name.startswith("events")]
    damage(shard, b"longer")
    answer = answer_to(spark, "verify", path)
    assert picked(answer, "snapshots", "verdict") == [("DAMAGED",)]
    found = rows(answer, "findings")
    assert (5, 8) in [(row["first_seq"], row["last_seq"]) for row in found]
    assert any("sha256" in row["why"] for row in found)
    assert rows(answer_to(spark, "verify", path, quick="true"), "findings") == []  # it is in a payload


def test_the_lake_takes_everything_once(spark: "SparkSession", tmp_path: Path) -> None:
    path = story.write_snapshot(tmp_path)
    lake = tmp_path / "lake"
    first = answer_to(spark, "lake", path, out=str(lake))
    assert picked(first, "runs", "first_seq", "last_seq", "messages", "state") == [(1, 12, 12, "added")]
    again = answer_to(spark, "lake", path, out=str(lake))
    assert picked(again, "runs", "messages", "state") == [(0, "up to date")]
    frame = spark.read.parquet(str(lake))
    found = frame.orderBy("seq").select("seq", "topic", "payload", "key").collect()
    assert [row.seq for row in found] == list(range(1, 13))
    assert found[8].topic == "$dlq.billing"
    assert bytes(found[6].payload) == b"longer"
    assert bytes(found[0].key) == b"a"
    assert (lake / "date=2023-11-14" / "topic=orders").is_dir()


def test_a_lake_on_another_file_system(spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hadoop's way, which hdfs and s3a would go; here it leads to local files."""
    from fabric_spark.jobs import lake
    from fabric_spark.jobs.store import HadoopStore, Store

    def hadoop(spark: Any, target: str) -> Store:
        path = spark._jvm.org.apache.hadoop.fs.Path(target)
        filesystem = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())
        return HadoopStore(spark._jvm, filesystem, target)

    monkeypatch.setattr(lake, "store_at", hadoop)
    path, target = story.write_snapshot(tmp_path), tmp_path / "lake"
    answer_to(spark, "lake", path, out=str(target))
    (record,) = (target / "_fabric").glob("*.json")
    (target / "_staging" / record.stem).mkdir(parents=True)
    record.unlink()
    assert picked(answer_to(spark, "lake", path, out=str(target)), "runs", "messages") == [(12,)]
    assert picked(answer_to(spark, "lake", path, out=str(target)), "runs", "state") == [("up to date",)]
    assert spark.read.parquet(str(target)).count() == 12


def test_a_lake_goes_on_after_a_crash(spark: "SparkSession", tmp_path: Path) -> None:
    """The run died when its files were in place and its record was not."""
    path = story.write_snapshot(tmp_path)
    lake = tmp_path / "lake"
    answer_to(spark, "lake", path, out=str(lake))
    (record,) = (lake / "_fabric").glob("*.json")
    (lake / "_staging" / record.stem).mkdir(parents=True)
    record.unlink()
    answer = answer_to(spark, "lake", path, out=str(lake))
    assert picked(answer, "runs", "messages", "state") == [(12, "added")]
    assert spark.read.parquet(str(lake)).count() == 12
    assert not list((lake / "_staging").iterdir())


def test_a_lake_grows_with_the_next_snapshot(spark: "SparkSession", tmp_path: Path) -> None:
    from fabric.journal.journal import Journal
    from fabric.snapshot import create

    lake = tmp_path / "lake"
    answer_to(spark, "lake", story.write_snapshot(tmp_path), out=str(lake))
    journal = Journal.open(tmp_path / "journal")
    journal.commit([story._append(13, 86_400, "orders", [b"next day"])])
    journal.close()
    create(tmp_path / "journal", tmp_path / "second", tmp_path / "snapshot")
    answer = answer_to(spark, "lake", tmp_path / "second", out=str(lake))
    assert picked(answer, "runs", "first_seq", "last_seq", "messages") == [(13, 13, 1)]
    assert spark.read.parquet(str(lake)).where("date = '2023-11-15'").count() == 1
    with pytest.raises(SourceError, match="another lake"):
        answer_to(spark, "lake", tmp_path / "second", out=str(lake), topics="orders")


def test_several_hubs(spark: "SparkSession", tmp_path: Path) -> None:
    paths = [story.write_snapshot(tmp_path / name, name) for name in ("east", "west")]
    answer = answer_to(spark, "topic-stats", ",".join(map(str, paths)))
    assert {(row["hub"], row["topic"], row["messages"]) for row in rows(answer, "topics")} == {
        (hub, topic, n) for hub in ("east", "west") for topic, n in (("orders", 10), ("$dlq.billing", 2))
    }
    latency = answer_to(spark, "latency", ",".join(map(str, paths)))
    assert [row["messages"] for row in rows(latency, "latency") if row["group"] == "billing"] == [8, 8]
    lag = answer_to(spark, "lag-history", ",".join(map(str, paths)))
    assert {row["hub"] for row in rows(lag, "groups")} == {"east", "west"}


def test_an_answer_is_text_json_and_a_page(spark: "SparkSession", snapshot: Path, tmp_path: Path) -> None:
    job = find("topic-stats")
    settings = settings_for(job, {"snapshot": str(snapshot)})
    answer = ask(spark, job, settings, str(tmp_path / "out"))
    assert "orders" in text(answer)
    assert json.loads(write_json(answer)) == document(answer)
    assert document(answer)["tables"]["topics"][0]["messages"] == 10
    shown = page(answer)
    assert shown.count("<svg") == 3
    assert "http" not in shown.replace("http-equiv", "")
    assert spark.read.parquet(str(tmp_path / "out" / "topics")).count() == 2


def test_names_in_a_page_are_only_text(spark: "SparkSession", snapshot: Path) -> None:
    answer = answer_to(spark, "topic-stats", snapshot)
    table = answer.tables["topics"]
    evil = table._replace(rows=[("<script>alert(1)</script>", *row[1:]) for row in table.rows])
    assert "<script" not in page(answer._replace(tables={**answer.tables, "topics": evil}))


def test_all_jobs_say_what_they_are() -> None:
    assert len(jobs()) == 10
    for job in jobs():
        assert job.about.endswith(".")
        assert all(parameter.help for parameter in job.parameters)


@pytest.mark.parametrize(
    ("name", "given", "match"),
    [
        ("topic-stats", {}, "needs a snapshot"),
        ("topic-stats", {"snapshot": "/nowhere", "bucket": "soon"}, "bucket is 'soon'"),
        ("topic-stats", {"snapshot": "/nowhere", "tops": "3"}, "did you mean top"),
        ("verify", {"snapshot": "x", "quick": "perhaps"}, "true or false"),
        ("lake", {"snapshot": "x", "compression": "rar"}, "choose one of"),
    ],
)
def test_bad_parameters(name: str, given: dict[str, str], match: str) -> None:
    with pytest.raises(SourceError, match=match):
        settings_for(find(name), given)


def test_there_is_no_such_job() -> None:
    with pytest.raises(SourceError, match="did you mean lake"):
        find("lakes")


def test_there_is_no_such_snapshot(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no"):
        answer_to(spark, "topic-stats", tmp_path / "nothing", bucket="1m")


@pytest.mark.parametrize(
    "pattern", ["#", "*", "a.#", "#.b", "a.#.b", "a.*.b", "*.#", "$sys.#", "a", "$dlq.*", "a.#.b.*"]
)
def test_patterns_as_expressions(pattern: str) -> None:
    import re

    words = ("a", "b", "a.b", "a.x.b", "a.x.y.b", "$sys", "$sys.a", "$dlq.g", "x.b", "ab", "a.b.c", "a.x.b.c", "b.b.b")
    for topic in words:
        assert bool(re.search(pattern_regex(pattern), topic)) == matches(pattern, topic), topic


def test_the_plain_command(spark: "SparkSession", snapshot: Path) -> None:
    """What spark-submit runs, in a process of its own; the list of jobs needs no session."""
    done = subprocess.run(
        [sys.executable, "-m", "fabric_spark.jobs"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "topic-stats" in done.stdout
