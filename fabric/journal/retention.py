"""Retention of the whole journal: removes messages beyond the limits, in small steps.

Whole blocks are removed, the oldest first, when none of their messages is within the limits. In the first block that
stays, `floor` is the first seq within the limits, and the hub delivers nothing below it. The last block always stays,
because it holds the last sequence number and time.

A step is one short transaction: LMDB uses freed pages again only some commits later, so a single large delete would
need as much new room as it frees. Holes at the front of the journal are removed as well, whatever the limits are.
"""

from contextlib import suppress
from typing import Final, NamedTuple

import lmdb

from fabric.journal.environment import Cursor, Reading, Tables
from fabric.journal.limits import Limits, used_bytes
from fabric.journal.rows import key_seq, name_key
from fabric.journal.tables.event_table import EventRetention
from fabric.journal.tables.holes import hole_of, span_of
from fabric.journal.tables.origins import drop_origins_below
from fabric.records import SaveProducer
from fabric_protocol.block import stamp_of
from fabric_protocol.errors import BlockError

STEP_ROWS: Final = 500
LOOK_AHEAD_ROWS: Final = 2000  # blocks that topics are asked to release at once
PRODUCER_IDLE_US: Final = 7 * 24 * 3600 * 1_000_000  # a producer that is silent for longer cannot resume its numbers
_LOOK_AHEAD: Final = 16  # damaged blocks that get the time of the next good block


class Step(NamedTuple):
    """The blocks and holes that a step has removed."""

    first_seq: int  # first seq of the journal now; 0: unchanged
    blocks: int
    holes: int  # messages in removed holes


class _Front(NamedTuple):
    """The first block or hole of the journal."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    is_hole: bool


class Retention:
    """Finds and removes messages beyond the limits. The oldest block is cached, so that an idle step costs little."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits
        self._events = EventRetention(tables, limits)
        self._front: _Front | None = None  # None: unknown
        self._seen: dict[str, int] = {}  # producer -> time of its last publish, in the order of these times
        self.wanted = 0  # retention would remove messages below this seq, but they are held; 0: none is held

    def saw(self, producer: SaveProducer) -> None:
        self._seen.pop(producer.name, None)  # first: the name may have been of an ordinary producer, which was deleted
        if producer.jumps:
            return  # a source without its cursor would store everything again, so its row stays
        self._seen[producer.name] = producer.seen_us

    def holes_made(self) -> None:
        """New holes were made, and the first block may be in one of them."""
        self._front = None

    def is_due(
        self, environment: lmdb.Environment, now_us: int, last_seq: int, end_seq: int, used: int, hold_seq: int
    ) -> bool:
        """Whether a step would remove something.

        `last_seq` is counted without the holes, `end_seq` is the last seq itself.
        """
        self.wanted = 0
        if self._idle_producers(now_us, 1):
            return True
        limits = self._limits
        limited = bool(limits.max_age_s or limits.max_bytes or limits.max_messages or limits.events_bytes)
        if self._front is None or limited:
            with environment.begin(buffers=True) as txn:
                if self._front is None:
                    cursor = txn.cursor(self._tables.blocks)
                    if not cursor.first():
                        return False
                    self._front = _front_at(cursor)
                if limited and self._events.is_due(txn, now_us):
                    return True
        front = self._front
        if front.is_hole or front.last_seq == end_seq or not self._exceeds(front, now_us, last_seq, used):
            return front.is_hole
        if front.last_seq >= hold_seq:
            self.wanted = self._ahead(environment, now_us, last_seq, used)
            return False
        return True

    def floor(self, now_us: int, last_seq: int, end_seq: int) -> int:
        """The first seq within the limits in the first block; 0 when there is no block.

        If that is also the last block, only its own bytes count, and its last message stays whatever its size.
        """
        front, limits = self._front, self._limits
        if front is None or front.is_hole:
            return 0
        count = kept = front.last_seq - front.base_seq + 1
        if limits.max_messages:
            kept = min(kept, limits.max_messages - (last_seq - front.last_seq))
        if front.last_seq == end_seq:
            if limits.max_bytes and front.size > limits.max_bytes:
                kept = min(kept, max(limits.max_bytes * count // front.size, 1))
            if self._is_too_old(front, now_us):
                kept = 0
        return front.last_seq + 1 - max(kept, 0)

    def step(self, txn: Reading, now_us: int, last_seq: int, open_seq: int, hold_seq: int) -> Step:
        """Remove at most STEP_ROWS rows, all of them below hold_seq."""
        rows = blocks = holes = 0
        for name in self._idle_producers(now_us, STEP_ROWS):
            txn.delete(name_key(name), db=self._tables.producers)
            del self._seen[name]
            rows += 1
        cursor = txn.cursor(self._tables.blocks)
        if not cursor.last():
            return Step(0, 0, 0)
        last_base = key_seq(cursor.key())
        cursor.first()
        front = _front_at(cursor)
        self._events.step(txn, now_us)
        used = used_bytes(txn, self._tables)
        while rows < STEP_ROWS and front.base_seq < last_base:
            if front.is_hole:
                holes += front.last_seq - front.base_seq + 1
                last_seq += front.last_seq - front.base_seq + 1
            elif front.last_seq < hold_seq and self._exceeds(front, now_us, last_seq, used):
                blocks += 1
            else:
                break
            cursor.delete()
            used = used_bytes(txn, self._tables)
            rows += 1
            front = _front_at(cursor)
        self._front = front
        if not blocks and not holes:
            return Step(0, 0, 0)
        self._drop_chunks(txn, front.base_seq, open_seq)
        drop_origins_below(txn, self._tables, front.base_seq)
        return Step(front.base_seq, blocks, holes)

    def _ahead(self, environment: lmdb.Environment, now_us: int, last_seq: int, used: int) -> int:
        """The seq below which the next steps would remove messages, if nothing held them."""
        wanted = 0
        with environment.begin(buffers=True) as txn:
            cursor = txn.cursor(self._tables.blocks)
            last_base = key_seq(cursor.key()) if cursor.last() else 0
            more = cursor.first()
            for _ in range(LOOK_AHEAD_ROWS):
                if not more or key_seq(cursor.key()) >= last_base:
                    break
                front = _front_at(cursor)
                if front.is_hole:
                    last_seq += front.last_seq - front.base_seq + 1
                elif not self._exceeds(front, now_us, last_seq, used):
                    break
                used -= len(cursor.value())
                wanted = front.last_seq + 1
                more = cursor.next()
        return wanted

    def _exceeds(self, front: _Front, now_us: int, last_seq: int, used: int) -> bool:
        limits = self._limits
        return bool(
            self._is_too_old(front, now_us)
            or (limits.max_messages and last_seq - front.last_seq >= limits.max_messages)
            or (limits.max_bytes and used > limits.max_bytes)
        )

    def _is_too_old(self, front: _Front, now_us: int) -> bool:
        return bool(self._limits.max_age_s) and front.ts_us < now_us - self._limits.max_age_s * 1_000_000

    def _idle_producers(self, now_us: int, limit: int) -> list[str]:
        idle: list[str] = []
        for name, seen_us in self._seen.items():
            if seen_us > now_us - PRODUCER_IDLE_US or len(idle) == limit:
                break
            idle.append(name)
        return idle

    def _drop_chunks(self, txn: Reading, first_seq: int, open_seq: int) -> None:
        """Remove the summaries of chunks without blocks: the next chunk begins at or below first_seq."""
        cursor = txn.cursor(self._tables.chunks)
        found = cursor.first()
        while found:
            following = key_seq(cursor.key()) if cursor.next() else open_seq
            if following > first_seq:
                return
            found = cursor.first() and cursor.delete() and cursor.first()


def _front_at(cursor: Cursor) -> _Front:
    """The block or hole under the cursor."""
    base_seq = key_seq(cursor.key())
    hole = hole_of(base_seq, cursor.value())
    if hole is not None:
        return _Front(*hole, size=0, is_hole=True)
    last_seq = base_seq
    with suppress(BlockError):
        last_seq = stamp_of(cursor.value()).last_seq
    return _Front(base_seq, last_seq, _time_at(cursor), len(cursor.value()), is_hole=False)


def _time_at(cursor: Cursor) -> int:
    """The time of the block under the cursor; a damaged block has the time of the next good block."""
    key = bytes(cursor.key())
    try:
        for _ in range(_LOOK_AHEAD):
            try:
                return span_of(key_seq(cursor.key()), cursor.value()).ts_us
            except BlockError:
                if not cursor.next():
                    break
        return 0
    finally:
        cursor.set_key(key)
