"""A journal has one writer: whatever is removed, copied or written by hand, two hubs never confirm the same seq."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fabric.errors import JournalError
from fabric.journal.environment import append_row, open_environment, open_tables
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.records import SaveProducer
from tests.journal.sample import Pen, run_python

IN_USE = """
try:
    Journal.open(path)
except JournalError as error:
    print(error)
"""


@pytest.mark.parametrize("removed", [("hub.lock",), ("lock.mdb",), ("hub.lock", "lock.mdb")])
def test_a_second_opener_is_refused_though_lock_files_were_removed(tmp_path: Path, removed: tuple[str, ...]) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen().block()])
    for name in removed:
        (tmp_path / "j" / name).unlink()
    assert "is in use" in run_python(IN_USE, tmp_path / "j")
    with pytest.raises(JournalError, match="is in use"):
        Journal.open(tmp_path / "j")
    journal.close()
    Journal.open(tmp_path / "j").close()


def write_elsewhere(path: Path) -> None:
    """What a program does that knows nothing of the locks."""
    with closing(open_environment(path)) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as txn:
            txn.put(b"any", b"thing", db=tables.meta)


WRITES: dict[str, Callable[[Journal], object]] = {
    "blocks": lambda journal: journal.commit([Pen(5).block()]),
    "rows": lambda journal: journal.commit([SaveProducer("p", 1, 1, (), 1)]),
    "retention": lambda journal: journal.trim_step(10**15),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_second_writer_is_noticed_with_the_next_transaction(tmp_path: Path, write: str) -> None:
    journal = Journal.open(tmp_path / "j", Limits(max_messages=1))
    journal.commit([Pen().block(count=2), Pen(3).block(count=2)])
    run_python("from tests.journal.test_single_writer import *; write_elsewhere(path)", tmp_path / "j")
    with pytest.raises(JournalError, match="another process has written"):
        WRITES[write](journal)
    with pytest.raises(JournalError, match="failed before"):
        journal.commit([])
    journal.close()
    journal = Journal.open(tmp_path / "j")
    assert journal.load().last_seq == 4
    assert not journal.load().was_clean
    journal.close()


def test_a_turn_that_writes_nothing_is_no_second_writer(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    for _ in range(3):
        journal.commit([])
        journal.commit([Pen(journal.last_seq + 1).block()])
    journal.close()


def test_a_row_that_does_not_follow_the_last_one_is_an_error(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen().block(count=4)])
    with pytest.raises(JournalError, match="does not follow"), journal.writing() as txn:
        append_row(txn, seq_key(1), b"another block", journal.tables.blocks)
    journal.close()


def removed(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def replaced(path: Path) -> None:
    shutil.copy(path / "data.mdb", path / "copy.mdb")
    os.replace(path / "copy.mdb", path / "data.mdb")


@pytest.mark.parametrize("act", [removed, moved, replaced])
def test_nothing_is_confirmed_into_a_file_that_is_not_in_its_place(tmp_path: Path, act: Callable[[Path], None]) -> None:
    journal = Journal.open(tmp_path / "j")
    journal.commit([Pen().block()])
    act(tmp_path / "j")
    with pytest.raises(JournalError, match="removed, moved or replaced"):
        journal.commit([Pen(5).block()])
    journal.close()


@pytest.mark.parametrize("look", [Journal.rest, lambda journal: journal.trim_step(0)])
def test_an_idle_journal_notices_that_its_directory_was_removed(
    tmp_path: Path, look: Callable[[Journal], object]
) -> None:
    journal = Journal.open(tmp_path / "j")
    removed(tmp_path / "j")
    with pytest.raises(JournalError, match="removed, moved or replaced"):
        look(journal)
    journal.close()
