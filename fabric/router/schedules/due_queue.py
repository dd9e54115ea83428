"""The keys of the schedules that are due next, in memory; all other keys are on disk only.

A million schedules cost no memory, because the queue has the keys of about the next minute and no more than KEYS_MAX
of them; blocks stay on disk until they are due. The one idea: the queue has all keys up to the horizon and none beyond
it. The key of a cancelled schedule stays in the queue; when it is due, its schedule is not found.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from fabric.records import SaveSchedule

AHEAD_US: Final = 60_000_000
KEYS_MAX: Final = 20_000  # a few megabytes
LOAD_MAX: Final = 4_000  # keys read at once: two or three milliseconds
LOAD_BELOW: Final = 1_000  # keys are read when fewer than these are left

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
    """Schedules of committed turns, on disk."""

    def due(self, after: Key, until_us: int, limit: int) -> list[Key]:
        """The keys above `after` that are due up to until_us, earliest first."""
        ...

    def read(self, keys: Iterable[Key], bytes_max: int) -> list[SaveSchedule | str | None]:
        """The schedules of these keys, up to bytes_max: None when there is none, an error text when it is damaged."""
        ...

    def find(self, number: int) -> SaveSchedule | str | None: ...
    def find_name(self, name: str, owner: str) -> SaveSchedule | str | None: ...
    def page(
        self, after: Key, limit: int, bytes_max: int, owner: str | None
    ) -> tuple[list[SaveSchedule], Key | None]: ...
    def counts(self, topics_max: int, owner: str | None = None) -> Counts:
        """Counts of one owner; None: of all."""
        ...


class DueQueue:
    def __init__(self, stored: StoredSchedules) -> None:
        self._stored = stored
        self._heap: list[Key] = []
        self._horizon: Key = (0, 0)  # no key of the heap is above it; each key at or below it is in the heap

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: Key) -> None:
        """Add the key of a new schedule, unless it is beyond the horizon."""
        if key <= self._horizon:
            heappush(self._heap, key)
            if len(self._heap) > 2 * KEYS_MAX:
                self._drop_later_half()

    def _drop_later_half(self) -> None:
        """Drop the later keys, which are on disk or will be, and lower the horizon."""
        self._heap.sort()
        del self._heap[KEYS_MAX:]
        self._horizon = self._heap[-1]

    def wants_load(self, wall_us: int) -> bool:
        return len(self._heap) < LOAD_BELOW and self._horizon[0] < wall_us + AHEAD_US // 2

    def load(self, wall_us: int, unwritten: Iterable[Key], is_gone: Callable[[Key], bool]) -> None:
        """Raise the horizon. `unwritten` are keys that may not be on disk yet; `is_gone` tells which keys on disk were
        removed since."""
        until_us, low = wall_us + AHEAD_US, self._horizon
        keys = self._stored.due(low, until_us, LOAD_MAX)
        self._horizon = high = keys[-1] if len(keys) == LOAD_MAX else (until_us, _LAST)
        found = {key for key in keys if not is_gone(key)}
        found.update(key for key in unwritten if low < key <= high)  # a set, because a key may be on disk by now
        self._heap += found
        heapify(self._heap)
        if len(self._heap) > 2 * KEYS_MAX:
            self._drop_later_half()

    def take(self, wall_us: int, limit: int) -> list[Key]:
        """Remove and return the keys that are due, earliest first."""
        heap, taken = self._heap, list[Key]()
        while heap and heap[0][0] <= wall_us and len(taken) < limit:
            taken.append(heappop(heap))
        return taken

    def put_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            heappush(self._heap, key)

    def next_us(self) -> int:
        """When to look again: a key is due, or the horizon is near."""
        if len(self._heap) >= LOAD_BELOW:
            return self._heap[0][0]
        near = self._horizon[0] - AHEAD_US // 2
        return min(self._heap[0][0], near) if self._heap else near
