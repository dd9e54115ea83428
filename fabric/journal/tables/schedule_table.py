"""Rows of schedules, found by due time, by number and by name.

    schedule        (due, id) -> the whole schedule
    schedule_ids    id -> due      "n" + hash of the name -> id      "t" + topic -> messages that wait
                    "all" -> highest id, messages that wait

Numbers are below 2^56, so their keys begin with a zero byte and differ from all other keys. Counts are stored, because
counting a million rows for each INFO would stall the hub. Every call is one short read transaction.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.errors import JournalDamaged
from fabric.journal.environment import Reading, Tables, Writing, put_row
from fabric.journal.rows import SEQ_MAX, name_key, pair_key, seq_key, unpack, unseal
from fabric.records import CountSchedules, DropSchedule, SaveSchedule

if TYPE_CHECKING:
    from fabric.journal.page_release import PageRelease

_PAGE_BYTES: Final = 4 << 10  # counted for each row: rows that are read together may be on different pages
_ALL: Final = b"all"
_NAME: Final = b"n"
_TOPIC: Final = b"t"

Key = tuple[int, int]  # (due_us, id)


class Counts(NamedTuple):
    last_id: int
    schedules: int
    messages: int
    topics: dict[str, int]  # waiting messages by topic, in the order of the topics' names


def put_schedule(txn: Writing, tables: Tables, record: SaveSchedule) -> None:
    number, due_us = record.id, record.due_us
    put_row(txn, tables.schedule, pair_key(due_us, number), list(record))
    put_row(txn, tables.schedule_ids, seq_key(number), [due_us])
    if record.name:
        put_row(txn, tables.schedule_ids, _NAME + name_key(record.name), [number])


def drop_schedule(txn: Writing, tables: Tables, record: DropSchedule) -> None:
    txn.delete(pair_key(record.due_us, record.id), db=tables.schedule)
    txn.delete(seq_key(record.id), db=tables.schedule_ids)
    if record.name:
        txn.delete(_NAME + name_key(record.name), db=tables.schedule_ids)


def count_schedules(txn: Writing, tables: Tables, record: CountSchedules) -> None:
    table = tables.schedule_ids
    for topic, change in record.changes:
        key = _TOPIC + topic.encode()
        waiting = _number(key, txn.get(key, db=table), 0) + change
        if waiting > 0:
            put_row(txn, table, key, [waiting])
        else:
            txn.delete(key, db=table)
    messages = _number(_ALL, txn.get(_ALL, db=table), 1) + sum(change for _, change in record.changes)
    put_row(txn, table, _ALL, [record.last_id, max(messages, 0)])


class ScheduleReader:
    """Finds schedules on disk. Used by one thread."""

    def __init__(
        self, transaction: Callable[[], AbstractContextManager[Reading]], tables: Tables, page_release: "PageRelease"
    ) -> None:
        self._transaction = transaction
        self._tables = tables
        self._page_release = page_release

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        """The keys above `after` that are due up to a time, the earliest first."""
        keys: list[Key] = []
        stop = pair_key(until_us, SEQ_MAX)
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.schedule)
            if cursor.set_range(_above(after)):
                for raw in cursor.iternext(keys=True, values=False):
                    key = bytes(raw)
                    if key > stop or len(keys) >= limit:
                        break
                    keys.append((int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")))
        return keys

    def read(self, keys: Iterable[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        """The schedules of these keys, up to `bytes_max`: None for a missing schedule, a text for a damaged one."""
        found: list[SaveSchedule | str | None] = []
        size = 0
        with self._transaction() as txn:
            for due_us, number in keys:
                if size >= bytes_max:
                    break
                key = pair_key(due_us, number)
                row = txn.get(key, db=self._tables.schedule)
                found.append(_schedule(key, row) if row is not None else None)
                size += len(row) if row is not None else 0
        self._page_release.touched(size + _PAGE_BYTES * len(found))
        return found

    def find(self, number: int) -> SaveSchedule | str | None:
        """The schedule of a number: None when there is none, a text when it is damaged."""
        with self._transaction() as txn:
            return self._find(txn, number)

    def find_name(self, name: str) -> SaveSchedule | str | None:
        key = _NAME + name_key(name)
        with self._transaction() as txn:
            found = self._find(txn, _number(key, txn.get(key, db=self._tables.schedule_ids), 0))
        return found if not isinstance(found, SaveSchedule) or found.name == name else None

    def page(self, after: Key, limit: int, bytes_max: int) -> tuple[list[SaveSchedule], Key | None]:
        """Schedules above `after` in the order of their due times, without damaged ones; and the key after which to go
        on, or None at the end."""
        rows: list[SaveSchedule] = []
        size = 0
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.schedule)
            last: Key | None = None
            more = cursor.set_range(_above(after))
            while more and len(rows) < limit and size < bytes_max:
                key = bytes(cursor.key())
                row = _schedule(key, cursor.value())
                size += len(cursor.value())
                if isinstance(row, SaveSchedule):
                    rows.append(row)
                last = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
                more = cursor.next()
        self._page_release.touched(size)
        return rows, last if more else None

    def counts(self, topics_max: int) -> Counts:
        """The number of schedules and waiting messages, and the messages of the first `topics_max` topics."""
        table = self._tables.schedule_ids
        with self._transaction() as txn:
            row = txn.get(_ALL, db=table)
            schedules = txn.stat(self._tables.schedule)["entries"]
            last_id = max(_number(_ALL, row, 0), self._highest(txn))
            topics = dict(self._topics(txn, topics_max))
            return Counts(last_id, schedules, _number(_ALL, row, 1), topics)

    def _topics(self, txn: Reading, limit: int) -> Iterator[tuple[str, int]]:
        cursor = txn.cursor(self._tables.schedule_ids)
        more = cursor.set_range(_TOPIC)
        while more and limit > 0 and bytes(cursor.key()).startswith(_TOPIC):
            key = bytes(cursor.key())
            yield key[len(_TOPIC) :].decode(errors="replace"), _number(key, cursor.value(), 0)
            limit -= 1
            more = cursor.next()

    def _highest(self, txn: Reading) -> int:
        """The highest number in use, for when the row that stores it is damaged."""
        cursor = txn.cursor(self._tables.schedule_ids)
        found = cursor.prev() if cursor.set_range(b"\x01") else cursor.last()
        return int.from_bytes(bytes(cursor.key()), "big") if found and len(cursor.key()) == 8 else 0

    def _find(self, txn: Reading, number: int) -> SaveSchedule | str | None:
        key = seq_key(number)
        due = txn.get(key, db=self._tables.schedule_ids)
        if due is None:
            return None
        key = pair_key(_number(key, due, 0), number)
        row = txn.get(key, db=self._tables.schedule)
        return _schedule(key, row) if row is not None else "the row of the schedule is missing"


def _above(key: Key) -> bytes:
    return pair_key(key[0], key[1] + 1) if key[1] < SEQ_MAX else pair_key(key[0] + 1, 0)


def _schedule(key: bytes, row: bytes | memoryview) -> SaveSchedule | str:
    try:
        return SaveSchedule(*unpack(unseal(key, row)))
    except (JournalDamaged, TypeError) as error:
        return str(error)


def _number(key: bytes, row: bytes | memoryview | None, place: int) -> int:
    """A number of a small row; 0 when the row is missing or damaged: the hub goes on with a wrong count."""
    if row is None:
        return 0
    try:
        number: int = unpack(unseal(key, row))[place]
    except JournalDamaged:
        return 0
    return number
