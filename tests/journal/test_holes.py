"""Holes: blocks that retention of topics has removed are gone, and are not reported as damage."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fabric.journal.blocks import Damaged
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import SEQ_MAX, key_seq, seq_key
from fabric.journal.tables.holes import Hole, hole_of
from fabric.journal.tools import backup as backup_module
from fabric.journal.tools import verify as verify_module
from fabric.journal.tools.backup import backup, compact, restore
from fabric.journal.tools.verify import Report, verify
from fabric.records import Append, Discard
from fabric_protocol.block import Block
from tests.journal.sample import Pen, rows_in, rows_of, run_python
from tests.seeds import seeded

pytestmark = pytest.mark.usefixtures("small_chunks")


def any_topic(_: str) -> bool:
    return True


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Twenty blocks of five messages, one second apart, of topics t.0 .. t.3 in turn: four chunks of five blocks."""
    journal = Journal.open(tmp_path / "j")
    pen = Pen(ts_us=0)
    journal.commit([pen.block(f"t.{n % 4}", count=5, later_us=1_000_000) for n in range(20)])
    yield journal
    journal.close()


def rows_on_disk(journal: Journal) -> list[tuple[int, Hole | None]]:
    with journal.environment.begin(buffers=True) as txn:
        found = [(key_seq(key), bytes(raw)) for key, raw in txn.cursor(journal.tables.blocks)]
    return [(base, hole_of(base, raw)) for base, raw in found]


def holes(journal: Journal) -> list[tuple[int, int]]:
    return [(hole.first_seq, hole.last_seq) for _, hole in rows_on_disk(journal) if hole is not None]


def seqs(journal: Journal) -> list[int]:
    return [row.seq for row in rows_in(journal)]


def closed(journal: Journal) -> Report:
    journal.close()
    report = verify(journal.path)
    assert report.findings == ()
    return report


def test_a_discarded_block_is_gone_and_the_others_stay(journal: Journal) -> None:
    journal.commit([Discard((41,))])
    assert seqs(journal) == [*range(1, 41), *range(46, 101)]
    reader = journal.reader()
    assert [reader.block_at(seq) for seq in (41, 43, 45)] == [None, None, None]
    before, after = reader.block_at(40), reader.block_at(46)
    assert isinstance(before, Block)
    assert isinstance(after, Block)
    assert (before.last_seq, after.base_seq) == (40, 46)
    assert reader.next_block(41, any_topic)[0] is not None
    stats = journal.stats()
    assert (stats.messages, stats.removed, stats.first_seq, stats.last_seq) == (95, 5, 1, 100)
    report = closed(journal)
    assert (report.messages, report.removed, report.blocks) == (95, 5, 19)


def test_holes_that_touch_are_one_row(journal: Journal) -> None:
    journal.commit([Discard((41, 51))])
    assert holes(journal) == [(41, 45), (51, 55)]
    journal.commit([Discard((46,))])
    assert holes(journal) == [(41, 55)]
    journal.commit([Discard((36,)), Discard((56,))])
    assert holes(journal) == [(36, 60)]
    assert journal.stats().removed == 25
    assert closed(journal).removed == 25


def test_the_summary_of_a_chunk_without_blocks_goes_with_them(journal: Journal) -> None:
    assert journal.stats().chunks == 4
    journal.commit([Discard((26, 31, 36, 41))])
    assert journal.stats().chunks == 4
    journal.commit([Discard((46,))])  # the last one of its chunk
    assert journal.stats().chunks == 3
    assert seqs(journal) == [*range(1, 26), *range(51, 101)]
    reader = journal.reader()
    assert reader.last_match(lambda topic: topic == "t.0", before=50) == 25
    assert closed(journal).chunks == 3


def test_a_reader_that_knew_the_chunk_finds_the_hole_in_its_place(journal: Journal) -> None:
    reader = journal.reader()
    wanted = "t.0".__eq__
    found, _ = reader.next_block(26, wanted)
    assert isinstance(found, Block)
    assert found.base_seq == 41  # not the first of its chunk
    journal.commit([Discard((26, 31, 36, 41, 46))])
    found, _ = reader.next_block(26, wanted)
    assert isinstance(found, Block)
    assert found.base_seq == 61


def test_the_last_block_stays_and_what_is_not_there_is_left_alone(journal: Journal) -> None:
    journal.commit([Discard((96, 3, 41, 41, 500))])
    assert holes(journal) == [(41, 45)]
    journal.commit([Discard((41,))])
    assert journal.stats().removed == 5
    assert journal.last_seq == 100


def test_a_hole_at_the_front_is_cut_off_without_any_limits(journal: Journal) -> None:
    journal.commit([Discard((1, 6, 16))])
    assert journal.trim_step(0) is None  # no message was lost by it
    assert (journal.first_seq, holes(journal)) == (11, [(16, 20)])
    assert journal.stats().removed == 5
    assert journal.reader().block_at(3) is None
    report = closed(journal)
    assert (report.first_seq, report.removed) == (11, 5)


def test_damage_beside_a_hole_is_still_damage(journal: Journal) -> None:
    journal.commit([Discard((41,))])
    with journal.writing() as txn:
        txn.delete(seq_key(46), db=journal.tables.blocks)
    reader = journal.reader()
    found = reader.block_at(47)
    assert isinstance(found, Damaged)
    assert (found.first_seq, found.last_seq) == (46, 50)
    found, _ = reader.next_block(41, any_topic)
    assert isinstance(found, Damaged)
    journal.close()
    assert [finding[:3] for finding in verify(journal.path).findings] == [("blocks", 46, 50), ("chunks", 26, 50)][:1]


def test_a_damaged_hole_is_damage(journal: Journal) -> None:
    journal.commit([Discard((41,))])
    with journal.writing() as txn:
        row = txn.get(seq_key(41), db=journal.tables.blocks)
        assert row is not None
        txn.put(seq_key(41), row[:-1] + bytes([row[-1] ^ 1]), db=journal.tables.blocks)
    assert isinstance(journal.reader().block_at(41), Damaged)
    journal.close()
    assert [finding[:3] for finding in verify(journal.path).findings] == [("blocks", 41, 45)]


def test_times_are_found_across_holes(journal: Journal) -> None:
    journal.commit([Discard((41, 46, 51))])  # seconds 9, 10 and 11
    reader = journal.reader()
    assert reader.seek_time(8_000_001) == 41  # from there the next message is 56
    assert reader.seek_time(9_500_000) in range(41, 57)
    assert reader.seek_time(11_000_001) == 56
    assert reader.seek_time(12_000_000) == 56
    assert reader.seek_time(12_000_001) == 61
    block, _ = reader.next_block(reader.seek_time(9_500_000), any_topic)
    assert isinstance(block, Block)
    assert block.base_seq == 56


def test_a_journal_with_holes_goes_on_after_a_restart(journal: Journal) -> None:
    journal.commit([Discard((81, 86, 91, 6))])
    journal.close()
    again = Journal.open(journal.path)
    again.commit([Pen(101, ts_us=50_000_000).block("t.0", count=5)])
    assert seqs(again) == [*range(1, 6), *range(11, 81), *range(96, 106)]
    assert again.stats().removed == 20
    closed(again)


def test_a_whole_chunk_in_a_hole_at_the_end_survives_a_restart(journal: Journal) -> None:
    pen = Pen(101, ts_us=50_000_000)
    journal.commit(pen.blocks(2, "t.0", count=5))
    journal.commit([Discard(tuple(range(61, 106, 5)))])
    journal.close()
    again = Journal.open(journal.path)
    again.commit(pen.blocks(6, "t.1", count=5))
    assert seqs(again) == [*range(1, 61), *range(106, 141)]
    assert again.reader().last_match(lambda topic: topic == "t.3") == 60
    closed(again)


def test_backup_restore_and_compact_keep_the_holes(journal: Journal, tmp_path: Path) -> None:
    journal.commit([Discard((1, 41, 46, 81))])
    journal.close()
    report = backup(journal.path, tmp_path / "copy")
    assert (report.findings, report.messages, report.removed) == ((), 80, 20)
    done = restore(tmp_path / "copy", tmp_path / "new")
    assert done.report.removed == 20
    assert compact(tmp_path / "new").report.removed == 20
    again = Journal.open(tmp_path / "new")
    assert seqs(again) == [*range(6, 41), *range(51, 81), *range(86, 101)]
    assert again.stats().removed == 20
    closed(again)


def discard_elsewhere(path: Path, steps: list[tuple[int, ...]]) -> Callable[[int, int], None]:
    """To be called between steps: makes holes, in a program of its own because LMDB is opened once for each process."""

    def discard(done: int, total: int) -> None:
        if steps and (bases := steps.pop(0)):
            run_python(f"journal = Journal.open(path); journal.commit([Discard({bases!r})]); journal.close()", path)

    return discard


def test_a_backup_follows_holes_that_come_while_it_runs(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_module, "STEP_BYTES", 1)  # one block for each step
    journal.close()
    steps = [(1,), (6, 11), (16, 21, 26, 31, 36, 41), (), (91, 86), (46, 51, 56)]
    gone = {seq for step in steps for base in step for seq in range(base, base + 5)}
    assert backup(journal.path, tmp_path / "copy", discard_elsewhere(journal.path, steps)).findings == ()
    assert steps == []
    copy = Journal.open(tmp_path / "copy")
    kept = seqs(copy)
    assert set(range(1, 101)) - gone <= set(kept)
    assert (copy.stats().messages, copy.stats().removed) == (len(kept), 100 - len(kept))
    copy.close()


def test_a_walk_is_not_confused_by_holes_that_come_meanwhile(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "STEP_BLOCKS", 2)
    journal.close()
    steps = [(6, 11, 16, 21), (), (26, 31, 36, 41, 46, 51), (71, 81)]
    report = verify(journal.path, progress=discard_elsewhere(journal.path, steps))
    assert (steps, report.findings) == ([], ())


def test_retention_of_the_whole_journal_passes_over_holes(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_messages=30))
    journal.commit(Pen().blocks(20, count=5))
    journal.commit([Discard(tuple(range(51, 81, 5)))])  # 70 are left, 30 of them below the hole or in its last chunk
    assert journal.trim_step(0) == 41
    assert (journal.first_seq, journal.stats().messages) == (41, 30)
    journal.commit(Pen(101, ts_us=10_000_000).blocks(3, count=5))
    while journal.trim_step(0) is not None:
        pass
    assert (journal.first_seq, journal.stats().messages, journal.stats().removed) == (86, 30, 0)
    closed(journal)


def test_retention_of_the_whole_journal_stops_below_the_held_seq(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_messages=30))
    journal.commit(Pen().blocks(20, count=5))
    journal.hold(13)
    assert journal.trim_step(0) == 11  # the block of 11..15 is held
    assert journal.trim_step(0) == 13  # but not all of its messages
    assert journal.trim_step(0) is None
    assert journal.trim_wanted == 71
    journal.hold(71)
    assert journal.trim_step(0) == 71
    journal.hold(SEQ_MAX)
    assert (journal.trim_step(0), journal.trim_wanted) == (None, 0)
    closed(journal)


class Message(NamedTuple):
    seq: int
    topic: str
    key: bytes


def test_the_latest_of_each_key(tmp_path: Path) -> None:
    from fabric_protocol.block import encode, stamp

    rng, journal, messages, seq = Random(3), Journal.open(tmp_path / "j"), [], 1
    for turn in range(60):
        n = rng.randint(1, 6)
        rows = [Message(seq + i, f"t.{rng.randrange(3)}", b"k%d" % rng.randrange(8)) for i in range(n)]
        raw = encode([row.topic for row in rows], [b"x"] * n, keys=[row.key for row in rows])
        journal.commit([Append(stamp(raw, seq, turn))])
        messages += rows
        seq += n
    reader = journal.reader()
    wanted: Callable[[str], bool] = {"t.0", "t.2"}.__contains__
    latest = {(row.topic, row.key): row.seq for row in messages if wanted(row.topic)}
    found = [seq for step in reader.latest_per_key(wanted) for seq in step]
    assert found == sorted(latest.values(), reverse=True)
    few = [seq for step in reader.latest_per_key(wanted, limit=5) for seq in step]
    assert few == found[:5]
    names, complete = reader.topic_names(100)
    assert (sorted(names), complete) == (["t.0", "t.1", "t.2"], True)
    assert reader.topic_names(1)[1] is False
    journal.close()


@pytest.mark.parametrize("run", range(3))
def test_any_sequence_of_appends_discards_trims_and_restarts(tmp_path: Path, run: int) -> None:
    """Against a list of the blocks that should be there."""
    rng, pen, limits = seeded(f"holes {run}"), Pen(ts_us=0), Limits(max_messages=150)
    journal = Journal.open(tmp_path / "j", limits)
    twin: list[Block] = []
    for _ in range(120):
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                appends = [
                    pen.block([f"t.{rng.randrange(4)}" for _ in range(rng.randint(1, 5))], later_us=rng.randrange(3))
                    for _ in range(rng.randint(1, 4))
                ]
                journal.commit(appends)
                twin += [Block(append.block) for append in appends]
            case 4 | 5 if len(twin) > 1:
                at = rng.randrange(len(twin) - 1)
                gone = {block.base_seq for block in twin[at : at + rng.randint(1, 9)]}
                journal.commit([Discard(tuple(rng.sample(sorted(gone), len(gone))))])
                twin = [block for block in twin if block.base_seq not in gone or block is twin[-1]]
            case 6:
                journal.trim_step(0)
                twin = [block for block in twin if block.last_seq >= journal.first_seq]
                if twin:
                    assert journal.first_seq >= twin[0].base_seq
                    assert sum(block.count for block in twin[1:]) < limits.max_messages
            case 7:
                journal.close()
                assert verify(journal.path).findings == ()
                journal = Journal.open(tmp_path / "j", limits)
        _compare(journal, twin, rng)
    report = closed(journal)
    assert (report.messages, report.blocks) == (sum(block.count for block in twin), len(twin))
    assert backup(journal.path, tmp_path / "copy").findings == ()


def _compare(journal: Journal, twin: list[Block], rng: Random) -> None:
    assert rows_in(journal) == [row for block in twin for row in rows_of(block)]
    assert journal.stats().messages == sum(block.count for block in twin)
    reader, last_seq = journal.reader(), journal.last_seq
    for seq in rng.sample(range(1, last_seq + 2), min(last_seq, 20)):
        expected = next((block for block in twin if block.base_seq <= seq <= block.last_seq), None)
        found = reader.block_at(seq)
        assert (found.raw if isinstance(found, Block) else found) == (expected.raw if expected else None)
        ts_us = rng.randrange(0, 500)
        first, _ = reader.next_block(reader.seek_time(ts_us), any_topic)
        later = next((block for block in twin if block.ts_us >= ts_us), None)
        assert (first.raw if isinstance(first, Block) else first) == (later.raw if later else None)
    for topic in ("t.0", "t.3"):
        rows = [row for block in twin for row in rows_of(block) if row.seq >= journal.first_seq]
        hits = [row.seq for row in rows if row.topic == topic]
        assert reader.last_match(topic.__eq__) == (hits[-1] if hits else None)
