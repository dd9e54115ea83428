"""Copies: a backup equals the journal, a restored journal has a new epoch, a compacted journal is smaller."""

import os
import shutil
from pathlib import Path

import pytest

from fabric.errors import JournalDamaged, JournalError
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.journal.tools import backup as backup_module
from fabric.journal.tools.backup import REPLACED_FILE, backup, compact, restore
from fabric.journal.tools.verify import verify, verify_in_child
from fabric.records import GroupSettings, SaveGroup, SaveProducer
from tests.journal.sample import Pen, Row, rows_in, start_python

GROUP = SaveGroup("g", GroupSettings(("a.*",)), 9, ((3, 4),))
PRODUCER = SaveProducer("p", 1, 10, (10, 1), 5)


def make(path: Path, pen: Pen, blocks: int = 40) -> list[Row]:
    journal = Journal.open(path)
    journal.commit([*pen.blocks(blocks, count=5, size=300), GROUP, PRODUCER])
    rows = rows_in(journal)
    journal.close()
    return rows


def content(path: Path) -> list[Row]:
    journal = Journal.open(path, create=False)
    restored = journal.load()
    assert (restored.groups, restored.producers, restored.findings) == ((GROUP,), (PRODUCER,), ())
    rows = rows_in(journal)
    journal.close()
    return rows


def files_of(path: Path) -> set[tuple[int, int]]:
    """The owners and modes of the files of a journal."""
    found = [file.stat() for file in path.iterdir()]
    assert len(found) >= 3
    return {(file.st_uid, file.st_mode & 0o777) for file in found}


def test_files_that_root_makes_in_a_data_folder_are_the_owners(tmp_path: Path) -> None:
    """An administrator restores and compacts, and the hub's user has to open the journal afterwards."""
    owner = 12_345 if os.geteuid() == 0 else os.geteuid()
    make(tmp_path / "j", Pen())
    backup(tmp_path / "j", tmp_path / "copy")
    hub = tmp_path / "hub"
    hub.mkdir(mode=0o700)
    os.chown(hub, owner, -1)
    restore(tmp_path / "copy", hub)
    verify(hub)  # makes the file of LMDB's readers again
    assert files_of(hub) == {(owner, 0o600)}
    compact(hub)
    verify(hub)
    assert files_of(hub) == {(owner, 0o600)}


def test_the_names_of_folders_need_not_be_utf8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xff")
    rows = make(folder / "j", Pen(), 2)
    backup(folder / "j", folder / "copy", lambda done, total: None)
    restore(folder / "copy", folder / "new")
    compact(folder / "new")
    assert content(folder / "new") == rows
    assert verify_in_child(folder / "new").messages == 10


@pytest.mark.usefixtures("small_chunks")
def test_a_backup_holds_all_and_a_restored_one_goes_on_in_a_new_epoch(tmp_path: Path) -> None:
    pen, steps = Pen(), []
    rows = make(tmp_path / "j", pen)
    report = backup(tmp_path / "j", tmp_path / "copy", lambda done, total: steps.append((done, total)))
    assert report == verify(tmp_path / "j")
    assert (report.messages, report.chunks, report.findings) == (200, 8, ())
    assert steps[-1][0] == steps[-1][1] > 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "j"]

    done = restore(tmp_path / "copy", tmp_path / "new")
    assert (done.epoch, done.replaced) == (2, None)
    assert content(tmp_path / "new") == rows
    original, restored = Journal.open(tmp_path / "j"), Journal.open(tmp_path / "new")
    assert restored.uuid == original.uuid
    assert restored.epoch == original.epoch + 1
    restored.commit([pen.block()])
    original.close()
    restored.close()
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["data.mdb", "hub.lock", "lock.mdb"]


def test_restoring_over_a_journal_must_be_wished_and_keeps_the_old_one(tmp_path: Path) -> None:
    pen = Pen()
    rows = make(tmp_path / "j", pen)
    backup(tmp_path / "j", tmp_path / "copy")
    for epoch in (2, 3):  # higher than any that was there before, whatever the backup says
        journal = Journal.open(tmp_path / "j")
        journal.commit([Pen(journal.load().last_seq + 1, pen.ts_us).block()])
        journal.close()
        with pytest.raises(JournalError, match="already"):
            restore(tmp_path / "copy", tmp_path / "j")
        done = restore(tmp_path / "copy", tmp_path / "j", replace=True)
        assert done.epoch == epoch
        assert done.replaced == tmp_path / "j" / REPLACED_FILE
        assert content(tmp_path / "j") == rows
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "j" / REPLACED_FILE, tmp_path / "old" / "data.mdb")
    assert content(tmp_path / "old")[: len(rows)] == rows
    assert len(content(tmp_path / "old")) == len(rows) + 4


def test_a_running_journal_is_backed_up_but_not_replaced(tmp_path: Path) -> None:
    writer = start_python(
        """
        journal, pen = Journal.open(path), Pen()
        while True:
            turn = pen.blocks(4, count=4, size=2000)
            journal.commit([*turn, SaveGroup("g", GroupSettings(("#",)), pen.seq, ())])
            print(pen.seq - 1, flush=True)
        """,
        tmp_path / "j",
    )
    assert writer.stdout is not None
    try:
        confirmed = int(writer.stdout.readline())
        report = backup(tmp_path / "j", tmp_path / "copy")
        assert report.findings == ()
        assert report.last_seq >= confirmed
        assert verify_in_child(tmp_path / "j").findings == ()
        for replace in (
            lambda: restore(tmp_path / "copy", tmp_path / "j", replace=True),
            lambda: compact(tmp_path / "j"),
        ):
            with pytest.raises(JournalError, match=f"in use by process {writer.pid}"):
                replace()
        with pytest.raises(JournalError, match="in use"):
            restore(tmp_path / "j", tmp_path / "new")
    finally:
        writer.kill()
        writer.communicate()
    copy = Journal.open(tmp_path / "copy")
    restored = copy.load()
    assert [group.cursor for group in restored.groups] == [restored.last_seq + 1]  # one moment, not two
    assert [row.seq for row in rows_in(copy)] == list(range(1, restored.last_seq + 1))
    copy.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_backup_overtaken_by_retention_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trim the source between two steps, by a program of its own because LMDB is opened once for each process."""
    path, pen = tmp_path / "j", Pen()
    make(path, pen)
    monkeypatch.setattr(backup_module, "STEP_BYTES", 10_000)
    trimmed: list[int] = []

    def trim(done: int, total: int) -> None:
        if not trimmed:
            trimmer = start_python(
                """
                journal = Journal.open(path, Limits(max_messages=50))
                print(journal.trim_step(0))
                journal.close()
                """,
                path,
            )
            trimmed.append(int(trimmer.communicate()[0]))

    report = backup(path, tmp_path / "copy", trim)
    assert (report.first_seq, report.last_seq, report.findings) == (trimmed[0], 200, ())
    assert [row.seq for row in content(tmp_path / "copy")] == list(range(trimmed[0], 201))


def test_a_backup_does_not_overwrite_and_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    make(tmp_path / "j", Pen())
    backup(tmp_path / "j", tmp_path / "copy")
    with pytest.raises(JournalError, match="already"):
        backup(tmp_path / "j", tmp_path / "copy")
    with pytest.raises(JournalError):
        backup(tmp_path / "nothing", tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "j"]


def damage(path: Path, base_seq: int) -> None:
    journal = Journal.open(path)
    with journal.writing() as txn:
        raw = bytearray(txn.get(seq_key(base_seq), db=journal.tables.blocks) or b"")
        raw[-20] ^= 1
        txn.put(seq_key(base_seq), bytes(raw), db=journal.tables.blocks)
    journal.close()


def test_damage_is_copied_and_told_but_not_restored_unless_accepted(tmp_path: Path) -> None:
    rows = make(tmp_path / "j", Pen())
    damage(tmp_path / "j", 51)
    report = backup(tmp_path / "j", tmp_path / "copy")
    assert [finding[:3] for finding in report.findings] == [("blocks", 51, 55)]
    for replace in (lambda: restore(tmp_path / "copy", tmp_path / "new"), lambda: compact(tmp_path / "j")):
        with pytest.raises(JournalDamaged, match="does not match its CRC"):
            replace()
    assert not (tmp_path / "new" / "data.mdb").exists()
    done = restore(tmp_path / "copy", tmp_path / "new", accept_damage=True)
    assert done.report == report
    journal = Journal.open(tmp_path / "new")
    block, seq = journal.reader().next_block(51, lambda topic: True)
    assert (block is None, seq) == (False, 56)
    assert journal.load().last_seq == rows[-1].seq
    journal.close()


def test_a_file_with_a_broken_structure_is_not_restored(tmp_path: Path) -> None:
    make(tmp_path / "j", Pen())
    page = os.sysconf("SC_PAGESIZE")
    with (tmp_path / "j" / "data.mdb").open("r+b") as data:
        size = data.seek(0, os.SEEK_END)
        for offset in range(2 * page, size, page):
            data.seek(offset)
            data.write(b"\xff" * 16)
    with pytest.raises(JournalDamaged):
        restore(tmp_path / "j", tmp_path / "new", accept_damage=True)
    assert not (tmp_path / "new" / "data.mdb").exists()


def test_a_compact_journal_is_smaller_and_the_same(tmp_path: Path) -> None:
    pen = Pen()
    make(tmp_path / "j", pen, blocks=300)
    journal = Journal.open(tmp_path / "j", Limits(max_messages=100))
    while journal.trim_step(0) is not None:
        pass
    rows, identity = rows_in(journal), (journal.uuid, journal.epoch)
    journal.close()
    done = compact(tmp_path / "j")
    assert done.after_bytes < done.before_bytes // 3
    assert (tmp_path / "j" / "data.mdb").stat().st_size == done.after_bytes
    assert content(tmp_path / "j") == rows
    journal = Journal.open(tmp_path / "j")
    assert (journal.uuid, journal.epoch) == identity
    journal.commit([pen.block()])
    journal.close()
