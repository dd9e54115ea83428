"""Blocks on disk: found by their key and checked in full, with the holes and the damage between them."""

from collections.abc import Iterator
from typing import NamedTuple

from fabric.journal.environment import Reading, Tables, seek
from fabric.journal.rows import key_seq, seq_key
from fabric.journal.tables.chunks import BLOCKS_MAX
from fabric.journal.tables.holes import Hole, hole_at, hole_of
from fabric.journal.tables.origins import origin_at
from fabric_protocol.block import HEAD_BYTES, Block, glance
from fabric_protocol.errors import BlockError


class Damaged(NamedTuple):
    """Messages that cannot be read: their block is damaged or missing."""

    first_seq: int
    last_seq: int
    why: str


def check_block(raw: bytes | memoryview, base_seq: int) -> Block | str:
    """The block from its row, checked against its checksums and its key; or a text about the damage."""
    try:
        block = Block(bytes(raw))
        block.verify_stamp()
        block.verify_body()
    except BlockError as error:
        return str(error)
    return block if block.base_seq == base_seq else f"the row of seq {base_seq} holds the block of seq {block.base_seq}"


def load_block(txn: Reading, tables: Tables, base_seq: int, last_seq: int) -> Block | Damaged | Hole:
    """The block that holds base_seq..last_seq, or the hole that has replaced it."""
    raw = txn.get(seq_key(base_seq), db=tables.blocks)
    if (raw is None or len(raw) < HEAD_BYTES) and (hole := hole_at(txn.cursor(tables.blocks), base_seq)) is not None:
        return hole
    block = check_block(raw, base_seq) if raw is not None else "the block is missing"
    if isinstance(block, str):
        return Damaged(base_seq, last_seq, block)
    if block.last_seq != last_seq:
        return Damaged(base_seq, last_seq, f"the block ends at seq {block.last_seq}")
    block.origin = origin_at(txn, tables, base_seq)
    return block


class Found(NamedTuple):
    """A block or a hole on disk, or the seqs of a missing block."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    topics: list[bytes] | None  # None: damaged or missing; empty: a hole


def blocks_from(txn: Reading, tables: Tables, seq: int, stop: int, limit: int = BLOCKS_MAX) -> Iterator[Found]:
    """The blocks and holes that hold seq..stop-1, checked in full, without a gap between them."""
    cursor = txn.cursor(tables.blocks)
    more = seek(cursor, seq)
    if not more:  # the first blocks are missing
        more = cursor.first()
        yield Found(seq, (min(key_seq(cursor.key()), stop) if more else stop) - 1, 0, 0, None)
    while more and limit > 0 and (base := key_seq(cursor.key())) < stop:
        raw = bytes(cursor.value())
        more = cursor.next()
        end = (min(key_seq(cursor.key()), stop) if more else stop) - 1
        if (hole := hole_of(base, raw)) is not None:
            if hole.last_seq >= seq:
                yield Found(base, hole.last_seq, hole.ts_us, 0, [])
                limit -= 1
            if hole.last_seq < end:
                yield Found(max(hole.last_seq + 1, seq), end, 0, 0, None)
                limit -= 1
            continue
        block = check_block(raw, base)
        if isinstance(block, str) or block.last_seq > end:
            yield Found(base, end, 0, len(raw), None)
        else:
            yield Found(base, block.last_seq, block.ts_us, len(raw), glance(raw)[1])
            if block.last_seq < end:  # the next block is missing
                yield Found(block.last_seq + 1, end, 0, 0, None)
                limit -= 1
        limit -= 1
