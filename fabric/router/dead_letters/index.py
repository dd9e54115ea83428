"""Which dead letters there are: for each group the seqs of those that were neither redriven nor discarded.

Letters are messages of the journal, and the journal does not forget single messages, so what is still a letter is
written down beside it. Seqs are kept as runs, runs in short segments, and each segment is a row of its own: a death
rewrites the last row, a redrive rewrites one, however many letters there are. All of it is in the transaction that
appends the letter or takes it away.
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

RUNS_PER_SEGMENT: Final = 256  # a row of 4 KB; twice as many when runs are broken up by redrives
_ROW: Final = "dlq:"  # in the table of settings: dlq:<group>:<first seq of the segment>


class _Segment:
    """Ascending runs firsts[i]..lasts[i], all at or above `key`."""

    __slots__ = ("firsts", "key", "lasts")

    def __init__(self, key: int) -> None:
        self.key = key
        self.firsts = array("Q")
        self.lasts = array("Q")

    def find(self, seq: int) -> int:
        """The place of the run that holds seq; -1 when there is none."""
        at = bisect_right(self.firsts, seq) - 1
        return at if at >= 0 and seq <= self.lasts[at] else -1

    def remove(self, at: int, first: int, last: int) -> None:
        """Take first..last out of run `at`, which holds them all."""
        low, high = self.firsts[at], self.lasts[at]
        keep = [(a, b) for a, b in ((low, first - 1), (last + 1, high)) if a <= b]
        self.firsts[at : at + 1] = array("Q", [a for a, _ in keep])
        self.lasts[at : at + 1] = array("Q", [b for _, b in keep])

    def size(self) -> int:
        return sum(self.lasts) - sum(self.firsts) + len(self.firsts)


class Box:
    """The dead letters of one group."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.size = 0
        self._segments: list[_Segment] = []
        self._dirty: dict[int, None] = {}

    def load(self, key: int, raw: bytes) -> None:
        """A segment from its row; rows come in order of their keys."""
        segment = _Segment(key)
        half = len(raw) // 2
        segment.firsts.frombytes(raw[:half])
        segment.lasts.frombytes(raw[half:])
        self._segments.append(segment)
        self.size += segment.size()

    def add(self, first: int, count: int) -> None:
        """Letters that are newer than all others."""
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
        """Letters first..last, which are all there, are no longer. A run may end with its segment."""
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
        """Runs of letters above `after`, up to the horizon. Nothing may be removed meanwhile."""
        for segment in self._segments[max(self._place(after), 0) :]:
            for at in range(bisect_right(segment.lasts, after), len(segment.firsts)):
                first = max(segment.firsts[at], after + 1)
                if first > horizon:
                    return
                yield first, min(segment.lasts[at], horizon)

    def count(self, horizon: int) -> int:
        """How many there are up to the horizon; those above are few, since they are on their way to the disk."""
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
        """The segment in which seq would be; -1 when it is below all."""
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
        self.boxes: dict[str, Box] = {}
        self._dirty: dict[Box, None] = {}
        for name, key, raw in sorted(_rows(saved)):
            self.boxes.setdefault(name, Box(name)).load(key, raw)
        self.trimmed(first_seq)

    def appended(self, block: Block, base_seq: int, turn: Turn) -> None:
        """A block of the hub's own topics is on its way into the journal."""
        if block.topics[0].startswith(DEAD):
            group = block.topics[0].removeprefix(DEAD)
            self.boxes.setdefault(group, Box(group)).add(base_seq, block.count)
            self._dirty[self.boxes[group]] = None
            turn.advise("$sys.dlq", group=group, first_seq=base_seq, count=block.count)

    def holds(self, topic: str, seq: int) -> bool:
        """Whether a message of a topic $dlq.<group> is still a letter."""
        box = self.boxes.get(topic.removeprefix(DEAD))
        return box is not None and seq in box

    def remove(self, box: Box, first: int, last: int) -> None:
        box.remove(first, last)
        self._dirty[box] = None

    def trimmed(self, first_seq: int) -> None:
        """Retention moved the start of the journal. The rows can wait: a restart trims them again."""
        for box in self.boxes.values():
            box.trim(first_seq)

    def lowered(self, topic: str, floor: int) -> None:
        """All below floor was removed from a topic, which may be one of dead letters."""
        box = self.boxes.get(topic.removeprefix(DEAD)) if topic.startswith(DEAD) else None
        if box is not None and box.trim(floor):
            self._dirty[box] = None

    @property
    def has_rows(self) -> bool:
        """Whether `rows` has something to write."""
        return bool(self._dirty)

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        if not self._dirty:
            return []
        rows = [row for box in self._dirty for row in box.rows()]
        self._dirty = {}
        return rows


def _rows(saved: Iterable[SaveSetting]) -> Iterator[tuple[str, int, bytes]]:
    for name, value in saved:
        if name.startswith(_ROW) and value:
            group, _, key = name.removeprefix(_ROW).rpartition(":")
            yield group, int(key), value


def _key(segment: _Segment) -> Any:
    return segment.key
