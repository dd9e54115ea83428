"""Verify finds each inconsistency, and names it."""

from pathlib import Path

import pytest

from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.journal.tables.chunks import Chunk, OpenChunk
from fabric.journal.tools.verify import Report, verify, verify_in_child
from fabric.records import GroupSettings, SaveGroup, SaveProducer
from fabric_protocol.block import stamp
from tests.journal.sample import Pen

pytestmark = pytest.mark.usefixtures("small_chunks")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Seventeen blocks of five messages: three chunks and a rest."""
    journal = Journal.open(tmp_path / "j")
    journal.commit(
        [
            *Pen(ts_us=0).blocks(17, count=5),
            SaveGroup("g", GroupSettings(("#",)), 1, ()),
            SaveProducer("p", 1, 1, (), 1),
        ]
    )
    return journal


def walk(journal: Journal) -> Report:
    """Close and walk, here and in a child: both must say the same."""
    journal.close()
    report = verify(journal.path)
    assert verify_in_child(journal.path) == report
    return report


def found(journal: Journal) -> list[tuple[str, int, int]]:
    return [finding[:3] for finding in walk(journal).findings]


def test_a_sound_journal_has_no_findings(journal: Journal) -> None:
    size = journal.stats().blocks
    report = walk(journal)
    assert report._replace(data_bytes=0) == Report(1, 85, size, 85, 0, 3, 1, 1, ())


def test_an_empty_journal_is_sound(tmp_path: Path) -> None:
    assert walk(Journal.open(tmp_path / "j")) == Report(1, 0, 0, 0, 0, 0, 0, 0, ())


def change(journal: Journal, base_seq: int, raw: bytes | None) -> None:
    with journal.writing() as txn:
        if raw is None:
            txn.delete(seq_key(base_seq), db=journal.tables.blocks)
        else:
            txn.put(seq_key(base_seq), raw, db=journal.tables.blocks)


@pytest.mark.parametrize(("base_seq", "gone"), [(1, (1, 5)), (41, (41, 45)), (76, (76, 80))])
def test_a_missing_block(journal: Journal, base_seq: int, gone: tuple[int, int]) -> None:
    change(journal, base_seq, None)
    assert ("blocks", *gone) in found(journal)


def test_a_block_with_wrong_bytes(journal: Journal) -> None:
    change(journal, 41, b"no block at all")
    assert found(journal) == [("blocks", 41, 45)]


def test_a_block_in_the_place_of_another(journal: Journal) -> None:
    change(journal, 41, Pen(46).block(count=5).block)
    assert found(journal) == [("blocks", 41, 45)]


def test_a_block_that_runs_into_the_next(journal: Journal) -> None:
    change(journal, 41, Pen(41).block(count=6).block)
    assert found(journal) == [("blocks", 41, 45)]


def test_a_block_older_than_the_one_before(journal: Journal) -> None:
    block = Pen(41).block(count=5).block
    change(journal, 41, stamp(block, 41, 1))
    assert ("blocks", 41, 45) in found(journal)


def test_a_summary_that_says_something_else(journal: Journal) -> None:
    lie = OpenChunk(26)
    for seq in range(26, 51, 5):
        lie.add(seq, seq + 4, seq, 10, [b"x.y"])
    with journal.writing() as txn:
        key, row = Chunk.of(lie).encode()
        txn.put(key, row, db=journal.tables.chunks)
    assert found(journal) == [("chunks", 26, 50)]


@pytest.mark.parametrize("row", [None, b"damaged row"])
def test_a_missing_or_damaged_summary(journal: Journal, row: bytes | None) -> None:
    with journal.writing() as txn:
        if row is None:
            txn.delete(seq_key(26), db=journal.tables.chunks)
        else:
            txn.put(seq_key(26), row, db=journal.tables.chunks)
    assert found(journal) == [("chunks", 26, 50)]


@pytest.mark.parametrize("table", ["groups", "producers"])
def test_a_damaged_row_of_state(journal: Journal, table: str) -> None:
    handle = getattr(journal.tables, table)
    with journal.writing() as txn:
        key, row = next(iter(txn.cursor(handle)))
        txn.put(key, row[:-1] + bytes([row[-1] ^ 1]), db=handle)
    assert found(journal) == [(table, 0, 0)]


def test_the_walk_over_the_tail_looks_at_the_tail_alone(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    from fabric.journal.tools import verify as module

    monkeypatch.setattr(module, "TAIL_BLOCKS", 4)
    change(journal, 41, b"no block at all")
    journal.close()
    report = verify(journal.path, tail_only=True)
    assert (report.blocks, report.first_seq, report.findings) == (4, 66, ())
