"""Failures: counts of failures of the messages of a group, as rows for the journal.

A row is a range of messages with the same count, due time and reason. Only messages that have failed have a row. A row
is rewritten when its messages fail again and removed when they are settled, in the same turn. So a count survives a
crash, and the disk never has a count without its cause.
"""

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

from fabric.records import DropFailure, Record, SaveFailure


class Failure(NamedTuple):
    last: int
    failures: int
    due_us: int  # by the wall clock; 0: at once
    reason: str


class Failures:
    __slots__ = ("_changed", "_firsts", "_group", "_rows")

    def __init__(self, group: str) -> None:
        self._group = group
        self._rows: dict[int, Failure] = {}  # by first seq; disjoint
        self._firsts: list[int] = []  # the first seqs, ascending
        self._changed: dict[int, None] = {}  # first seqs with a row on disk that is out of date

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __len__(self) -> int:
        return len(self._firsts)

    def of(self, seq: int) -> Failure | None:
        """The count of a message; None when it has not failed."""
        at = bisect_right(self._firsts, seq) - 1
        row = self._rows[self._firsts[at]] if at >= 0 else None
        return row if row is not None and seq <= row.last else None

    def all(self) -> list[tuple[int, Failure]]:
        return [(first, self._rows[first]) for first in self._firsts]

    def restore(self, saved: SaveFailure) -> None:
        self._insert(saved.first, Failure(saved.last, saved.failures, saved.due_us, saved.reason))

    def note(self, first: int, last: int, failures: int, due_us: int, reason: str) -> None:
        """Set the count of failures of messages first..last."""
        self.forget(first, last)
        self._insert(first, Failure(last, failures, due_us, reason))
        self._changed[first] = None

    def forget(self, first: int, last: int) -> None:
        """Remove the counts of messages first..last."""
        firsts = self._firsts
        at = max(bisect_right(firsts, first) - 1, 0)
        for start in firsts[at : bisect_right(firsts, last)]:
            row = self._rows[start]
            if row.last < first:
                continue
            self._remove(start)
            if start < first:
                self._insert(start, row._replace(last=first - 1))
            if row.last > last:
                self._insert(last + 1, row)
                self._changed[last + 1] = None

    def clear(self) -> None:
        self._changed.update(dict.fromkeys(self._firsts))
        self._rows.clear()
        self._firsts.clear()

    def rows(self) -> list[Record]:
        """The changed rows, to write with this turn."""
        changed, self._changed = self._changed, {}
        return [
            SaveFailure(self._group, first, *self._rows[first])
            if first in self._rows
            else DropFailure(self._group, first)
            for first in changed
        ]

    def _insert(self, first: int, row: Failure) -> None:
        self._rows[first] = row
        insort(self._firsts, first)

    def _remove(self, first: int) -> None:
        del self._rows[first]
        del self._firsts[bisect_left(self._firsts, first)]
        self._changed[first] = None
