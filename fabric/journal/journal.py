"""The journal: a turn's records become one synced transaction, and a restart begins by reading them back.

The journal thread calls `commit` and `trim_step`; other threads may call `pressure` and `stats`, and each may have a
Reader. After an error of `commit` the journal accepts nothing more, because what the disk has kept is not known. The
hub exits, and the next start reads what is there.
"""

import os
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb

from fabric.errors import JournalDamaged, JournalError
from fabric.journal import rows as records
from fabric.journal.directory import DATA_FILE, LockFile, has_data, make_directory, require_local
from fabric.journal.end import find_end
from fabric.journal.environment import (
    MAP_BYTES,
    RESTORE_HINT,
    append_row,
    as_journal_error,
    create_environment,
    lmdb_errors,
    open_environment,
    open_tables,
    put_meta,
    read_meta,
)
from fabric.journal.limits import Gauge, Limits
from fabric.journal.page_release import PageRelease
from fabric.journal.pins import Pins
from fabric.journal.reader import Reader
from fabric.journal.retention import Retention
from fabric.journal.rows import SEQ_MAX, Meta, seq_key
from fabric.journal.tables import state
from fabric.journal.tables.chunks import Chunk, OpenChunk
from fabric.journal.tables.holes import make_holes
from fabric.journal.tables.state import put_state
from fabric.journal.tools.stats import Stats, collect
from fabric.journal.tools.verify import Finding, verify_in_child
from fabric.journal.writer import Writer
from fabric.records import (
    Append,
    Discard,
    DropSchedule,
    Record,
    Restored,
    SaveProducer,
    SaveSchedule,
)
from fabric_protocol.block import glance

__all__ = ["Journal", "Limits", "Restored"]

# Counted for a row of the two tables that grow at any place: the kernel maps the neighbours of a page with it.
SCATTERED_BYTES: Final = 32 << 10
_NO_LIMITS: Final = Limits()


class Journal:
    """An open journal. `environment`, `tables`, `mapping`, `open_chunk` and `writing` are for this package only."""

    def __init__(
        self, path: Path, limits: Limits, map_bytes: int, lock: LockFile, findings: tuple[Finding, ...]
    ) -> None:
        self.path = path
        self._lock = lock
        self._findings = findings
        self._pid = os.getpid()
        self._failed = ""
        self._is_open = True
        self.mapping = threading.Lock()  # held while a reader reads, and while the map grows
        self.environment = open_environment(path, map_bytes=map_bytes)
        try:
            self.tables = open_tables(self.environment, upgrade=True)
        except BaseException:
            self.environment.close()
            raise
        self._retention = Retention(self.tables, limits)
        self.may_trim_more = False  # the latest step of retention has removed blocks
        self._hold_seq = SEQ_MAX  # see `hold`
        self._pins = Pins(path)
        self.page_release = PageRelease(path / DATA_FILE)
        self._gauge = Gauge(path, self.environment, self.tables, limits, self.mapping)
        self.open_chunk = OpenChunk(1)
        self._last_ts_us = 0
        self._writer = Writer(self.environment, self.mapping)
        self.writing = self._writer.transaction
        self._meta: Meta  # this and the next are set by `_begin`
        self._was_clean: bool

    @classmethod
    def open(
        cls,
        path: str | Path,
        limits: Limits = _NO_LIMITS,
        *,
        create: bool = True,
        allow_network_fs: bool = False,
        _map_bytes: int = MAP_BYTES,
    ) -> "Journal":
        """Open the journal in a directory. A second hub on the same directory is refused."""
        path = Path(path)
        limits.check()
        if not create and not has_data(path):
            raise JournalError(f"there is no journal in {path}", "check the path")
        make_directory(path)
        if not allow_network_fs:
            require_local(path)
        lock = LockFile(path)
        try:
            findings: tuple[Finding, ...] = ()
            if has_data(path):  # under the lock: a journal that another hub has just made must not be replaced
                findings = verify_in_child(path, tail_only=True).findings
            else:
                create_environment(path, Meta(uuid.uuid4().bytes, 1, time.time_ns() // 1000, True, 1, 0))
                lock.claim_data()
            journal = cls(path, limits, _map_bytes, lock, findings)
            try:
                with lmdb_errors(f"cannot open the journal in {path}"):
                    journal._begin()
            except BaseException:
                journal.environment.close()
                raise
        except BaseException:
            lock.release()
            raise
        return journal

    @property
    def uuid(self) -> bytes:
        return self._meta.uuid

    @property
    def epoch(self) -> int:
        return self._meta.epoch

    def load(self) -> Restored:
        """The state with which a hub goes on where the last hub stopped."""
        self.require_usable()
        with lmdb_errors("cannot load the journal"), self.environment.begin(buffers=True) as txn:
            groups = tuple(records.decode_group(key, row) for key, row in txn.cursor(self.tables.groups))
            producers = tuple(records.decode_producer(key, row) for key, row in txn.cursor(self.tables.producers))
            failures = tuple(state.failures(txn, self.tables))
            topics = tuple(state.topics(txn, self.tables))
            settings = tuple(state.settings(txn, self.tables))
        return Restored(
            first_seq=self.first_seq,
            last_seq=self.last_seq,
            last_ts_us=self._last_ts_us,
            groups=groups,
            producers=producers,
            failures=failures,
            topics=topics,
            settings=settings,
            was_clean=self._was_clean,
            findings=self._findings,
        )

    @property
    def first_seq(self) -> int:
        """Messages below this seq were removed by retention."""
        return max(self._meta.first_seq, self._meta.floor)

    @property
    def first_block_seq(self) -> int:
        """The first seq of the first block on disk; some messages of this block may lie below `first_seq`."""
        return self._meta.first_seq

    @property
    def last_seq(self) -> int:
        return self.open_chunk.last_seq

    def commit(self, turn: Sequence[Record]) -> None:
        """Write a turn's records in one transaction; when this returns they are on disk.

        After a JournalError nothing may be confirmed, and the process should end. Any other exception is a fault of
        the program, such as a record that cannot be encoded. Nothing of the turn is on disk then, and the journal is
        unchanged.
        """
        self.require_usable()
        try:
            try:
                filled, chunk = self._write(turn)
            except lmdb.MapFullError:
                # No error of the disk: LMDB has dropped the transaction, and a larger map holds it. Deleting rows
                # instead would need room in the map as well.
                self._writer.grow(sum(len(r.block) for r in turn if isinstance(r, Append | SaveSchedule)))
                filled, chunk = self._write(turn)
        except (lmdb.Error, JournalError) as error:
            raise self._fail("cannot write to the journal", error) from error
        self._require_in_place()  # before anything is confirmed: a removed file is lost
        for full in filled:
            full.publish()
        chunk.publish()
        self.open_chunk = chunk

    def hold(self, seq: int) -> None:
        """Let retention of the whole journal remove only messages below this seq; SEQ_MAX: it may remove any."""
        self._hold_seq = seq

    def trim_step(self, now_us: int) -> int | None:
        """Remove messages in one small transaction, if retention is due; returns the new first seq, or None."""
        self.require_usable()
        self._writer.check_readers()
        self._require_in_place()
        chunk = self.open_chunk
        try:
            used = self._gauge.used_bytes()
            meta, hold_seq = self._meta, min(self._hold_seq, self._pins.lowest(now_us))
            last_seq = chunk.last_seq - meta.removed  # counted without the holes
            self.may_trim_more = self._retention.is_due(
                self.environment, now_us, last_seq, chunk.last_seq, used, hold_seq
            )
            if not self.may_trim_more:
                return self._raise_floor(self._retention.floor(now_us, last_seq, chunk.last_seq), hold_seq)
            with self.writing(buffers=True) as txn:
                step = self._retention.step(txn, now_us, last_seq, chunk.first_seq, hold_seq)
                if step.first_seq > meta.first_seq:
                    self._meta = meta._replace(first_seq=step.first_seq, removed=meta.removed - step.holes)
                    put_meta(txn, self.tables, self._meta)
            self._gauge.poll_now()
        except lmdb.MapFullError:
            self._writer.grow(0)
            return None
        except (lmdb.Error, JournalError) as error:
            raise self._fail("cannot trim the journal", error) from error
        return self.first_seq if step.blocks else None

    def _raise_floor(self, floor: int, hold_seq: int) -> int | None:
        """Hide the messages of the first block that are beyond the limits; their bytes go with the block."""
        if floor > hold_seq:
            self._retention.wanted = max(self._retention.wanted, floor)
        floor = min(floor, hold_seq)
        if floor <= self.first_seq:
            return None
        meta = self._meta._replace(floor=floor)
        with self.writing() as txn:
            put_meta(txn, self.tables, meta)
        self._meta = meta
        return floor

    @property
    def trim_wanted(self) -> int:
        """The seq below which retention would remove messages but for `hold`; 0: none is held."""
        wanted = min(self._retention.wanted, self._pins.seq)
        return wanted if wanted > self.first_seq else 0

    def rest(self) -> None:
        """Release memory. Called by the journal thread when it was idle for a while."""
        self.require_usable()
        self._require_in_place()
        self.page_release.rest()

    def pressure(self) -> str | None:
        """The reason to refuse publishes now, or None. Acks are accepted all the same."""
        self.require_usable()
        with lmdb_errors("cannot read the journal"):
            return self._gauge.pressure()

    def space(self) -> tuple[int, int]:
        """Free bytes of the disk, and the free bytes below which publishes are refused."""
        with lmdb_errors("cannot read the journal"):
            return self._gauge.space()

    def reader(self) -> Reader:
        """A reader for one thread."""
        return Reader(self)

    def stats(self) -> Stats:
        self.require_usable()
        with lmdb_errors("cannot read the journal"), self.mapping:
            return collect(self.path, self.environment, self.tables)

    def close(self) -> None:
        """Mark the journal as closed cleanly, and release it. Readers must have stopped."""
        self.require_same_process()
        if not self._is_open:
            return
        self._is_open = False
        try:
            if not self._failed:
                with lmdb_errors("cannot close the journal"), self.writing() as txn:
                    put_meta(txn, self.tables, self._meta._replace(clean=True, last_seq=self.last_seq))
        finally:
            self.environment.close()
            self._lock.release()

    def require_same_process(self) -> None:
        """LMDB's handles must not be used in a forked child."""
        if os.getpid() != self._pid:
            raise JournalError("the journal was opened by another process", "open it after the fork, not before")

    def require_usable(self) -> None:
        self.require_same_process()
        if self._failed:
            raise JournalError(f"the journal has failed before: {self._failed}", "restart the hub")
        if not self._is_open:
            raise JournalError("the journal is closed", "open it again")

    # Writing.

    def _write(self, turn: Sequence[Record]) -> tuple[list[OpenChunk], OpenChunk]:
        """Write a turn. Returns the chunks that are full now and the open chunk, none of them published yet."""
        chunk, filled = self.open_chunk, []
        last_seq, last_ts_us, written = chunk.last_seq, self._last_ts_us, 0
        blocks, meta, removed, scattered = self.tables.blocks, self._meta, 0, 0
        chunk.roll_back()  # entries of an attempt that failed
        with self.writing() as txn:
            for record in turn:
                if type(record) is Append:
                    raw = record.block
                    (base_seq, end, ts_us), topics = glance(raw)
                    assert base_seq == last_seq + 1, f"seq {base_seq} cannot follow {last_seq}"
                    assert ts_us >= last_ts_us, f"time {ts_us} cannot follow {last_ts_us}"
                    append_row(txn, seq_key(base_seq), raw, blocks)
                    chunk.add(base_seq, end, ts_us, len(raw), topics)
                    last_seq, last_ts_us, written = end, ts_us, written + len(raw)
                    if chunk.is_full:
                        Chunk.of(chunk).put(txn, self.tables)
                        filled.append(chunk)
                        chunk = OpenChunk(last_seq + 1)
                elif type(record) is Discard:
                    removed += make_holes(txn, self.tables, record.bases)
                else:
                    put_state(txn, self.tables, record)
                    if type(record) is SaveProducer:
                        self._retention.saw(record)
                    elif type(record) is SaveSchedule:
                        written += len(record.block)
                        scattered += SCATTERED_BYTES
                    elif type(record) is DropSchedule:
                        scattered += SCATTERED_BYTES
            if removed:
                meta = meta._replace(removed=meta.removed + removed)
                put_meta(txn, self.tables, meta)
        if removed:
            self._meta = meta
            self._retention.holes_made()
        self._last_ts_us = last_ts_us
        self._gauge.wrote(written)
        self.page_release.touched(written + scattered)
        return filled, chunk

    def _fail(self, doing: str, error: lmdb.Error | JournalError) -> JournalError:
        failure = as_journal_error(doing, error) if isinstance(error, lmdb.Error) else error
        self._failed = str(failure)
        return failure

    def _require_in_place(self) -> None:
        if not self._lock.holds_data():
            raise self._fail(
                "",
                JournalError(
                    f"{self.path / DATA_FILE} was removed, moved or replaced while the journal was open",
                    "put the directory back or restore a backup, then start the hub again",
                ),
            )

    # Opening.

    def _begin(self) -> None:
        """Read the meta row, find the end of the journal, and mark the journal as open."""
        self.environment.reader_check()
        with self.environment.begin(buffers=True) as txn:
            meta = read_meta(txn, self.tables)
            self.open_chunk, filled, self._last_ts_us = find_end(txn, self.tables)
            producers = [records.decode_producer(key, row) for key, row in txn.cursor(self.tables.producers)]
            if meta.clean and meta.last_seq != self.last_seq:
                raise JournalDamaged(
                    f"the journal was closed at seq {meta.last_seq} and now ends at {self.last_seq}", RESTORE_HINT
                )
        self._was_clean, self._meta = meta.clean, meta._replace(clean=False)
        for producer in sorted(producers, key=lambda p: p.seen_us):
            self._retention.saw(producer)
        try:
            self._mark_open(filled)
        except lmdb.MapFullError:
            self._writer.grow(0)
            self._mark_open(filled)

    def _mark_open(self, filled: Sequence[OpenChunk]) -> None:
        with self.writing() as txn:
            put_meta(txn, self.tables, self._meta)
            for chunk in filled:
                Chunk.of(chunk).put(txn, self.tables)
