"""Damaged bytes are never returned as good and never skipped silently, and cost only the blocks that they are in."""

import json
import shutil
import sys
from pathlib import Path

import lmdb
import pytest

from fabric.errors import JournalDamaged, JournalError
from fabric.journal import rows as records
from fabric.journal.blocks import Damaged
from fabric.journal.journal import Journal
from fabric.records import GroupSettings, SaveGroup
from fabric_protocol.block import Block
from tests.journal.sample import Pen, rows_in, start_python
from tests.seeds import seeded

GROUP = SaveGroup("g", GroupSettings(("a.*",)), 5, ())


def flip(path: Path, offset: int, mask: int = 1) -> None:
    with (path / "data.mdb").open("r+b") as data:
        data.seek(offset)
        byte = data.read(1)[0]
        data.seek(offset)
        data.write(bytes([byte ^ mask]))


def flip_near(path: Path, text: bytes, distance: int) -> None:
    """Damage the block that holds a text, and what older pages still have of it."""
    data, at = (path / "data.mdb").read_bytes(), -1
    assert text in data
    while (at := data.find(text, at + 1)) >= 0:
        flip(path, at + distance)


@pytest.mark.parametrize("where", ["payload", "topic", "head"])
def test_a_damaged_block_is_told_by_its_range_and_the_others_are_read(tmp_path: Path, where: str) -> None:
    path, pen = tmp_path / "j", Pen()
    journal = Journal.open(path)
    journal.commit(
        [*pen.blocks(3, count=10, size=500), pen.block("middle.one", 10, 500), *pen.blocks(3, count=10, size=500)]
    )
    journal.close()
    flip_near(path, b"middle.one", {"payload": 3000, "topic": 4, "head": -40}[where])
    journal = Journal.open(path)
    restored, reader = journal.load(), journal.reader()
    assert [(f.first_seq, f.last_seq) for f in restored.findings] == [(31, 40)]
    for seq in (31, 35, 40):
        damaged = reader.block_at(seq)
        assert isinstance(damaged, Damaged)
        assert damaged[:2] == (31, 40)
    for wanted in (lambda topic: True, lambda topic: False):  # a search for other topics reports it as well
        assert reader.next_block(31, wanted)[0] == damaged
    assert isinstance(reader.block_at(30), Block)
    assert isinstance(reader.block_at(41), Block)
    assert journal.load().last_seq == 70
    journal.commit([pen.block()])
    assert reader.last_match(lambda topic: True) == pen.seq - 1
    journal.close()


def test_a_block_damaged_while_the_hub_runs_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    path, pen = tmp_path / "j", Pen()
    journal = Journal.open(path)
    journal.commit([pen.block("first.one", size=500), pen.block("second.one", size=500)])
    flip_near(path, b"second.one", 1000)
    damaged, seq = journal.reader().next_block(1, lambda topic: topic == "second.one")
    assert damaged == Damaged(5, 8, "the body does not match its CRC")
    assert seq == 9
    journal.close()


def test_a_journal_whose_end_is_damaged_is_not_opened(tmp_path: Path) -> None:
    """Its last seq is not known, and giving it out again would be worse than standing still."""
    path, pen = tmp_path / "j", Pen()
    journal = Journal.open(path)
    journal.commit([*pen.blocks(3), pen.block("last.one", size=500)])
    journal.close()
    flip_near(path, b"last.one", -40)
    with pytest.raises(JournalDamaged, match="last block") as refused:
        Journal.open(path)
    assert "restore" in refused.value.hint


def test_blocks_lost_at_the_end_are_noticed_after_a_clean_close(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path)
    journal.commit(Pen().blocks(3, count=10))
    journal.close()
    with lmdb.open(str(path), max_dbs=8, lib_version=0) as environment:
        blocks = environment.open_db(b"blocks")
        with environment.begin(write=True) as txn:
            txn.delete(records.seq_key(21), db=blocks)
    with pytest.raises(JournalDamaged, match="closed at seq 30 and now ends at 20"):
        Journal.open(path)


@pytest.mark.parametrize("table", ["groups", "meta"])
def test_a_damaged_row_of_state_is_an_error_not_a_guess(tmp_path: Path, table: str) -> None:
    path = tmp_path / "j"
    journal = Journal.open(path)
    journal.commit([GROUP])
    journal.close()
    with lmdb.open(str(path), max_dbs=8, lib_version=0) as environment:
        handle = environment.open_db(table.encode())
        with environment.begin(write=True) as txn:
            key, row = next(iter(txn.cursor(handle).iterprev()))
            txn.put(key, bytes([row[0] ^ 1]) + row[1:], db=handle)
    with pytest.raises(JournalDamaged):
        Journal.open(path).load()


def test_a_newer_format_is_refused_and_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "j"
    Journal.open(path).close()
    with lmdb.open(str(path), max_dbs=8, lib_version=0) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as txn:
            row = records.seal(records.FORMAT_KEY, str(records.FORMAT + 1).encode())
            txn.put(records.FORMAT_KEY, row, db=meta)
    before = (path / "data.mdb").read_bytes()
    with pytest.raises(JournalError, match=f"format {records.FORMAT + 1}") as refused:
        Journal.open(path)
    assert refused.value.hint == "upgrade fabricmq"
    assert (path / "data.mdb").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"garbage" * 5000], ids=["empty page", "garbage"])
def test_a_file_that_is_no_journal_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(content or bytes(40960))
    with pytest.raises(JournalError) as refused:
        Journal.open(tmp_path)
    assert str(tmp_path) in str(refused.value)
    assert refused.value.hint


def test_a_file_that_kills_its_reader_kills_only_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, killed = tmp_path / "j", tmp_path / "python"
    Journal.open(path).close()
    killed.write_text("#!/bin/sh\nkill -ABRT $$\n")  # as LMDB does to its process when an assertion fails
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    with pytest.raises(JournalDamaged, match="kills the process"):
        Journal.open(path)


def test_a_check_that_fails_by_itself_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, failing = tmp_path / "j", tmp_path / "python"
    Journal.open(path).close()
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(JournalError, match=f"cannot verify the journal in {path}: .* exit code 3") as refused:
        Journal.open(path)
    assert not isinstance(refused.value, JournalDamaged)


READ_ALL = """
import json
try:
    journal = Journal.open(path, create=False)
    reader, seq, good, gone = journal.reader(), 1, [], []
    restored = journal.load()
    while seq <= restored.last_seq:
        block, seq = reader.next_block(seq, lambda topic: True)
        if isinstance(block, Block):
            good += [[row.seq, row.ts_us, row.topic, row.payload.decode()] for row in rows_of(block)]
        elif block is not None:
            gone.append([block.first_seq, block.last_seq])
    print(json.dumps({"first": restored.first_seq, "last": restored.last_seq, "good": good, "gone": gone,
                      "groups": len(restored.groups)}))
except JournalError as error:
    print(json.dumps({"refused": str(error)}))
"""


@pytest.mark.usefixtures("small_chunks")
def test_any_flipped_bit_is_harmless_or_told_or_refused(tmp_path: Path) -> None:
    """Single bits all over the file. A process that dies is the one outcome that is not an answer, but not a lie."""
    rng, path, pen = seeded("bit flips"), tmp_path / "j", Pen()
    journal = Journal.open(path)
    for i in range(12):
        topics = [rng.choice(["a.b", "a.c", "b.c"]) for _ in range(rng.randint(1, 6))]
        journal.commit([pen.block(topics, size=rng.choice([10, 800])), pen.block(count=3), GROUP._replace(cursor=i)])
    written = [[row.seq, row.ts_us, row.topic, row.payload.decode()] for row in rows_in(journal)]
    journal.close()
    size = (path / "data.mdb").stat().st_size
    outcomes = []
    for i in range(16):
        copy = tmp_path / f"copy{i}"
        copy.mkdir()
        shutil.copy(path / "data.mdb", copy)
        flip(copy, rng.randrange(2 * 4096, size), 1 << rng.randrange(8))
        outcomes.append(read_all(copy, written, pen.seq - 1))
    assert set(outcomes) <= {"whole", "told", "refused", "died"}
    assert outcomes.count("died") <= 2


def read_all(path: Path, written: list[list[object]], last_seq: int) -> str:
    child = start_python(READ_ALL, path)
    out, err = child.communicate()
    if child.returncode < 0:
        return "died"
    assert child.returncode == 0, err
    said = json.loads(out)
    if "refused" in said:
        return "refused"
    gone = {seq for first, last in said["gone"] for seq in range(first, last + 1)}
    assert said["good"] == [row for row in written if row[0] not in gone]
    assert (said["first"], said["last"], said["groups"]) == (1, last_seq, 1)
    return "told" if gone else "whole"
