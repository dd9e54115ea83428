"""Blocks of delivery events: a table that grows only at its end; retention removes its oldest blocks.

The journal's limits of age and number hold for events as for messages; events may take a quarter of the limit of
bytes, and not more than their own limit. The last block always stays, because it holds the last number.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from fabric.errors import JournalDamaged
from fabric.event_block import EVENTS_MAX, extent_of, time_of
from fabric.journal.environment import Cursor, Reading, Tables, Writing, append_row, seek
from fabric.journal.limits import Limits, table_bytes
from fabric.journal.rows import key_seq, seal, seq_key, unseal
from fabric.records import SaveEvents
from fabric_protocol.errors import BlockError

STEP_ROWS: Final = 1_000  # removed in one step; a busy hub writes some hundred a second
SHARE: Final = 4  # events may take a quarter of max_bytes


def put_events(txn: Writing, tables: Tables, record: SaveEvents) -> None:
    key = seq_key(record.first)
    append_row(txn, key, seal(key, record.value), tables.events)


class EventReader:
    """Finds blocks of events. Used by one thread."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Reading]], tables: Tables) -> None:
        self._transaction = transaction
        self._tables = tables

    def next_number(self) -> int:
        """The number of the next event."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            if not cursor.last():
                return 1
            try:
                return extent_of(unseal(cursor.key(), cursor.value())).last + 1
            except (JournalDamaged, BlockError):  # its number of events is unknown, and not above EVENTS_MAX
                return key_seq(cursor.key()) + EVENTS_MAX

    def block_from(self, number: int) -> bytes | None:
        """The block that holds event `number`, or else the first block after it; None when there is no such block."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            found = seek(cursor, number) or cursor.first()
            if found and extent_of(unseal(cursor.key(), cursor.value())).last < number:
                found = cursor.next()
            return bytes(unseal(cursor.key(), cursor.value())) if found else None

    def first_number(self) -> int:
        """The number of the first event; the number of the next event when there is none."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            return key_seq(cursor.key()) if cursor.first() else 1

    def blocks_from(self, number: int, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Blocks from the block that holds event `number` on, each with the number of its last event: at most `count`,
        and no further block when they have `bytes_max` bytes. A damaged block is empty."""
        found, size = list[tuple[int, bytes]](), 0
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            more = seek(cursor, number) or cursor.first()
            while more and len(found) < count and size < bytes_max:
                first, row = key_seq(cursor.key()), cursor.value()
                try:
                    value = bytes(unseal(cursor.key(), row))
                    last = extent_of(value).last
                    more = cursor.next()
                except (JournalDamaged, BlockError):  # its number of events is unknown
                    more, value = cursor.next(), b""
                    last = key_seq(cursor.key()) - 1 if more else first
                found.append((last, value))
                size += len(value)
        return found


class EventRetention:
    """Removes blocks of events beyond the limits."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits
        bounds = [bound for bound in (limits.max_bytes // SHARE, limits.events_bytes) if bound]
        self._bytes_max = min(bounds, default=0)

    def is_due(self, txn: Reading, now_us: int) -> bool:
        """Whether a step would remove something."""
        cursor = txn.cursor(self._tables.events)
        return cursor.last() and self._exceeds(txn, cursor, key_seq(cursor.key()), now_us)

    def step(self, txn: Reading, now_us: int) -> int:
        """Remove at most STEP_ROWS blocks of events; returns their number."""
        cursor, removed = txn.cursor(self._tables.events), 0
        if cursor.last():
            last = key_seq(cursor.key())
            while removed < STEP_ROWS and self._exceeds(txn, cursor, last, now_us):
                cursor.delete()
                removed += 1
        return removed

    def _exceeds(self, txn: Reading, cursor: Cursor, last: int, now_us: int) -> bool:
        """Whether the first block is beyond the limits; leaves the cursor on it."""
        limits = self._limits
        cursor.first()
        first = key_seq(cursor.key())
        if first == last:
            return False
        return bool(
            (limits.max_age_s and _time_at(cursor) < now_us - limits.max_age_s * 1_000_000)
            or (limits.max_messages and last - first > limits.max_messages)
            or (self._bytes_max and table_bytes(txn, self._tables.events) > self._bytes_max)
        )


def _time_at(cursor: Cursor) -> int:
    """The time of the last event of the block under the cursor; a damaged block counts as very old."""
    try:
        return time_of(unseal(cursor.key(), cursor.value()))
    except (JournalDamaged, BlockError):
        return 0
