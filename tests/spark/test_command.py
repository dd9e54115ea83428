"""`fabric spark …`, with the session that all tests share."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from fabric.cli import EXIT_DAMAGED, main
from tests.spark import story
from tests.spark.sample import damage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fabric(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.fixture
def shared(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """The command finds the running session, and leaves it running."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return story.write_snapshot(tmp_path, "monday")


def test_jobs_and_their_parameters() -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")
    done = fabric("spark", "jobs", "--json")
    assert done.exit_code == 0, done.stderr
    assert {row["job"] for row in json.loads(done.stdout)["jobs"]} >= {"latency", "lake", "replay"}
    done = fabric("spark", "jobs", "sessions", "-o", "table")
    assert "gap" in done.stdout
    assert "30 minutes" in done.stdout
    done = fabric("spark", "jobs", "session")
    assert done.exit_code == 4
    assert "did you mean sessions" in done.stderr


def test_a_run_prints_and_writes(shared: None, snapshot: Path, tmp_path: Path) -> None:
    page = tmp_path / "topics.html"
    out = tmp_path / "out"
    args = ("--snapshot", str(snapshot), "--html", str(page), "--out", str(out), "--format", "json")
    done = fabric("spark", "run", "topic-stats", *args, "-o", "table", "-p", "topics=orders")
    assert done.exit_code == 0, done.stderr
    assert "orders" in done.stdout
    assert "$dlq" not in done.stdout
    assert json.loads(next((out / "topics").glob("*.json")).read_text())["messages"] == 10
    text = page.read_text()
    for start in (i for i in range(len(text)) if text.startswith("<svg", i)):
        ET.fromstring(text[start : text.index("</svg>", start) + 6])


def test_json_is_one_document(shared: None, snapshot: Path) -> None:
    done = fabric("spark", "run", "dead-letters", "--snapshot", str(snapshot), "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "fabric.spark.dead-letters.v1"
    assert document["tables"]["causes"][0]["letters"] == 2


def test_a_folder_of_snapshots_means_its_newest(shared: None, snapshot: Path) -> None:
    done = fabric("spark", "run", "verify", "--snapshot", str(snapshot.parent), "-p", "quick=true", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["tables"]["snapshots"][0]["snapshot"] == str(snapshot)


def test_damage_has_its_exit_code(shared: None, snapshot: Path) -> None:
    (shard,) = [file for file in (snapshot / "shards").iterdir() if not file.name.startswith("events")]
    damage(shard, b"longer")
    done = fabric("spark", "run", "verify", "--snapshot", str(snapshot), "-o", "table")
    assert done.exit_code == EXIT_DAMAGED
    assert "DAMAGED" in done.stdout


def test_errors_have_their_hint_once(shared: None, tmp_path: Path) -> None:
    done = fabric("spark", "run", "latency", "--snapshot", str(tmp_path / "nothing"), "-p", "bucket=1m")
    assert done.exit_code == 1
    assert "hint: check the path" in done.stderr
    assert "What to do" not in done.stderr


@pytest.mark.parametrize(
    ("args", "exit_code", "said"),
    [
        (("run", "lakes"), 4, "did you mean lake"),
        (("run", "latency"), 1, "needs a snapshot"),
        (("run", "latency", "--snapshot", "x", "-p", "bucket"), 2, "takes NAME=VALUE"),
        (("run", "latency", "--snapshot", "x", "--html", "/no/where/page.html"), 2, "there is no folder"),
        (("run", "lake", "--snapshot", "x", "-p", "file_mb=many"), 1, "whole number"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(args: tuple[str, ...], exit_code: int, said: str) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")
    done = fabric("spark", *args)
    assert (done.exit_code, said in done.stderr) == (exit_code, True)


def test_without_pyspark_both_ways_to_get_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fabric_spark", "pyspark")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = fabric("spark", "jobs")
    assert done.exit_code == 1
    assert "fabricmq[spark]" in done.stderr
    assert "fabricmq[spark-java]" in done.stderr
