"""The end of a journal: its last seq and time, and the open chunk, which has no summary yet."""

from contextlib import suppress
from typing import NamedTuple

from fabric.errors import JournalDamaged
from fabric.journal.blocks import blocks_from
from fabric.journal.environment import RESTORE_HINT, Reading, Tables
from fabric.journal.rows import SEQ_MAX, key_seq
from fabric.journal.tables.chunks import Chunk, OpenChunk
from fabric_protocol.block import stamp_of
from fabric_protocol.errors import BlockError


class End(NamedTuple):
    open_chunk: OpenChunk
    filled: list[OpenChunk]  # full chunks without a summary: it was lost
    last_ts_us: int


def find_end(txn: Reading, tables: Tables) -> End:
    """The time of the last block, and the open chunk, rebuilt from its blocks."""
    blocks = txn.cursor(tables.blocks)
    if not blocks.last():
        return End(OpenChunk(1), [], 0)
    try:
        base_seq, last_seq, last_ts_us = stamp_of(blocks.value())
    except BlockError as error:
        raise JournalDamaged(f"the last block of the journal is damaged: {error}", RESTORE_HINT) from error
    if base_seq != key_seq(blocks.key()):
        raise JournalDamaged("the last row of the journal holds the block of another seq", RESTORE_HINT)
    filled, chunk = [], OpenChunk(_open_seq(txn, tables))
    for found in blocks_from(txn, tables, chunk.first_seq, last_seq + 1, limit=SEQ_MAX):
        if found.topics == [] and not chunk.entries:  # a hole needs no summary
            chunk = OpenChunk(found.last_seq + 1)
            continue
        chunk.add(*found)
        if chunk.is_full:
            filled.append(chunk)
            chunk = OpenChunk(found.last_seq + 1)
    chunk.publish()
    return End(chunk, filled, last_ts_us)


def _open_seq(txn: Reading, tables: Tables) -> int:
    """The seq after the last good summary: the blocks from there on belong to no closed chunk."""
    for key, row in txn.cursor(tables.chunks).iterprev():
        with suppress(JournalDamaged):
            return Chunk.decode(key, row).last_seq + 1
    blocks = txn.cursor(tables.blocks)
    return key_seq(blocks.key()) if blocks.first() else 1
