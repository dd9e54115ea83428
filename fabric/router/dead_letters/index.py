"""Which dead letters exist: for each group, the seqs of dead letters that were neither redriven nor discarded.

Dead letters are messages of the journal, and the journal removes no single message, so the seqs are kept beside it.
Seqs are kept as runs, runs in short segments, and each segment is a row: a new dead letter rewrites the last row and a
redrive rewrites one row, however many dead letters there are. The row is written in the transaction that appends or
removes the dead letter.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final

from fabric.records import Record, SaveSetting
from fabric.router.part import Part
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.names import DEAD

RUNS_PER_SEGMENT: Final = 256  # a row of 4 KB; twice as many when redrives have split runs
_ROW: Final = "dlq:"  # in the table of settings: dlq:<group>:<first seq of the segment>


class _Segment:
    """Ascending runs firsts[i]..lasts[i], all at or above `key`."""

    __slots__ = ("firsts", "key", "lasts")

    def __init__(self, key: int) -> None:
        self.key = key
        self.firsts = array("Q")
        self.lasts = array("Q")

    def find(self, seq: int) -> int:
        """The place of the run with seq; -1 when there is none."""
        at = bisect_right(self.firsts, seq) - 1
        return at if at >= 0 and seq <= self.lasts[at] else -1

    def remove(self, at: int, first: int, last: int) -> None:
        """Remove first..last, which are all in run `at`."""
        low, high = self.firsts[at], self.lasts[at]
        keep = [(a, b) for a, b in ((low, first - 1), (last + 1, high)) if a <= b]
        self.firsts[at : at + 1] = array("Q", [a for a, _ in keep])
        self.lasts[at : at + 1] = array("Q", [b for _, b in keep])

    def size(self) -> int:
        return sum(self.lasts) - sum(self.firsts) + len(self.firsts)


class DeadLetterSet:
    """The dead letters of one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.size = 0
        self._segments: list[_Segment] = []
        self._dirty: dict[int, None] = {}

    def load(self, key: int, raw: bytes) -> None:
        """Add a segment from its row; rows come in the order of their keys."""
        segment = _Segment(key)
        half = len(raw) // 2
        segment.firsts.frombytes(raw[:half])
        segment.lasts.frombytes(raw[half:])
        self._segments.append(segment)
        self.size += segment.size()

    def add(self, first: int, count: int) -> None:
        """Add dead letters that are newer than all others."""
        segments = self._segments
        if not segments or len(segments[-1].firsts) >= RUNS_PER_SEGMENT:
            segments.append(_Segment(first))
        segment = segments[-1]
        if segment.lasts and segment.lasts[-1] == first - 1:
            segment.lasts[-1] += count
        else:
            segment.firsts.append(first)
            segment.lasts.append(first + count - 1)
        self.size += count
        self._dirty[segment.key] = None

    def __contains__(self, seq: int) -> bool:
        at = self._place(seq)
        return at >= 0 and self._segments[at].find(seq) >= 0

    def remove(self, first: int, last: int) -> None:
        """Remove dead letters first..last, which all exist. They may be in several segments."""
        while first <= last:
            place = self._place(first)
            segment = self._segments[place]
            at = segment.find(first)
            assert at >= 0, first
            end = min(last, segment.lasts[at])
            segment.remove(at, first, end)
            self.size -= end - first + 1
            self._dirty[segment.key] = None
            if not segment.firsts:
                del self._segments[place]
            elif len(segment.firsts) > 2 * RUNS_PER_SEGMENT:
                self._split(place)
            first = end + 1

    def runs(self, after: int, horizon: int) -> Iterator[tuple[int, int]]:
        """Runs of dead letters above `after`, up to the horizon. The caller must not remove any during the
        iteration."""
        for segment in self._segments[max(self._place(after), 0) :]:
            for at in range(bisect_right(segment.lasts, after), len(segment.firsts)):
                first = max(segment.firsts[at], after + 1)
                if first > horizon:
                    return
                yield first, min(segment.lasts[at], horizon)

    def count(self, horizon: int) -> int:
        """The number of dead letters up to the horizon. Few are above it, because they wait for a commit."""
        above = 0
        for segment in reversed(self._segments):
            for first, last in zip(reversed(segment.firsts), reversed(segment.lasts), strict=True):
                if last <= horizon:
                    return self.size - above
                above += last - max(first, horizon + 1) + 1
        return self.size - above

    def trim(self, first_seq: int) -> bool:
        """Retention has removed all below first_seq; returns whether a dead letter was among it."""
        size = self.size
        while self._segments and self._segments[0].firsts[0] < first_seq:
            segment = self._segments[0]
            gone = bisect_left(segment.lasts, first_seq)  # runs that lie below
            self.size -= segment.size()
            del segment.firsts[:gone], segment.lasts[:gone]
            if segment.firsts:
                segment.firsts[0] = max(segment.firsts[0], first_seq)
            self.size += segment.size()
            self._dirty[segment.key] = None
            if segment.firsts:
                break
            del self._segments[0]
        return self.size < size

    def rows(self) -> Iterator[Record]:
        """The rows that are out of date."""
        have = {segment.key: segment for segment in self._segments}
        for key in self._dirty:
            segment = have.get(key)
            value = None if segment is None else segment.firsts.tobytes() + segment.lasts.tobytes()
            yield SaveSetting(f"{_ROW}{self.group}:{key}", value)
        self._dirty = {}

    def _place(self, seq: int) -> int:
        """The place of the segment for seq; -1 when seq is below all segments."""
        return bisect_right(self._segments, seq, key=_key) - 1

    def _split(self, place: int) -> None:
        segment = self._segments[place]
        half = len(segment.firsts) // 2
        upper = _Segment(segment.firsts[half])
        upper.firsts, upper.lasts = segment.firsts[half:], segment.lasts[half:]
        del segment.firsts[half:], segment.lasts[half:]
        self._segments.insert(place + 1, upper)
        self._dirty[upper.key] = None


class DeadLetters(Part):
    def __init__(self, saved: Iterable[SaveSetting], first_seq: int) -> None:
        self.by_group: dict[str, DeadLetterSet] = {}
        self._dirty: dict[DeadLetterSet, None] = {}
        for name, key, raw in sorted(_rows(saved)):
            self.by_group.setdefault(name, DeadLetterSet(name)).load(key, raw)
        self.trimmed(first_seq)

    def appended(self, block: Block, base_seq: int, turn: Turn) -> None:
        """Note the dead letters of a block that is appended to a topic of the hub."""
        if block.topics[0].startswith(DEAD):
            group = block.topics[0].removeprefix(DEAD)
            self.by_group.setdefault(group, DeadLetterSet(group)).add(base_seq, block.count)
            self._dirty[self.by_group[group]] = None
            turn.advise("$sys.dlq", group=group, first_seq=base_seq, count=block.count)

    def holds(self, topic: str, seq: int) -> bool:
        """Whether a message of a topic $dlq.<group> is a dead letter, neither redriven nor discarded."""
        letters = self.by_group.get(topic.removeprefix(DEAD))
        return letters is not None and seq in letters

    def remove(self, letters: DeadLetterSet, first: int, last: int) -> None:
        letters.remove(first, last)
        self._dirty[letters] = None

    def trimmed(self, first_seq: int) -> None:
        """Retention has removed all messages below first_seq. The rows are not written: a restart trims them again."""
        for letters in self.by_group.values():
            letters.trim(first_seq)

    def floor_raised(self, topic: str, floor: int) -> None:
        """The floor of a topic, which may be a topic of dead letters, was raised."""
        letters = self.by_group.get(topic.removeprefix(DEAD)) if topic.startswith(DEAD) else None
        if letters is not None and letters.trim(floor):
            self._dirty[letters] = None

    @property
    def has_rows(self) -> bool:
        """Whether `rows` has something to write."""
        return bool(self._dirty)

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        if not self._dirty:
            return []
        rows = [row for letters in self._dirty for row in letters.rows()]
        self._dirty = {}
        return rows


def _rows(saved: Iterable[SaveSetting]) -> Iterator[tuple[str, int, bytes]]:
    for name, value in saved:
        if name.startswith(_ROW) and value:
            group, _, key = name.removeprefix(_ROW).rpartition(":")
            yield group, int(key), value


def _key(segment: _Segment) -> Any:
    return segment.key
