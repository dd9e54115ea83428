"""State rows: everything in the journal beside the messages.

    groups        name -> settings and position           failures   (group, first seq) -> attempts, due time, reason
    producers     name -> last number, epoch              topics     name -> settings, floor, messages and bytes
    schedule      (due, id) -> block                      schedule_ids   id -> due; name -> id; counts (`schedule`)
    ids           number -> part of the index of keys     events     number of the first -> block of events
    settings      name -> value                           origins    base_seq -> where a foreign block was born

A record that is not a block writes or removes one row here, in the transaction of its turn.
"""

from collections.abc import Iterator

from fabric.errors import JournalDamaged
from fabric.journal import rows as records
from fabric.journal.environment import Reading, Tables, Writing, put_row
from fabric.journal.rows import key_seq, name_key, seal, seq_key, unpack, unseal
from fabric.journal.tables.event_table import put_events
from fabric.journal.tables.origins import put_origin
from fabric.journal.tables.schedule_table import count_schedules, drop_schedule, put_schedule
from fabric.records import (
    CountSchedules,
    DropFailure,
    DropGroup,
    DropIds,
    DropProducer,
    DropSchedule,
    DropTopic,
    Record,
    SaveEvents,
    SaveFailure,
    SaveGroup,
    SaveIds,
    SaveOrigin,
    SaveProducer,
    SaveSchedule,
    SaveSetting,
    SaveTopic,
    TopicSettings,
)


def put_state(txn: Writing, tables: Tables, record: Record) -> None:
    """Write a record that is not a block."""
    match record:
        case SaveGroup():
            key, row = records.encode_group(record)
            txn.put(key, row, db=tables.groups)
        case DropGroup(name):
            txn.delete(name_key(name), db=tables.groups)
            _drop_failures(txn, tables, name)
        case SaveFailure(group, first):
            put_row(txn, tables.failures, _failure_key(group, first), list(record))
        case DropFailure(group, first):
            txn.delete(_failure_key(group, first), db=tables.failures)
        case SaveProducer():
            key, row = records.encode_producer(record)
            txn.put(key, row, db=tables.producers)
        case DropProducer(name):
            txn.delete(name_key(name), db=tables.producers)
        case SaveTopic(name, settings):
            put_row(txn, tables.topics, name_key(name), [name, list(settings), *record[2:]])
        case DropTopic(name):
            txn.delete(name_key(name), db=tables.topics)
        case SaveSchedule():
            put_schedule(txn, tables, record)
        case DropSchedule():
            drop_schedule(txn, tables, record)
        case CountSchedules():
            count_schedules(txn, tables, record)
        case SaveIds(number, value):
            txn.put(seq_key(number), seal(seq_key(number), value), db=tables.ids)
        case DropIds(number):
            txn.delete(seq_key(number), db=tables.ids)
        case SaveOrigin():
            put_origin(txn, tables, record)
        case SaveEvents():
            put_events(txn, tables, record)
        case SaveSetting(name, None):
            txn.delete(name_key(name), db=tables.settings)
        case SaveSetting(name, value):
            put_row(txn, tables.settings, name_key(name), [name, value])
        case _:
            raise AssertionError(f"not a record: {record!r}")


def failures(txn: Reading, tables: Tables) -> Iterator[SaveFailure]:
    for key, row in txn.cursor(tables.failures):
        yield SaveFailure(*unpack(unseal(key, row)))


def topics(txn: Reading, tables: Tables) -> Iterator[SaveTopic]:
    for key, row in txn.cursor(tables.topics):
        name, settings, *more = unpack(unseal(key, row))
        yield SaveTopic(name, TopicSettings(*settings), *more)


def settings(txn: Reading, tables: Tables) -> Iterator[SaveSetting]:
    for key, row in txn.cursor(tables.settings):
        yield SaveSetting(*unpack(unseal(key, row)))


def next_ids(txn: Reading, tables: Tables, number: int) -> tuple[int, bytes] | None:
    """The first row of the index of idempotency keys at or after a number; empty bytes when the row is damaged."""
    cursor = txn.cursor(tables.ids)
    if not cursor.set_range(seq_key(number)):
        return None
    try:
        return key_seq(cursor.key()), bytes(unseal(cursor.key(), cursor.value()))
    except JournalDamaged:
        return key_seq(cursor.key()), b""


def _failure_key(group: str, first: int) -> bytes:
    return name_key(group) + seq_key(first)


def _drop_failures(txn: Writing, tables: Tables, group: str) -> None:
    prefix = name_key(group)
    cursor = txn.cursor(tables.failures)
    found = cursor.set_range(prefix)
    while found and bytes(cursor.key()).startswith(prefix):
        found = cursor.delete() and bool(cursor.key())
