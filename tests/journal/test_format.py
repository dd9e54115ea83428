"""Journals of other formats: an older format is upgraded when it is opened, a newer format is left as it is.

`fixtures/format-1.mdb.xz` was written by the last program of format 1: twelve blocks of four messages, two groups, one
producer, closed in good order.
"""

import lzma
from array import array
from contextlib import closing
from pathlib import Path

import pytest

from fabric.errors import JournalError
from fabric.journal.environment import Tables, existing, open_environment, open_tables
from fabric.journal.journal import Journal
from fabric.journal.rows import FORMAT, FORMAT_KEY, decode_format, decode_group, encode_group, name_key, pack, seal
from fabric.journal.tools.backup import backup, compact, restore
from fabric.journal.tools.stats import Stats, collect
from fabric.journal.tools.verify import verify, verify_in_child
from fabric.records import GroupSettings, SaveGroup, SaveSetting, SaveTopic, TopicSettings
from fabric_protocol.messages import Level
from tests.journal.sample import Pen, rows_in

FIXTURE = Path(__file__).parent / "fixtures" / "format-1.mdb.xz"
NEW_TABLES = set(Tables._fields) - {"meta", "blocks", "chunks", "groups", "producers"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old"
    path.mkdir()
    (path / "data.mdb").write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    return path


def format_of(path: Path) -> int:
    with closing(open_environment(path, readonly=True)) as environment:
        tables = open_tables(environment)
        with environment.begin() as txn:
            return decode_format(txn.get(FORMAT_KEY, db=tables.meta) or b"")


def figures(path: Path) -> Stats:
    with closing(open_environment(path, readonly=True)) as environment:
        return collect(path, environment, open_tables(environment))


def test_the_fixture_is_of_format_1(old: Path) -> None:
    with closing(open_environment(old, readonly=True)) as environment:
        assert NEW_TABLES.isdisjoint(existing(open_tables(environment)))
    assert format_of(old) == 1


def test_a_group_is_read_as_it_was_written() -> None:
    group = SaveGroup(
        "g", GroupSettings(("a",)), 9, ((3, 4),), ((9, 7),), True, (1, 8, 2), ((1, 2, "removed"), (5, 5, "damaged"))
    )
    assert decode_group(*encode_group(group)) == group


def test_limits_of_a_group_are_read_as_written_and_have_defaults_in_older_rows() -> None:
    settings = GroupSettings(("a",), max_in_flight=3, rate=10, rate_ms=60_000, expires_ms=5000)
    group = SaveGroup("g", settings, 9, (), handed=((4, 20),), idle_us=77, paced_us=88)
    assert decode_group(*encode_group(group)) == group
    key, empty = name_key("g"), array("Q").tobytes()
    old = [FORMAT, "g", list(settings)[:12], 9, empty, empty, False, [0, 0, 0], [], array("Q", [4, 20]).tobytes()]
    assert decode_group(key, seal(key, pack(old))) == SaveGroup("g", GroupSettings(("a",)), 9, (), handed=((4, 20),))


def test_a_row_of_a_group_may_lack_what_was_added_later() -> None:
    group = SaveGroup("g", GroupSettings(("a",)), 9, ((3, 4),), ((9, 7),), True, (1, 8, 2))
    key = name_key("g")
    row = [
        FORMAT,
        "g",
        list(group.settings),
        9,
        array("Q", [3, 4]).tobytes(),
        array("Q", [9, 7]).tobytes(),
        True,
        [1, 8, 2],
    ]
    assert decode_group(key, seal(key, pack(row))) == group


def test_a_journal_of_format_1_opens_and_is_of_this_format_from_then_on(old: Path) -> None:
    journal = Journal.open(old)
    restored = journal.load()
    assert (restored.first_seq, restored.last_seq, restored.was_clean, restored.findings) == (1, 48, True, ())
    groups = {group.name: group for group in restored.groups}
    assert groups["billing"] == SaveGroup("billing", GroupSettings(("orders.*",)), 47, ((3, 4), (9, 9)))
    assert groups["audit"] == SaveGroup("audit", GroupSettings(("audit", "#"), 5000, 3, Level.RECEIVED), 7, ())
    assert [(p.name, p.epoch, p.last_pseq, p.recent) for p in restored.producers] == [("till", 2, 48, (48, 1))]
    assert (restored.failures, restored.topics, restored.settings) == ((), (), ())
    rows = rows_in(journal)
    assert [row.payload for row in rows] == [b"message %d" % seq for seq in range(1, 49)]
    topic = SaveTopic("orders.paid", TopicSettings(max_msgs=3), 5, 3, 30)
    journal.commit([Pen(49, rows[-1].ts_us).block("orders.paid"), topic, SaveSetting("events", True), groups["audit"]])
    journal.close()
    assert format_of(old) == FORMAT
    again = Journal.open(old)
    assert again.load().topics == (topic,)
    assert again.load().settings == (SaveSetting("events", True),)
    assert {group.name: group for group in again.load().groups} == groups
    assert len(rows_in(again)) == 52
    again.close()
    assert verify(old).findings == ()


def test_reading_a_journal_of_format_1_does_not_change_it(old: Path, tmp_path: Path) -> None:
    before = (old / "data.mdb").read_bytes()
    report = verify_in_child(old)
    assert (report.messages, report.chunks, report.groups, report.producers) == (48, 2, 2, 1)
    assert (report.topics, report.settings, report.findings) == (0, 0, ())
    stats = figures(old)
    assert (stats.messages, stats.removed, stats.groups, stats.topics, stats.events) == (48, 0, 2, 0, 0)
    assert backup(old, tmp_path / "copy") == report
    assert (old / "data.mdb").read_bytes() == before
    journal = Journal.open(tmp_path / "copy")
    assert len(rows_in(journal)) == 48
    journal.close()
    assert format_of(tmp_path / "copy") == FORMAT


def test_a_backup_of_format_1_is_restored_and_compacted(old: Path, tmp_path: Path) -> None:
    assert restore(old, tmp_path / "new").epoch == 2
    assert format_of(tmp_path / "new") == FORMAT
    assert format_of(old) == 1
    assert compact(old).report.messages == 48
    assert format_of(old) == 1
    journal = Journal.open(tmp_path / "new")
    assert len(rows_in(journal)) == 48
    journal.close()


def test_a_newer_format_is_refused_by_all(old: Path, tmp_path: Path) -> None:
    with closing(open_environment(old)) as environment, environment.begin(write=True) as txn:
        row = seal(FORMAT_KEY, str(FORMAT + 1).encode())
        txn.put(FORMAT_KEY, row, db=environment.open_db(b"meta", txn, create=False))
    for use in (Journal.open, verify, verify_in_child, figures, lambda path: backup(path, tmp_path / "copy")):
        with pytest.raises(JournalError, match=f"format {FORMAT + 1}"):
            use(old)


def test_every_table_is_checked_counted_and_copied(tmp_path: Path) -> None:
    """A row in each of them; none may be forgotten when one is added."""
    journal = Journal.open(tmp_path / "j")
    journal.commit(Pen().blocks(2))
    with journal.writing() as txn:
        for name in NEW_TABLES:
            key = (7).to_bytes(8, "big")
            txn.put(key, seal(key, name.encode()), db=getattr(journal.tables, name))
    journal.close()
    report = verify(tmp_path / "j")
    assert {name: report._asdict()[name] for name in NEW_TABLES} == dict.fromkeys(NEW_TABLES, 1)
    assert backup(tmp_path / "j", tmp_path / "copy") == report
    stats = figures(tmp_path / "copy")._asdict()
    shown = {"schedules" if name == "schedule" else name for name in NEW_TABLES} - {"schedule_ids"}
    assert {name: stats[name] for name in shown} == dict.fromkeys(shown, 1)
    for name in NEW_TABLES:
        with closing(open_environment(tmp_path / "copy")) as environment:
            tables = open_tables(environment)
            with environment.begin(write=True) as txn:
                txn.put((7).to_bytes(8, "big"), b"damaged", db=getattr(tables, name))
    assert {finding.table for finding in verify(tmp_path / "copy").findings} == NEW_TABLES
