"""A snapshot has the origins of its blocks, in the shards of the blocks; other shards have no table of origins."""

from contextlib import closing
from pathlib import Path
from typing import Any

import lmdb
import pytest

from fabric.errors import JournalDamaged
from fabric.journal.environment import open_environment, open_tables
from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.records import Append, Discard, SaveOrigin
from fabric.snapshot import create, iterate_origins, load, open_shard, verify
from fabric.snapshot.shards import ORIGINS, origins_table
from fabric_protocol.block import Block, encode
from fabric_protocol.origin import Origin
from tests.snapshot.sample import SHARD, commit, inodes, rewrite

BORN = Origin(b"j" * 16, 3, 700, 1_600_000_000_000_000)
LOCAL = 20  # blocks at the start that are not foreign


def fill(path: Path, blocks: int, *, local: int = LOCAL) -> dict[int, Origin]:
    """Add blocks of two messages and some six kilobytes; behind `local` blocks, each second block is foreign."""
    written = {}
    with closing(Journal.open(path)) as journal:
        for n in range(blocks):
            base = journal.last_seq + 1
            block = Block(encode("a", [b"x" * 3000] * 2)).stamped(base, 1_000_000 * (base + 1))
            records: list[Append | SaveOrigin] = [Append(block.raw)]
            if n >= local and n % 2:
                written[base] = BORN.shifted(base)
                records.append(SaveOrigin(base, written[base]))
            journal.commit(records)
    return written


def origins(path: Path) -> dict[int, Origin]:
    found: dict[int, Origin] = {}
    for shard in load(path).shards:
        with closing(open_shard(path / shard.file)) as environment:
            own = dict(iterate_origins(environment))
        assert len(own) == shard.origins
        assert all(shard.first_seq <= base <= shard.last_seq for base in own)
        found |= own
    return found


def change(path: Path, file: str, base: int, row: bytes | None) -> None:
    """Write or remove a row of table `origins`, and leave the size of the file in the manifest as it is then."""
    options: dict[str, Any] = {"subdir": False, "lock": False, "max_dbs": 2, "map_size": 1 << 26, "lib_version": 0}
    with closing(lmdb.open(str(path / file), **options)) as environment:
        table = environment.open_db(ORIGINS)
        with environment.begin(write=True) as txn:
            done = txn.put(seq_key(base), row, db=table) if row is not None else txn.delete(seq_key(base), db=table)
            assert done
    size = (path / file).stat().st_size

    def sizes(fields: dict[str, Any]) -> None:
        for shard in fields["shards"]:
            if shard["file"] == file:
                fields["bytes"] += size - shard["bytes"]
                shard["bytes"] = size

    rewrite(path, sizes)


def test_a_snapshot_has_the_origins_of_its_blocks(tmp_path: Path) -> None:
    written = fill(tmp_path / "j", 60)
    manifest = create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD)
    assert origins(tmp_path / "s") == written
    assert len(written) == 20
    assert len(manifest.shards) > 3
    assert verify(tmp_path / "s").findings == ()


def test_a_shard_without_a_foreign_block_has_no_table_of_origins(tmp_path: Path) -> None:
    fill(tmp_path / "j", 60)
    first, *_, last = create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD).shards
    for shard, count in ((first, 0), (last, last.origins)):
        assert shard.origins == count
        with closing(open_shard(tmp_path / "s" / shard.file)) as environment:
            assert (origins_table(environment) is None) is (count == 0)
    assert last.origins


def test_the_next_snapshot_links_shards_with_origins(tmp_path: Path) -> None:
    written = fill(tmp_path / "j", 60)
    create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD)
    before = inodes(tmp_path / "s")
    written |= fill(tmp_path / "j", 10, local=0)
    later = create(tmp_path / "j", tmp_path / "t", tmp_path / "s", shard_bytes=SHARD)
    closed = [Path(shard.file).name for shard in later.shards if shard.closed]
    kept = [name for name in closed if inodes(tmp_path / "t")[name] == before.get(name)]
    assert len(kept) >= 3
    assert origins(tmp_path / "t") == written
    assert verify(tmp_path / "t").findings == ()


def test_a_shard_of_an_older_program_is_read_and_written_anew(tmp_path: Path) -> None:
    """An older program copies the blocks only: its snapshot is sound, and its shards are not linked."""
    written = fill(tmp_path / "j", 60)
    with closing(open_environment(tmp_path / "j")) as environment:
        tables = open_tables(environment)
        with environment.begin(write=True) as txn:
            txn.drop(tables.origins, delete=False)
    create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD)
    commit(tmp_path / "j", *(SaveOrigin(base, born) for base, born in written.items()))
    rewrite(tmp_path / "s", lambda fields: [shard.pop("origins") for shard in fields["shards"]])
    assert origins(tmp_path / "s") == {}
    assert verify(tmp_path / "s").findings == ()
    create(tmp_path / "j", tmp_path / "t", tmp_path / "s", shard_bytes=SHARD)
    assert origins(tmp_path / "t") == written
    first, second = load(tmp_path / "s").shards[0], load(tmp_path / "t").shards[0]
    assert first == second  # no block of it is foreign: it is linked


def test_origins_of_removed_blocks_are_not_copied(tmp_path: Path) -> None:
    written = fill(tmp_path / "j", 30, local=0)
    create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD)
    commit(tmp_path / "j", Discard((3, 7, 11)))
    create(tmp_path / "j", tmp_path / "t", tmp_path / "s", shard_bytes=SHARD)
    assert origins(tmp_path / "t") == {base: born for base, born in written.items() if base > 11}
    assert verify(tmp_path / "t").findings == ()


@pytest.mark.parametrize(
    ("base", "row", "why"),
    [
        (103, b"damaged row", "the origin of the block that begins there is damaged"),
        (104, b"any row", "it has an origin, and no block begins there"),
        (103, None, " origins, and "),
    ],
)
def test_verify_finds_damaged_stray_and_missing_origins(tmp_path: Path, base: int, row: bytes | None, why: str) -> None:
    written = fill(tmp_path / "j", 60)
    assert 103 in written
    manifest = create(tmp_path / "j", tmp_path / "s", shard_bytes=SHARD)
    (shard,) = (shard for shard in manifest.shards if shard.first_seq <= base <= shard.last_seq)
    change(tmp_path / "s", shard.file, base, row)
    (finding,) = verify(tmp_path / "s", quick=True).findings
    assert finding.file == shard.file
    assert why in finding.why
    if row == b"damaged row":
        assert finding[1:3] == (base, base)
        with closing(open_shard(tmp_path / "s" / shard.file)) as environment, pytest.raises(JournalDamaged):
            dict(iterate_origins(environment))
