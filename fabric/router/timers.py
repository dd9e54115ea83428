"""A heap of timers. An entry is not cancelled; the caller ignores an entry that is stale when it is due."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

# Stale entries stay until there are this many entries, or twice as many as there were after the last cleanup.
TIMERS_MIN: Final = 4_096
NEVER: Final = float("inf")

What = TypeVar("What")


class Timers(Generic[What]):
    def __init__(self, is_pending: Callable[[What], bool]) -> None:
        self._is_pending = is_pending
        self._heap: list[tuple[float, int, What]] = []
        self._size_max = TIMERS_MIN
        self._ids = count()  # the tie-breaker: of equal times, the entry that was set first

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, when: float, what: What) -> None:
        heap = self._heap
        if len(heap) >= self._size_max:
            heap[:] = [timer for timer in heap if self._is_pending(timer[2])]
            heapify(heap)
            self._size_max = max(2 * len(heap), TIMERS_MIN)
        heappush(heap, (when, next(self._ids), what))

    def next(self) -> float:
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now: float) -> What | None:
        """Remove and return the earliest entry that is due; None when there is none."""
        return heappop(self._heap)[2] if self._heap and self._heap[0][0] <= now else None
