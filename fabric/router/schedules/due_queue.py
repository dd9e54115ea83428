"""What is due next: a short list of keys in memory, the rest on disk.

A million delayed messages cost no memory, because only the keys of about the next minute are here, and no more than
KEYS_MAX of them; blocks stay on disk until they are due. The one idea: up to the horizon, this list knows everything;
beyond it, nothing. Keys stay in it when a schedule is cancelled and are found void when they are due.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from fabric.records import SaveSchedule

AHEAD_US: Final = 60_000_000
KEYS_MAX: Final = 20_000  # a few megabytes
LOAD_MAX: Final = 4_000  # keys read at once: two or three milliseconds,
LOAD_BELOW: Final = 1_000  # when fewer than these are left

Key = tuple[int, int]  # (due_us, id)
_LAST: Final = (1 << 64) - 1  # after all ids


class Counts(Protocol):
    @property
    def last_id(self) -> int: ...
    @property
    def schedules(self) -> int: ...
    @property
    def messages(self) -> int: ...
    @property
    def topics(self) -> dict[str, int]: ...


class StoredSchedules(Protocol):
    """Schedules on disk: those of committed turns."""

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        """The keys above `after` that are due up to a time, earliest first."""
        ...

    def read(self, keys: Iterable[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        """The schedules of these keys, until there are so many bytes: None when there is none, text when damaged."""
        ...

    def find(self, number: int) -> SaveSchedule | str | None: ...
    def find_name(self, name: str) -> SaveSchedule | str | None: ...
    def page(self, after: Key, limit: int, bytes_max: int) -> tuple[list[SaveSchedule], Key | None]: ...
    def counts(self, topics_max: int) -> Counts: ...


class Upcoming:
    def __init__(self, stored: StoredSchedules) -> None:
        self._stored = stored
        self._heap: list[Key] = []
        self._horizon: Key = (0, 0)  # no key in the heap is above; no live key that is not in it is at or below

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: Key) -> None:
        """A new schedule. What lies beyond the horizon is left to the disk."""
        if key <= self._horizon:
            heappush(self._heap, key)
            if len(self._heap) > 2 * KEYS_MAX:
                self._shed()

    def _shed(self) -> None:
        """Too many for memory: forget the later half, which is on disk, or will be."""
        self._heap.sort()
        del self._heap[KEYS_MAX:]
        self._horizon = self._heap[-1]

    def wants_load(self, wall_us: int) -> bool:
        return len(self._heap) < LOAD_BELOW and self._horizon[0] < wall_us + AHEAD_US // 2

    def load(self, wall_us: int, unwritten: Iterable[Key], is_gone: Callable[[Key], bool]) -> None:
        """Move the horizon. `unwritten` are keys that the disk may not show yet; of those it shows, `is_gone` knows
        which are no more."""
        until_us, low = wall_us + AHEAD_US, self._horizon
        keys = self._stored.due(low, until_us, LOAD_MAX)
        self._horizon = high = keys[-1] if len(keys) == LOAD_MAX else (until_us, _LAST)
        found = {key for key in keys if not is_gone(key)}
        found.update(key for key in unwritten if low < key <= high)  # a set: one may have reached the disk meanwhile
        self._heap += found
        heapify(self._heap)
        if len(self._heap) > 2 * KEYS_MAX:
            self._shed()

    def take(self, wall_us: int, limit: int) -> list[Key]:
        """Take out what is due, earliest first."""
        heap, taken = self._heap, list[Key]()
        while heap and heap[0][0] <= wall_us and len(taken) < limit:
            taken.append(heappop(heap))
        return taken

    def put_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            heappush(self._heap, key)

    def next_us(self) -> int:
        """When to look again: something is due, or the horizon is near."""
        if len(self._heap) >= LOAD_BELOW:
            return self._heap[0][0]
        near = self._horizon[0] - AHEAD_US // 2
        return min(self._heap[0][0], near) if self._heap else near
