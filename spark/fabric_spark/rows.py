"""From a piece of a file to checked blocks: short transactions, bytes copied out, and every seq accounted for.

A seq of the piece is in a block, in a hole that retention of its topic has left, or it is an error: what a query
returns is everything, or the query fails and names the seqs. Nothing of LMDB outlives a step, and the environment
lives no longer than the task: Spark forks its workers, and an environment must not be carried across a fork.
"""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.errors import JournalDamaged
from fabric.journal.environment import STEP_BYTES, Cursor, lmdb_errors, open_environment, open_tables, seek
from fabric.journal.rows import META_KEY, decode_meta, key_seq, unseal
from fabric.journal.tables.holes import span_of
from fabric.journal.tables.origins import decode_origin, origin_rows
from fabric.snapshot.shards import BLOCKS, EVENTS, open_shard, origins_table
from fabric_protocol.block import HEAD_BYTES, Block, Stamp
from fabric_protocol.errors import BlockError
from fabric_protocol.origin import Origin
from fabric_spark import remote
from fabric_spark.errors import SourceError

STEP_ROWS: Final = 20_000  # rows read in one transaction
_DAMAGED: Final = "read another snapshot, or set failOnDataLoss=false to leave them out"
_DAMAGED_ORIGIN: Final = "read another snapshot, or set failOnDataLoss=false to read null in its place"
_TRIMMED: Final = "start later, set the option pin, or set failOnDataLoss=false to read what is left"

Span = tuple[int, int]


class Piece(NamedTuple):
    """Seqs first..last (or numbers of events) in one file: what a task reads."""

    file: str
    is_live: bool
    first: int
    last: int
    lost: tuple[Span, ...] = ()
    sha256: str = ""
    size: int = 0


class Rules(NamedTuple):
    """How a piece is read."""

    start_us: int | None = None
    end_us: int | None = None
    verify: bool = True
    fail_on_data_loss: bool = True
    cache: str = ""
    with_origins: bool = False  # a query that wants none does not look for them


class _Opened(NamedTuple):
    environment: lmdb.Environment
    table: "lmdb._Database | None"  # None: a journal of an old format has no such table
    meta: "lmdb._Database | None"  # of a live journal
    origins: "lmdb._Database | None" = None  # None: no block is foreign, or none of the columns is wanted


def _open(piece: Piece, table: bytes, rules: Rules) -> _Opened:
    if piece.is_live:
        environment = open_environment(Path(piece.file), readonly=True)
        try:
            tables = open_tables(environment)
        except BaseException:
            environment.close()
            raise
        rows = tables.blocks if table == BLOCKS else tables.events
        return _Opened(environment, rows, tables.meta, tables.origins if rules.with_origins else None)
    path = Path(piece.file)
    if remote.is_remote(piece.file):
        path = remote.local_copy(piece.file, piece.sha256, piece.size, rules.cache)
    size = path.stat().st_size if path.exists() else -1
    if size != piece.size:
        what = f"{path} has {size} bytes, not {piece.size}" if size >= 0 else f"there is no {path}"
        raise SourceError(what, "the snapshot must be whole, and at the same path for every executor")
    environment = open_shard(path)
    try:
        with lmdb_errors(f"cannot read the shard {path}"):
            origins = origins_table(environment) if rules.with_origins else None
            return _Opened(environment, environment.open_db(table, create=False), None, origins)
    except BaseException:
        environment.close()
        raise


class BlockWalk:
    """Goes through the blocks of a piece; each step is one transaction."""

    def __init__(self, piece: Piece, rules: Rules) -> None:
        self._piece = piece
        self._rules = rules
        self._seq = piece.first  # what comes next
        self._first_seq = 0  # where the journal begins by now

    def __iter__(self) -> Iterator[Block]:
        piece = self._piece
        for first, last in piece.lost:
            if first <= piece.last and last >= piece.first:
                self._lose(f"seqs {first}..{last} were damaged or missing when {piece.file} was made", _DAMAGED)
        opened = _open(piece, BLOCKS, self._rules)
        with closing(opened.environment), lmdb_errors(f"cannot read {piece.file}"):
            assert opened.table is not None
            more = True
            while more and self._seq <= piece.last:
                with opened.environment.begin(buffers=True) as txn:
                    if opened.meta is not None and (row := txn.get(META_KEY, db=opened.meta)) is not None:
                        self._first_seq = decode_meta(row).first_seq
                    found, more = self._step(txn.cursor(opened.table))
                    born: dict[int, bytes] = {}
                    if found and opened.origins is not None:
                        born = dict(origin_rows(txn, opened.origins, found[0][0].base_seq, found[-1][0].base_seq))
                for stamp, raw in found:
                    if (block := self._checked(stamp, raw)) is not None:
                        if stamp.base_seq in born:
                            block.origin = self._origin(stamp, born[stamp.base_seq])
                        yield block
        self._reach(piece.last + 1)

    def _step(self, cursor: Cursor) -> tuple[list[tuple[Stamp, bytes]], bool]:
        """The next blocks, as they are, and whether there may be more."""
        found: list[tuple[Stamp, bytes]] = []
        size, rows, last = 0, 0, self._piece.last
        more = seek(cursor, self._seq) or cursor.first()
        while more and size < STEP_BYTES and rows < STEP_ROWS and (base := key_seq(cursor.key())) <= last:
            raw = cursor.value()
            rows += 1
            try:
                stamp = span_of(base, raw)
                if stamp.base_seq != base:
                    raise BlockError(f"the row holds the block of seq {stamp.base_seq}")
            except BlockError as error:
                more = cursor.next()
                self._damaged(base, key_seq(cursor.key()) - 1 if more else last, str(error))
                continue
            if stamp.last_seq >= self._seq:
                self._reach(base)
                self._seq = stamp.last_seq + 1
                if len(raw) >= HEAD_BYTES and self._is_in_time(stamp.ts_us):  # what is shorter is a hole
                    found.append((stamp, bytes(raw)))
                    size += len(raw)
            more = cursor.next()
        return found, more and self._seq <= last

    def _is_in_time(self, ts_us: int) -> bool:
        start_us, end_us = self._rules.start_us, self._rules.end_us
        return (start_us is None or ts_us >= start_us) and (end_us is None or ts_us < end_us)

    def _checked(self, stamp: Stamp, raw: bytes) -> Block | None:
        """The block, after a check of its body."""
        try:
            block = Block(raw)
            if self._rules.verify:
                block.verify_body()
        except BlockError as error:
            self._damaged(stamp.base_seq, stamp.last_seq, str(error))
            return None
        return block

    def _origin(self, stamp: Stamp, row: bytes) -> Origin | None:
        """The origin of a block; None if it is damaged, and that is no error."""
        try:
            return decode_origin(stamp.base_seq, row)
        except JournalDamaged:
            what = f"the origin of seqs {stamp.base_seq}..{stamp.last_seq} of {self._piece.file} is damaged"
            self._lose(what, _DAMAGED_ORIGIN)
            return None

    def _reach(self, seq: int) -> None:
        """What comes next begins at `seq`: whatever lies between is missing, or was lost before."""
        first, last = self._seq, seq - 1
        if last < first:
            return
        self._seq = seq
        if first < self._first_seq:
            self._lose(
                f"seqs {first}..{min(last, self._first_seq - 1)} of {self._piece.file} were removed by retention"
                " while the query ran",
                _TRIMMED,
            )
        elif not any(start <= first and last <= end for start, end in self._piece.lost):
            self._lose(f"seqs {first}..{last} of {self._piece.file} are missing", _DAMAGED)

    def _damaged(self, first: int, last: int, why: str) -> None:
        self._reach(first)
        self._seq = max(self._seq, last + 1)
        self._lose(f"seqs {first}..{last} of {self._piece.file} are damaged: {why}", _DAMAGED)

    def _lose(self, what: str, hint: str) -> None:
        lose(what, hint, self._rules)


def lose(what: str, hint: str, rules: Rules) -> None:
    """Raise, or report on stderr which seqs are left out."""
    if rules.fail_on_data_loss:
        raise SourceError(what, hint)
    print(f"fabric: {what}; left out, as failOnDataLoss is false", file=sys.stderr)


def event_blocks(piece: Piece, rules: Rules) -> Iterator[tuple[int, bytes]]:
    """(number of its first event, bytes) of blocks of events; empty bytes for a damaged block."""
    opened = _open(piece, EVENTS, rules)
    with closing(opened.environment), lmdb_errors(f"cannot read {piece.file}"):
        number, more = piece.first, opened.table is not None
        while more:
            found: list[tuple[int, bytes]] = []
            size = 0
            with opened.environment.begin(buffers=True) as txn:
                cursor = txn.cursor(opened.table)
                more = seek(cursor, number) or cursor.first()
                if more and number > piece.first and key_seq(cursor.key()) < number:
                    more = cursor.next()
                while more and size < STEP_BYTES and (first := key_seq(cursor.key())) <= piece.last:
                    found.append((first, _unsealed(piece, cursor)))
                    size += len(found[-1][1])
                    number = first + 1
                    more = cursor.next()
                more = more and size >= STEP_BYTES
            yield from found


def _unsealed(piece: Piece, cursor: Cursor) -> bytes:
    if not piece.is_live:
        return bytes(cursor.value())
    try:
        return bytes(unseal(cursor.key(), cursor.value()))
    except JournalDamaged:
        return b""
