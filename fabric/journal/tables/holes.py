"""Holes: rows in place of blocks that retention of single topics has removed while older blocks stay.

A hole says which seqs it covers, so that removed messages differ from lost ones: seqs without a row are damage, seqs in
a hole are not. Adjacent holes are joined into one row; otherwise the rows of a queue that has had a billion messages
would fill the disk. Retention removes a hole at the front of the journal. No hole is at the end: the last block always
stays.

The summary of a chunk still names blocks that are in holes, because a reader that follows it finds the hole. The
summary is removed when its whole chunk is in one hole.

    row   "HOLE" | last_seq u64 | last_ts_us i64 | checksum
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from fabric.errors import JournalDamaged
from fabric.journal.environment import Cursor, Tables, Writing, seek
from fabric.journal.rows import key_seq, seal, seq_key, unseal
from fabric.journal.tables.chunks import extent_of
from fabric_protocol.block import Stamp, stamp_of
from fabric_protocol.errors import BlockError

_ROW: Final = struct.Struct("<4sQq")
_MAGIC: Final = b"HOLE"
_ROW_BYTES: Final = _ROW.size + 4


class Hole(NamedTuple):
    first_seq: int
    last_seq: int
    ts_us: int  # of the last removed message

    def encode(self) -> tuple[bytes, bytes]:
        key = seq_key(self.first_seq)
        return key, seal(key, _ROW.pack(_MAGIC, self.last_seq, self.ts_us))


def hole_of(base_seq: int, raw: bytes | memoryview) -> Hole | None:
    """The hole in this row of table `blocks`; None when the row is no hole."""
    if len(raw) != _ROW_BYTES or bytes(raw[:4]) != _MAGIC:
        return None
    try:
        _, last_seq, ts_us = _ROW.unpack(unseal(seq_key(base_seq), raw))
    except JournalDamaged:
        return None
    return Hole(base_seq, last_seq, ts_us) if last_seq >= base_seq else None


def hole_at(cursor: Cursor, seq: int) -> Hole | None:
    """The hole that covers seq, or None."""
    if not seek(cursor, seq):
        return None
    hole = hole_of(key_seq(cursor.key()), cursor.value())
    return hole if hole is not None and hole.last_seq >= seq else None


def span_of(base_seq: int, raw: bytes | memoryview) -> Stamp:
    """First and last seq and the time of the block or hole in this row; BlockError when the row is neither."""
    hole = hole_of(base_seq, raw)
    return Stamp(*hole) if hole is not None else stamp_of(raw)


def last_seq_of(base_seq: int, raw: bytes | memoryview) -> int:
    """The last seq of the block or hole in this row; its first seq when the row is damaged."""
    try:
        return span_of(base_seq, raw).last_seq
    except BlockError:
        return base_seq


def make_holes(txn: Writing, tables: Tables, bases: Iterable[int]) -> int:
    """Replace blocks by holes; returns the number of removed messages.

    Missing blocks, damaged blocks and the last block are left as they are: damage must stay visible.
    """
    cursor = txn.cursor(tables.blocks)
    if not cursor.last():
        return 0
    removed, last_base = 0, key_seq(cursor.key())
    for base in bases:
        if base >= last_base or not cursor.set_key(seq_key(base)):
            continue
        raw = cursor.value()
        try:
            stamp = stamp_of(raw)
        except BlockError:  # damaged, or a hole
            continue
        if stamp.base_seq != base:
            continue
        removed += stamp.last_seq - base + 1
        txn.delete(seq_key(base), db=tables.origins)
        _drop_summary(txn, tables, _widen(txn, tables, Hole(*stamp)), base)
    return removed


def _widen(txn: Writing, tables: Tables, hole: Hole) -> Hole:
    """Write a hole in place of its block, joined with the holes on both sides."""
    cursor = txn.cursor(tables.blocks)
    cursor.set_key(seq_key(hole.first_seq))
    after = hole_of(key_seq(cursor.key()), cursor.value()) if cursor.next() else None
    if after is not None and after.first_seq == hole.last_seq + 1:
        txn.delete(seq_key(after.first_seq), db=tables.blocks)
        hole = Hole(hole.first_seq, after.last_seq, after.ts_us)
    cursor.set_key(seq_key(hole.first_seq))
    before = hole_of(key_seq(cursor.key()), cursor.value()) if cursor.prev() else None
    if before is not None and before.last_seq + 1 == hole.first_seq:
        txn.delete(seq_key(hole.first_seq), db=tables.blocks)
        hole = Hole(before.first_seq, hole.last_seq, hole.ts_us)
    txn.put(*hole.encode(), db=tables.blocks)
    return hole


def _drop_summary(txn: Writing, tables: Tables, hole: Hole, seq: int) -> None:
    """Remove the summary of the chunk that holds seq, if the hole covers that chunk."""
    cursor = txn.cursor(tables.chunks)
    if seek(cursor, seq):
        first_seq, last_seq = extent_of(cursor.value())
        if first_seq == key_seq(cursor.key()) and hole.first_seq <= first_seq <= last_seq <= hole.last_seq:
            txn.delete(seq_key(first_seq), db=tables.chunks)


def count_removed(txn: Writing, tables: Tables) -> int:
    """The number of messages in all holes. Reads every row."""
    holes = (hole_of(key_seq(key), raw) for key, raw in txn.cursor(tables.blocks))
    return sum(hole.last_seq - hole.first_seq + 1 for hole in holes if hole is not None)
