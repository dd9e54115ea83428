"""The journal as a snapshot reads it: read-only, in short transactions, while the hub may run.

Blocks never change, they are only removed. So a snapshot needs only the end of the journal and the state of groups and
topics from the same moment; one transaction reads these first. The blocks up to that end are copied afterwards, at any
speed. `Overtaken` is raised when retention has removed some of them before they were copied.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.errors import JournalError
from fabric.event_block import EVENTS_MAX, extent_of
from fabric.journal.directory import has_data
from fabric.journal.environment import (
    STEP_BYTES,
    Reading,
    existing,
    lmdb_errors,
    open_environment,
    open_tables,
    read_meta,
    seek,
)
from fabric.journal.rows import Meta, decode_group, key_seq, seq_key
from fabric.journal.tables import state
from fabric.journal.tables.holes import Hole, hole_of, last_seq_of
from fabric.journal.tables.origins import origin_rows
from fabric.records import SaveFailure, SaveGroup, SaveTopic
from fabric.snapshot.manifest import Failure, GroupState, Span, TopicState
from fabric_protocol.block import HEAD_BYTES
from fabric_protocol.errors import BlockError

STEP_ROWS: Final = 20_000  # read within one read transaction


class Row(NamedTuple):
    """A block or a hole by its first seq, or a block of events by the number of its first event."""

    number: int
    raw: bytes
    origin: bytes = b""  # the row of table `origins` of a foreign block


Rows = list[Row]


class Moment(NamedTuple):
    """End and state of a journal at one moment."""

    taken_us: int  # wall clock
    meta: Meta
    first_seq: int
    last_seq: int
    first_event: int
    last_event: int  # first_event - 1 when there are no events
    groups: tuple[GroupState, ...]
    topics: tuple[TopicState, ...]


class Overtaken(Exception):
    """Retention has removed blocks that were to be copied."""


class Source:
    """A journal that is only read; its hub may run."""

    def __init__(self, path: Path) -> None:
        if not has_data(path):
            raise JournalError(f"there is no journal in {path}", "check the path of the journal's directory")
        self.path = path
        with lmdb_errors(f"cannot read the journal in {path}"):
            self._environment = open_environment(path, readonly=True)
            try:
                self._tables = open_tables(self._environment)
            except BaseException:
                self._environment.close()
                raise
        self._has_events = "events" in existing(self._tables)

    def close(self) -> None:
        self._environment.close()

    def moment(self) -> Moment:
        """The present end of the journal, and the present state of its groups and topics."""
        with self._reading() as txn:
            meta = read_meta(txn, self._tables)
            blocks = txn.cursor(self._tables.blocks)
            first_seq, last_seq = meta.first_seq, meta.first_seq - 1
            if blocks.last():
                last_seq = last_seq_of(key_seq(blocks.key()), blocks.value())
            first_event, last_event = self._event_ends(txn)
            old = existing(self._tables)  # a journal of format 1 has no tables of failures and topics
            failures = tuple(state.failures(txn, self._tables)) if "failures" in old else ()
            topics = tuple(state.topics(txn, self._tables)) if "topics" in old else ()
            groups = [decode_group(key, row) for key, row in txn.cursor(self._tables.groups)]
        return Moment(
            taken_us=time.time_ns() // 1000,
            meta=meta,
            first_seq=first_seq,
            last_seq=last_seq,
            first_event=first_event,
            last_event=last_event,
            groups=_groups(groups, failures),
            topics=tuple(sorted(map(_topic, topics))),
        )

    def meta(self) -> Meta:
        """The meta row of the journal."""
        with self._reading() as txn:
            return read_meta(txn, self._tables)

    def blocks(self, seq: int, last_seq: int, budget: int = STEP_BYTES) -> Rows:
        """Rows of table `blocks` from `seq` up to last_seq: at least one, at most STEP_BYTES.

        Holes are cut to that range. A block that begins before `seq` is not given: `seq` is where one begins. The
        origins come from the same transaction, because retention removes them with their blocks.
        """
        rows: Rows = []
        with self._reading() as txn:
            if seq < read_meta(txn, self._tables).first_seq:
                raise Overtaken
            cursor = txn.cursor(self._tables.blocks)
            more = self._hole_before(cursor, seq, last_seq, rows) or cursor.set_range(seq_key(seq))
            if rows:
                more = cursor.next()
            while more and budget > 0 and (base := key_seq(cursor.key())) <= last_seq:
                raw = bytes(cursor.value())
                hole = hole_of(base, raw)
                rows.append(Row(base, raw) if hole is None else _cut(hole, seq, last_seq))
                budget -= len(raw)
                more = cursor.next()
            if rows:
                born = dict(origin_rows(txn, self._tables.origins, rows[0].number, rows[-1].number))
                if born:
                    rows = [row._replace(origin=born.get(row.number, b"")) for row in rows]
        return rows

    def origins(self, first_seq: int, last_seq: int) -> int:
        """The number of foreign blocks that begin in a range. Reads their rows, which are short."""
        count, seq = 0, first_seq
        while seq <= last_seq:
            with self._reading() as txn:
                found = list(islice(origin_rows(txn, self._tables.origins, seq, last_seq), STEP_ROWS))
            if not found:
                break
            count, seq = count + len(found), found[-1][0] + 1
        return count

    def events(self, number: int, last: int, budget: int = STEP_BYTES) -> Rows:
        """Blocks of events from `number` on, without their checksums, at most STEP_BYTES."""
        rows: Rows = []
        with self._reading() as txn:
            cursor = txn.cursor(self._tables.events)
            more = cursor.first()
            if more and key_seq(cursor.key()) > number:
                raise Overtaken
            more = cursor.set_range(seq_key(number))
            while more and budget > 0 and (first := key_seq(cursor.key())) <= last:
                rows.append(Row(first, bytes(cursor.value()[:-4])))
                budget -= len(rows[-1].raw)
                more = cursor.next()
        return rows

    def outline(self, first_seq: int, last_seq: int) -> tuple[int, tuple[Span, ...]]:
        """The number of blocks that begin in a range, and the holes in it. Reads keys and lengths only."""
        holes: list[Span] = []
        blocks, seq = 0, first_seq
        while seq <= last_seq:
            with self._reading() as txn:
                if seq < read_meta(txn, self._tables).first_seq:
                    raise Overtaken
                cursor = txn.cursor(self._tables.blocks)
                more = seek(cursor, seq) or cursor.first()
                for _ in range(STEP_ROWS):
                    if not more or (base := key_seq(cursor.key())) > last_seq:
                        return blocks, tuple(holes)
                    raw = cursor.value()
                    hole = hole_of(base, raw) if len(raw) < HEAD_BYTES else None
                    if hole is not None and hole.last_seq >= seq:
                        holes.append((max(hole.first_seq, first_seq), min(hole.last_seq, last_seq)))
                        seq = hole.last_seq + 1
                    elif base >= seq:
                        blocks, seq = blocks + (hole is None), base + 1
                    more = cursor.next()
        return blocks, tuple(holes)

    def head(self, base_seq: int) -> bytes:
        """The head of the block that begins at a seq. Its CRCs identify the whole block."""
        with self._reading() as txn:
            raw = txn.get(seq_key(base_seq), db=self._tables.blocks)
            return b"" if raw is None else bytes(raw[:HEAD_BYTES])

    # Parts of the methods above.

    @contextmanager
    def _reading(self) -> Iterator[Reading]:
        with lmdb_errors(f"cannot read the journal in {self.path}"), self._environment.begin(buffers=True) as txn:
            yield txn

    def _event_ends(self, txn: Reading) -> tuple[int, int]:
        """The numbers of the first and the last event; (1, 0) without events."""
        cursor = txn.cursor(self._tables.events) if self._has_events else None
        if cursor is None or not cursor.last():
            return 1, 0
        last = key_seq(cursor.key())
        try:
            last = extent_of(cursor.value()[:-4]).last
        except BlockError:
            last += EVENTS_MAX - 1
        cursor.first()
        return key_seq(cursor.key()), last

    def _hole_before(self, cursor: "lmdb.Cursor[memoryview]", seq: int, last_seq: int, rows: Rows) -> bool:
        """The rest of the hole, if `seq` lies within a hole that begins before it; the cursor is on the hole then."""
        if not seek(cursor, seq) or key_seq(cursor.key()) == seq:
            return False
        hole = hole_of(key_seq(cursor.key()), cursor.value())
        if hole is None or hole.last_seq < seq:
            return False
        rows.append(_cut(hole, seq, last_seq))
        return True


def _cut(hole: Hole, first_seq: int, last_seq: int) -> Row:
    """A row for the part of a hole within a range."""
    part = Hole(max(hole.first_seq, first_seq), min(hole.last_seq, last_seq), hole.ts_us)
    return Row(part.first_seq, part.encode()[1])


def _groups(groups: list[SaveGroup], failures: tuple[SaveFailure, ...]) -> tuple[GroupState, ...]:
    failed: dict[str, list[Failure]] = defaultdict(list)
    for failure in failures:
        failed[failure.group].append(Failure(*failure[1:]))
    states = []
    for group in sorted(groups):
        position = min([group.cursor, *(cursor for _, cursor in group.lanes)])
        floor = min([position, *(first for first, _ in group.open[:1])]) - 1
        states.append(
            GroupState(
                group=group.name,
                settings=group.settings,
                cursor=group.cursor,
                floor=floor,
                open=group.open,
                lanes=group.lanes,
                paused=group.paused,
                refresh=group.refresh,
                failures=tuple(sorted(failed[group.name])),
            )
        )
    return tuple(states)


def _topic(topic: SaveTopic) -> TopicState:
    name, settings, floor, msgs, size, deleted, _ = topic
    return TopicState(name, settings, floor, msgs, size, deleted)
