"""Chunks: the topics of a run of blocks, so that readers skip blocks without a wanted topic.

A chunk is some 256 consecutive blocks. An open chunk is in memory; when it is full, its summary is written once, at the
end of table `chunks`, and never changed. The summaries are the journal's only index: there is no row per message or
topic, because LMDB copies a page for every row at a random place.

Within a chunk, topics are numbered in the order of their first appearance, and each block lists the numbers of its
topics. So a block costs one look-up in a dictionary for each of its topics, and closing a chunk costs little, even with
thousands of topics.

A lost or damaged summary is rebuilt from its blocks. The entry of a damaged block says "may hold any topic", so that
every reader finds the damage.

    row   first_seq u64 | last_seq u64 | first_ts_us i64 | last_ts_us i64 | bytes u64
          msgpack [topics, base_seq - first_seq of each block u32[n], ends of their lists u32[n],
                   the lists u16[] (u32[] with more than 65,536 topics), damaged blocks u8[]] | checksum
"""

import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgpack

from fabric.errors import JournalDamaged
from fabric.journal.environment import Tables, Writing
from fabric.journal.rows import key_seq, seal, seq_key, unseal

Wanted = Callable[[str], bool]

BLOCKS_MAX: Final = 256  # a block's place in its chunk fits a byte
BYTES_MAX: Final = 16 << 20  # skipping a chunk pays, and a start reads the open chunk quickly
# One step of a search reads a summary and compares its topics with patterns: some milliseconds.
NAMES_MAX: Final = 4_096  # and the topics of the last block, which may be twice as many
LISTED_MAX: Final = 32_768  # topics of all blocks together
_SHORT_NUMBERS: Final = 1 << 16
_HEAD: Final = struct.Struct("<QQqqQ")
_EXTENT: Final = struct.Struct("<QQ")


class Entry(NamedTuple):
    """A block in a chunk."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    topics: "array[int] | None"  # their numbers; None: the block is damaged and may hold any topic


class _Numbers(dict[bytes, int]):
    """Numbers topics in the order of their first appearance."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __missing__(self, topic: bytes) -> int:
        self.names.append(topic.decode())
        number = self[topic] = len(self.names) - 1
        return number


def extent_of(row: bytes | memoryview) -> tuple[int, int]:
    """First and last seq of a summary, unchecked; zeros when the row is too short for a summary."""
    return _EXTENT.unpack_from(row) if len(row) >= _HEAD.size else (0, 0)


class OpenChunk:
    """The last chunk, to which one thread adds blocks while other threads read it.

    Readers use the first `committed` entries only, which are on disk. The lists grow at their end and `committed` is
    set last, so readers need no lock.
    """

    __slots__ = ("_numbers", "bases", "committed", "entries", "first_seq", "listed", "names", "size")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.entries: list[Entry] = []
        self.bases: list[int] = []
        self.committed = 0
        self.size = 0
        self.listed = 0  # topics of all blocks
        self._numbers = _Numbers()
        self.names = self._numbers.names

    @property
    def last_seq(self) -> int:
        committed = self.committed
        return self.entries[committed - 1].last_seq if committed else self.first_seq - 1

    @property
    def is_full(self) -> bool:
        return (
            len(self.entries) >= BLOCKS_MAX
            or self.size >= BYTES_MAX
            or len(self.names) >= NAMES_MAX
            or self.listed >= LISTED_MAX
        )

    def add(self, base_seq: int, last_seq: int, ts_us: int, size: int, topics: Iterable[bytes] | None) -> None:
        numbers = None if topics is None else array("I", map(self._numbers.__getitem__, topics))
        self.entries.append(Entry(base_seq, last_seq, ts_us, size, numbers))
        self.bases.append(base_seq)
        self.size += size
        self.listed += len(numbers or ())

    def publish(self) -> None:
        """All added blocks are committed."""
        self.committed = len(self.entries)

    def roll_back(self) -> None:
        """Remove the blocks added since `publish`."""
        if len(self.entries) == self.committed:
            return
        del self.entries[self.committed :], self.bases[self.committed :]
        self.size = sum(entry.size for entry in self.entries)
        self.listed = sum(len(entry.topics or ()) for entry in self.entries)
        known = 1 + max((max(entry.topics) for entry in self.entries if entry.topics), default=-1)
        for name in self.names[known:]:
            del self._numbers[name.encode()]
        del self.names[known:]

    def place_of(self, seq: int) -> int:
        """The place of the committed block that holds seq; seq is not below the chunk."""
        return max(bisect_right(self.bases, seq, 0, self.committed) - 1, 0)


class Chunk:
    """A summary: the seqs of the blocks, and their topics."""

    __slots__ = (
        "damaged",
        "data_bytes",
        "ends",
        "first_seq",
        "first_ts_us",
        "last_seq",
        "last_ts_us",
        "names",
        "numbers",
        "offsets",
    )

    def __init__(self, entries: Sequence[Entry], names: Sequence[str]) -> None:
        first, last = entries[0], entries[-1]
        self.first_seq = first.base_seq
        self.last_seq = last.last_seq
        self.first_ts_us = first.ts_us
        self.last_ts_us = last.ts_us
        self.data_bytes = sum(entry.size for entry in entries)
        self.names = list(names)
        self.offsets = array("I", [entry.base_seq - first.base_seq for entry in entries])
        self.numbers = array("I")  # numbers of the topics of all blocks, block after block,
        self.ends = array("I")  # and the end of each block's list
        self.damaged = 0  # bit i: block i may hold any topic
        for place, entry in enumerate(entries):
            if entry.topics is None:
                self.damaged |= 1 << place
            else:
                self.numbers += entry.topics
            self.ends.append(len(self.numbers))

    @classmethod
    def of(cls, chunk: OpenChunk) -> "Chunk":
        return cls(chunk.entries, chunk.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Chunk):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def mask(self, wanted: Wanted) -> int:
        """Bits of the blocks that hold a wanted topic, or may hold it."""
        hits = {number for number, name in enumerate(self.names) if wanted(name)}
        bits, start = self.damaged, 0
        if not hits:
            return bits
        if len(hits) == len(self.names):
            return (1 << len(self.ends)) - 1
        for place, end in enumerate(self.ends):
            if not hits.isdisjoint(self.numbers[start:end]):
                bits |= 1 << place
            start = end
        return bits

    def place_of(self, seq: int) -> int:
        """The place of the block that holds seq; seq is in this chunk."""
        return bisect_right(self.offsets, seq - self.first_seq) - 1

    def range_of(self, place: int) -> tuple[int, int]:
        """First and last seq of the block at a place."""
        offsets = self.offsets
        end = offsets[place + 1] - 1 if place + 1 < len(offsets) else self.last_seq - self.first_seq
        return self.first_seq + offsets[place], self.first_seq + end

    def names_at(self, place: int) -> set[str]:
        """The topics of the block at a place."""
        start = self.ends[place - 1] if place else 0
        return {self.names[number] for number in self.numbers[start : self.ends[place]]}

    def encode(self) -> tuple[bytes, bytes]:
        key = seq_key(self.first_seq)
        head = _HEAD.pack(self.first_seq, self.last_seq, self.first_ts_us, self.last_ts_us, self.data_bytes)
        numbers = array("H", self.numbers) if len(self.names) <= _SHORT_NUMBERS else self.numbers
        damaged = bytes(place for place in range(len(self.ends)) if self.damaged >> place & 1)
        body = [self.names, self.offsets.tobytes(), self.ends.tobytes(), numbers.tobytes(), damaged]
        return key, seal(key, head + msgpack.packb(body))

    def put(self, txn: Writing, tables: Tables) -> None:
        key, row = self.encode()
        txn.put(key, row, db=tables.chunks)

    @classmethod
    def decode(cls, key: bytes | memoryview, row: bytes | memoryview) -> "Chunk":
        value = unseal(key, row)
        chunk = cls.__new__(cls)
        try:
            first_seq, last_seq, first_ts_us, last_ts_us, data_bytes = _HEAD.unpack_from(value)
            names, offsets, ends, numbers, damaged = msgpack.unpackb(value[_HEAD.size :])
        except (struct.error, ValueError, msgpack.UnpackException) as error:
            raise JournalDamaged(f"the summary of the chunk at seq {key_seq(key)} cannot be decoded") from error
        chunk.first_seq, chunk.last_seq, chunk.data_bytes = first_seq, last_seq, data_bytes
        chunk.first_ts_us, chunk.last_ts_us = first_ts_us, last_ts_us
        chunk.names = names
        chunk.offsets = array("I", offsets)
        chunk.ends = array("I", ends)
        chunk.numbers = array("I", array("H", numbers) if len(names) <= _SHORT_NUMBERS else numbers)
        chunk.damaged = sum(1 << place for place in damaged)
        return chunk
