"""A combined filter of several full segments, so that a key that is in none of them costs one lookup for all.

It is computed from the buckets of its segments, in small steps, and is in memory only: after a restart it is computed
again while the hub works, and until then each segment is searched alone.
"""

from array import array
from collections.abc import Callable
from itertools import compress, islice
from operator import and_, eq
from typing import Final

from fabric.router.publish.dedupe.segment import BUCKETS, KEY_BYTES, MASK_SHIFT, MASKS, WORDS, Places, Row, Segment

FILTER_SEGMENTS: Final = 16  # with more segments, finding the segment with a key would take long
SHARED_WORDS: Final = FILTER_SEGMENTS * WORDS
SHARED_BYTES: Final = 8 * SHARED_WORDS

_SLOT: Final = SHARED_WORDS - 1


class SegmentFilter:
    __slots__ = ("_filter", "absorbed", "segments")

    def __init__(self) -> None:
        self._filter = array("Q", [0]) * SHARED_WORDS
        self.segments: list[Segment] = []  # segments that are searched through this filter
        self.absorbed = 0  # number of segments, also of removed segments

    @property
    def is_full(self) -> bool:
        return self.absorbed >= FILTER_SEGMENTS

    def absorb(self, keys: bytes | bytearray) -> None:
        """Add keys of a segment that will be searched through this filter."""
        words, masks = self._filter, MASKS
        for half in array("Q", bytes(keys))[0 :: KEY_BYTES // 8]:
            words[half & _SLOT] |= masks[half >> MASK_SHIFT]

    def find(self, places: Places, row: Row, note: Callable[[int, tuple[int, int]], None]) -> None:
        """Call `note` with index and entry of each hash that is in one of the segments."""
        masks = places.masks
        words = map(self._filter.__getitem__, places.slots(_SLOT))
        hits = list(compress(range(len(masks)), map(eq, map(and_, words, masks), masks)))
        if hits:
            for segment in self.segments:
                segment.find(places, hits, row, note)


class SegmentFilters:
    """All combined filters, and the full segments that are not in a filter yet."""

    def __init__(self, row: Row, kept_row: Row) -> None:
        self._row = row
        self._kept_row = kept_row
        self._filters: list[SegmentFilter] = []
        self.loose: list[Segment] = []  # segments that are searched alone
        self._coming: dict[Segment, int] = {}  # segment -> number of its buckets that are absorbed

    def add(self, segment: Segment) -> None:
        self.loose.append(segment)

    def admit(self, segment: Segment) -> None:
        """Begin to absorb a full segment."""
        self._coming[segment] = 0

    def remove(self, segment: Segment) -> None:
        self._coming.pop(segment, None)
        if segment in self.loose:
            self.loose.remove(segment)
        for combined in self._filters:
            if segment in combined.segments:
                combined.segments.remove(segment)
        self._filters = [combined for combined in self._filters if combined.segments or not combined.is_full]

    def find(self, places: Places, note: Callable[[int, tuple[int, int]], None]) -> None:
        for segment in self.loose:
            segment.find(places, None, self._kept_row, note)
        for combined in self._filters:
            if combined.segments:
                combined.find(places, self._kept_row, note)

    @property
    def waiting(self) -> int:
        """The number of segments that are not absorbed yet."""
        return len(self._coming)

    def step(self, buckets: int) -> None:
        """Absorb this many buckets."""
        for segment, done in list(islice(self._coming.items(), 1)):
            if not self._filters or self._filters[-1].is_full:
                self._filters.append(SegmentFilter())
            combined, end = self._filters[-1], min(done + buckets, BUCKETS)
            for number in range(done, end):
                combined.absorb(segment.bucket(number, self._row))
            self._coming[segment] = end
            if end == BUCKETS:
                del self._coming[segment]
                self.loose.remove(segment)
                combined.segments.append(segment)
                combined.absorbed += 1
