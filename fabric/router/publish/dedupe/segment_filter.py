"""A span: one filter over several full eras, so that a key that is in none of them costs one look, not one for each.

It is derived from the buckets of its eras, in small steps, and is in memory only: after a restart it is made again
while the hub works, and until then each era is asked by itself.
"""

from array import array
from collections.abc import Callable
from itertools import compress, islice
from operator import and_, eq
from typing import Final

from fabric.router.publish.dedupe.segment import BUCKETS, KEY_BYTES, MASK_SHIFT, MASKS, WORDS, Era, Places, Row

SPAN_ERAS: Final = 16  # with more, finding the one that has a key would take long
SPAN_WORDS: Final = SPAN_ERAS * WORDS
SPAN_BYTES: Final = 8 * SPAN_WORDS

_SLOT: Final = SPAN_WORDS - 1


class Span:
    __slots__ = ("_filter", "absorbed", "eras")

    def __init__(self) -> None:
        self._filter = array("Q", [0]) * SPAN_WORDS
        self.eras: list[Era] = []  # those that are asked through it
        self.absorbed = 0  # eras, also those that are gone

    @property
    def is_full(self) -> bool:
        return self.absorbed >= SPAN_ERAS

    def absorb(self, keys: bytes | bytearray) -> None:
        """Take in some keys of an era that will be asked through this span."""
        words, masks = self._filter, MASKS
        for half in array("Q", bytes(keys))[0 :: KEY_BYTES // 8]:
            words[half & _SLOT] |= masks[half >> MASK_SHIFT]

    def find(self, places: Places, row: Row, note: Callable[[int, tuple[int, int]], None]) -> None:
        """Note (index, entry) for each hash that is in one of the eras."""
        masks = places.masks
        words = map(self._filter.__getitem__, places.slots(_SLOT))
        hits = list(compress(range(len(masks)), map(eq, map(and_, words, masks), masks)))
        if hits:
            for era in self.eras:
                era.find(places, hits, row, note)


class Spans:
    """All spans, and the full eras that are on their way into one."""

    def __init__(self, row: Row, kept_row: Row) -> None:
        self._row = row
        self._kept_row = kept_row
        self._spans: list[Span] = []
        self.loose: list[Era] = []  # asked by themselves
        self._coming: dict[Era, int] = {}  # era -> how many of its buckets are absorbed

    def add(self, era: Era) -> None:
        self.loose.append(era)

    def admit(self, era: Era) -> None:
        """A full era, to be absorbed."""
        self._coming[era] = 0

    def remove(self, era: Era) -> None:
        self._coming.pop(era, None)
        if era in self.loose:
            self.loose.remove(era)
        for span in self._spans:
            if era in span.eras:
                span.eras.remove(era)
        self._spans = [span for span in self._spans if span.eras or not span.is_full]

    def find(self, places: Places, note: Callable[[int, tuple[int, int]], None]) -> None:
        for era in self.loose:
            era.find(places, None, self._kept_row, note)
        for span in self._spans:
            if span.eras:
                span.find(places, self._kept_row, note)

    @property
    def waiting(self) -> int:
        """Eras to be absorbed."""
        return len(self._coming)

    def step(self, buckets: int) -> None:
        """Absorb so many buckets."""
        for era, done in list(islice(self._coming.items(), 1)):
            if not self._spans or self._spans[-1].is_full:
                self._spans.append(Span())
            span, end = self._spans[-1], min(done + buckets, BUCKETS)
            for number in range(done, end):
                span.absorb(era.bucket(number, self._row))
            self._coming[era] = end
            if end == BUCKETS:
                del self._coming[era]
                self.loose.remove(era)
                span.eras.append(era)
                span.absorbed += 1
