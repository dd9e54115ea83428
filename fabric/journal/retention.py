"""Removing what is too old or too much, in small steps.

Whole blocks go, oldest first, and only when no message of theirs is within the limits; of the first block that stays,
`floor` tells where the limits begin, and the hub delivers nothing below it. The last block always stays: it remembers
the last sequence number and time, also when all of its messages are beyond the limits.
A step is one short transaction, because pages that a transaction frees can be used again only some commits later; a
single large delete would need as much new room as it frees.

Holes that retention of single topics has left at the journal's front go as well, whatever the limits are.
"""

from contextlib import suppress
from typing import Final, NamedTuple

import lmdb

from fabric.journal.environment import Cursor, Reading, Tables
from fabric.journal.limits import Limits, used_bytes
from fabric.journal.rows import key_seq, name_key
from fabric.journal.tables.event_table import EventRetention
from fabric.journal.tables.holes import hole_of, span_of
from fabric.records import SaveProducer
from fabric_protocol.block import stamp_of
from fabric_protocol.errors import BlockError

STEP_ROWS: Final = 500
LOOK_AHEAD_ROWS: Final = 2000  # how many blocks others are asked to let go of at once
PRODUCER_IDLE_US: Final = 7 * 24 * 3600 * 1_000_000  # a producer silent for longer cannot resume its numbering
_LOOK_AHEAD: Final = 16  # damaged blocks whose time is taken from the next good one


class Step(NamedTuple):
    """What one step has removed."""

    first_seq: int  # where the journal begins now; 0: as before
    blocks: int
    holes: int  # messages that were removed before, and of which only the hole was left


class _Front(NamedTuple):
    """What the journal begins with."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    is_hole: bool


class Retention:
    """What is oldest, kept in memory so that a step with nothing to do costs nothing."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits
        self._events = EventRetention(tables, limits)
        self._front: _Front | None = None  # None: not known
        self._seen: dict[str, int] = {}  # producer -> when it was last seen, in that order
        self.wanted = 0  # below this, messages would go if they were not held; 0: none is held

    def saw(self, producer: SaveProducer) -> None:
        self._seen.pop(producer.name, None)
        self._seen[producer.name] = producer.seen_us

    def dug(self) -> None:
        """There are new holes, and the first block may be in one."""
        self._front = None

    def is_due(
        self, environment: lmdb.Environment, now_us: int, last_seq: int, end_seq: int, used: int, hold_seq: int
    ) -> bool:
        """Whether a step would find something to remove.

        `last_seq` is counted as if there were no holes, `end_seq` is the real one.
        """
        self.wanted = 0
        if self._idle_producers(now_us, 1):
            return True
        limits = self._limits
        limited = bool(limits.max_age_s or limits.max_bytes or limits.max_messages)
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
        """The first seq of the first block that is within the limits; 0 when there is no block.

        Of the last block, bytes are counted by the block alone, and one message stays whatever its size.
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
        """Remove at most STEP_ROWS rows, none that holds hold_seq or what lies above."""
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
        return Step(front.base_seq, blocks, holes)

    def _ahead(self, environment: lmdb.Environment, now_us: int, last_seq: int, used: int) -> int:
        """How far the next steps would go, if nothing held them."""
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
        """Remove the summaries whose last block is gone: those whose successor begins at or below first_seq."""
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
    """The time of the block under the cursor; a damaged one counts as old as the next good one."""
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
