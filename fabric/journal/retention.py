"""Removing what is too old or too much, in small steps.

Whole blocks go, oldest first. The last block always stays: it is what remembers the last sequence number and time.
A step is one short transaction, because pages that a transaction frees can be used again only some commits later; a
single large delete would need as much new room as it frees.
"""

from typing import Final

import lmdb

from fabric.block import stamp_of
from fabric.errors import BlockError
from fabric.journal.environment import Cursor, Reading, Tables
from fabric.journal.limits import Limits, used_bytes
from fabric.journal.records import key_seq, name_key
from fabric.messages import SaveProducer

STEP_ROWS: Final = 500
PRODUCER_IDLE_US: Final = 7 * 24 * 3600 * 1_000_000  # a producer silent for longer cannot resume its numbering
_LOOK_AHEAD: Final = 16  # damaged blocks whose time is taken from the next good one


class Retention:
    """What is oldest, kept in memory so that a step with nothing to do costs nothing."""

    def __init__(self, tables: Tables, limits: Limits) -> None:
        self._tables = tables
        self._limits = limits
        self._first: tuple[int, int] | None = None  # base_seq and ts_us of the first block; None: not known
        self._seen: dict[str, int] = {}  # producer -> when it was last seen, in that order

    def saw(self, producer: SaveProducer) -> None:
        self._seen.pop(producer.name, None)
        self._seen[producer.name] = producer.seen_us

    def is_due(self, environment: lmdb.Environment, now_us: int, last_seq: int, used: int) -> bool:
        """Whether a step would find something to remove."""
        if self._idle_producers(now_us, 1):
            return True
        limits = self._limits
        if not (limits.max_age_s or limits.max_bytes or limits.max_messages):
            return False
        if self._first is None:
            with environment.begin(buffers=True) as txn:
                cursor = txn.cursor(self._tables.blocks)
                if not cursor.first():
                    return False
                self._first = key_seq(cursor.key()), _time_at(cursor)
        return self._exceeds(*self._first, now_us, last_seq, used)

    def step(self, txn: Reading, now_us: int, last_seq: int, open_seq: int) -> int | None:
        """Remove at most STEP_ROWS rows; the new first seq when blocks went."""
        rows = 0
        for name in self._idle_producers(now_us, STEP_ROWS):
            txn.delete(name_key(name), db=self._tables.producers)
            del self._seen[name]
            rows += 1
        cursor = txn.cursor(self._tables.blocks)
        if not cursor.last():
            return None
        last_base = key_seq(cursor.key())
        cursor.first()
        used = used_bytes(txn, self._tables)
        removed = False
        while rows < STEP_ROWS and (base := key_seq(cursor.key())) < last_base:
            if not self._exceeds(base, _time_at(cursor), now_us, last_seq, used):
                break
            cursor.delete()
            used = used_bytes(txn, self._tables)
            removed = True
            rows += 1
        self._first = key_seq(cursor.key()), _time_at(cursor)
        if not removed:
            return None
        self._drop_chunks(txn, self._first[0], open_seq)
        return self._first[0]

    def _exceeds(self, base_seq: int, ts_us: int, now_us: int, last_seq: int, used: int) -> bool:
        limits = self._limits
        return bool(
            (limits.max_age_s and ts_us < now_us - limits.max_age_s * 1_000_000)
            or (limits.max_messages and last_seq - base_seq + 1 > limits.max_messages)
            or (limits.max_bytes and used > limits.max_bytes)
        )

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


def _time_at(cursor: Cursor) -> int:
    """The time of the block under the cursor; a damaged one counts as old as the next good one."""
    key = bytes(cursor.key())
    try:
        for _ in range(_LOOK_AHEAD):
            try:
                return stamp_of(cursor.value()).ts_us
            except BlockError:
                if not cursor.next():
                    break
        return 0
    finally:
        cursor.set_key(key)
