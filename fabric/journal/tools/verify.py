"""Verifies a journal: each row against its checksum, and the rows against each other.

Blocks and holes must be consecutive, times must not decrease, summaries must name the topics of their blocks. Read
transactions are short, so a running hub is not disturbed; blocks that it appends or removes meanwhile are no findings.

A damaged file can make LMDB abort the process. So `verify_in_child` verifies in a child process: if LMDB kills the
child, that is the finding. A hub verifies the tail of its journal in this way before it opens the journal.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.errors import JournalDamaged, JournalError
from fabric.journal import rows as records
from fabric.journal.blocks import Found, check_block
from fabric.journal.environment import (
    STEP_BYTES,
    Reading,
    Tables,
    existing,
    lmdb_errors,
    open_environment,
    open_tables,
    read_meta,
    seek,
)
from fabric.journal.rows import key_seq, seq_key, unseal
from fabric.journal.tables.chunks import Chunk, OpenChunk
from fabric.journal.tables.holes import Hole, hole_at, hole_of, span_of
from fabric.journal.tools.child_check import ChildEnded, Tell, in_child
from fabric_protocol.block import glance
from fabric_protocol.errors import BlockError

Progress = Callable[[int, int], None]  # (verified seqs, all seqs)

TAIL_BLOCKS: Final = 256  # more than the blocks that a crash can damage
STEP_BLOCKS: Final = 64  # blocks for each read transaction, or STEP_BYTES
STEP_EVENTS: Final = 1_000  # blocks of events for each read transaction
# Tables with checks of their own; of the other tables only the checksums are verified.
_WALKED: Final = ("meta", "blocks", "chunks", "groups", "producers", "events")
# Skipped when a hub starts: they may have gigabytes, and each row is verified when it is read.
_LARGE: Final = ("ids", "origins")


class Finding(NamedTuple):
    """A damaged row or missing messages. The seqs are 0 when no messages are affected."""

    table: str
    first_seq: int
    last_seq: int
    why: str


class Report(NamedTuple):
    first_seq: int
    last_seq: int
    blocks: int
    messages: int
    data_bytes: int
    chunks: int
    groups: int
    producers: int
    findings: tuple[Finding, ...]
    removed: int = 0  # messages in holes: removed by retention of single topics
    failures: int = 0
    topics: int = 0
    schedule: int = 0
    schedule_ids: int = 0
    ids: int = 0
    events: int = 0
    settings: int = 0
    origins: int = 0


def verify(path: Path, *, tail_only: bool = False, progress: Progress | None = None) -> Report:
    """Verify a journal in this process."""
    environment = open_environment(path, readonly=True)
    with closing(environment), lmdb_errors(f"cannot read the journal in {path}"):
        return _Walk(environment, open_tables(environment), progress).run(tail_only)


class _Walk:
    def __init__(self, environment: lmdb.Environment, tables: Tables, progress: Progress | None) -> None:
        self._environment = environment
        self._tables = tables
        self._progress = progress
        self._findings: list[Finding] = []
        self._blocks = self._messages = self._bytes = self._chunks = self._removed = 0
        self._first_seq: int | None = None
        self._next_seq = 0  # the first seq that the next block must have; 0: any
        self._last_ts_us = 0
        self._chunk: Chunk | None = None  # the stored summary of the present blocks,
        self._walked = OpenChunk(0)  # and the summary made from these blocks
        self._holed = False  # some of these blocks are in holes
        self._bad_chunks_stop = 0

    def run(self, tail_only: bool) -> Report:
        with self._environment.begin(buffers=True) as txn:
            self._meta(txn)
            groups = self._rows(txn, "groups", records.decode_group)
            producers = self._rows(txn, "producers", records.decode_producer)
            skipped = _WALKED + _LARGE if tail_only else _WALKED
            others = {name: self._rows(txn, name, unseal) for name in existing(self._tables) if name not in skipped}
            seq, last_seq = self._extent(txn, tail_only)
        events = 0 if tail_only or "events" not in existing(self._tables) else self._events()
        first_seq = seq
        while seq <= last_seq:
            with self._environment.begin(buffers=True) as txn:
                seq = self._step(txn, seq)
            if self._progress is not None:
                self._progress(min(seq, last_seq + 1) - first_seq, last_seq - first_seq + 1)
        if self._chunk is not None and self._chunk.last_seq < last_seq:
            self._end_chunk(self._chunk)
        return Report(
            first_seq=self._first_seq if self._first_seq is not None else last_seq + 1,
            last_seq=last_seq,
            blocks=self._blocks,
            messages=self._messages,
            data_bytes=self._bytes,
            chunks=self._chunks,
            groups=groups,
            producers=producers,
            findings=tuple(self._findings),
            removed=self._removed,
            events=events,
            **others,
        )

    def _find(self, table: str, first_seq: int, last_seq: int, why: str) -> None:
        self._findings.append(Finding(table, first_seq, last_seq, why))

    def _meta(self, txn: Reading) -> None:
        for key, decode in ((records.FORMAT_KEY, records.decode_format), (records.META_KEY, records.decode_meta)):
            row = txn.get(key, db=self._tables.meta)
            try:
                if row is None:
                    raise JournalDamaged("the row is missing")
                decode(row)
            except JournalDamaged as error:
                self._find("meta", 0, 0, f"{key.decode()}: {error}")

    def _rows(self, txn: Reading, table: str, decode: Callable[[memoryview, memoryview], object]) -> int:
        count = 0
        for key, row in txn.cursor(getattr(self._tables, table)):
            count += 1
            try:
                decode(key, row)
            except JournalDamaged as error:
                self._find(table, 0, 0, str(error))
        return count

    def _events(self) -> int:
        """Verify the blocks of delivery events, in steps, because there may be very many; returns their number."""
        from fabric.event_block import columns as check_events  # late: the check at the start of a hub skips events

        count, number = 0, 0
        while True:
            with self._environment.begin(buffers=True) as txn:
                cursor = txn.cursor(self._tables.events)
                more = cursor.set_range(seq_key(number))
                for _ in range(STEP_EVENTS):
                    if not more:
                        return count
                    count, number = count + 1, key_seq(cursor.key()) + 1
                    try:
                        check_events(unseal(cursor.key(), cursor.value()))
                    except (JournalDamaged, BlockError) as error:
                        self._find("events", 0, 0, f"the block of event {number - 1}: {error}")
                    more = cursor.next()

    def _extent(self, txn: Reading, tail_only: bool) -> tuple[int, int]:
        """The first seq and the last seq to verify."""
        cursor = txn.cursor(self._tables.blocks)
        if not cursor.last():
            return 1, 0
        last_seq = key_seq(cursor.key())
        try:
            last_seq = span_of(last_seq, cursor.value()).last_seq
        except BlockError as error:
            self._find("blocks", last_seq, last_seq, f"the last block: {error}")
        if tail_only:
            for _ in range(TAIL_BLOCKS - 1):
                if not cursor.prev():
                    cursor.first()
                    break
        else:
            cursor.first()
            self._next_seq = self._floor(txn)
        return key_seq(cursor.key()), last_seq

    def _floor(self, txn: Reading) -> int:
        """The first seq of the journal: retention has removed the blocks below."""
        try:
            return read_meta(txn, self._tables).first_seq
        except JournalDamaged:
            return 0

    def _step(self, txn: Reading, seq: int) -> int:
        """Verify some blocks; returns the seq at which to go on."""
        cursor = txn.cursor(self._tables.blocks)
        if 0 < self._next_seq < (floor := self._floor(txn)):  # retention has removed blocks since the last step
            self._next_seq = floor
            seq = max(seq, floor)
        swallowed = self._next_seq > 0 and hole_at(cursor, self._next_seq) is not None  # since the last step
        if not swallowed and not cursor.set_range(seq_key(seq)):
            return records.SEQ_MAX
        size, more = 0, True
        for _ in range(STEP_BLOCKS):
            base, raw = key_seq(cursor.key()), bytes(cursor.value())
            more = cursor.next()
            end = key_seq(cursor.key()) - 1 if more else None
            hole = hole_of(base, raw)
            if hole is not None:
                self._hole(hole, end)
            else:
                self._block(txn, base, end, raw)
            size += len(raw)
            if not more or size > STEP_BYTES:
                break
        return key_seq(cursor.key()) if more else records.SEQ_MAX

    def _hole(self, hole: Hole, end: int | None) -> None:
        first_seq = max(hole.first_seq, self._next_seq)  # the hole may have grown since the last step
        if self._first_seq is None:
            self._first_seq = hole.first_seq
        if 0 < self._next_seq < hole.first_seq:
            self._find("blocks", self._next_seq, hole.first_seq - 1, "the block is missing")
        if end is None or hole.last_seq > end:
            why = "the journal ends with a hole" if end is None else "the hole overlaps the next block"
            self._find("blocks", first_seq, hole.last_seq, why)
        if hole.ts_us < self._last_ts_us:
            self._find("blocks", first_seq, hole.last_seq, "the hole is older than the block before it")
        self._removed += hole.last_seq - first_seq + 1
        self._holed = self._chunk is not None
        self._next_seq, self._last_ts_us = hole.last_seq + 1, hole.ts_us

    def _block(self, txn: Reading, base: int, end: int | None, raw: bytes) -> None:
        """Verify a block; `end` is the seq before the next block, None for the last block."""
        if self._first_seq is None:
            self._first_seq = base
        if 0 < self._next_seq < base:
            self._find("blocks", self._next_seq, base - 1, "the block is missing")
        block = check_block(raw, base)
        if isinstance(block, str) or (end is not None and block.last_seq > end):
            last_seq = end if end is not None else base
            why = block if isinstance(block, str) else "the block overlaps the next block"
            self._find("blocks", base, last_seq, why)
            found = Found(base, last_seq, self._last_ts_us, len(raw), None)
        else:
            found = Found(base, block.last_seq, block.ts_us, len(raw), glance(raw)[1])
            if block.ts_us < self._last_ts_us:
                self._find("blocks", base, block.last_seq, "the block is older than the block before it")
        self._next_seq, self._last_ts_us = found.last_seq + 1, found.ts_us
        self._blocks += 1
        self._messages += found.last_seq - base + 1
        self._bytes += len(raw)
        self._compare(txn, found)

    def _compare(self, txn: Reading, found: Found) -> None:
        """Compare the blocks of a chunk with its summary, after the last of these blocks."""
        if self._chunk is not None and found.base_seq > self._chunk.last_seq:  # its last block is in a hole
            self._end_chunk(self._chunk)
        if self._chunk is None:
            self._chunk, self._walked = self._summary(txn, found.base_seq), OpenChunk(found.base_seq)
        if self._chunk is None:
            return
        self._walked.add(*found)
        if found.last_seq >= self._chunk.last_seq:
            self._end_chunk(self._chunk)

    def _end_chunk(self, chunk: Chunk) -> None:
        walked, holed, self._chunk, self._holed = self._walked, self._holed, None, False
        self._chunks += 1
        if any(entry.topics is None for entry in walked.entries):
            return
        if walked.first_seq == chunk.first_seq and not holed:
            fits = Chunk.of(walked) == chunk
        else:  # some blocks are in holes, or were not read: the summary must fit the others
            fits = all(
                chunk.range_of(place := chunk.place_of(entry.base_seq)) == (entry.base_seq, entry.last_seq)
                and chunk.names_at(place) == {walked.names[number] for number in entry.topics or ()}
                for entry in walked.entries
            )
        if not fits:
            self._find("chunks", chunk.first_seq, chunk.last_seq, "the summary does not fit its blocks")

    def _summary(self, txn: Reading, seq: int) -> Chunk | None:
        """The stored summary of the chunk of a block; None when it is damaged, or when the chunk is open."""
        cursor = txn.cursor(self._tables.chunks)
        why, first_seq = "", seq
        if seek(cursor, seq):
            try:
                chunk = Chunk.decode(cursor.key(), cursor.value())
                if chunk.first_seq <= seq <= chunk.last_seq:
                    return chunk
            except JournalDamaged as error:
                why, first_seq = str(error), key_seq(cursor.key())
        if cursor.set_range(seq_key(seq + 1)):  # a later chunk is closed, so this chunk must be closed too
            why, stop = why or "the summary is missing", key_seq(cursor.key())
        else:
            stop = first_seq + 1
        if why and stop > self._bad_chunks_stop:  # found once, not for each block
            self._find("chunks", first_seq, stop - 1, why)
            self._bad_chunks_stop = stop
        return None


def verify_in_child(path: Path, *, tail_only: bool = False, progress: Progress | None = None) -> Report:
    """Verify a journal in a child process, because a damaged journal may kill the process that reads it."""
    walked = 0
    try:
        for kind, *values in in_child(check, str(path.resolve()), tail_only):
            match kind:
                case "progress":
                    walked = values[0]
                    if progress is not None:
                        progress(*values)
                case "error":
                    is_damaged, text, hint = values
                    raise JournalDamaged(text, hint) if is_damaged else JournalError(text, hint)
                case "report":
                    report = Report(*values)
                    return report._replace(findings=tuple(Finding(*f) for f in report.findings))
    except ChildEnded as ended:
        if ended.code < 0:
            raise JournalDamaged(
                f"reading the journal in {path} kills the process (signal {-ended.code}), {walked} messages in",
                "restore a backup with 'fabric journal restore'",
            ) from ended
        raise JournalError(f"cannot verify the journal in {path}: {ended}", "look at what it has printed") from ended
    raise AssertionError("a check that ends well tells its report")


def check(tell: Tell, path: str, tail_only: bool) -> None:
    """The child's side of `verify_in_child`: tells progress, then the report or the error."""
    try:
        report = verify(Path(path), tail_only=tail_only, progress=lambda *counts: tell("progress", *counts))
    except JournalError as error:
        tell("error", isinstance(error, JournalDamaged), str(error), error.hint)
    else:
        tell("report", *report)
