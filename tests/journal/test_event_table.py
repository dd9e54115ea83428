"""Delivery events on disk: read, numbered, trimmed by the journal's limits, copied with a backup."""

from pathlib import Path

import pytest

from fabric import event_block as events
from fabric.errors import JournalDamaged
from fabric.event_block import EVENTS_MAX, Event
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.journal.tables import event_table as module
from fabric.journal.tools import backup
from fabric.journal.tools.verify import verify
from fabric.records import SaveEvents
from fabric_protocol.messages import Happening
from tests.journal.sample import Pen


class Diary:
    """Writes blocks of events one after the other, each a second later."""

    def __init__(self) -> None:
        self._next = 1
        self._ts_us = 0

    def block(self, count: int = 3) -> SaveEvents:
        self._ts_us += 1_000_000
        some = [Event(0, self._ts_us, Happening.ACK, "g", "c", 1, 10 * i, 10 * i) for i in range(count)]
        record = SaveEvents(self._next, count, events.encode(self._next, some))
        self._next += count
        return record

    def blocks(self, n: int, count: int = 3) -> list[SaveEvents]:
        return [self.block(count) for _ in range(n)]


def numbers_in(journal: Journal) -> list[int]:
    """The numbers of all events, read as an analysis would."""
    reader, numbers, number = journal.reader(), list[int](), 1
    while (raw := reader.events.block_from(number)) is not None:
        numbers += [event.number for event in events.rows(raw)]
        number = numbers[-1] + 1
    return numbers


def trim(journal: Journal, now_us: int = 0) -> None:
    for _ in range(20):
        journal.trim_step(now_us)


def test_events_are_found_and_numbered_on_after_a_restart(tmp_path: Path) -> None:
    diary = Diary()
    journal = Journal.open(tmp_path / "j")
    assert journal.reader().next_event() == 1
    assert journal.reader().events.block_from(1) is None
    journal.commit(diary.blocks(2))
    journal.close()
    journal = Journal.open(tmp_path / "j")
    assert journal.reader().next_event() == 7
    journal.commit(diary.blocks(1))
    assert numbers_in(journal) == list(range(1, 10))
    journal.close()


@pytest.mark.parametrize(("number", "first"), [(1, 1), (3, 1), (4, 4), (6, 4), (7, None)])
def test_a_block_is_found_by_the_number_of_any_of_its_events(tmp_path: Path, number: int, first: int | None) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit(Diary().blocks(2))
    raw = journal.reader().events.block_from(number)
    assert (None if raw is None else events.extent_of(raw).first) == first
    journal.close()


def test_events_older_than_the_limit_are_removed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_age_s=10))
    journal.commit([Pen(ts_us=30_000_000).block(), *Diary().blocks(20)])  # events at seconds 1, 2, .. 20
    trim(journal, 10_999_999)
    assert numbers_in(journal)[0] == 1
    trim(journal, 15_000_000)
    assert numbers_in(journal) == list(range(13, 61)), "second 5 is just old enough to stay"
    trim(journal, 40_000_000)
    assert numbers_in(journal) == [58, 59, 60], "the last block remembers the number"
    assert journal.reader().next_event() == 61
    journal.close()


def test_there_are_not_more_events_than_messages_may_be(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_messages=30))
    journal.commit([Pen().block(), *Diary().blocks(20)])
    trim(journal)
    assert 30 <= len(numbers_in(journal)) <= 36
    journal.close()


def test_events_have_a_share_of_the_bytes(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_bytes=400_000))
    diary, pen = Diary(), Pen()
    for _ in range(20):
        journal.commit([pen.block(), *diary.blocks(10, count=100)])
    trim(journal)
    numbers = numbers_in(journal)
    assert numbers[-1] == 20_000
    assert 0 < numbers[0] < 20_000
    journal.close()


def test_events_are_removed_in_small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP_ROWS", 4)
    journal = Journal.open(tmp_path / "j", Limits(max_messages=3))
    journal.commit([Pen().block(count=2), *Diary().blocks(20)])
    journal.trim_step(0)
    assert numbers_in(journal)[0] == 13
    journal.trim_step(0)
    assert numbers_in(journal)[0] == 25
    journal.close()


def test_without_limits_all_events_stay(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen(ts_us=90_000_000).block(), *Diary().blocks(20)])
    trim(journal, 10**15)
    assert len(numbers_in(journal)) == 60
    journal.close()


def test_a_damaged_last_block_gives_no_number_twice(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit(Diary().blocks(2))
    with journal.writing() as txn:
        row = bytearray(txn.get(seq_key(4), db=journal.tables.events) or b"")
        row[50] ^= 1
        txn.put(seq_key(4), bytes(row), db=journal.tables.events)
    assert journal.reader().next_event() == 4 + EVENTS_MAX
    with pytest.raises(JournalDamaged):
        journal.reader().events.block_from(4)
    assert journal.reader().events.block_from(3) is not None
    journal.close()
    (finding,) = verify(tmp_path / "j").findings
    assert (finding.table, "event 4" in finding.why) == ("events", True)
    assert not verify(tmp_path / "j", tail_only=True).findings, "a hub starts without a look at all events"


def test_a_backup_has_the_events(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen().block(), *Diary().blocks(20)])
    journal.close()
    backup.backup(tmp_path / "j", tmp_path / "b")
    assert verify(tmp_path / "b").events == 20
    copy = Journal.open(tmp_path / "b")
    assert numbers_in(copy) == list(range(1, 61))
    copy.close()
