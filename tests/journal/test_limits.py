"""Limits: retention in small steps, publishes refused before the disk is full, a full map, unsuitable file systems."""

from contextlib import suppress
from pathlib import Path

import lmdb
import pytest

from fabric.errors import JournalError
from fabric.journal import limits as limits_module
from fabric.journal import retention
from fabric.journal.directory import require_local
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.records import Append, DropProducer, SaveProducer
from fabric_protocol.block import Block
from tests.journal.sample import Pen, rows_in

DAY_US = 24 * 3600 * 1_000_000


def trim_all(journal: Journal, now_us: int) -> list[int]:
    """Steps until there is nothing left to do."""
    steps = []
    while (first_seq := journal.trim_step(now_us)) is not None:
        steps.append(first_seq)
        assert len(steps) < 1000
    return steps


def test_messages_older_than_the_limit_are_removed(tmp_path: Path) -> None:
    pen = Pen(ts_us=0)
    journal = Journal.open(tmp_path / "j", Limits(max_age_s=10))
    journal.commit([pen.block(count=2, later_us=1_000_000) for _ in range(20)])  # at seconds 1, 2, .. 20
    assert trim_all(journal, now_us=10_999_999) == []
    assert trim_all(journal, now_us=15_000_000) == [9]  # second 5 is just old enough to stay
    assert [row.seq for row in rows_in(journal)] == list(range(9, 41))
    assert journal.load().first_seq == 9
    journal.close()
    journal = Journal.open(tmp_path / "j")
    assert journal.load().first_seq == 9
    journal.close()


@pytest.mark.parametrize("field", Limits._fields)
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_limit_below_nothing_is_refused(tmp_path: Path, field: str, value: float) -> None:
    with pytest.raises(JournalError, match=f"the limit {field} is "):
        Journal.open(tmp_path / "j", Limits(**{field: value}))  # type: ignore[arg-type]
    assert not (tmp_path / "j").exists()


def test_the_oldest_are_removed_while_there_are_too_many(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_messages=25))
    journal.commit(Pen().blocks(10, count=10))
    assert trim_all(journal, 0) == [71, 76]  # the block of 71..80 stays, and half of its messages are out of reach
    assert journal.load()[:2] == (76, 100)
    journal.close()


def test_exactly_so_many_messages_stay_within_one_block(tmp_path: Path) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j", Limits(max_messages=100))
    journal.commit([pen.block(count=60), pen.block(["b"] * 30 + ["a.b"] * 90)])
    assert trim_all(journal, 0) == [61, 81]
    reader = journal.reader()
    assert reader.block_at(60) is None
    assert reader.last_match(lambda topic: topic == "b") == 90
    journal.commit([pen.block(count=10)])
    assert trim_all(journal, 0) == [91]
    assert reader.last_match(lambda topic: topic == "b") is None
    assert list(reader.latest_per_key(lambda topic: topic == "b")) == [[]]
    assert journal.load()[:2] == (91, 190)
    journal.close()


def test_messages_of_the_last_block_are_too_old_as_well(tmp_path: Path) -> None:
    pen = Pen(ts_us=0)
    journal = Journal.open(tmp_path / "j", Limits(max_age_s=10))
    journal.commit(pen.blocks(3, count=5))
    assert trim_all(journal, now_us=DAY_US) == [11, 16]
    assert journal.load()[:2] == (16, 15)
    assert journal.reader().seek_time(0) == 16
    journal.commit([pen.block(count=5, later_us=DAY_US)])
    assert trim_all(journal, now_us=DAY_US) == [16]  # the block before is gone from disk, too
    assert [row.seq for row in rows_in(journal)] == list(range(16, 21))
    journal.close()


def test_of_a_last_block_that_is_too_large_the_newest_messages_stay(tmp_path: Path) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j", Limits(max_bytes=60_000))
    journal.commit([pen.block(count=10, size=12_000)])
    assert trim_all(journal, 0) == [7]
    journal.commit([pen.block(count=1, size=100_000)])
    assert trim_all(journal, 0) == [11]
    assert journal.load()[:2] == (11, 11)
    journal.close()


def test_the_oldest_are_removed_while_there_are_too_many_bytes(tmp_path: Path) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j", Limits(max_bytes=1_000_000))
    for _ in range(10):
        journal.commit(pen.blocks(10, count=4, size=5_000))
    assert journal.stats().data_bytes > 2_000_000
    assert trim_all(journal, 0)
    assert 900_000 < journal.stats().data_bytes <= 1_000_000
    first_seq = journal.load().first_seq
    assert [row.seq for row in rows_in(journal)] == list(range(first_seq, pen.seq))
    journal.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_step_is_small_and_takes_summaries_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "STEP_ROWS", 7)
    journal = Journal.open(tmp_path / "j", Limits(max_messages=1))
    journal.commit(Pen().blocks(33, count=2))
    chunks = journal.stats().chunks
    assert chunks == 6
    assert trim_all(journal, 0) == [15, 29, 43, 57, 65, 66]  # seven blocks of two, and so on; the last one stays
    assert (journal.stats().blocks, journal.stats().chunks) == (1, 0)
    assert [row.seq for row in rows_in(journal)] == [65, 66]
    journal.close()


def test_a_journal_trimmed_to_its_last_block_goes_on_counting(tmp_path: Path) -> None:
    pen = Pen()
    limits = Limits(max_age_s=1)
    journal = Journal.open(tmp_path / "j", limits)
    journal.commit(pen.blocks(5))
    trim_all(journal, now_us=DAY_US)
    journal.close()
    journal = Journal.open(tmp_path / "j", limits)
    assert journal.load()[:3] == (pen.seq, pen.seq - 1, pen.ts_us)
    journal.commit([pen.block()])
    trim_all(journal, now_us=DAY_US)
    assert journal.load().first_seq == pen.seq
    assert journal.stats().blocks == 1
    journal.close()


def test_a_damaged_block_goes_with_the_next_good_one(tmp_path: Path) -> None:
    pen = Pen(ts_us=0)
    journal = Journal.open(tmp_path / "j", Limits(max_age_s=10))
    journal.commit([pen.block(count=1, later_us=1_000_000) for _ in range(6)])
    with journal.writing() as txn:
        for seq in (1, 3):
            txn.put(seq_key(seq), bytes(100), db=journal.tables.blocks)
    assert trim_all(journal, now_us=12_500_000) == [3]
    assert trim_all(journal, now_us=14_500_000) == [5]
    journal.close()


def test_without_limits_nothing_is_removed(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit(Pen().blocks(5))
    assert journal.trim_step(now_us=10**9 * DAY_US) is None
    assert journal.load().first_seq == 1
    journal.close()


def test_a_source_with_the_name_of_a_deleted_producer_is_not_forgotten(tmp_path: Path) -> None:
    source = SaveProducer("p", 1, 7, (), 2_000_000, jumps=True)
    journal = Journal.open(tmp_path / "j")
    journal.commit([*Pen().blocks(1), SaveProducer("p", 1, 5, (), 1_000_000)])
    journal.commit([DropProducer("p")])
    assert journal.load().producers == ()
    journal.commit([DropProducer("p"), source])
    while journal.trim_step(10**15):
        pass
    assert [(found.name, found.last_pseq) for found in journal.load().producers] == [("p", 7)]
    journal.close()


def test_producers_idle_for_a_week_are_forgotten_also_after_a_restart(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([SaveProducer(name, 1, 1, (), day * DAY_US) for name, day in (("c", 3), ("a", 1), ("b", 2))])
    journal.close()
    journal = Journal.open(tmp_path / "j")
    journal.commit([SaveProducer("a", 1, 2, (), 5 * DAY_US)])  # seen again
    journal.trim_step(now_us=9 * DAY_US)
    assert {p.name for p in journal.load().producers} == {"a", "c"}
    journal.trim_step(now_us=11 * DAY_US)
    assert {p.name for p in journal.load().producers} == {"a"}
    journal.close()


def test_publishes_are_refused_above_the_quota_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j", Limits(quota_bytes=500_000, max_messages=40, disk_floor_bytes=0))
    assert journal.pressure() is None
    journal.commit(pen.blocks(40, count=4, size=5_000))
    reason = journal.pressure()  # without waiting for the next poll
    assert reason is not None
    assert "quota" in reason
    journal.commit([SaveProducer("p", 1, 1, (), 1)])  # what is not a publish goes on
    trim_all(journal, 0)
    assert journal.pressure() is None
    journal.close()


def test_publishes_are_refused_when_the_disk_has_too_little_left(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(disk_floor_bytes=1 << 60))
    reason = journal.pressure()
    assert reason is not None
    assert "disk" in reason
    journal.close()
    assert limits_module.DISK_FLOOR_BYTES == 1 << 30


def test_publishes_are_refused_when_the_map_is_four_fifths_full(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", Limits(disk_floor_bytes=0), _map_bytes=4 << 20)
    pen = Pen()
    while journal.pressure() is None:
        journal.commit(pen.blocks(4, count=4, size=5_000))
    reason = journal.pressure()
    assert reason is not None
    assert "map" in reason
    assert 0.7 * (4 << 20) < journal.stats().data_bytes < 0.9 * (4 << 20)
    journal.close()


def test_a_commit_into_a_full_map_makes_it_larger(tmp_path: Path) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j", _map_bytes=2 << 20)
    reader = journal.reader()
    for _ in range(30):
        journal.commit(pen.blocks(10, count=4, size=5_000))
        block = reader.block_at(1)
        assert isinstance(block, Block)
    assert journal.stats().map_bytes > 6 << 20
    assert [row.seq for row in rows_in(journal)] == list(range(1, pen.seq))
    journal.close()
    journal = Journal.open(tmp_path / "j", _map_bytes=2 << 20)  # less than the data: LMDB takes what it needs
    journal.commit([pen.block()])
    assert [row.seq for row in rows_in(journal)] == list(range(1, pen.seq))
    journal.close()


def test_a_map_in_the_dead_end_where_even_deletes_fail_is_opened_and_goes_on(tmp_path: Path) -> None:
    for size in range(4 << 20, 8 << 20, 256 << 10):
        path, pen = tmp_path / str(size), Pen()
        journal = Journal.open(path, _map_bytes=size)
        journal.commit([pen.block()])
        journal.close()
        if drive_into_dead_end(path, size):
            break
    else:
        pytest.fail("no dead end was found, so this test shows nothing")
    journal = Journal.open(path, Limits(max_messages=8), _map_bytes=size)
    journal.commit(pen.blocks(20, size=5_000))
    assert trim_all(journal, 0)
    assert journal.load().last_seq == pen.seq - 1
    journal.close()


def drive_into_dead_end(path: Path, size: int) -> bool:
    """Fill the map with rows of no meaning and remove half of them at once; whether nothing can be written now."""
    with lmdb.open(str(path), map_size=size, max_dbs=9, lib_version=0) as environment:
        junk = environment.open_db(b"junk")
        count = 0
        with suppress(lmdb.MapFullError):
            while True:
                with environment.begin(write=True) as txn:
                    for i in range(count, count + 100):
                        txn.put(seq_key(i), bytes(300), append=True, db=junk)
                count += 100
        with suppress(lmdb.MapFullError), environment.begin(write=True) as txn:
            for i in range(count // 2):
                txn.delete(seq_key(i), db=junk)
        meta = environment.open_db(b"meta")
        for _ in range(3):
            try:
                with environment.begin(write=True) as txn:
                    txn.delete(seq_key(count - 1), db=junk)
                    txn.put(b"any", b"thing", db=meta)  # as opening a journal does
            except lmdb.MapFullError:
                continue
            return False
    return True


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /mnt/far rw shared:1 - {kind} server:/export rw
31 30 0:26 / /mnt/far/near\\040disk rw - xfs /dev/vdb rw
"""


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(kind: str) -> None:
    mounts = MOUNTS.format(kind=kind)
    with pytest.raises(JournalError, match=f"network file system \\({kind}\\)"):
        require_local(Path("/mnt/far/journal"), mounts)
    require_local(Path("/mnt/far/near disk/journal"), mounts)
    require_local(Path("/mnt/farther"), mounts)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay"])
def test_a_local_file_system_is_accepted(kind: str) -> None:
    require_local(Path("/mnt/far/journal"), MOUNTS.format(kind=kind))


def test_a_forced_network_file_system_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise JournalError(f"{path} is far away")

    monkeypatch.setattr("fabric.journal.journal.require_local", refuse)
    with pytest.raises(JournalError, match="far away"):
        Journal.open(tmp_path / "j")
    journal = Journal.open(tmp_path / "j", allow_network_fs=True)
    journal.commit([Append(Pen().block().block)])
    journal.close()
