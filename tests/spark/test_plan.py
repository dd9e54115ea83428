"""What is read and what is left out, without Spark: options, pruning, tasks, and blocks out of order."""

import pickle
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from fabric.journal.journal import Journal
from fabric.journal.limits import Limits
from fabric.records import Discard, SaveTopic, TopicSettings
from fabric.snapshot import create, create_in, load, push
from fabric_spark import catalog, remote
from fabric_spark.batch import PushingReader, Scan
from fabric_spark.columns import arrow_schema, spark_schema
from fabric_spark.errors import SourceError
from fabric_spark.options import Options, parse
from fabric_spark.plan import Task, tasks
from fabric_spark.rows import Piece
from tests.spark.sample import SECOND, T0, Author, Sent, select


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a"}, ("unknown option 'topic'", "did you mean topics")),
        ({"columns": "seq,sequence"}, ("no column 'sequence'", "payload_len")),
        ({"columns": "seq,seq"}, ("twice",)),
        ({"topics": "a..b"}, ("option topics", "bad word")),
        ({"startSeq": "9", "endSeq": "3"}, ("startSeq 9 is after endSeq 3",)),
        ({"startSeq": "many"}, ("startSeq", "whole number")),
        ({"startTime": "yesterday"}, ("startTime", "1970")),
        ({"startTime": "2024-01-02", "endTime": "2024-01-01"}, ("startTime is after endTime",)),
        ({"stream": "messages"}, ("stream is 'messages'", "journal, events, groups")),
        ({"headers": "json"}, ("headers is 'json'", "map or raw")),
        ({"pushdown": "perhaps"}, ("pushdown", "true or false")),
        ({"rowsPerPartition": "0"}, ("rowsPerPartition", "at least 1")),
        ({"stream": "events", "topics": "a"}, ("topics has no meaning for stream events",)),
    ],
)
def test_bad_options_are_named(options: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(SourceError) as caught:
        spark_schema(parse({"path": "/x", **options}))
    assert all(word in str(caught.value) for word in words)
    assert "What to do" in str(caught.value)


def plan(path: Path | str, **given: str) -> tuple[Options, list[Task]]:
    options = parse({"path": str(path), **given})
    (place,) = catalog.places(options)
    return options, tasks(place, options, options.wanted)


def read(path: Path | str, **given: str) -> list[int]:
    options, found = plan(path, columns="seq", **given)
    scan: Scan = pickle.loads(pickle.dumps(Scan(options, options.wanted, arrow_schema(spark_schema(options), options))))
    return [seq for task in found for batch in scan.read(task) for seq in batch.column("seq").to_pylist()]


def spans(found: list[Task]) -> list[tuple[int, int]]:
    return [(piece.first, piece.last) for task in found for piece in task.share.pieces]


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Author:
    return Author(tmp_path_factory.mktemp("plan")).write(blocks=14, messages=400)


@pytest.fixture(scope="module")
def snapshot(author: Author, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("planned") / "snapshot"
    create(author.path, target, shard_bytes=1 << 16)
    return target


def test_tasks_have_about_as_many_rows_as_was_said(author: Author, snapshot: Path) -> None:
    for path in (author.path, snapshot):
        _, found = plan(path, rowsPerPartition="1000")
        sizes = [sum(piece.last - piece.first + 1 for piece in task.share.pieces) for task in found]
        assert sum(sizes) == 5600
        assert max(sizes) <= 1000
        assert len(sizes) <= 12
        assert sorted(read(path, rowsPerPartition="999")) == list(range(1, 5601))
        assert len(plan(path)[1]) == 1


def test_shards_without_what_is_wanted_are_not_read(snapshot: Path) -> None:
    manifest = load(snapshot)
    second = manifest.shards[1]
    _, found = plan(snapshot, startSeq=str(second.first_seq + 5), endSeq=str(second.last_seq))
    assert spans(found) == [(second.first_seq + 5, second.last_seq - 1)]
    _, found = plan(snapshot, startTime=str(second.first_ts_us), endTime=str(second.last_ts_us + 1))
    assert spans(found)[0][0] >= second.first_seq
    assert spans(found)[-1][1] <= second.last_seq
    assert plan(snapshot, topics="nobody")[1] == []
    assert plan(snapshot, startTime="2050-01-01")[1] == []
    assert plan(snapshot, startSeq="100000")[1] == []


def test_chunks_without_what_is_wanted_are_not_read(tmp_path: Path) -> None:
    """A live journal is pruned by its own summaries; what has none yet is read."""
    author = Author(tmp_path / "journal").write(blocks=600, messages=2)
    _, found = plan(author.path, topics="nobody")
    assert spans(found) == [(1025, 1200)]
    _, found = plan(author.path, startTime=str(T0 + 300 * SECOND), endTime=str(T0 + 310 * SECOND))
    assert spans(found) == [(513, 1024)]
    assert read(author.path, startTime=str(T0 + 300 * SECOND), endTime=str(T0 + 310 * SECOND)) == list(range(601, 621))
    assert read(author.path, topics="audit.#") == select(author.sent, "audit.login")


@pytest.mark.parametrize(
    ("patterns", "topics"),
    [
        ("orders.#", ("orders.new", "orders.paid", "orders.eu.new")),
        ("orders.*", ("orders.new", "orders.paid")),
        ("audit.login, orders.paid", ("audit.login", "orders.paid")),
        ("#", ("orders.new", "orders.paid", "orders.eu.new", "audit.login")),
        ("workers.DLQ", ("$dlq.workers",)),
        ("nobody.#", ()),
    ],
)
def test_topics(author: Author, snapshot: Path, patterns: str, topics: tuple[str, ...]) -> None:
    for path in (author.path, snapshot):
        assert read(path, topics=patterns) == select(author.sent, *topics)


def test_ranges_of_seq_and_time(author: Author, snapshot: Path) -> None:
    start, end = T0 + 3 * SECOND, T0 + 6 * SECOND
    within = [message.seq for message in author.sent if start <= message.ts_us < end]
    assert within
    for path in (author.path, snapshot):
        assert read(path, startSeq="777", endSeq="1222") == list(range(777, 1222))
        assert read(path, startSeq="5000") == list(range(5000, 5601))
        assert read(path, startSeq="5", endSeq="5") == []
        assert read(path, startTime=str(start), endTime=str(end)) == within
        assert read(path, startTime="2033-01-01") == []


ZONE = timezone(timedelta(hours=1))
MOMENT = datetime(2023, 11, 14, 23, 13, 22, tzinfo=ZONE)  # T0 + 2 s


@pytest.mark.parametrize(
    ("filters", "left", "wanted"),
    [
        ([EqualTo(("seq",), 777)], 0, lambda m: m.seq == 777),
        ([EqualNullSafe(("seq",), 777)], 0, lambda m: m.seq == 777),
        ([GreaterThan(("seq",), 5), LessThanOrEqual(("seq",), 9)], 0, lambda m: 5 < m.seq <= 9),
        ([GreaterThanOrEqual(("seq",), 5590), EqualTo(("topic",), "orders.new")], 0, None),
        ([In(("topic",), ("audit.login", "orders.paid"))], 0, lambda m: m.topic in ("audit.login", "orders.paid")),
        ([In(("topic",), ("audit.login",)), EqualTo(("topic",), "orders.paid")], 0, lambda m: False),
        ([StringStartsWith(("topic",), "orders.e")], 0, lambda m: m.topic.startswith("orders.e")),
        ([EqualTo(("ts",), MOMENT)], 0, lambda m: m.ts_us == T0 + 2 * SECOND),
        ([GreaterThan(("ts",), MOMENT), LessThan(("seq",), 1500)], 0, lambda m: 1201 <= m.seq < 1500),
        ([GreaterThanOrEqual(("ts",), MOMENT), LessThanOrEqual(("ts",), MOMENT)], 0, lambda m: 801 <= m.seq <= 1200),
        ([LessThan(("ts",), MOMENT)], 0, lambda m: m.seq < 801),
        ([IsNotNull(("seq",)), IsNotNull(("key",))], 1, lambda m: True),
        ([Not(EqualTo(("topic",), "orders.new")), EqualTo(("payload_len",), 5)], 2, lambda m: True),
        ([GreaterThan(("seq",), 99_999_999_999)], 0, lambda m: False),
        ([LessThan(("seq",), -5)], 0, lambda m: False),
    ],
)
def test_filters_are_taken_over(
    author: Author, snapshot: Path, filters: list[Filter], left: int, wanted: Callable[[Sent], bool] | None
) -> None:
    wanted = wanted or (lambda m: m.seq >= 5590 and m.topic == "orders.new")
    options = parse({"path": str(snapshot), "columns": "seq"})
    reader = PushingReader(options, arrow_schema(spark_schema(options), options))
    assert len(list(reader.pushFilters(filters))) == left
    found = [seq for task in reader.partitions() for batch in reader.read(task) for seq in batch.column(0).to_pylist()]
    assert found == [message.seq for message in author.sent if wanted(message)]


def test_what_a_topic_has_lost_is_not_returned(tmp_path: Path) -> None:
    """Purged messages may share a block with others; holes are no error."""
    author = Author(tmp_path / "journal").write(blocks=6, messages=30)
    journal = Journal.open(author.path)
    journal.commit([SaveTopic("orders.new", TopicSettings(), 100, -1, 0), Discard((31, 61))])
    journal.close()
    create(author.path, tmp_path / "snapshot")
    wanted = [m.seq for m in author.sent if not 31 <= m.seq <= 90 and not (m.topic == "orders.new" and m.seq < 100)]
    assert read(author.path) == wanted
    assert read(tmp_path / "snapshot") == wanted
    assert read(tmp_path / "snapshot", startSeq="40", endSeq="95") == [seq for seq in wanted if 40 <= seq < 95]


def test_a_shard_that_lacks_blocks_is_an_error(snapshot: Path, author: Author) -> None:
    first, second = load(snapshot).shards[:2]
    options = parse({"path": str(snapshot), "columns": "seq"})
    scan = Scan(options, options.wanted, arrow_schema(spark_schema(options), options))
    wrong = Piece(str(snapshot / first.file), False, first.first_seq, second.last_seq, size=first.bytes)
    (task,) = plan(snapshot)[1]
    with pytest.raises(SourceError, match=f"seqs {second.first_seq}..{second.last_seq} of .* are missing"):
        list(scan.read(Task(task.share._replace(pieces=(wrong,)))))
    with pytest.raises(SourceError, match=f"has {first.bytes} bytes, not 5"):
        list(scan.read(Task(task.share._replace(pieces=(wrong._replace(size=5),)))))
    lost = wrong._replace(lost=((second.first_seq, second.last_seq),))
    with pytest.raises(SourceError, match="were damaged or missing when"):
        list(scan.read(Task(task.share._replace(pieces=(lost,)))))


def test_what_is_trimmed_between_plan_and_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits(max_messages=60)
    author = Author(tmp_path / "journal", limits).write(blocks=6, messages=30)
    options, (task,) = plan(author.path, columns="seq")
    journal = Journal.open(author.path, limits)
    while journal.trim_step(T0) is not None:
        pass
    journal.close()
    scan = Scan(options, options.wanted, arrow_schema(spark_schema(options), options))
    with pytest.raises(SourceError, match=r"seqs 1\.\.120 of .* were removed by retention while the query ran"):
        list(scan.read(task))
    left = list(scan._replace(options=options._replace(fail_on_data_loss=False)).read(task))
    assert [seq for batch in left for seq in batch.column("seq").to_pylist()] == list(range(121, 181))
    assert "left out, as failOnDataLoss is false" in capsys.readouterr().err


def test_what_retention_removed_of_the_first_block_is_gone(tmp_path: Path) -> None:
    author = Author(tmp_path / "j", Limits(max_messages=60)).write(blocks=2, messages=50)
    journal = Journal.open(author.path, Limits(max_messages=60))
    while journal.trim_step(0) is not None:
        pass
    assert (journal.first_block_seq, journal.first_seq) == (1, 41)
    journal.close()
    snapshot = tmp_path / "s"
    create(author.path, snapshot)
    for path in (author.path, snapshot):
        assert read(path) == list(range(41, 101))
        with pytest.raises(SourceError, match=r"40\.\.40 were asked for and are gone"):
            plan(path, startSeq="40")
        assert catalog.first_at(catalog.place_of("", str(path)), "journal", 0) == 41


def test_without_checksums_the_same_comes_back(snapshot: Path) -> None:
    assert read(snapshot, verify="false") == list(range(1, 5601))


def test_a_snapshot_in_an_object_store_is_fetched_once(snapshot: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.put(str(snapshot), "/bucket/snapshot", recursive=True)
    cache = tmp_path / "cache"
    assert read("memory://bucket/snapshot", cache=str(cache)) == list(range(1, 5601))
    copies = {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert len(copies) == len(load(snapshot).shards)
    assert read("memory://bucket/snapshot", cache=str(cache), topics="nobody.#") == []
    assert read("memory://bucket/snapshot", cache=str(cache)) == list(range(1, 5601))
    assert {file.name: file.stat().st_mtime_ns for file in cache.iterdir()} == copies
    shard = load(snapshot).shards[0]
    with pytest.raises(SourceError, match="does not match its checksum"):
        remote.local_copy(f"memory://bucket/snapshot/{shard.file}", "0" * 64, shard.bytes, str(cache))
    with pytest.raises(SourceError, match="there is no snapshot at memory://bucket/nothing"):
        read("memory://bucket/nothing")


def test_the_newest_snapshot_in_an_object_store(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    author = Author(tmp_path / "journal").write(blocks=2, messages=10)
    for _ in range(2):
        push(create_in(author.path, tmp_path / "family").path, "memory://store/hub-1")
        author.write(blocks=1, messages=10)
    assert read("memory://store/hub-1/", cache=str(tmp_path / "cache")) == list(range(1, 31))
    create(author.path, tmp_path / "by hand")
    push(tmp_path / "by hand", "memory://store/hub-1")
    assert read("memory://store/hub-1", cache=str(tmp_path / "cache")) == list(range(1, 41))


def test_errors_survive_the_way_through_a_worker() -> None:
    error = pickle.loads(pickle.dumps(SourceError("it is broken", "mend it")))
    assert str(error) == "it is broken. What to do: mend it."
    assert error.hint == "mend it"
