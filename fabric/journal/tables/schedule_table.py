"""Rows of schedules, found by due time, by number and by name.

    schedule        (due, id) -> the whole schedule
    schedule_ids    id -> due      "n" + hash of the name -> id      "t" + topic -> messages that wait
                    "all" -> highest id, messages that wait

and for schedules of an owner other than local, whose rows have the owner as their last field:

    schedule_ids    "o" + hash of owner and name -> id      "p" + hash of the owner + due + id -> nothing
                    "q" + hash of the owner -> schedules, messages that wait
                    "r" + hash of the owner + topic -> messages that wait

The counts of all these owners together have the owner "*"; so the counts of local are the difference. The rows of local
are those of older programs, which find a schedule of another owner damaged, and do not publish it.

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
_SCAN_MAX: Final = 2_000  # rows read for one page, of which some are of other owners
_ALL: Final = b"all"
_NAME: Final = b"n"
_TOPIC: Final = b"t"
_OWNED_NAME: Final = b"o"
_OWNED: Final = b"p"
_OWNER: Final = b"q"
_OWNER_TOPIC: Final = b"r"
_LOCAL: Final = "local"
_OTHERS: Final = "*"  # all owners but local

Key = tuple[int, int]  # (due_us, id)


class Counts(NamedTuple):
    last_id: int
    schedules: int
    messages: int
    topics: dict[str, int]  # waiting messages by topic, in the order of the topics' names


def put_schedule(txn: Writing, tables: Tables, record: SaveSchedule) -> None:
    number, due_us, owner = record.id, record.due_us, record.owner
    row = list(record)
    put_row(txn, tables.schedule, pair_key(due_us, number), row if owner != _LOCAL else row[:-1])
    put_row(txn, tables.schedule_ids, seq_key(number), [due_us])
    if record.name:
        put_row(txn, tables.schedule_ids, _named(record.name, owner), [number])
    if owner != _LOCAL:
        put_row(txn, tables.schedule_ids, _OWNED + name_key(owner) + pair_key(due_us, number), [])


def drop_schedule(txn: Writing, tables: Tables, record: DropSchedule) -> None:
    txn.delete(pair_key(record.due_us, record.id), db=tables.schedule)
    txn.delete(seq_key(record.id), db=tables.schedule_ids)
    if record.name:
        txn.delete(_named(record.name, record.owner), db=tables.schedule_ids)
    if record.owner != _LOCAL:
        txn.delete(_OWNED + name_key(record.owner) + pair_key(record.due_us, record.id), db=tables.schedule_ids)


def count_schedules(txn: Writing, tables: Tables, record: CountSchedules) -> None:
    table = tables.schedule_ids
    for topic, change in record.changes:
        _add(txn, tables, _TOPIC + topic.encode(), change)
    for owner, topic, change in record.owned:
        for whose in (owner, _OTHERS):
            if topic:
                _add(txn, tables, _OWNER_TOPIC + name_key(whose) + topic.encode(), change)
                _add(txn, tables, _OWNER + name_key(whose), 0, change)
            else:
                _add(txn, tables, _OWNER + name_key(whose), change, 0)
    messages = _number(_ALL, txn.get(_ALL, db=table), 1) + sum(change for _, change in record.changes)
    put_row(txn, table, _ALL, [record.last_id, max(messages, 0)])


def _add(txn: Writing, tables: Tables, key: bytes, *changes: int) -> None:
    """Change the numbers of a small row, which is removed when all of them are 0."""
    row = txn.get(key, db=tables.schedule_ids)
    numbers: list[object] = [max(_number(key, row, place) + change, 0) for place, change in enumerate(changes)]
    if any(numbers):
        put_row(txn, tables.schedule_ids, key, numbers)
    else:
        txn.delete(key, db=tables.schedule_ids)


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

    def find_name(self, name: str, owner: str = _LOCAL) -> SaveSchedule | str | None:
        """The schedule of an owner that has a name."""
        key = _named(name, owner)
        with self._transaction() as txn:
            found = self._find(txn, _number(key, txn.get(key, db=self._tables.schedule_ids), 0))
        return found if not isinstance(found, SaveSchedule) or (found.name, found.owner) == (name, owner) else None

    def page(
        self, after: Key, limit: int, bytes_max: int, owner: str | None = None
    ) -> tuple[list[SaveSchedule], Key | None]:
        """Schedules above `after` in the order of their due times, of one owner or of all, without damaged ones; and
        the key after which to go on, or None at the end."""
        rows: list[SaveSchedule] = []
        size, scanned, table, start = 0, 0, self._tables.schedule, b""
        if owner not in (None, _LOCAL):
            table, start = self._tables.schedule_ids, _OWNED + name_key(str(owner))
        with self._transaction() as txn:
            cursor = txn.cursor(table)
            last: Key | None = None
            more = cursor.set_range(start + _above(after))
            while more and len(rows) < limit and size < bytes_max and scanned < _SCAN_MAX:
                if not bytes(cursor.key()).startswith(start):
                    break
                scanned += 1
                key = bytes(cursor.key())[len(start) :]
                raw = txn.get(key, db=self._tables.schedule) if start else cursor.value()
                row = _schedule(key, raw) if raw is not None else None
                size += len(raw) if raw is not None else 0
                if isinstance(row, SaveSchedule) and owner in (None, row.owner):
                    rows.append(row)
                last = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
                more = cursor.next()
            more = more and bytes(cursor.key()).startswith(start)
        self._page_release.touched(size)
        return rows, last if more else None

    def counts(self, topics_max: int, owner: str | None = None) -> Counts:
        """The number of schedules and waiting messages of one owner or of all, and the messages of the first
        `topics_max` topics."""
        table = self._tables.schedule_ids
        with self._transaction() as txn:
            row = txn.get(_ALL, db=table)
            last_id = max(_number(_ALL, row, 0), self._highest(txn))
            if owner not in (None, _LOCAL):
                schedules, messages, prefix = self._owned(txn, str(owner))
                return Counts(last_id, schedules, messages, dict(self._topics(txn, prefix, topics_max)))
            schedules, messages = txn.stat(self._tables.schedule)["entries"], _number(_ALL, row, 1)
            if owner is None:
                return Counts(last_id, schedules, messages, dict(self._topics(txn, _TOPIC, topics_max)))
            not_mine, not_my_messages, prefix = self._owned(txn, _OTHERS)
            topics = {}
            for topic, waiting in self._topics(txn, _TOPIC, topics_max):
                key = prefix + topic.encode()
                if mine := max(waiting - _number(key, txn.get(key, db=table), 0), 0):
                    topics[topic] = mine
            return Counts(last_id, max(schedules - not_mine, 0), max(messages - not_my_messages, 0), topics)

    def _owned(self, txn: Reading, owner: str) -> tuple[int, int, bytes]:
        """Schedules and waiting messages of an owner, and how the keys of its topics begin."""
        key = _OWNER + name_key(owner)
        row = txn.get(key, db=self._tables.schedule_ids)
        return _number(key, row, 0), _number(key, row, 1), _OWNER_TOPIC + name_key(owner)

    def _topics(self, txn: Reading, prefix: bytes, limit: int) -> Iterator[tuple[str, int]]:
        cursor = txn.cursor(self._tables.schedule_ids)
        more = cursor.set_range(prefix)
        while more and limit > 0 and bytes(cursor.key()).startswith(prefix):
            key = bytes(cursor.key())
            yield key[len(prefix) :].decode(errors="replace"), _number(key, cursor.value(), 0)
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


def _named(name: str, owner: str) -> bytes:
    """The key of a name. The name of an owner has no slash."""
    return _NAME + name_key(name) if owner == _LOCAL else _OWNED_NAME + name_key(f"{owner}/{name}")


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
