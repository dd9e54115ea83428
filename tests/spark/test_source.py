"""Spark returns the published messages, and a wrong input is an error, not an empty table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from fabric.event_block import Event
from fabric.journal.journal import Journal
from fabric.records import GroupSettings, SaveFailure, SaveGroup
from fabric.snapshot import create
from fabric_protocol.messages import Happening
from fabric_spark import SourceError
from tests.spark.sample import SECOND, T0, Author, Sent, damage, select, write_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SHARD_BYTES = 1 << 16


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Author:
    return Author(tmp_path_factory.mktemp("journal")).write(blocks=14, messages=400)


@pytest.fixture(scope="module")
def snapshot(author: Author, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("snapshots") / "one"
    assert len(create(author.path, target, shard_bytes=SHARD_BYTES).shards) > 2
    return target


@pytest.fixture(scope="module", params=["live", "snapshot"])
def path(request: pytest.FixtureRequest, author: Author, snapshot: Path) -> Path:
    """The same data in a live journal and in a snapshot of it."""
    return author.path if request.param == "live" else snapshot


Read = Callable[..., "DataFrame"]


@pytest.fixture
def read(spark: "SparkSession") -> Read:
    def reading(path: object, **options: object) -> "DataFrame":
        reader = spark.read.format("fabric")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load(str(path))

    return reading


def seqs(frame: "DataFrame") -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def test_every_message_comes_back_as_it_was_published(path: Path, author: Author, read: Read) -> None:
    from pyspark.sql.functions import unix_micros

    frame = read(path, rowsPerPartition=1000)
    assert frame.columns == ["seq", "topic", "ts", "key", "headers", "payload", "payload_len"]
    rows = frame.withColumn("ts", unix_micros("ts")).collect()
    got = sorted(
        Sent(row.seq, row.topic, row.ts, row.key and bytes(row.key), _bytes(row.headers), bytes(row.payload))
        for row in rows
    )
    assert got == [message._replace(headers=_bytes(message.headers)) for message in author.sent]
    assert all(row.payload_len == len(row.payload) for row in rows)


def _bytes(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: value.encode() if isinstance(value, str) else bytes(value) for name, value in headers.items()}


def test_raw_headers_say_what_was_text(snapshot: Path, author: Author, read: Read) -> None:
    rows = read(snapshot, headers="raw", columns="seq,headers").orderBy("seq").collect()
    got = [{p.name: p.value.decode() if p.text else bytes(p.value) for p in row.headers} for row in rows]
    assert got == [message.headers for message in author.sent]


def test_ids_priorities_and_expiry_on_request(snapshot: Path, author: Author, read: Read) -> None:
    rows = read(snapshot, columns="seq,id,priority,expires", endSeq=801).orderBy("seq").collect()
    assert [row.priority for row in rows] == [0] * 400 + [1] * 400
    assert [row.id for row in rows[:400]] == [None] * 400
    assert [bytes(row.id) for row in rows[400:]] == [b"id-%d" % seq for seq in range(401, 801)]
    assert {row.expires for row in rows} == {None}


def test_topics_seqs_and_times(snapshot: Path, author: Author, read: Read) -> None:
    """More of these are in test_plan, where no Spark is needed."""
    orders = select(author.sent, "orders.new", "orders.paid", "orders.eu.new")
    some = read(snapshot, topics="orders.#", startSeq=777, endSeq=1222, columns="seq")
    assert seqs(some) == [seq for seq in orders if 777 <= seq < 1222]
    start, end = T0 + 3 * SECOND, T0 + 6 * SECOND
    within = [message.seq for message in author.sent if start <= message.ts_us < end]
    iso = read(snapshot, startTime="2023-11-14T22:13:23", endTime="2023-11-14T23:13:26+01:00", columns="seq")
    assert seqs(iso) == within


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("seq > 100 and seq <= 450", lambda m: 100 < m.seq <= 450),
        ("seq >= 5590 and topic = 'orders.new'", lambda m: m.seq >= 5590 and m.topic == "orders.new"),
        ("topic like 'orders.e%'", lambda m: m.topic.startswith("orders.e")),
        ("topic <> 'orders.new' and seq < 900", lambda m: m.topic != "orders.new" and m.seq < 900),
        (
            "ts > timestamp'2023-11-14 22:13:22' and ts <= timestamp'2023-11-14 22:13:25'",
            lambda m: T0 + 2 * SECOND < m.ts_us <= T0 + 5 * SECOND,
        ),
        ("seq < 5 or seq > 5595", lambda m: m.seq < 5 or m.seq > 5595),
    ],
)
def test_filters(snapshot: Path, author: Author, read: Read, condition: str, wanted: Callable[[Sent], bool]) -> None:
    assert seqs(read(snapshot).where(condition)) == [message.seq for message in author.sent if wanted(message)]


def test_filters_that_are_not_pushed(snapshot: Path, author: Author, read: Read) -> None:
    condition = "seq > 100 and seq <= 450 and topic = 'orders.new'"
    wanted = [m.seq for m in author.sent if 100 < m.seq <= 450 and m.topic == "orders.new"]
    assert seqs(read(snapshot, pushdown="false").where(condition)) == wanted


def test_filters_are_taken_over_only_where_spark_offers_them(
    spark: "SparkSession", snapshot: Path, author: Author, read: Read
) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert seqs(read(snapshot).where("seq < 10")) == list(range(1, 10))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    plan = read(snapshot).where("seq < 10 and payload_len > 3")._jdf.queryExecution().executedPlan().toString()
    assert "payload_len" in plan
    assert "seq#" not in plan.partition("Filter")[2].partition("\n")[0]


def test_a_schema_of_ones_own_is_a_choice_of_columns(spark: "SparkSession", snapshot: Path, author: Author) -> None:
    frame = spark.read.format("fabric").schema("topic string, seq bigint").load(str(snapshot))
    assert [tuple(row) for row in frame.orderBy("seq").limit(3).collect()] == [
        (message.topic, message.seq) for message in author.sent[:3]
    ]


def test_several_hubs_are_one_table(author: Author, snapshot: Path, read: Read, tmp_path: Path) -> None:
    other = Author(tmp_path / "other").write(blocks=3, messages=10)
    both = read(f"{snapshot},{other.path}")
    assert both.columns[0] == "hub"
    counts = {row.hub: row["count"] for row in both.groupBy("hub").count().collect()}
    assert counts == {"one": len(author.sent), "other": 30}
    named = read(json.dumps({"berlin": str(snapshot), "paris": str(other.path)}), columns="hub,seq", endSeq=2)
    assert sorted(map(tuple, named.collect())) == [("berlin", 1), ("paris", 1)]
    with pytest.raises(Exception, match="same journal"):
        read(f"{snapshot},{author.path}").count()


def test_the_newest_of_a_folder_of_snapshots(read: Read, tmp_path: Path) -> None:
    author = Author(tmp_path / "journal").write(blocks=2, messages=10)
    create(author.path, tmp_path / "family" / "a")
    author.write(blocks=1, messages=10)
    create(author.path, tmp_path / "family" / "b", tmp_path / "family" / "a")
    assert read(tmp_path / "family").count() == 30
    assert read(f"file://{tmp_path}/family/a").count() == 20


@pytest.mark.parametrize("where", ["live", "snapshot"])
def test_delivery_events(where: str, read: Read, tmp_path: Path) -> None:
    from pyspark.sql.functions import unix_micros

    Author(tmp_path / "journal").write(blocks=1, messages=5)
    written = write_events(tmp_path / "journal", 95)
    path = tmp_path / "journal"
    if where == "snapshot":
        path = tmp_path / "snapshot"
        create(tmp_path / "journal", path)
    frame = read(path, stream="events", rowsPerPartition=30)
    rows = frame.withColumn("ts", unix_micros("ts")).orderBy("number").collect()
    assert [
        Event(r.number, r.ts, Happening[r.kind.upper()], r.group, r.client, r.attempt, r.first_seq, r.last_seq)
        for r in rows
    ] == written
    some = read(path, stream="events", startSeq=11, endSeq=40, startTime=T0 + 15 * SECOND, columns="number")
    assert sorted(row.number for row in some.collect()) == list(range(15, 40))
    assert sorted(row.number for row in frame.where("number between 33 and 34").collect()) == [33, 34]


@pytest.mark.parametrize("where", ["live", "snapshot"])
def test_groups(where: str, read: Read, tmp_path: Path) -> None:
    Author(tmp_path / "journal").write(blocks=2, messages=10)
    journal = Journal.open(tmp_path / "journal")
    settings = GroupSettings(("orders.#",), lease_ms=5000)
    journal.commit([SaveGroup("workers", settings, 18, ((3, 4), (9, 9))), SaveFailure("workers", 3, 4, 2, T0, "bad")])
    journal.close()
    path = tmp_path / "journal"
    if where == "snapshot":
        path = tmp_path / "snapshot"
        create(tmp_path / "journal", path)
    (row,) = read(path, stream="groups").collect()
    assert (row.group, row.patterns, row.cursor, row.pending, row.paused) == ("workers", ["orders.#"], 18, 3, False)
    assert [tuple(span) for span in row.open] == [(3, 4), (9, 9)]
    assert [(f.first, f.last, f.failures, f.reason) for f in row.failures] == [(3, 4, 2, "bad")]
    assert json.loads(row.settings)["lease_ms"] == 5000
    assert row.last_seq == 20


# Bad input.


def complaint(frame: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark has many kinds
        frame()
    return str(caught.value)


def test_bad_places_are_named(spark: "SparkSession", snapshot: Path, read: Read, tmp_path: Path) -> None:
    assert "there is no /nowhere/at/all" in complaint(lambda: read("/nowhere/at/all").count())
    text = complaint(lambda: read(tmp_path).count())
    assert "neither a snapshot" in text
    assert "fabric snapshot create" in text
    assert "there is no path" in complaint(lambda: spark.read.format("fabric").load().count())
    text = complaint(lambda: read(snapshot, topic="orders").count())
    assert "unknown option 'topic'" in text
    assert "did you mean topics" in text
    text = complaint(lambda: spark.read.format("fabric").schema("seq string").load(str(snapshot)).count())
    assert "column seq is bigint, not string" in text


def _copy(snapshot: Path, target: Path) -> Path:
    (target / "shards").mkdir(parents=True)
    for file in (snapshot / "shards").iterdir():
        (target / "shards" / file.name).write_bytes(file.read_bytes())
    (target / "manifest.json").write_bytes((snapshot / "manifest.json").read_bytes())
    return target


def test_a_newer_format_and_half_a_shard_are_refused(snapshot: Path, read: Read, tmp_path: Path) -> None:
    newer = _copy(snapshot, tmp_path / "newer")
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    text = complaint(lambda: read(newer).count())
    assert "format 99" in text
    assert "upgrade" in text
    half = _copy(snapshot, tmp_path / "half")
    shard = half / manifest["shards"][1]["file"]
    shard.write_bytes(shard.read_bytes()[:8192])
    assert "not whole" in complaint(lambda: read(half).count())
    shard.unlink()
    assert "is missing" in complaint(lambda: read(half).count())


def test_a_damaged_block_is_named_and_never_returned(
    snapshot: Path, author: Author, read: Read, tmp_path: Path
) -> None:
    copy = _copy(snapshot, tmp_path / "damaged")
    shard = copy / json.loads((copy / "manifest.json").read_text())["shards"][0]["file"]
    damage(shard, b"payload 1007 ")  # in the third block
    text = complaint(lambda: read(copy).count())
    assert "seqs 801..1200" in text
    assert "are damaged" in text
    assert "failOnDataLoss" in text
    left = seqs(read(copy, failOnDataLoss="false"))
    assert left == [m.seq for m in author.sent if not 801 <= m.seq <= 1200]
    assert read(copy, endSeq=801).count() == 800


def test_what_retention_has_removed_is_an_error_when_it_was_asked_for(read: Read, tmp_path: Path) -> None:
    from fabric.journal.limits import Limits

    author = Author(tmp_path / "journal", Limits(max_messages=100)).write(blocks=10, messages=50)
    journal = Journal.open(author.path, Limits(max_messages=100))
    while journal.trim_step(T0) is not None:
        pass
    first = journal.first_seq
    journal.close()
    assert first > 300
    assert read(author.path).count() == 500 - first + 1
    text = complaint(lambda: read(author.path, startSeq=5).count())
    assert f"5..{first - 1} were asked for and are gone" in text
    assert read(author.path, startSeq=5, failOnDataLoss="false").count() == 500 - first + 1
    assert read(author.path).where("seq > 5").count() == 500 - first + 1


def test_an_executor_without_the_package_is_told_of(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    from fabric_spark.session import _CHECK, check_executors

    check_executors(spark)
    monkeypatch.setitem(check_executors.__globals__, "_CHECK", _CHECK.replace('"numpy"', '"no_such_package"'))
    with pytest.raises(SourceError, match=r"lacks no_such_package .*install 'fabricmq\[spark\]'"):
        check_executors(spark)
