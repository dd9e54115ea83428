"""The index of delivery events: which events on disk can be about a message.

A stretch is some thousand consecutive events. Its summary has the seqs of its events as a few spans, and is a row of
the table of settings; the events themselves are read only from stretches whose spans contain the seq. So one message is
found among millions of events by a look at some thousand summaries, which are in memory. Events without a summary were
written by an older program, or shortly before the hub died: the search reads them.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fabric.records import Record, SaveSetting

STRETCH_EVENTS: Final = 8_192  # 20 million events have 2,500 summaries
STRETCH_BLOCKS: Final = 1_024  # of events; reading them takes some ten milliseconds
SPANS_MAX: Final = 32  # of one stretch: a row of half a kilobyte, and as many groups at different places
DROPPED_MAX: Final = 1_000  # summaries that are removed together, because they are rows of one commit
_ROW: Final = "events:"  # in the table of settings: events:<number of the first event>

Pair = tuple[int, int]


class Stretch(NamedTuple):
    """Events first..last, and the seqs that they are about: spans firsts[i]..lasts[i], ascending."""

    first: int
    last: int
    firsts: "array[int]"
    lasts: "array[int]"

    def holds(self, seq: int) -> bool:
        """Whether an event of the stretch can be about a message."""
        at = bisect_right(self.firsts, seq) - 1
        return at >= 0 and seq <= self.lasts[at]

    def row(self) -> SaveSetting:
        numbers = array("Q", [self.last]) + self.firsts + self.lasts
        return SaveSetting(f"{_ROW}{self.first}", numbers.tobytes())

    @classmethod
    def of_row(cls, row: SaveSetting) -> "Stretch":
        numbers = array("Q")
        numbers.frombytes(row.value)
        half = len(numbers) // 2 + 1
        return cls(int(row.name.removeprefix(_ROW)), numbers[0], numbers[1:half], numbers[half:])


def spans_of(pairs: Iterable[Pair], most: int) -> list[Pair]:
    """Spans that cover all pairs (first seq, last seq): at most so many, with the longest gaps between them."""
    spans: list[Pair] = []
    for first, last in sorted(pairs):
        if spans and first <= spans[-1][1] + 1:
            if last > spans[-1][1]:
                spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))
    if len(spans) <= most:
        return spans
    gaps = sorted(range(1, len(spans)), key=lambda at: spans[at - 1][1] - spans[at][0])[: most - 1]
    starts = [0, *sorted(gaps)]
    ends = [*(at - 1 for at in starts[1:]), len(spans) - 1]
    return [(spans[start][0], spans[end][1]) for start, end in zip(starts, ends, strict=True)]


class EventIndex:
    def __init__(self, saved: Iterable[SaveSetting]) -> None:
        rows = [row for row in saved if row.name.startswith(_ROW) and isinstance(row.value, bytes)]
        self._stretches = sorted(map(Stretch.of_row, rows), key=lambda stretch: stretch.first)
        self._pairs: list[Pair] = []  # of the events since the last summary
        self._first = 0  # the number of the first of these events; 0: there are none
        self._blocks = 0  # blocks of these events
        self._changed: list[Record] = []

    def __len__(self) -> int:
        """The number of summaries."""
        return len(self._stretches)

    def add(self, first: int, pairs: Sequence[Pair]) -> None:
        """Add a block of events: the number of its first event, and the seqs of each event."""
        self._first = self._first or first
        self._pairs += pairs
        self._blocks += 1
        if len(self._pairs) < STRETCH_EVENTS and self._blocks < STRETCH_BLOCKS:
            return
        spans = spans_of(self._pairs, SPANS_MAX)
        firsts, lasts = array("Q", [a for a, _ in spans]), array("Q", [b for _, b in spans])
        stretch = Stretch(self._first, first + len(pairs) - 1, firsts, lasts)
        self._stretches.append(stretch)
        self._changed.append(stretch.row())
        self._pairs, self._first, self._blocks = [], 0, 0

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        changed, self._changed = self._changed, []
        return changed

    def removed(self, first_event: int) -> None:
        """Retention has removed the events below a number: their summaries are removed."""
        gone = 0
        while gone < min(len(self._stretches), DROPPED_MAX) and self._stretches[gone].last < first_event:
            self._changed.append(SaveSetting(f"{_ROW}{self._stretches[gone].first}", None))
            gone += 1
        del self._stretches[:gone]

    def next_place(self, number: int, seq: int) -> tuple[int, int] | None:
        """The next events, at or after a number, that can be about a message: the numbers of the first and the last;
        the last is 0 if no summary bounds them. None: there are none."""
        at = bisect_right(self._stretches, number, key=lambda stretch: stretch.first) - 1
        if at >= 0 and number > self._stretches[at].last:
            at += 1
        for place in range(max(at, 0), len(self._stretches)):
            stretch = self._stretches[place]
            if stretch.first > number:  # events without a summary
                return number, stretch.first - 1
            if stretch.holds(seq):
                return number, stretch.last
            number = stretch.last + 1
        if self._first > number:  # events without a summary
            return number, self._first - 1
        if self._first and not any(a <= seq <= b for a, b in self._pairs):
            return None
        return number, 0
