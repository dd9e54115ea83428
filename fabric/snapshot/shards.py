"""Shards: single LMDB files that are written once and never change.

A shard of messages has unchanged rows of the journal's table `blocks`, with the holes, and of its table `origins`, if a
block is foreign; a shard of events has blocks of
events without the checksums of their rows, because blocks have a CRC of their own. A shard is never written to after
it got its name, so readers need no lock, and several snapshots may share the file.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

from fabric.errors import SnapshotDamaged
from fabric.event_block import extent_of
from fabric.journal.directory import FILE_MODE
from fabric.journal.environment import Reading, append_row, lmdb_errors, seek
from fabric.journal.rows import SEQ_MAX, key_seq, seq_key
from fabric.journal.tables.holes import hole_of, span_of
from fabric.journal.tables.origins import decode_origin, origin_rows
from fabric_protocol.block import HEAD_BYTES
from fabric_protocol.errors import BlockError
from fabric_protocol.origin import Origin

BLOCKS: Final = b"blocks"
EVENTS: Final = b"events"
ORIGINS: Final = b"origins"
_TABLES_MAX: Final = 2  # of one file: blocks and origins
SHARD_BYTES: Final = 128 << 20  # enough for a Spark task or two; the last shard is small enough to write again
SHARD_BYTES_MIN: Final = 1 << 16
SHARD_BYTES_MAX: Final = 4 << 30
_PAGE_BYTES: Final = 4096
_INLINE_MAX: Final = 2000  # larger values have pages of their own
_ROW_BYTES: Final = 32  # bytes of a row besides its value
_WRITE_BYTES: Final = 16 << 20  # written in one transaction, which holds them in memory
_MAP_SPARE: Final = 256 << 20  # address space is free, and a full map would cost a second attempt


def cost_of(size: int) -> int:
    """The approximate size of a value in the file."""
    if size <= _INLINE_MAX:
        return size + _ROW_BYTES
    return -(-(size + 16) // _PAGE_BYTES) * _PAGE_BYTES + _ROW_BYTES


def open_shard(file: str | os.PathLike[str]) -> lmdb.Environment:
    """Open a shard for reading. A process may have it open once; close it before a fork."""
    path = Path(file)
    try:
        size = path.stat().st_size
        return lmdb.open(
            os.fsencode(path),  # a path is not always text
            subdir=False,
            readonly=True,
            lock=False,  # the file never changes
            create=False,
            readahead=True,
            map_size=max(size, _PAGE_BYTES),
            max_dbs=_TABLES_MAX,
            max_spare_txns=1,
            lib_version=0,  # as the journal's environment
        )
    except OSError as error:
        raise SnapshotDamaged(f"cannot open the shard {path}: {error.strerror}", "copy the snapshot again") from error
    except lmdb.Error as error:
        raise SnapshotDamaged(
            f"cannot open the shard {path}: {error}", "check the snapshot with 'fabric snapshot verify'"
        ) from error


def iterate_blocks(shard: lmdb.Environment, first_seq: int = 0, last_seq: int = SEQ_MAX) -> Iterator[tuple[int, bytes]]:
    """(base seq, block) of all blocks that hold any of first..last, as they are on disk and not checked.

    Damaged ones come as well: check with `fabric.journal.reader.check_block` before you believe one. The first and the
    last may hold more than was asked for.
    """
    for base, raw in iterate_rows(shard, BLOCKS, first_seq, last_seq):
        if hole_of(base, raw) is None:
            yield base, raw


def iterate_rows(
    shard: lmdb.Environment, table: bytes = BLOCKS, first: int = 0, last: int = SEQ_MAX
) -> Iterator[tuple[int, bytes]]:
    """All rows of a table that hold any of first..last: blocks and holes, or blocks of events."""
    with lmdb_errors(f"cannot read the shard {shard.path()}"):
        database = shard.open_db(table, create=False)
        with shard.begin(buffers=True) as txn:
            cursor = txn.cursor(database)
            more = _seek_first(txn, cursor, table, first)
            while more and (base := key_seq(cursor.key())) <= last:
                yield base, bytes(cursor.value())
                more = cursor.next()


def iterate_events(shard: lmdb.Environment, first: int = 0, last: int = SEQ_MAX) -> Iterator[tuple[int, bytes]]:
    """(number of its first event, block) of all blocks of events that hold any of first..last."""
    return iterate_rows(shard, EVENTS, first, last)


def iterate_origins(
    shard: lmdb.Environment, first_seq: int = 0, last_seq: int = SEQ_MAX
) -> Iterator[tuple[int, Origin]]:
    """(base seq, origin) of the foreign blocks that begin in first..last. Raises JournalDamaged for a damaged one."""
    with lmdb_errors(f"cannot read the shard {shard.path()}"):
        table = origins_table(shard)
        with shard.begin(buffers=True) as txn:
            for base, row in origin_rows(txn, table, first_seq, last_seq):
                yield base, decode_origin(base, row)


def origins_table(shard: lmdb.Environment) -> "lmdb._Database | None":
    """The table of origins; None if no block is foreign, or an older program made the shard."""
    try:
        return shard.open_db(ORIGINS, create=False)
    except lmdb.NotFoundError:
        return None


def end_heads(shard: lmdb.Environment) -> dict[int, bytes]:
    """The heads of the first and the last block of a shard, by their base seqs."""
    heads: dict[int, bytes] = {}
    with lmdb_errors(f"cannot read the shard {shard.path()}"):
        database = shard.open_db(BLOCKS, create=False)
        with shard.begin(buffers=True) as txn:
            cursor = txn.cursor(database)
            for start, step in ((cursor.first, cursor.next), (cursor.last, cursor.prev)):
                more = start()
                while more and hole_of(key_seq(cursor.key()), cursor.value()) is not None:
                    more = step()
                if more:
                    heads[key_seq(cursor.key())] = bytes(cursor.value()[:HEAD_BYTES])
    return heads


def _seek_first(txn: Reading, cursor: "lmdb.Cursor[memoryview]", table: bytes, first: int) -> bool:
    """Move to the row that holds `first`, or else to the first row after it."""
    if not seek(cursor, first):
        return cursor.first()
    base = key_seq(cursor.key())
    try:
        end = span_of(base, cursor.value()).last_seq if table == BLOCKS else extent_of(cursor.value()).last
    except BlockError:  # the caller gets the damaged row
        return True
    return True if end >= first else cursor.next()


class ShardWriter:
    """Writes a shard under a temporary name: its final name contains its seqs and checksum."""

    _origins: "lmdb._Database | None" = None  # made for the first foreign block

    def __init__(self, path: Path, table: bytes, shard_bytes: int) -> None:
        self.path = path
        self._shard_bytes = shard_bytes
        self._cost = 0
        self._waiting: list[tuple[int, bytes, bytes]] = []
        self._waiting_bytes = 0
        path.unlink(missing_ok=True)
        with lmdb_errors(f"cannot write {path}"):
            self._environment = lmdb.open(
                os.fsencode(path),
                subdir=False,
                lock=False,  # no other process opens it
                map_size=2 * shard_bytes + _MAP_SPARE,
                sync=False,  # synced once, by `finish`
                metasync=False,
                writemap=False,  # with a writable map, a full disk is SIGBUS
                meminit=True,
                mode=FILE_MODE,
                max_dbs=_TABLES_MAX,
                lib_version=0,
            )
            self._table = self._environment.open_db(table)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file, unless it was renamed."""
        self._environment.close()
        self.path.unlink(missing_ok=True)

    @property
    def is_full(self) -> bool:
        return self._cost >= self._shard_bytes

    def add(self, number: int, value: bytes, origin: bytes = b"") -> None:
        """Add a row at the end, and its row of table `origins`."""
        self._waiting.append((number, value, origin))
        self._waiting_bytes += len(value)
        self._cost += cost_of(len(value)) + (cost_of(len(origin)) if origin else 0)
        if self._waiting_bytes >= _WRITE_BYTES:
            self._write()

    def finish(self) -> tuple[int, str]:
        """Sync the file; returns its size and its sha256."""
        self._write()
        self._environment.close()
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()

    def _write(self) -> None:
        rows, self._waiting, self._waiting_bytes = self._waiting, [], 0
        with lmdb_errors(f"cannot write {self.path}"):
            try:
                self._put(rows)
            except lmdb.MapFullError:  # a `whole` shard may be larger than planned
                self._environment.set_mapsize(2 * self._environment.info()["map_size"])
                self._put(rows)

    def _put(self, rows: list[tuple[int, bytes, bytes]]) -> None:
        foreign = [(number, origin) for number, _, origin in rows if origin]
        if foreign and self._origins is None:
            self._origins = self._environment.open_db(ORIGINS)
        with self._environment.begin(write=True) as txn:
            for number, value, _ in rows:
                append_row(txn, seq_key(number), value, self._table)
            for number, origin in foreign:
                assert self._origins is not None
                append_row(txn, seq_key(number), origin, self._origins)
