"""The contents of a snapshot, and ways to damage it."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import lmdb

from fabric.event_block import Event, rows
from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.records import SaveGroup
from fabric.snapshot import Manifest, iterate_blocks, iterate_events, load, open_shard
from fabric_protocol.block import Block
from tests.journal.sample import Pen, Row, rows_in, rows_of

SHARD: Final = 1 << 16  # the smallest there may be: eight blocks of `pen_blocks`


def pen_blocks(pen: Pen, n: int, topics: str = "a.b") -> list[Any]:
    """Blocks of five messages, some six kilobytes each."""
    return list(pen.blocks(n, topics, count=5, size=1200))


def fill(path: Path, pen: Pen, blocks: int = 35, *more: Any) -> list[Row]:
    """A journal with so many blocks more; all its messages."""
    journal = Journal.open(path)
    journal.commit([*pen_blocks(pen, blocks), *more])
    found = rows_in(journal)
    journal.close()
    return found


def commit(path: Path, *records: Any) -> None:
    journal = Journal.open(path)
    journal.commit(records)
    journal.close()


def content(path: Path) -> list[Row]:
    """Every message of a snapshot, in the order of its shards."""
    found: list[Row] = []
    for shard in load(path).shards:
        with closing(open_shard(path / shard.file)) as environment:
            for base, raw in iterate_blocks(environment, shard.first_seq, shard.last_seq):
                block = Block(raw)
                block.verify_body()
                assert block.base_seq == base
                found += rows_of(block)
    return found


def events_in(path: Path) -> list[Event]:
    found: list[Event] = []
    for shard in load(path).events:
        with closing(open_shard(path / shard.file)) as environment:
            for _, raw in iterate_events(environment):
                found += rows(raw)
    return found


def inodes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (path / "shards").iterdir()}


def rewrite(path: Path, change: Any) -> None:
    """Change the manifest as JSON."""
    file = path / "manifest.json"
    fields = json.loads(file.read_bytes())
    change(fields)
    file.write_text(json.dumps(fields))


def damage_block(path: Path, manifest: Manifest, seq: int, at: int = -20) -> str:
    """Flip a bit in the block that begins at a seq; the file that it is in."""
    (shard,) = (shard for shard in manifest.shards if shard.first_seq <= seq <= shard.last_seq)
    with closing(open_shard(path / shard.file)) as environment:
        raw = dict(iterate_blocks(environment))[seq]
    file = path / shard.file
    data = bytearray(file.read_bytes())
    place = data.index(raw)
    data[place + at % len(raw)] ^= 1
    file.write_bytes(data)
    return shard.file


def delete_row(path: Path, file: str, seq: int) -> None:
    """Take a row out of a shard, as LMDB does it."""
    environment = lmdb.open(str(path / file), subdir=False, lock=False, max_dbs=1, map_size=1 << 26, lib_version=0)
    with closing(environment), environment.begin(write=True) as txn:
        assert txn.delete(seq_key(seq), db=environment.open_db(b"blocks", txn))


def groups_of(path: Path) -> tuple[SaveGroup, ...]:
    journal = Journal.open(path)
    groups = journal.load().groups
    journal.close()
    return groups
