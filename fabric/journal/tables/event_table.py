"""Blocks of delivery events: a table that only grows at its end, and is cut at its beginning when it is too much.

The journal's limits hold for events as they do for messages: none is older than the age, there are not more events
than messages may be, and they take at most a quarter of the bytes. The last block always stays: it is what remembers
the last number.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from fabric.errors import JournalDamaged
from fabric.event_block import EVENTS_MAX, extent_of, time_of
from fabric.journal.environment import Cursor, Reading, Tables, Writing, append_row, seek
from fabric.journal.limits import Limits
from fabric.journal.rows import key_seq, seal, seq_key, unseal
from fabric.records import SaveEvents
from fabric_protocol.errors import BlockError

STEP_ROWS: Final = 1_000  # removed in one go; a busy hub writes some hundred a second, and they are small
SHARE: Final = 4  # events have one part in so many of the bytes


def put_events(txn: Writing, tables: Tables, record: SaveEvents) -> None:
    key = seq_key(record.first)
    append_row(txn, key, seal(key, record.value), tables.events)


class EventReader:
    """Finds blocks of events. Used by one thread."""

    def __init__(self, transaction: Callable[[], AbstractContextManager[Reading]], tables: Tables) -> None:
        self._transaction = transaction
        self._tables = tables

    def next_number(self) -> int:
        """The number that the next event gets."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            if not cursor.last():
                return 1
            try:
                return extent_of(unseal(cursor.key(), cursor.value())).last + 1
            except (JournalDamaged, BlockError):  # how many it held is not known, but not more than that
                return key_seq(cursor.key()) + EVENTS_MAX

    def block_from(self, number: int) -> bytes | None:
        """The block that holds event `number`, or else the first one after it; None when there is none."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.events)
            found = seek(cursor, number) or cursor.first()
            if found and extent_of(unseal(cursor.key(), cursor.value())).last < number:
                found = cursor.next()
            return bytes(unseal(cursor.key(), cursor.value())) if found else None


class EventRetention:
    """What of the events is too old or too much."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits

    def is_due(self, txn: Reading, now_us: int) -> bool:
        """Whether a step would find something to remove."""
        cursor = txn.cursor(self._tables.events)
        return cursor.last() and self._exceeds(txn, cursor, key_seq(cursor.key()), now_us)

    def step(self, txn: Reading, now_us: int) -> int:
        """Remove at most STEP_ROWS blocks of events; how many it were."""
        cursor, removed = txn.cursor(self._tables.events), 0
        if cursor.last():
            last = key_seq(cursor.key())
            while removed < STEP_ROWS and self._exceeds(txn, cursor, last, now_us):
                cursor.delete()
                removed += 1
        return removed

    def _exceeds(self, txn: Reading, cursor: Cursor, last: int, now_us: int) -> bool:
        """Whether the first block may go; leaves the cursor on it."""
        limits = self._limits
        cursor.first()
        first = key_seq(cursor.key())
        if first == last:
            return False
        return bool(
            (limits.max_age_s and _time_at(cursor) < now_us - limits.max_age_s * 1_000_000)
            or (limits.max_messages and last - first > limits.max_messages)
            or (limits.max_bytes and _bytes(txn, self._tables) > limits.max_bytes // SHARE)
        )


def _time_at(cursor: Cursor) -> int:
    """When the last event under the cursor was; a damaged block counts as very old."""
    try:
        return time_of(unseal(cursor.key(), cursor.value()))
    except (JournalDamaged, BlockError):
        return 0


def _bytes(txn: Reading, tables: Tables) -> int:
    stat = txn.stat(tables.events)
    return int((stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"])
