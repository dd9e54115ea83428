"""Promises of the journal: committed rows are there, in order, without a gap, and one process writes."""

import os
from pathlib import Path

import pytest

from fabric.errors import JournalError
from fabric.journal.directory import LockFile
from fabric.journal.journal import Journal
from fabric.journal.tools.verify import verify
from fabric.records import Append, DropGroup, GroupSettings, SaveGroup, SaveProducer
from fabric_protocol.block import Block, stamp
from tests.journal.sample import Pen, rows_in, run_python

GROUP = SaveGroup("workers", GroupSettings(("a.*", "b.#"), 5_000, 3, 1), 17, ((3, 4), (9, 12)))
PRODUCER = SaveProducer("meter-7", 2, 40, (30, 100, 10, 200), 1_000_000)


def test_a_new_journal_is_empty(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    restored = journal.load()
    assert restored[:3] == (1, 0, 0)
    assert restored[3:] == ((), (), (), (), (), True, ())
    assert len(journal.uuid) == 16
    assert journal.epoch == 1
    assert journal.reader().next_block(1, lambda _: True) == (None, 1)
    assert journal.reader().block_at(1) is None
    assert journal.reader().seek_time(0) == 1
    assert journal.reader().last_match(lambda _: True) is None
    journal.close()


def test_what_was_committed_is_there_after_reopening_and_goes_on_without_a_gap(tmp_path: Path) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j")
    identity = journal.uuid
    for _ in range(3):
        journal.commit([*pen.blocks(5), GROUP, PRODUCER])
        before = rows_in(journal)
        journal.close()
        journal = Journal.open(tmp_path / "j")
        assert journal.load() == (1, pen.seq - 1, pen.ts_us, (GROUP,), (PRODUCER,), (), (), (), True, ())
        assert rows_in(journal) == before
        assert [row.seq for row in before] == list(range(1, pen.seq))
    assert (journal.uuid, journal.epoch) == (identity, 1)
    journal.close()


def test_a_group_is_rewritten_and_dropped(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([GROUP, GROUP._replace(cursor=30, open=()), SaveGroup("x" * 2000, GROUP.settings, 1, ())])
    assert {group.name: group.cursor for group in journal.load().groups} == {"workers": 30, "x" * 2000: 1}
    journal.commit([DropGroup("workers"), DropGroup("never was")])
    assert [group.name for group in journal.load().groups] == ["x" * 2000]
    journal.close()


@pytest.mark.parametrize(("seq", "ts_us"), [(6, 2_000_000), (4, 2_000_000), (5, 1)])
def test_a_seq_that_does_not_follow_or_a_time_that_goes_back_is_a_bug_and_changes_nothing(
    tmp_path: Path, seq: int, ts_us: int
) -> None:
    pen = Pen()
    journal = Journal.open(tmp_path / "j")
    journal.commit([pen.block(count=4)])
    with pytest.raises(AssertionError, match="cannot follow"):
        journal.commit([GROUP, Append(stamp(Pen().block().block, seq, ts_us))])
    assert journal.load()[1:4] == (4, pen.ts_us, ())
    journal.commit([pen.block()])
    assert [row.seq for row in rows_in(journal)] == list(range(1, 9))
    journal.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_turn_that_was_given_up_leaves_no_trace_in_the_index(tmp_path: Path) -> None:
    """Two of its blocks were taken up, and a chunk was filled, before the third turned out to be a bug."""
    pen = Pen()
    journal = Journal.open(tmp_path / "j")
    journal.commit(pen.blocks(4, "a.b"))
    failed = Pen(pen.seq, pen.ts_us)
    with pytest.raises(AssertionError):
        journal.commit([failed.block("never.was"), failed.block("never.was"), Pen(1).block()])
    journal.commit(pen.blocks(4, "c.d"))
    assert journal.reader().last_match(lambda topic: topic == "never.was") is None
    assert [row.topic for row in rows_in(journal)] == ["a.b"] * 16 + ["c.d"] * 16
    journal.close()
    report = verify(tmp_path / "j")
    assert (report.chunks, report.findings) == (1, ())


def test_a_journal_that_was_not_closed_says_so(tmp_path: Path) -> None:
    run_python(
        """
        journal = Journal.open(path)
        journal.commit([Pen().block(count=4)])
        os._exit(0)
        """,
        tmp_path / "j",
    )
    journal = Journal.open(tmp_path / "j")
    restored = journal.load()
    assert (restored.last_seq, restored.was_clean) == (4, False)
    journal.close()


def test_a_second_opener_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    with pytest.raises(JournalError, match=f"in use by process {os.getpid()}") as refused:
        Journal.open(tmp_path / "j")
    assert "stop the hub" in refused.value.hint
    said = run_python("Journal.open(path)", tmp_path / "j", expect=1)
    assert f"in use by process {os.getpid()}" in said
    journal.commit([Pen().block()])
    journal.close()
    Journal.open(tmp_path / "j").close()


def test_a_forked_child_cannot_use_the_journal(tmp_path: Path) -> None:
    said = run_python(
        """
        journal = Journal.open(path)
        journal.commit([Pen().block()])
        reader = journal.reader()
        if os.fork() == 0:
            refused = 0
            for use in (lambda: journal.commit([]), lambda: reader.block_at(1), journal.load, journal.close):
                try:
                    use()
                except JournalError as error:
                    refused += "another process" in str(error)
            os._exit(refused)
        print("refused", os.waitstatus_to_exitcode(os.wait()[1]))
        """,
        tmp_path / "j",
    )
    assert "refused 4" in said


def test_a_closed_journal_refuses_and_may_be_closed_twice(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.commit([])


def test_a_missing_journal_is_not_created_against_the_will_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        Journal.open(tmp_path / "j", create=False)
    assert not (tmp_path / "j").exists()


def test_a_creation_that_was_cut_short_is_taken_up_again(tmp_path: Path) -> None:
    left = tmp_path / "j" / "creating"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"half a file")
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen().block(count=4)])
    assert journal.load().last_seq == 4
    assert not left.exists()
    journal.close()


def test_a_journal_that_appears_while_another_is_about_to_be_created_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path) -> LockFile:
        run_python("journal = Journal.open(path); journal.commit([Pen().block(count=4)]); journal.close()", path)
        return LockFile(path)

    monkeypatch.setattr("fabric.journal.journal.LockFile", late)
    journal = Journal.open(tmp_path / "j")
    assert journal.load().last_seq == 4
    journal.close()


def test_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    Journal.open(tmp_path / "deep" / "j").close()
    assert (tmp_path / "deep" / "j").stat().st_mode & 0o077 == 0
    for name in ("data.mdb", "lock.mdb", "hub.lock"):
        assert (tmp_path / "deep" / "j" / name).stat().st_mode & 0o077 == 0, name


def test_every_commit_is_synced_and_the_map_is_never_written(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    flags = journal.environment.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    assert not flags["map_async"]
    assert flags["meminit"]  # the hub's memory must not reach the gaps between rows
    assert journal.environment.lib_version()[:2] == (0, 9)
    assert journal.environment.info()["map_size"] == 1 << 40
    journal.close()


def test_a_reader_in_another_thread_sees_whole_commits_while_blocks_are_appended(tmp_path: Path) -> None:
    import threading

    journal = Journal.open(tmp_path / "j")
    pen, turns = Pen(), 120
    seen: list[int] = []
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            reader, seq = journal.reader(), 1
            while seq <= turns * 8 * 4:
                block, seq = reader.next_block(seq, lambda topic: topic == "a.b")
                if block is not None:
                    assert isinstance(block, Block), block
                    seen.append(block.base_seq)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    for _ in range(turns):
        journal.commit(pen.blocks(8, count=4))
    thread.join()
    assert not failures
    assert seen == list(range(1, turns * 8 * 4, 4))
    journal.close()
