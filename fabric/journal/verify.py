"""Walking a journal: does every row match its checksum, and do the rows fit together?

Blocks must follow one another without a gap, times must not decrease, summaries must say what the blocks say. Reads
are short transactions, so a running hub is not disturbed; what it appends or trims meanwhile is no finding.

A damaged file can make LMDB abort the whole process. `verify_in_child` therefore does the walk in a process of its
own: if that dies, its death is the finding. The hub starts with such a walk over the tail of its journal.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.block import glance, stamp_of
from fabric.errors import BlockError, JournalDamaged, JournalError
from fabric.journal import records
from fabric.journal.chunks import Chunk, OpenChunk
from fabric.journal.environment import Reading, Tables, lmdb_errors, open_environment, open_tables
from fabric.journal.reader import Found, check_block, seek
from fabric.journal.records import key_seq, seq_key

Progress = Callable[[int, int], None]  # (seqs walked, seqs in all)

TAIL_BLOCKS: Final = 256  # what a crash could have touched, and more
STEP_BLOCKS: Final = 64  # blocks for each read transaction,
STEP_BYTES: Final = 16 << 20  # or bytes
EXIT_DAMAGED: Final = 9


class Finding(NamedTuple):
    """Something is wrong. The seqs are 0 where it is not about messages."""

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


def verify(path: Path, *, tail_only: bool = False, progress: Progress | None = None) -> Report:
    """Walk a journal in this process."""
    environment = open_environment(path, readonly=True)
    with closing(environment), lmdb_errors(f"cannot read the journal in {path}"):
        return _Walk(environment, open_tables(environment), progress).run(tail_only)


class _Walk:
    def __init__(self, environment: lmdb.Environment, tables: Tables, progress: Progress | None) -> None:
        self._environment = environment
        self._tables = tables
        self._progress = progress
        self._findings: list[Finding] = []
        self._blocks = self._messages = self._bytes = self._chunks = 0
        self._first_seq: int | None = None
        self._next_seq = 0  # where the next block must begin; 0: anywhere
        self._last_ts_us = 0
        self._chunk: Chunk | None = None  # the stored summary of the blocks being walked,
        self._walked = OpenChunk(0)  # and what they really hold
        self._bad_chunks_stop = 0

    def run(self, tail_only: bool) -> Report:
        with self._environment.begin(buffers=True) as txn:
            self._meta(txn)
            groups = self._rows(txn, "groups", records.decode_group)
            producers = self._rows(txn, "producers", records.decode_producer)
            seq, last_seq = self._extent(txn, tail_only)
        first_seq = seq
        while seq <= last_seq:
            with self._environment.begin(buffers=True) as txn:
                seq = self._step(txn, seq)
            if self._progress is not None:
                self._progress(min(seq, last_seq + 1) - first_seq, last_seq - first_seq + 1)
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
        )

    def _find(self, table: str, first_seq: int, last_seq: int, why: str) -> None:
        self._findings.append(Finding(table, first_seq, last_seq, why))

    def _meta(self, txn: Reading) -> None:
        for key, decode in ((records.FORMAT_KEY, records.decode_format), (records.META_KEY, records.decode_meta)):
            row = txn.get(key, db=self._tables.meta)
            try:
                if row is None:
                    raise JournalDamaged("it is missing")
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

    def _extent(self, txn: Reading, tail_only: bool) -> tuple[int, int]:
        """The first seq to walk and the last one."""
        cursor = txn.cursor(self._tables.blocks)
        if not cursor.last():
            return 1, 0
        last_seq = key_seq(cursor.key())
        try:
            last_seq = stamp_of(cursor.value()).last_seq
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
        """What lies below was removed by retention."""
        row = txn.get(records.META_KEY, db=self._tables.meta)
        try:
            return records.decode_meta(row).first_seq if row is not None else 0
        except JournalDamaged:
            return 0

    def _step(self, txn: Reading, seq: int) -> int:
        """Walk some blocks; returns where to go on."""
        cursor = txn.cursor(self._tables.blocks)
        if 0 < self._next_seq < (floor := self._floor(txn)):  # retention has been here since the last step
            self._next_seq = floor
            seq = max(seq, floor)
        if not cursor.set_range(seq_key(seq)):
            return records.SEQ_MAX
        size, more = 0, True
        for _ in range(STEP_BLOCKS):
            base, raw = key_seq(cursor.key()), bytes(cursor.value())
            more = cursor.next()
            self._block(txn, base, key_seq(cursor.key()) - 1 if more else None, raw)
            size += len(raw)
            if not more or size > STEP_BYTES:
                break
        return key_seq(cursor.key()) if more else records.SEQ_MAX

    def _block(self, txn: Reading, base: int, end: int | None, raw: bytes) -> None:
        """One block; `end` is the seq before the next one, where there is a next one."""
        if self._first_seq is None:
            self._first_seq = base
        if 0 < self._next_seq < base:
            self._find("blocks", self._next_seq, base - 1, "the block is missing")
        block = check_block(raw, base)
        if isinstance(block, str) or (end is not None and block.last_seq > end):
            last_seq = end if end is not None else base
            self._find("blocks", base, last_seq, block if isinstance(block, str) else "it runs into the next block")
            found = Found(base, last_seq, self._last_ts_us, len(raw), None)
        else:
            found = Found(base, block.last_seq, block.ts_us, len(raw), glance(raw)[1])
            if block.ts_us < self._last_ts_us:
                self._find("blocks", base, block.last_seq, "it is older than the block before")
        self._next_seq, self._last_ts_us = found.last_seq + 1, found.ts_us
        self._blocks += 1
        self._messages += found.last_seq - base + 1
        self._bytes += len(raw)
        self._compare(txn, found)

    def _compare(self, txn: Reading, found: Found) -> None:
        """Hold the blocks of a chunk against its summary once all of them were seen."""
        if self._chunk is None or found.base_seq > self._chunk.last_seq:
            self._chunk, self._walked = self._summary(txn, found.base_seq), OpenChunk(found.base_seq)
        if self._chunk is None:
            return
        self._walked.add(*found)
        if found.last_seq < self._chunk.last_seq:
            return
        self._chunks += 1
        is_whole = self._walked.first_seq == self._chunk.first_seq
        is_sound = all(entry.topics is not None for entry in self._walked.entries)
        if is_whole and is_sound and Chunk.of(self._walked) != self._chunk:
            self._find("chunks", self._chunk.first_seq, self._chunk.last_seq, "the summary does not fit its blocks")

    def _summary(self, txn: Reading, seq: int) -> Chunk | None:
        """The stored summary that covers a block; None when it is damaged, or when the chunk is still open."""
        cursor = txn.cursor(self._tables.chunks)
        why, first_seq = "", seq
        if seek(cursor, seq):
            try:
                chunk = Chunk.decode(cursor.key(), cursor.value())
                if chunk.first_seq <= seq <= chunk.last_seq:
                    return chunk
            except JournalDamaged as error:
                why, first_seq = str(error), key_seq(cursor.key())
        if cursor.set_range(seq_key(seq + 1)):  # a later chunk is closed, so this one should be
            why, stop = why or "the summary is missing", key_seq(cursor.key())
        else:
            stop = first_seq + 1
        if why and stop > self._bad_chunks_stop:  # said once, not for each of its blocks
            self._find("chunks", first_seq, stop - 1, why)
            self._bad_chunks_stop = stop
        return None


def verify_in_child(path: Path, *, tail_only: bool = False, progress: Progress | None = None) -> Report:
    """Walk a journal in a child process, because a damaged one may kill whoever reads it."""
    roots = [str(Path(__file__).parents[2]), *filter(None, sys.path)]  # what this process can import, the child can
    command = [
        sys.executable,
        "-P",
        "-S",
        "-m",
        "fabric.journal.verify",
        str(path.resolve()),
        "tail" if tail_only else "all",
    ]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(roots))
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    report, walked = None, 0
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        for line in child.stdout:
            kind, *values = json.loads(line)
            if kind == "report":
                report = Report(*values)
                report = report._replace(findings=tuple(Finding(*f) for f in report.findings))
            elif progress is not None:
                walked = values[0]
                progress(*values)
        said = child.stderr.read().strip().splitlines()
    if child.returncode < 0:
        raise JournalDamaged(
            f"reading the journal in {path} kills the process (signal {-child.returncode}), {walked} messages in",
            "restore a backup with 'fabric journal restore'",
        )
    if report is None:
        raise _error_from(child.returncode, said[-1] if said else f"the check ended with {child.returncode}")
    return report


def _error_from(code: int, said: str) -> JournalError:
    text, _, hint = said.partition("\t")
    return JournalDamaged(text, hint) if code == EXIT_DAMAGED else JournalError(text, hint)


def main(arguments: list[str]) -> int:
    """The child: one JSON array for each line, progress first and the report last."""

    def progress(done: int, total: int) -> None:
        print(json.dumps(["progress", done, total]), flush=True)

    path, extent = arguments
    try:
        report = verify(Path(path), tail_only=extent == "tail", progress=progress)
    except JournalError as error:
        print(f"{error}\t{error.hint}", file=sys.stderr)
        return EXIT_DAMAGED if isinstance(error, JournalDamaged) else 1
    print(json.dumps(["report", *report]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
