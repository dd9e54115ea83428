"""The table of origins: written and removed with the blocks, copied by a backup, and missing in older journals."""

from contextlib import closing
from pathlib import Path

import lmdb

from fabric.journal.environment import Tables, existing, open_environment, open_tables
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.journal.tools.backup import backup, restore
from fabric.journal.tools.verify import verify
from fabric.records import Append, Discard, SaveOrigin
from fabric_protocol.block import Block, encode
from fabric_protocol.origin import Origin

BORN = Origin(b"j" * 16, 3, 700, 1_600_000_000_000_000)


def written(path: Path, count: int = 10, limits: Limits | None = None) -> Journal:
    """A journal of blocks of two messages; each second block is foreign."""
    journal = Journal.open(path, limits or Limits())
    for n in range(count):
        base = journal.last_seq + 1
        block = Block(encode("a", [b"x", b"y"])).stamped(base, 1_000_000 * (n + 1))
        foreign = [SaveOrigin(base, BORN.shifted(2 * n))] if n % 2 else []
        journal.commit([Append(block.raw), *foreign])
    return journal


def bases(path: Path) -> list[int]:
    with closing(open_environment(path, readonly=True)) as environment:
        tables = open_tables(environment)
        with environment.begin() as txn:
            return [int.from_bytes(key, "big") for key, _ in txn.cursor(tables.origins)]


def origins(journal: Journal) -> list[Origin | None]:
    reader = journal.reader()
    found = [reader.block_at(seq) for seq in range(journal.first_seq, journal.last_seq + 1, 2)]
    return [block.origin for block in found if isinstance(block, Block)]


def test_a_block_is_read_with_its_origin(tmp_path: Path) -> None:
    with closing(written(tmp_path / "j", 4)) as journal:
        assert origins(journal) == [None, BORN.shifted(2), None, BORN.shifted(6)]
        block, _ = journal.reader().next_block(3, lambda topic: True)
        assert isinstance(block, Block)
        assert block.origin == BORN.shifted(2)
        assert journal.stats().origins == 2
    with closing(Journal.open(tmp_path / "j")) as journal:
        assert origins(journal) == [None, BORN.shifted(2), None, BORN.shifted(6)]


def test_retention_of_the_journal_removes_the_rows_of_removed_blocks(tmp_path: Path) -> None:
    journal = written(tmp_path / "j", 10, Limits(max_messages=6))
    while journal.trim_step(10_000_000):
        pass
    assert journal.first_seq == 15
    journal.close()
    assert bases(tmp_path / "j") == [15, 19]


def test_retention_of_topics_removes_the_rows_of_removed_blocks(tmp_path: Path) -> None:
    journal = written(tmp_path / "j", 6)
    journal.commit([Discard((3, 5))])
    journal.close()
    assert bases(tmp_path / "j") == [7, 11]


def test_a_backup_has_the_origins(tmp_path: Path) -> None:
    written(tmp_path / "j").close()
    backup(tmp_path / "j", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    assert bases(tmp_path / "restored") == bases(tmp_path / "j") == [3, 7, 11, 15, 19]


def test_verify_finds_a_damaged_origin_and_the_block_is_read_without_it(tmp_path: Path) -> None:
    written(tmp_path / "j", 4).close()
    assert not verify(tmp_path / "j").findings
    with closing(open_environment(tmp_path / "j")) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as txn:
            txn.put(seq_key(3), b"damaged row", db=tables.origins)
    assert any("origins" in str(finding) for finding in verify(tmp_path / "j").findings)
    with closing(Journal.open(tmp_path / "j")) as journal:
        assert origins(journal) == [None, None, None, BORN.shifted(6)]


def test_a_journal_of_an_older_program_has_no_origins(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 4).close()
    with lmdb.open(str(path), max_dbs=len(Tables._fields), map_size=1 << 30) as environment:
        table = environment.open_db(b"origins")
        with environment.begin(write=True) as txn:
            txn.drop(table)
    with closing(open_environment(path, readonly=True)) as environment:
        assert "origins" not in existing(open_tables(environment))
    assert not verify(path).findings
    with closing(Journal.open(path)) as journal:
        assert origins(journal) == [None] * 4
        base = journal.last_seq + 1
        raw = Block(encode("a", [b"x"])).stamped(base, 9_000_000).raw
        journal.commit([Append(raw), SaveOrigin(base, BORN)])
    assert bases(path) == [9]
