"""A segment: idempotency keys in order of arrival, and whether a key is among them.

A key is 128 bits of a hash of topic and id, with the seq of the first message and the time until which the key counts.
The chance that two ids have one hash is negligible (below 1 in 10^22 for 60 million keys), so the id is not kept: the
message may be removed from the journal long before its key.

    filter     a Bloom filter in 64-bit words: one word excludes a key that is not in the segment, but for one key in
               a thousand. It stays in memory: some 4.5 bytes for each key. (`segment_filter` combines filters.)
    buckets    the keys, by some bits of their hash: a key that the filter does not exclude is searched in one bucket.
               In memory while the segment grows, then on disk, one row each.
    pages      the same keys in order of arrival, on disk only, written in the transaction of their messages. A growing
               segment is restored from its pages, which are removed when its buckets are on disk.

The number of a row begins with the number of its segment; see the constants. Batches are handled by C loops (`map`,
strided slices of arrays), because this is the only work for each message that a publish with ids costs.
"""

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from operator import and_, eq
from typing import Final

# These constants are part of the format of the journal.
BUCKETS: Final = 2048
BUCKET_SHIFT: Final = 53  # the bucket is in the top 11 bits of the second half of a hash
# 230 keys of 32 bytes in a bucket fill two pages of the database; few buckets need a third. An unfinished segment
# is put together from its pages when a hub starts, which takes a quarter of a second at most; and it takes some 17 MiB.
SEGMENT_KEYS: Final = 230 * BUCKETS
KEY_BYTES: Final = 32  # hash 16, seq 8, until_us 8
HASH_BYTES: Final = 16
WORDS: Final = 1 << 18
FILTER_BYTES: Final = 8 * WORDS
PAGE_BYTES: Final = 250 * KEY_BYTES  # with its checksum two pages of the database; the last page is written every turn

# Row numbers: segment << 16, plus
PAGE: Final = 0x0000  # and the number of the page
BUCKET: Final = 0x4000  # and the number of the bucket
FILTER: Final = 0x8000  # and the number of a slice of the filter
HEAD: Final = 0xFFFF  # without a number. Written last and removed last: a segment with a head is complete on disk.
SLICE_BYTES: Final = 1 << 16
SLICES: Final = FILTER_BYTES // SLICE_BYTES

_SLOT: Final = WORDS - 1
MASK_SHIFT: Final = 52  # which mask: the top 12 bits of the first half
_KEY: Final = struct.Struct(f"{KEY_BYTES}s")
_TAIL: Final = struct.Struct("<QQ")  # seq, until_us
_HEAD: Final = struct.Struct("<QQQ")  # keys, until_us, pages


def _mask(number: int) -> int:
    """A word with four bits set. Filters are on disk, so this must not change."""
    a, b = number & 63, number >> 6
    return 1 << a | 1 << b | 1 << ((5 * a + 11 * b + 17) & 63) | 1 << ((13 * a + 3 * b + 37) & 63)


MASKS: Final = [_mask(number) for number in range(1 << 12)]

Row = Callable[[int], bytes]  # the row of a number; empty when it does not exist or is damaged


class Places:
    """The places of a batch of hashes: they are the same in every segment, so they are computed once."""

    __slots__ = ("_slots", "hashes", "high", "low", "masks")

    def __init__(self, hashes: Sequence[bytes]) -> None:
        self.hashes = hashes
        halves = array("Q", b"".join(hashes))
        self.low, self.high = halves[0::2], halves[1::2]
        self.masks = [MASKS[half >> MASK_SHIFT] for half in self.low]
        self._slots: dict[int, list[int]] = {}

    def slots(self, mask: int) -> list[int]:
        """The words of the hashes in a filter of mask + 1 words."""
        found = self._slots.get(mask)
        if found is None:
            found = self._slots[mask] = [half & mask for half in self.low]
        return found

    def buckets(self) -> list[int]:
        return [half >> BUCKET_SHIFT for half in self.high]

    def keys(self, seqs: "array[int]", untils: "array[int]") -> bytes:
        """The keys of these hashes, as a segment keeps them."""
        keys = array("Q", bytes(KEY_BYTES * len(seqs)))
        keys[0::4], keys[1::4], keys[2::4], keys[3::4] = self.low, self.high, seqs, untils
        return keys.tobytes()


class Segment:
    __slots__ = (
        "_filter",
        "_new",
        "_page",
        "_pages",
        "buckets",
        "count",
        "longest_us",
        "number",
        "since_us",
        "until_us",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = 0
        self.until_us = 0  # until when the last of its keys counts
        self.since_us = 0  # when its first key was added; for a segment that grows
        self.longest_us = 0  # the longest window of its keys
        self.buckets: list[bytearray] | None = [bytearray() for _ in range(BUCKETS)]  # None: the buckets are on disk
        self._filter = array("Q", [0]) * WORDS
        self._pages = 0  # full pages that were written
        self._page = b""  # the keys after the full pages
        self._new = bytearray()  # keys to be written with this turn

    @property
    def is_full(self) -> bool:
        return self.count >= SEGMENT_KEYS

    @property
    def is_dirty(self) -> bool:
        return bool(self._new)

    # Keys.

    def add(self, places: Places, seqs: "array[int]", untils: "array[int]", last_us: int) -> None:
        """Add keys, which are written with this turn. No key counts after last_us."""
        keys = places.keys(seqs, untils)
        self._index(keys, places.slots(_SLOT), places.masks, places.buckets())
        self.until_us = max(self.until_us, last_us)
        self._new += keys

    def _index(self, keys: bytes, slots: Iterable[int], masks: Iterable[int], buckets: Iterable[int]) -> None:
        words, own = self._filter, self.buckets
        assert own is not None, "a segment on disk accepts no keys"
        for slot, mask in zip(slots, masks, strict=True):
            words[slot] |= mask
        for bucket, (key,) in zip(buckets, _KEY.iter_unpack(keys), strict=True):
            own[bucket] += key
        self.count += len(keys) // KEY_BYTES

    def find(
        self, places: Places, among: list[int] | None, row: Row, note: Callable[[int, tuple[int, int]], None]
    ) -> None:
        """Call `note` with index and (seq, until_us) of each hash in this segment, from its latest entry. `among` are
        the
        indexes to search; None: all."""
        words, slots, masks = self._filter, places.slots(_SLOT), places.masks
        if among is None:
            found = map(words.__getitem__, slots)
            among = list(compress(range(len(masks)), map(eq, map(and_, found, masks), masks)))
        else:
            among = [index for index in among if words[slots[index]] & masks[index] == masks[index]]
        high, hashes, read = places.high, places.hashes, dict[int, bytes | bytearray]()
        for index in among:
            number = high[index] >> BUCKET_SHIFT
            keys = read.get(number)
            if keys is None:
                keys = read[number] = self.bucket(number, row)
            if (entry := _search(keys, hashes[index])) is not None:
                note(index, entry)

    def bucket(self, number: int, row: Row) -> bytes | bytearray:
        """The keys of a bucket."""
        return self.buckets[number] if self.buckets is not None else row(self._row(BUCKET + number))

    # Rows.

    def _row(self, number: int) -> int:
        return self.number << 16 | number

    def new_pages(self) -> Iterator[tuple[int, bytes]]:
        """The rows of new keys: full pages, and the last page as far as it is filled."""
        data = b"".join((self._page, self._new))
        self._new.clear()
        for at in range(0, len(data), PAGE_BYTES):
            page = data[at : at + PAGE_BYTES]
            yield self._row(PAGE + self._pages), page
            if len(page) == PAGE_BYTES:
                self._pages += 1
                self._page = b""
            else:
                self._page = page

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """The rows of a full segment, the head last."""
        assert self.buckets is not None
        for number, bucket in enumerate(self.buckets):
            yield self._row(BUCKET + number), bytes(bucket)
        words = memoryview(self._filter).cast("B")
        for number in range(SLICES):
            yield self._row(FILTER + number), bytes(words[number * SLICE_BYTES : (number + 1) * SLICE_BYTES])
        yield self._row(HEAD), _HEAD.pack(self.count, self.until_us, self._pages + 1)

    def page_numbers(self) -> Iterator[int]:
        """The numbers of the rows of its pages."""
        return iter(range(self._row(PAGE), self._row(PAGE + self._pages + 1)))

    def row_numbers(self) -> Iterator[int]:
        """The numbers of all rows that it may have, the head last. A segment with its buckets on disk has no pages, or
        they are removed already."""
        if self.buckets is not None:
            yield from self.page_numbers()
        if self.is_full:
            yield from range(self._row(BUCKET), self._row(BUCKET + BUCKETS))
            yield from range(self._row(FILTER), self._row(FILTER + SLICES))
            yield self._row(HEAD)

    # Restoring.

    @classmethod
    def restored(cls, number: int, row: Row, next_row: Callable[[int], tuple[int, bytes] | None]) -> "Segment":
        """A segment restored from its rows."""
        segment = cls(number)
        head = row(segment._row(HEAD))
        if not head:
            segment._load_pages(next_row)
            return segment
        segment.count, segment.until_us, segment._pages = _HEAD.unpack(head)
        segment.buckets = None
        slices = [row(segment._row(FILTER + number)) for number in range(SLICES)]
        # A damaged slice excludes no key: searches are slower, and still right.
        segment._filter = array("Q", b"".join(data or b"\xff" * SLICE_BYTES for data in slices))
        return segment

    def _load_pages(self, next_row: Callable[[int], tuple[int, bytes] | None]) -> None:
        at, end = self._row(PAGE), self._row(BUCKET)
        while (found := next_row(at)) is not None and found[0] < end:
            number, page = found
            self._pages, self._page = number & 0xFFFF, page
            if len(page) == PAGE_BYTES:
                self._pages, self._page = self._pages + 1, b""
            if page:
                numbers = array("Q", page)
                low, high = numbers[0::4], numbers[1::4]
                slots, masks = [half & _SLOT for half in low], [MASKS[half >> MASK_SHIFT] for half in low]
                self._index(page, slots, masks, [half >> BUCKET_SHIFT for half in high])
                self.until_us = max(self.until_us, *numbers[3::4])
            at = number + 1


def _search(keys: bytes | bytearray, digest: bytes) -> tuple[int, int] | None:
    """(seq, until_us) of the last key with a hash."""
    at = keys.rfind(digest)
    while at > 0 and at % KEY_BYTES:  # the bytes cross the border of two keys, so they are no hash
        at = keys.rfind(digest, 0, at + HASH_BYTES - 1)
    if at < 0:
        return None
    seq, until_us = _TAIL.unpack_from(keys, at + HASH_BYTES)
    return seq, until_us
