"""The disk of a simulated hub: what was committed, in order, and nothing else. The router reads it as its `Reader`."""

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from fabric.records import (
    Append,
    CountSchedules,
    Discard,
    DropFailure,
    DropGroup,
    DropIds,
    DropProducer,
    DropSchedule,
    DropTopic,
    Record,
    Restored,
    SaveEvents,
    SaveFailure,
    SaveGroup,
    SaveIds,
    SaveProducer,
    SaveSchedule,
    SaveSetting,
    SaveTopic,
    TopicSettings,
)
from fabric_protocol.block import Block
from fabric_protocol.block_contents import Contents, contents_of

CONTENTS_MAX: Final = 8  # blocks of one call, so that a count takes several
Key = tuple[int, int]  # (due_us, id)
_STAMP: Final = struct.Struct("<8xI4xQq")  # count, base_seq, ts_us


def stamp_of(raw: bytes) -> tuple[int, int, int]:
    """(first seq, last seq, ts_us) of a stamped block, without opening it."""
    count, base, ts = _STAMP.unpack_from(raw)
    return base, base + count - 1, ts


class ScheduleCounts(NamedTuple):
    last_id: int
    schedules: int
    messages: int
    topics: dict[str, int]


class StoredSchedules:
    """The table of schedules, as a sorted list of keys."""

    def __init__(self) -> None:
        self._rows: dict[Key, SaveSchedule] = {}
        self._keys: list[Key] = []
        self.last_id = 0

    def save(self, row: SaveSchedule) -> None:
        key = (row.due_us, row.id)
        if key not in self._rows:
            insort(self._keys, key)
        self._rows[key] = row
        self.last_id = max(self.last_id, row.id)

    def drop(self, key: Key) -> None:
        if self._rows.pop(key, None) is not None:
            self._keys.remove(key)

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        at = bisect_right(self._keys, after)
        return [key for key in self._keys[at : at + limit] if key[0] <= until_us]

    def read(self, keys: Iterable[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        return [self._rows.get(key) for key in keys]

    def find(self, number: int) -> SaveSchedule | str | None:
        return next((row for row in self._rows.values() if row.id == number), None)

    def find_name(self, name: str, owner: str) -> SaveSchedule | str | None:
        return next((row for row in self._rows.values() if row.name == name and row.owner == owner), None)

    def page(self, after: Key, limit: int, bytes_max: int, owner: str | None) -> tuple[list[SaveSchedule], Key | None]:
        at = bisect_right(self._keys, after)
        keys = self._keys[at : at + limit]
        return [self._rows[key] for key in keys], keys[-1] if len(self._keys) > at + limit else None

    def counts(self, topics_max: int, owner: str | None = None) -> ScheduleCounts:
        return ScheduleCounts(self.last_id, len(self._rows), 0, {})


class Disk:
    def __init__(self, settings: Iterable[tuple[str, TopicSettings]] = ()) -> None:
        self.bases: list[int] = []
        self.raws: list[bytes | Block] = []  # opened when someone reads them
        self.first_seq = 1
        self.begins_at = 1  # the first block; what was discarded between blocks does not move it
        self.last_seq = 0
        self.last_ts_us = 0
        self.groups: dict[str, SaveGroup] = {}
        self.producers: dict[str, SaveProducer] = {}
        self.failures: dict[tuple[str, int], SaveFailure] = {}
        self.topics = {name: SaveTopic(name, one, 1, 0, 0) for name, one in settings}
        self.settings: dict[str, SaveSetting] = {}
        self.schedules = StoredSchedules()
        self._ids: dict[int, bytes] = {}
        self._id_numbers: list[int] = []
        self._next_event = 1
        self._events: list[SaveEvents] = []

    def write(self, records: list[Record]) -> None:
        """One transaction."""
        for record in records:
            match record:
                case Append(raw):
                    first, last, ts_us = stamp_of(raw)
                    assert first == self.last_seq + 1, "J1: seqs have no gap"
                    assert ts_us >= self.last_ts_us, "J1: the journal's time never goes back"
                    self.last_seq, self.last_ts_us = last, ts_us
                    self.bases.append(first)
                    self.raws.append(raw)
                case SaveGroup(name):
                    self.groups[name] = record
                case SaveProducer(name):
                    self.producers[name] = record
                case DropProducer(name):
                    self.producers.pop(name, None)
                case SaveFailure(group, first):
                    self.failures[group, first] = record
                case DropFailure(group, first):
                    self.failures.pop((group, first), None)
                case DropGroup(name):
                    self.groups.pop(name, None)
                    for key in [key for key in self.failures if key[0] == name]:
                        del self.failures[key]
                case SaveTopic(name):
                    self.topics[name] = record
                case Discard(bases):
                    for base in bases:
                        at = bisect_left(self.bases, base)
                        if self.bases[at : at + 1] == [base]:
                            del self.bases[at], self.raws[at]
                case DropTopic(name):
                    self.topics.pop(name, None)
                case SaveSetting(name, None):
                    self.settings.pop(name, None)
                case SaveSetting(name):
                    self.settings[name] = record
                case SaveSchedule():
                    self.schedules.save(record)
                case CountSchedules(last_id):
                    self.schedules.last_id = last_id
                case DropSchedule(number, due_us):
                    self.schedules.drop((due_us, number))
                case SaveIds(number, value):
                    if number not in self._ids:
                        insort(self._id_numbers, number)
                    self._ids[number] = value
                case DropIds(number):
                    if self._ids.pop(number, None) is not None:
                        self._id_numbers.remove(number)
                case SaveEvents(first, count):
                    assert first == self._next_event
                    self._next_event += count
                    self._events.append(record)

    def trim(self, first_seq: int) -> int:
        """Remove what lies below first_seq, but of blocks only whole ones; returns where the journal starts now."""
        keep = bisect_right(self.bases, first_seq) - 1
        if keep > 0:
            del self.bases[:keep], self.raws[:keep]
            self.begins_at = self.bases[0]
        self.first_seq = max(self.first_seq, first_seq)
        return self.first_seq

    def restored(self) -> Restored:
        """What a router is started with."""
        return Restored(
            self.first_seq,
            self.last_seq,
            self.last_ts_us,
            tuple(self.groups.values()),
            tuple(self.producers.values()),
            tuple(self.failures.values()),
            tuple(self.topics.values()),
            tuple(self.settings.values()),
        )

    # The Reader.

    def _open(self, at: int) -> Block:
        block = self.raws[at]
        if not isinstance(block, Block):
            block = self.raws[at] = Block(block)
        return block

    def blocks(self, first_seq: int) -> list[Block]:
        """The blocks with messages at or beyond a seq."""
        begin = max(bisect_right(self.bases, first_seq) - 1, 0)
        return [self._open(at) for at in range(begin, len(self.bases))]

    def block_at(self, seq: int) -> Block | None:
        at = bisect_right(self.bases, seq) - 1
        block = self._open(at) if at >= 0 else None
        return block if block is not None and seq <= block.last_seq else None

    def next_block(self, seq: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        for at in range(max(bisect_right(self.bases, seq) - 1, 0), len(self.bases)):
            block = self._open(at)
            if block.last_seq >= seq and any(map(wanted, block.topics)):
                return block, block.last_seq + 1
        return None, max(seq, self.last_seq + 1)

    def contents(self, seq: int, *, sizes: bool = False) -> tuple[list[Contents], int]:
        first = max(bisect_right(self.bases, seq) - 1, 0)
        blocks = [self._open(at) for at in range(first, min(first + CONTENTS_MAX, len(self.bases)))]
        found = [contents_of(memoryview(block.raw), sizes=sizes) for block in blocks if block.last_seq >= seq]
        is_end = first + CONTENTS_MAX >= len(self.bases)
        return found, max(self.last_seq + 1, seq) if is_end else blocks[-1].last_seq + 1

    def time_of(self, seq: int) -> int:
        block = self.block_at(seq)
        return block.ts_us if block is not None else 0

    def seek_time(self, ts_us: int) -> int:
        for at in range(len(self.bases)):
            if self._open(at).ts_us >= ts_us:
                return self.bases[at]
        return self.last_seq + 1

    def latest_per_key(self, wanted: Callable[[str], bool]) -> Iterator[list[int]]:
        latest: dict[tuple[str, bytes], int] = {}
        for at in range(len(self.bases)):
            block = self._open(at)
            for place, name in enumerate(zip(block.topic_names(), block.keys(), strict=True)):
                if wanted(name[0]):
                    latest[name] = block.base_seq + place
        yield list(latest.values())

    def forget(self, wanted: Callable[[str], bool]) -> None:
        pass  # nothing is remembered

    def topic_names(self, limit: int) -> tuple[list[str], bool]:
        names = list(dict.fromkeys(name for at in range(len(self.bases)) for name in self._open(at).topics))
        return names[:limit], len(names) <= limit

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        at = bisect_left(self._id_numbers, number)
        return (self._id_numbers[at], self._ids[self._id_numbers[at]]) if at < len(self._id_numbers) else None

    def next_event(self) -> int:
        return self._next_event

    def first_event(self) -> int:
        return self._events[0].first if self._events else 1

    def event_blocks(self, number: int, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        rows = [row for row in self._events if row.first + row.count > number]
        return [(row.first + row.count - 1, row.value) for row in rows[:count]]

    def previous_block(self, before: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        at = bisect_left(self.bases, before) - 1
        if at < 0:
            return None, 0
        block = self._open(at)
        return (block if any(map(wanted, block.topics)) else None), block.base_seq

    def last_match(self, wanted: Callable[[str], bool], before: int | None = None) -> int | None:
        for at in range(len(self.bases) - 1, -1, -1):
            block = self._open(at)
            if before is not None and block.base_seq >= before:
                continue
            names = block.topic_names()
            for place in range(len(names) - 1, -1, -1):
                if wanted(names[place]):
                    return block.base_seq + place
        return None
