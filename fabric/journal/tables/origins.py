"""Origins: for each block that another journal had first, where it was born.

    origins    base_seq of the block -> journal uuid, epoch, seq, time there

The row is written in the transaction of its block and removed with it. A journal of an older program has no such table,
and no foreign block.
"""

from collections.abc import Iterator

import lmdb

from fabric.errors import JournalDamaged
from fabric.journal.environment import Reading, Tables, Writing, put_row
from fabric.journal.rows import key_seq, seq_key, unpack, unseal
from fabric.records import SaveOrigin
from fabric_protocol.origin import Origin, read_origin


def put_origin(txn: Writing, tables: Tables, record: SaveOrigin) -> None:
    put_row(txn, tables.origins, seq_key(record.base_seq), list(record.origin))


def origin_at(txn: Reading, tables: Tables, base_seq: int) -> Origin | None:
    """The origin of the block that begins at base_seq; None for a block that was published here, or if its row is
    damaged, which `fabric journal verify` reports."""
    if tables.origins is None:
        return None
    row = txn.get(seq_key(base_seq), db=tables.origins)
    if row is None:
        return None
    try:
        return decode_origin(base_seq, row)
    except JournalDamaged:
        return None


def decode_origin(base_seq: int, row: bytes | memoryview) -> Origin:
    """The origin in the row of a block. Raises JournalDamaged."""
    try:
        return read_origin(unpack(unseal(seq_key(base_seq), row)))
    except ValueError as error:
        raise JournalDamaged(f"the origin of the block at seq {base_seq} is not one: {error}") from error


def origin_rows(txn: Reading, table: "lmdb._Database | None", first: int, last: int) -> Iterator[tuple[int, bytes]]:
    """(base_seq, row) of the blocks from first to last that have an origin; a journal without a foreign block costs
    one look into the table."""
    if table is None:
        return
    cursor = txn.cursor(table)
    more = cursor.set_range(seq_key(first))
    while more and (base := key_seq(cursor.key())) <= last:
        yield base, bytes(cursor.value())
        more = cursor.next()


def drop_origins_below(txn: "Reading | Writing", tables: Tables, seq: int) -> None:
    """Remove the rows of blocks below seq, which were removed from the front of the journal."""
    cursor = txn.cursor(tables.origins)
    while cursor.first() and key_seq(cursor.key()) < seq:
        cursor.delete()
