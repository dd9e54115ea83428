"""Schedules in a dictionary, as a comparison for the journal's rows."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fabric.records import CountSchedules, DropSchedule, SaveSchedule

Key = tuple[int, int]


class Counts(NamedTuple):
    last_id: int
    schedules: int
    messages: int
    topics: dict[str, int]


class MemorySchedules:
    def __init__(self) -> None:
        self.rows: dict[Key, SaveSchedule] = {}
        self.last_id = 0
        self.topics: Counter[str] = Counter()
        self.owned: Counter[tuple[str, str]] = Counter()  # by owner and topic; with topic "", schedules
        self.reads = 0  # rows read with their blocks

    def write(self, record: SaveSchedule | DropSchedule | CountSchedules) -> None:
        match record:
            case SaveSchedule(number, due_us):
                assert self.find(number) is None, "a schedule has one row"
                assert not record.name or self.find_name(record.name, record.owner) is None, "a name has one schedule"
                self.rows[due_us, number] = record
            case DropSchedule(number, due_us, name, owner):
                row = self.rows.pop((due_us, number))
                assert (row.name, row.owner) == (name, owner)
            case CountSchedules(last_id, changes, owned):
                assert last_id >= self.last_id
                self.last_id = last_id
                self.topics.update(dict(changes))
                self.owned.update({(owner, topic): change for owner, topic, change in owned})
                assert all(count >= 0 for count in (*self.topics.values(), *self.owned.values()))
                for owner in {owner for owner, _ in self.owned}:
                    assert self.owned[owner, ""] == sum(row.owner == owner for row in self.rows.values())

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        return sorted(key for key in self.rows if after < key and key[0] <= until_us)[:limit]

    def read(self, keys: Iterable[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        found: list[SaveSchedule | str | None] = []
        for key in keys:
            if bytes_max <= 0:
                break
            row = self.rows.get(key)
            self.reads += row is not None
            bytes_max -= len(row.block) if row else 0
            found.append(row)
        return found

    def find(self, number: int) -> SaveSchedule | str | None:
        return next((row for row in self.rows.values() if row.id == number), None)

    def find_name(self, name: str, owner: str = "local") -> SaveSchedule | str | None:
        return next((row for row in self.rows.values() if (row.name, row.owner) == (name, owner)), None)

    def page(
        self, after: Key, limit: int, bytes_max: int, owner: str | None = None
    ) -> tuple[list[SaveSchedule], Key | None]:
        keys = sorted(key for key, row in self.rows.items() if after < key and owner in (None, row.owner))
        rows: list[SaveSchedule] = []
        for key in keys[:limit]:
            if bytes_max <= 0:
                break
            rows.append(self.rows[key])
            bytes_max -= len(self.rows[key].block)
        return rows, keys[len(rows) - 1] if len(rows) < len(keys) else None

    def counts(self, topics_max: int, owner: str | None = None) -> Counts:
        topics = {topic: count for topic, count in sorted(self.topics.items()) if count}
        if owner is not None:
            topics = {topic: self._waiting(topic, owner) for topic in topics if self._waiting(topic, owner)}
        schedules = sum(owner in (None, row.owner) for row in self.rows.values())
        return Counts(self.last_id, schedules, sum(topics.values()), dict(list(topics.items())[:topics_max]))

    def _waiting(self, topic: str, owner: str) -> int:
        if owner != "local":
            return self.owned[owner, topic]
        return self.topics[topic] - sum(count for (_, owned), count in self.owned.items() if owned == topic)
