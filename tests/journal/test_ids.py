"""The index of idempotency keys over a real journal: its rows, its restarts, and damage in them."""

from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.journal.tools.verify import verify
from fabric.records import DropIds, SaveIds, TopicSettings
from fabric.router.clock import Clock
from fabric.router.publish.dedupe import index as ids
from fabric.router.publish.dedupe import segment as id_era
from fabric.router.publish.dedupe.index import Ids
from fabric_protocol.block import Block, encode

NOW_US = 1_700_000_000_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path / "j")
    yield journal
    journal.close()


def index(journal: Journal, now_us: int = NOW_US) -> Ids:
    clock = Clock()
    clock.set(now_us, 0.0)
    return Ids(journal.reader(), clock, lambda topic: TopicSettings(), lambda topic, seq: False)


def turn(journal: Journal, keys: Ids) -> None:
    journal.commit(keys.rows())
    keys.committed()


def put(keys: Ids, seq: int, *names: bytes) -> tuple[tuple[int, int], ...]:
    checked = keys.check(Block(encode("t", names, ids=names)))
    keys.remember(checked, seq)
    return checked.rows(seq)


def test_rows_are_found_by_number_and_in_order(journal: Journal) -> None:
    reader = journal.reader()
    assert reader.next_ids(0) is None
    journal.commit([SaveIds(7 << 16, b"seven"), SaveIds(3, b"three"), SaveIds(300, b"")])
    assert reader.next_ids(0) == (3, b"three")
    assert reader.next_ids(3) == (3, b"three")
    assert reader.next_ids(4) == (300, b"")
    assert reader.next_ids(301) == (7 << 16, b"seven")
    assert reader.next_ids((7 << 16) + 1) is None
    journal.commit([SaveIds(3, b"other"), DropIds(300), DropIds(301)])
    assert [reader.next_ids(n) for n in (0, 4)] == [(3, b"other"), (7 << 16, b"seven")]


def test_a_damaged_row_is_empty_and_the_next_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path)
    journal.commit([SaveIds(1, b"one"), SaveIds(2, b"two")])
    journal.close()
    with lmdb.open(str(path), max_dbs=32, lib_version=0) as environment:
        table = environment.open_db(b"ids", create=False)
        with environment.begin(write=True, db=table) as txn:
            row = txn.get(seq_key(1))
            assert row is not None
            txn.put(seq_key(1), b"X" + row[1:])
    assert [finding.table for finding in verify(path).findings] == ["ids"]
    assert verify(path, tail_only=True).findings == ()
    journal = Journal.open(path)
    reader = journal.reader()
    assert reader.next_ids(0) == (1, b"")
    assert reader.next_ids(2) == (2, b"two")
    journal.close()


def test_keys_come_back_from_disk(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    keys = index(journal)
    names = [b"%d" % i for i in range(3000)]
    for at in range(0, 3000, 100):
        assert put(keys, at + 1, *names[at : at + 100]) == ()
        turn(journal, keys)
    put(keys, 3001, b"never committed")
    for _ in range(2):
        journal.close()
        journal = Journal.open(tmp_path / "j")
        keys = index(journal)
        assert keys.count == 3000
        assert put(keys, 3001, *names) == tuple((i, i + 1) for i in range(3000))
    assert put(keys, 3001, b"never committed") == ()
    journal.close()


def test_full_eras_are_read_from_disk_and_removed_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (id_era, ids):
        monkeypatch.setattr(module, "SEGMENT_KEYS", 2000)
    monkeypatch.setattr(ids, "STEP_ROWS", 2000)
    journal = Journal.open(tmp_path / "j")
    keys = index(journal)
    names = [b"%d" % i for i in range(5000)]
    for at in range(0, 5000, 100):
        put(keys, at + 1, *names[at : at + 100])
        turn(journal, keys)
    for _ in range(10):
        keys.sweep()
        turn(journal, keys)
    assert [segment.buckets is None for segment in keys._segments] == [True, True, False]
    expected = tuple((i, i + 1) for i in range(5000))
    assert put(keys, 5001, *names) == expected
    journal.close()

    journal = Journal.open(tmp_path / "j")
    keys = index(journal)
    assert [segment.buckets is None for segment in keys._segments] == [True, True, False]
    assert put(keys, 5001, *names) == expected
    assert put(keys, 5001, *(b"new %d" % i for i in range(1000))) == ()
    turn(journal, keys)
    journal.close()

    journal = Journal.open(tmp_path / "j")
    keys = index(journal, NOW_US + 600_000_000)
    for _ in range(20):
        keys.sweep()
        turn(journal, keys)
    assert (keys.count, journal.reader().next_ids(0)) == (0, None)
    journal.close()
