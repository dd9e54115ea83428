"""Rows of delayed publishes: what is due when, found by time, by number and by name.

    schedule        (due, id) -> the whole schedule
    schedule_ids    id -> due      "n" + hash of the name -> id      "t" + topic -> messages that wait
                    "all" -> highest id, messages that wait

Numbers are below 2^56, so that their keys begin with a zero byte and never meet the others. Counts are kept, because
counting a million rows for each question would be a way to stop a hub. Every call is one short read transaction.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.errors import JournalDamaged
from fabric.journal.environment import Reading, Tables, Writing
from fabric.journal.rows import SEQ_MAX, name_key, pack, pair_key, seal, seq_key, unpack, unseal
from fabric.records import CountSchedules, DropSchedule, SaveSchedule

if TYPE_CHECKING:
    import lmdb

    from fabric.journal.page_release import Residence

ID_MAX: Final = (1 << 56) - 1
_PAGE_BYTES: Final = 4 << 10  # rows that are read together need not be neighbours
_ALL: Final = b"all"
_NAME: Final = b"n"
_TOPIC: Final = b"t"

Key = tuple[int, int]  # (due_us, id)


class Counts(NamedTuple):
    last_id: int
    schedules: int
    messages: int
    topics: dict[str, int]  # messages that wait, by topic; in the order of their names


def put_schedule(txn: Writing, tables: Tables, record: SaveSchedule) -> None:
    number, due_us = record.id, record.due_us
    _put(txn, tables.schedule, pair_key(due_us, number), list(record))
    _put(txn, tables.schedule_ids, seq_key(number), [due_us])
    if record.name:
        _put(txn, tables.schedule_ids, _NAME + name_key(record.name), [number])


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
            _put(txn, table, key, [waiting])
        else:
            txn.delete(key, db=table)
    messages = _number(_ALL, txn.get(_ALL, db=table), 1) + sum(change for _, change in record.changes)
    _put(txn, table, _ALL, [record.last_id, max(messages, 0)])


class ScheduleReader:
    """Finds schedules that are on disk. Used by one thread."""

    def __init__(
        self, transaction: Callable[[], AbstractContextManager[Reading]], tables: Tables, residence: "Residence"
    ) -> None:
        self._transaction = transaction
        self._tables = tables
        self._residence = residence

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        """The keys above `after` that are due up to a time, earliest first."""
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
        """The schedules of these keys, until there are so many bytes: None when there is none, text when damaged."""
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
        self._residence.touched(size + _PAGE_BYTES * len(found))
        return found

    def find(self, number: int) -> SaveSchedule | str | None:
        """By number."""
        with self._transaction() as txn:
            return self._find(txn, number)

    def find_name(self, name: str) -> SaveSchedule | str | None:
        key = _NAME + name_key(name)
        with self._transaction() as txn:
            found = self._find(txn, _number(key, txn.get(key, db=self._tables.schedule_ids), 0))
        return found if not isinstance(found, SaveSchedule) or found.name == name else None

    def page(self, after: Key, limit: int, bytes_max: int) -> tuple[list[SaveSchedule], Key | None]:
        """Schedules above `after` in the order in which they are due, and the key at which to go on, if there are more.

        Damaged ones are left out.
        """
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
        self._residence.touched(size)
        return rows, last if more else None

    def counts(self, topics_max: int) -> Counts:
        """How many wait, in all and for the first so many topics."""
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
        """The highest number in use, in case the row that knows it is damaged."""
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
        return _schedule(key, row) if row is not None else "its row is missing"


def _above(key: Key) -> bytes:
    return pair_key(key[0], key[1] + 1) if key[1] < SEQ_MAX else pair_key(key[0] + 1, 0)


def _schedule(key: bytes, row: bytes | memoryview) -> SaveSchedule | str:
    try:
        return SaveSchedule(*unpack(unseal(key, row)))
    except (JournalDamaged, TypeError) as error:
        return str(error)


def _number(key: bytes, row: bytes | memoryview | None, place: int) -> int:
    """A number out of a small row; 0 when there is none, or when it is damaged: a count may be wrong, a hub goes on."""
    if row is None:
        return 0
    try:
        number: int = unpack(unseal(key, row))[place]
    except JournalDamaged:
        return 0
    return number


def _put(txn: Writing, table: "lmdb._Database", key: bytes, row: list[object]) -> None:
    txn.put(key, seal(key, pack(row)), db=table)
