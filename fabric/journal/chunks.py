"""Chunks: what a run of blocks holds, so that readers skip what they do not want.

A chunk is some 256 blocks that follow one another. While it fills up it lives in memory, as a list of entries; when
it is full its summary is written once, at the end of table `chunks`, and never changed. That is the journal's whole
index: no row per message or per topic, because LMDB copies a page for every row at a random place.

A summary is derived from its blocks. A lost or damaged one is made again by reading them, and the entry of a damaged
block says "may hold anything", so that whoever comes by is told of the damage instead of passing it unawares.

    row   first_seq u64 | last_seq u64 | first_ts_us i64 | last_ts_us i64 | bytes u64 | messages u64
          msgpack [offsets u32[n], damaged, {topic: places}] | checksum
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgpack

from fabric.errors import JournalDamaged
from fabric.journal.records import key_seq, seal, seq_key, unseal

Wanted = Callable[[str], bool]

BLOCKS_MAX: Final = 256  # a block's place in its chunk fits a byte
BYTES_MAX: Final = 16 << 20  # so that a skipped chunk is worth skipping and an open one is soon read again at start
_BITMAP_BYTES: Final = BLOCKS_MAX // 8
_HEAD: Final = struct.Struct("<QQqqQQ")


class Entry(NamedTuple):
    """What is known of one block."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    topics: tuple[str, ...] | None  # None: the block is damaged and may hold anything


class OpenChunk:
    """The chunk that is filling up. One thread adds, others look at it meanwhile.

    Only the first `committed` entries are on disk, and only those are anyone's business but the writer's. The lists
    grow at their end and `committed` is set last, so a reader needs no lock.
    """

    __slots__ = ("bases", "committed", "entries", "first_seq", "size")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.entries: list[Entry] = []
        self.bases: list[int] = []
        self.committed = 0
        self.size = 0

    @property
    def last_seq(self) -> int:
        committed = self.committed
        return self.entries[committed - 1].last_seq if committed else self.first_seq - 1

    @property
    def is_full(self) -> bool:
        return len(self.entries) >= BLOCKS_MAX or self.size >= BYTES_MAX

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.bases.append(entry.base_seq)
        self.size += entry.size

    def publish(self) -> None:
        """All that was added is committed."""
        self.committed = len(self.entries)

    def roll_back(self) -> None:
        """Forget what was added since `publish`."""
        if len(self.entries) == self.committed:
            return
        del self.entries[self.committed :], self.bases[self.committed :]
        self.size = sum(entry.size for entry in self.entries)

    def place_of(self, seq: int) -> int:
        """The place of the block that holds seq, of those committed; seq is not below the chunk."""
        return max(bisect_right(self.bases, seq, 0, self.committed) - 1, 0)


class Chunk:
    """A summary: where the blocks are, and which of them hold a topic."""

    __slots__ = ("damaged", "data_bytes", "first_seq", "first_ts_us", "last_seq", "last_ts_us", "offsets", "topics")

    def __init__(self, entries: Sequence[Entry]) -> None:
        first, last = entries[0], entries[-1]
        self.first_seq = first.base_seq
        self.last_seq = last.last_seq
        self.first_ts_us = first.ts_us
        self.last_ts_us = last.ts_us
        self.data_bytes = sum(entry.size for entry in entries)
        self.offsets = array("I", [entry.base_seq - first.base_seq for entry in entries])
        self.damaged = 0  # bit i: block i may hold anything
        self.topics: dict[str, int] = {}  # topic -> bits of the blocks that hold it
        topics = self.topics
        for place, entry in enumerate(entries):
            bit = 1 << place
            if entry.topics is None:
                self.damaged |= bit
            else:
                for topic in entry.topics:
                    topics[topic] = topics.get(topic, 0) | bit

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunk):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    @property
    def messages(self) -> int:
        return self.last_seq - self.first_seq + 1

    def mask(self, wanted: Wanted) -> int:
        """Bits of the blocks that hold a wanted topic, or may."""
        bits = self.damaged
        for topic, places in self.topics.items():
            if places & ~bits and wanted(topic):
                bits |= places
        return bits

    def place_of(self, seq: int) -> int:
        """The place of the block that holds seq, which lies in this chunk."""
        return bisect_right(self.offsets, seq - self.first_seq) - 1

    def range_of(self, place: int) -> tuple[int, int]:
        """First and last seq of the block at a place."""
        offsets = self.offsets
        end = offsets[place + 1] - 1 if place + 1 < len(offsets) else self.last_seq - self.first_seq
        return self.first_seq + offsets[place], self.first_seq + end

    def encode(self) -> tuple[bytes, bytes]:
        key = seq_key(self.first_seq)
        head = _HEAD.pack(
            self.first_seq, self.last_seq, self.first_ts_us, self.last_ts_us, self.data_bytes, self.messages
        )
        topics = {topic: _places(bits) for topic, bits in self.topics.items()}
        return key, seal(key, head + msgpack.packb([self.offsets.tobytes(), _places(self.damaged), topics]))

    @classmethod
    def decode(cls, key: bytes | memoryview, row: bytes | memoryview) -> "Chunk":
        value = unseal(key, row)
        chunk = cls.__new__(cls)
        try:
            first, last, first_ts, last_ts, size, _ = _HEAD.unpack_from(value)
            offsets, damaged, topics = msgpack.unpackb(value[_HEAD.size :])
        except (struct.error, ValueError, msgpack.UnpackException) as error:
            raise JournalDamaged(f"the summary of the chunk at seq {key_seq(key)} cannot be decoded") from error
        chunk.first_seq, chunk.last_seq, chunk.first_ts_us, chunk.last_ts_us = first, last, first_ts, last_ts
        chunk.data_bytes = size
        chunk.offsets = array("I")
        chunk.offsets.frombytes(offsets)
        chunk.damaged = _bits(damaged)
        chunk.topics = {topic: _bits(places) for topic, places in topics.items()}
        return chunk


# A set of places is written as whichever is shorter: a byte for each place, or a bitmap.


def _places(bits: int) -> bytes:
    if bits.bit_count() >= _BITMAP_BYTES:
        return bits.to_bytes(_BITMAP_BYTES, "little")
    places = bytearray()
    while bits:
        low = bits & -bits
        places.append(low.bit_length() - 1)
        bits ^= low
    return bytes(places)


def _bits(places: bytes) -> int:
    if len(places) == _BITMAP_BYTES:
        return int.from_bytes(places, "little")
    bits = 0
    for place in places:
        bits |= 1 << place
    return bits
