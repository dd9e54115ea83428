"""A set of integers as ascending, disjoint, non-adjacent closed ranges.

Messages are delivered and settled in runs, so the outstanding messages are a few ranges, however many messages there
are. The router keeps seqs and ordinals in ranges.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Ranges:
    __slots__ = ("_firsts", "_lasts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []  # _lasts[i] + 1 < _firsts[i + 1]
        for first, last in ranges:
            self.add(first, last)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        """The number of ranges: memory and disk grow with it."""
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def __repr__(self) -> str:
        return f"Ranges({list(self)})"

    @property
    def first(self) -> int:
        return self._firsts[0]

    @property
    def last(self) -> int:
        return self._lasts[-1]

    def between(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges that overlap first..last."""
        i, j = bisect_left(self._lasts, first), bisect_right(self._firsts, last)
        return list(zip(self._firsts[i:j], self._lasts[i:j], strict=True))

    def holds(self, number: int) -> bool:
        at = bisect_left(self._lasts, number)
        return at < len(self._firsts) and self._firsts[at] <= number

    def size(self) -> int:
        """The number of integers."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def add(self, first: int, last: int) -> None:
        firsts, lasts = self._firsts, self._lasts
        if not lasts or lasts[-1] + 1 < first:  # the usual case: a new run at the end
            firsts.append(first)
            lasts.append(last)
            return
        i = bisect_left(lasts, first - 1)  # first range that touches or follows first..last
        j = bisect_right(firsts, last + 1)  # after the last range that touches first..last
        if i < j:
            first, last = min(first, firsts[i]), max(last, lasts[j - 1])
        firsts[i:j] = [first]
        lasts[i:j] = [last]

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The integers of first..last that are in the set, as ranges."""
        firsts, lasts = self._firsts, self._lasts
        i, j = bisect_left(lasts, first), bisect_right(firsts, last)
        return [(max(first, a), min(last, b)) for a, b in zip(firsts[i:j], lasts[i:j], strict=True)]

    def remove(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove first..last; returns the integers that were in the set, as ranges."""
        firsts, lasts = self._firsts, self._lasts
        i = bisect_left(lasts, first)
        j = bisect_right(firsts, last)
        if i >= j:
            return []
        taken = [(max(first, a), min(last, b)) for a, b in zip(firsts[i:j], lasts[i:j], strict=True)]
        keep_firsts, keep_lasts = [], []
        if firsts[i] < first:
            keep_firsts.append(firsts[i])
            keep_lasts.append(first - 1)
        if lasts[j - 1] > last:
            keep_firsts.append(last + 1)
            keep_lasts.append(lasts[j - 1])
        firsts[i:j] = keep_firsts
        lasts[i:j] = keep_lasts
        return taken
