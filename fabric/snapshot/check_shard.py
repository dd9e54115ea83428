"""Checks a shard: the file against the manifest, and the rows against each other.

The quick check reads the heads of blocks: their CRC, order, seqs and times, and the origins. The full check reads all
bytes: also the file's sha256 and the CRC of each body.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.errors import JournalDamaged
from fabric.event_block import Extent, columns, extent_of
from fabric.journal.blocks import check_block
from fabric.journal.environment import Reading, lmdb_errors
from fabric.journal.rows import SEQ_MAX, key_seq, seq_key
from fabric.journal.tables.holes import hole_of
from fabric.journal.tables.origins import decode_origin, origin_rows
from fabric.snapshot.manifest import EventShard, Shard, Span, problem_with
from fabric.snapshot.shards import BLOCKS, EVENTS, open_shard, origins_table
from fabric_protocol.block import Stamp, stamp_of
from fabric_protocol.errors import BlockError, FabricError

TELL_BLOCKS: Final = 4096  # blocks between two reports of progress
KNOWN: Final = "damaged or missing in the journal when the snapshot was taken"


class Finding(NamedTuple):
    """A defect of a shard. The seqs, or numbers of events, are 0 when no single messages are affected."""

    file: str
    first_seq: int
    last_seq: int
    why: str


Tell = Callable[[int], None]  # called with the seq, or the number of an event, that was checked last


def walk(folder: Path, shard: Shard | EventShard, quick: bool, tell: Tell) -> list[Finding]:
    """The findings in a shard. A damaged file may kill the process: see `verify`."""
    problem = problem_with(folder, shard)
    first, last = (shard.first_seq, shard.last_seq) if isinstance(shard, Shard) else (shard.first, shard.last)
    if problem:
        return [Finding(shard.file, first, last, problem.removeprefix(f"{shard.file} "))]
    findings = [] if quick else _digest(folder, shard)
    try:
        with closing(open_shard(folder / shard.file)) as environment, lmdb_errors(f"cannot read {shard.file}"):
            table = environment.open_db(BLOCKS if isinstance(shard, Shard) else EVENTS, create=False)
            origins = origins_table(environment) if isinstance(shard, Shard) else None
            with environment.begin(buffers=True) as txn:
                rows = ((key_seq(key), value) for key, value in txn.cursor(table))
                if isinstance(shard, Shard):
                    found = _Blocks(shard, quick).run(rows, tell) + _origins(shard, txn, table, origins)
                else:
                    found = _events(shard, quick, rows, tell)
    except FabricError as error:
        found = [(first, last, str(error))]
    return findings + [Finding(shard.file, *one) for one in found]


def _digest(folder: Path, shard: Shard | EventShard) -> list[Finding]:
    with (folder / shard.file).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return [] if found == shard.sha256 else [Finding(shard.file, 0, 0, "the file does not match its sha256")]


Problem = tuple[int, int, str]
Rows = Iterator[tuple[int, memoryview]]


class _Blocks:
    """Checks the rows of a shard of messages."""

    def __init__(self, shard: Shard, quick: bool) -> None:
        self._shard = shard
        self._quick = quick
        self._next = shard.first_seq
        self._last_ts_us = 0
        self._bad: tuple[int, str] | None = None  # the damaged block before: it ends where the next block begins
        self._blocks = self._messages = 0
        self._holes: list[Span] = []
        self._found: list[Problem] = []

    def run(self, rows: Rows, tell: Tell) -> list[Problem]:
        for base, raw in rows:
            self._row(base, raw)
            if not self._blocks % TELL_BLOCKS:
                tell(base)
        self._reach(self._shard.last_seq + 1)
        if self._next > self._shard.last_seq + 1:
            self._found.append((self._shard.last_seq + 1, self._next - 1, "these do not belong into the shard"))
        known = [(first, last, KNOWN) for first, last in self._shard.lost]
        new = [problem for problem in self._found if not _covered(problem, self._shard.lost)]
        return known + (new or self._sums())

    def _row(self, base: int, raw: memoryview) -> None:
        self._reach(base)
        if base < self._next:
            self._found.append((base, self._next - 1, "the block overlaps the next block"))
        hole = hole_of(base, raw)
        if hole is not None:
            self._holes.append((base, hole.last_seq))
            stamp = Stamp(*hole)
        else:
            self._blocks += 1
            checked = self._check(base, raw)
            if isinstance(checked, str):
                self._bad, self._next = (base, checked), base + 1
                return
            stamp = checked
            self._messages += stamp.last_seq - base + 1
        if stamp.ts_us < self._last_ts_us:
            self._found.append((base, stamp.last_seq, "it is older than the block before"))
        self._next, self._last_ts_us = stamp.last_seq + 1, stamp.ts_us

    def _check(self, base: int, raw: memoryview) -> Stamp | str:
        if not self._quick:
            block = check_block(raw, base)
            return block if isinstance(block, str) else Stamp(block.base_seq, block.last_seq, block.ts_us)
        try:
            stamp = stamp_of(raw)
        except BlockError as error:
            return str(error)
        return stamp if stamp.base_seq == base else f"the row of seq {base} holds the block of seq {stamp.base_seq}"

    def _reach(self, base: int) -> None:
        """Check that the rows before `base` leave no gap."""
        if self._bad is not None:
            first, why = self._bad
            self._found.append((first, max(base - 1, first), why))
            self._bad, self._next = None, max(base, first + 1)
        elif self._next < base:
            self._found.append((self._next, base - 1, "the block is missing"))
            self._next = base

    def _sums(self) -> list[Problem]:
        """Compare the sums over all rows with the manifest."""
        shard = self._shard
        said = (shard.blocks, shard.holes) if self._quick and shard.lost else (shard.blocks, shard.holes, shard.rows)
        seen = (self._blocks, tuple(self._holes), self._messages)
        if seen[: len(said)] != said:
            return [
                (
                    0,
                    0,
                    f"it has {seen[0]} blocks, {seen[2]} messages and {len(seen[1])} holes, other than in the manifest",
                )
            ]
        return []


def _origins(shard: Shard, txn: Reading, blocks: "lmdb._Database", origins: "lmdb._Database | None") -> list[Problem]:
    """Check that each origin is readable, belongs to a block, and is counted in the manifest."""
    found: list[Problem] = []
    count = 0
    for base, row in origin_rows(txn, origins, 0, SEQ_MAX):
        count += 1
        block = txn.get(seq_key(base), db=blocks)
        if block is None or hole_of(base, block) is not None:
            found.append((base, base, "it has an origin, and no block begins there"))
            continue
        try:
            decode_origin(base, row)
        except JournalDamaged:
            found.append((base, base, "the origin of the block that begins there is damaged"))
    if not found and count != shard.origins:
        found.append((0, 0, f"it has {count} origins, and {shard.origins} in the manifest"))
    return found


def _covered(problem: Problem, spans: tuple[Span, ...]) -> bool:
    return any(first <= problem[0] and problem[1] <= last for first, last in spans)


def _events(shard: EventShard, quick: bool, rows: Rows, tell: Tell) -> list[Problem]:
    found: list[Problem] = []
    number, count, blocks = shard.first, 0, 0
    for first, raw in rows:
        blocks += 1
        try:
            extent = extent_of(raw) if quick else _event_extent(raw)
        except BlockError as error:
            found.append((first, first, str(error)))
            continue
        if extent.first != first or first < number:
            found.append((first, extent.last, f"the row of event {first} holds the block of event {extent.first}"))
        number, count = extent.last + 1, count + extent.last - extent.first + 1
        if not blocks % TELL_BLOCKS:
            tell(first)
    if not found and (blocks, count) != (shard.blocks, shard.rows):
        found.append((0, 0, f"it has {blocks} blocks and {count} events, not {shard.blocks} and {shard.rows}"))
    return found


def _event_extent(raw: memoryview) -> Extent:
    columns(raw)
    return extent_of(raw)
