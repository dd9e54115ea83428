"""Copies of a journal: backup, restore, compact.

A backup may be taken while the hub runs. Blocks and delivery events never change, they are only removed; so they are
copied in many short read transactions, and only the last transaction reads the end of the blocks and all other tables
at the same moment. Restore and compact replace a journal, so they need a stopped hub. They verify the new journal
before one rename replaces the old one.

A restored journal has a new epoch, because its next sequence numbers may already belong to messages that the backup
does not have.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import lmdb.verify

from fabric.errors import JournalDamaged, JournalError
from fabric.journal.directory import DATA_FILE, LockFile, has_data, make_directory, require_local, scratch, swap
from fabric.journal.environment import (
    STEP_BYTES,
    Cursor,
    Reading,
    Tables,
    Writing,
    append_row,
    existing,
    lmdb_errors,
    open_environment,
    open_tables,
    put_meta,
    read_meta,
    seek,
)
from fabric.journal.rows import Meta, key_seq, seq_key
from fabric.journal.tables.holes import Hole, count_removed, hole_of, last_seq_of
from fabric.journal.tools.stats import collect
from fabric.journal.tools.verify import Finding, Progress, Report, verify_in_child

RESTARTS_MAX: Final = 10  # times that retention may overtake a backup
REPLACED_FILE: Final = "data.mdb.replaced"


def backup(source: Path, target: Path, progress: Progress | None = None) -> Report:
    """Copy a journal to a new directory; its hub may run. Damaged blocks are copied unchanged, and reported."""
    if has_data(target):
        raise JournalError(f"there is a journal in {target} already", "choose a new directory for each backup")
    partial = target.with_name(target.name + ".partial")
    with scratch(partial), lmdb_errors(f"cannot copy the journal in {source}"):
        with closing(open_environment(source, readonly=True)) as reading, closing(open_environment(partial)) as writing:
            _Copy(reading, writing, open_tables(reading), open_tables(writing, create=True), progress).run()
        report = verify_in_child(partial)
        make_directory(target)
        swap(partial, target)
    return report


class Restoration(NamedTuple):
    report: Report
    epoch: int
    replaced: Path | None  # the data file of the replaced journal


def restore(
    source: Path,
    target: Path,
    *,
    replace: bool = False,
    accept_damage: bool = False,
    allow_network_fs: bool = False,
    progress: Progress | None = None,
) -> Restoration:
    """Replace a journal by a verified copy of a backup, in a new epoch."""
    if has_data(target) and not replace:
        raise JournalError(f"there is a journal in {target} already", "confirm with --yes that it may be replaced")
    if not has_data(source):
        raise JournalError(f"there is no journal in {source}", "check the path of the backup")
    make_directory(target)
    if not allow_network_fs:
        require_local(target)
    with (
        _locked(source),
        _locked(target),
        scratch(target / "restoring") as partial,
        lmdb_errors(f"cannot restore {source}"),
    ):
        report = _require_sound(source, progress, accept_damage)
        with closing(open_environment(source, readonly=True)) as environment:
            environment.copy(os.fsencode(partial), compact=True)  # type: ignore[arg-type]  # it takes bytes
        before = _meta_in(target) if has_data(target) else None
        with closing(open_environment(partial)) as environment:
            tables = open_tables(environment, upgrade=True)
            with environment.begin(write=True) as txn:
                meta = read_meta(txn, tables)
                epoch = max(meta.epoch, before.epoch if before else 0) + 1
                put_meta(txn, tables, meta._replace(epoch=epoch, clean=True, last_seq=report.last_seq))
        _require_same(report, verify_in_child(partial))
        replaced = _keep_old(target)
        swap(partial, target)
    return Restoration(report, epoch, replaced)


class Compaction(NamedTuple):
    report: Report
    before_bytes: int
    after_bytes: int


def compact(path: Path, progress: Progress | None = None) -> Compaction:
    """Rewrite a stopped journal without its free pages: LMDB never makes its file smaller."""
    if not has_data(path):
        raise JournalError(f"there is no journal in {path}", "check the path")
    with _locked(path), scratch(path / "compacting") as partial, lmdb_errors(f"cannot compact {path}"):
        report = _require_sound(path, progress, accept_damage=False)
        with closing(open_environment(path, readonly=True)) as environment:
            stats = collect(path, environment, open_tables(environment))
            if stats.disk_free_bytes < stats.data_bytes:
                raise JournalError(
                    f"a compact copy needs {stats.data_bytes} bytes and the disk has {stats.disk_free_bytes}",
                    "make room, or back up to another disk and restore from there",
                )
            environment.copy(os.fsencode(partial), compact=True)  # type: ignore[arg-type]  # it takes bytes
        _require_same(report, verify_in_child(partial))
        after_bytes = (partial / DATA_FILE).stat().st_size
        swap(partial, path)
    return Compaction(report, stats.file_bytes, after_bytes)


class _Copy:
    """Copies rows unchanged, in steps, while the hub may append and remove blocks."""

    def __init__(
        self,
        reading: lmdb.Environment,
        writing: lmdb.Environment,
        source: Tables,
        target: Tables,
        progress: Progress | None,
    ) -> None:
        self._reading = reading
        self._writing = writing
        self._source = source
        self._target = target
        self._progress = progress
        self._next_seq = self._next_chunk = self._next_event = self._first_seq = 0
        self._restarts = 0

    def run(self) -> None:
        with self._reading.begin(buffers=True) as txn:
            cursor = txn.cursor(self._source.blocks)
            goal = key_seq(cursor.key()) if cursor.last() else 0
            self._first_seq = key_seq(cursor.key()) if cursor.first() else 0
        done = False
        while not done:
            # Above the goal a step has no bound: otherwise a busy hub could keep a backup running for ever.
            budget = STEP_BYTES if self._next_seq <= goal else None
            with self._reading.begin(buffers=True) as reading, self._writing.begin(write=True) as writing:
                done = self._step(reading, writing, budget)
            if self._progress is not None:
                done_seqs = min(max(self._next_seq - self._first_seq, 0), goal - self._first_seq + 1)
                self._progress(done_seqs, goal - self._first_seq + 1)

    def _step(self, reading: Reading, writing: Writing, budget: int | None) -> bool:
        """Copy blocks, summaries and events up to a budget; True when all were copied, and the other tables too."""
        cursor = reading.cursor(self._source.blocks)
        if self._next_seq and cursor.first() and key_seq(cursor.key()) > self._next_seq:
            self._restart(writing)  # retention has removed blocks that were not copied yet
        size = self._copy_hole(cursor, writing)
        more = cursor.set_range(seq_key(self._next_seq))
        while more and (budget is None or size < budget):
            key, raw = cursor.item()
            append_row(writing, key, raw, self._target.blocks)
            size += len(raw)
            self._next_seq = last_seq_of(key_seq(key), raw) + 1
            more = cursor.next()
        chunks = reading.cursor(self._source.chunks)
        found = chunks.set_range(seq_key(self._next_chunk))
        while found and (first_seq := key_seq(chunks.key())) < self._next_seq:
            append_row(writing, chunks.key(), chunks.value(), self._target.chunks)
            self._next_chunk = first_seq + 1
            found = chunks.next()
        more = self._copy_events(reading, writing, None if budget is None else budget - size) or more
        if more:
            return False
        for name, table in existing(self._source).items():
            if name not in ("blocks", "chunks", "events"):
                for key, row in reading.cursor(table):
                    writing.put(key, row, db=getattr(self._target, name))
        copied = writing.cursor(self._target.blocks)
        if copied.first():  # the copy may have older blocks and fewer holes than the journal has now
            meta = read_meta(writing, self._target)
            removed = count_removed(writing, self._target) if meta.removed else 0
            meta = meta._replace(first_seq=min(meta.first_seq, key_seq(copied.key())), removed=removed)
            put_meta(writing, self._target, meta)
        return True

    def _copy_hole(self, cursor: Cursor, writing: Writing) -> int:
        """Copy the rest of a hole that has replaced blocks which were not copied yet."""
        if not self._next_seq or not seek(cursor, self._next_seq):
            return 0
        hole = hole_of(key_seq(cursor.key()), cursor.value())
        if hole is None or hole.last_seq < self._next_seq or hole.first_seq == self._next_seq:
            return 0
        append_row(writing, *Hole(self._next_seq, hole.last_seq, hole.ts_us).encode(), self._target.blocks)
        self._next_seq = hole.last_seq + 1
        return 1

    def _copy_events(self, reading: Reading, writing: Writing, budget: int | None) -> bool:
        """Copy delivery events up to a budget; True when there are more."""
        if "events" not in existing(self._source):
            return False
        cursor, size = reading.cursor(self._source.events), 0
        more = cursor.set_range(seq_key(self._next_event))
        while more and (budget is None or size < budget):
            key, row = cursor.item()
            append_row(writing, key, row, self._target.events)
            size += len(row)
            self._next_event = key_seq(key) + 1
            more = cursor.next()
        return more

    def _restart(self, writing: Writing) -> None:
        self._restarts += 1
        if self._restarts > RESTARTS_MAX:
            raise JournalError(
                "retention removes messages faster than they can be copied",
                "back up to a faster disk, or stop the hub first",
            )
        writing.drop(self._target.blocks, delete=False)
        writing.drop(self._target.chunks, delete=False)
        self._next_seq = self._next_chunk = 0


# Verifying a copy, and replacing a journal by it.


def structure(path: Path) -> tuple[Finding, ...]:
    """Damage in the structure of the file. Safe with any file, but only while no process writes to it."""
    try:
        problems: list[str] = lmdb.verify.verify(str(path))  # type: ignore[no-untyped-call]
        return tuple(Finding("file", 0, 0, problem) for problem in problems)
    except lmdb.verify.VerifyError as error:
        return (Finding("file", 0, 0, str(error)),)


def _require_sound(path: Path, progress: Progress | None, accept_damage: bool) -> Report:
    problems = structure(path)
    if problems:  # also with accept_damage: LMDB would follow the damaged pages
        raise JournalDamaged(f"the file in {path} is damaged: {problems[0].why}", "use another backup")
    report = verify_in_child(path, progress=progress)
    if report.findings and not accept_damage:
        first = report.findings[0]
        raise JournalDamaged(
            f"the journal in {path} is damaged ({len(report.findings)} findings; the first: {first.why})",
            "see all with 'fabric journal verify'; use another backup, or accept the loss with --accept-damage",
        )
    return report


def _require_same(expected: Report, copy: Report) -> None:
    if copy != expected:
        hint = "the disk may be failing: look at 'dmesg', then try again"
        raise JournalError("the copy is not the same as the original", hint)


def _meta_in(path: Path) -> Meta | None:
    """The meta row of the journal in a directory; None when it cannot be read."""
    try:
        with closing(open_environment(path, readonly=True)) as environment:
            tables = open_tables(environment)
            with environment.begin() as txn:
                return read_meta(txn, tables)
    except JournalError:
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock on a directory; a read-only directory needs none."""
    lock = LockFile(path) if os.access(path, os.W_OK) else None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _keep_old(path: Path) -> Path | None:
    """Give the present data file a second name, so that it is kept when it is replaced."""
    if not has_data(path):
        return None
    kept = path / REPLACED_FILE
    kept.unlink(missing_ok=True)
    os.link(path / DATA_FILE, kept)
    return kept
