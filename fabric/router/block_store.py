"""Where the router finds blocks: the latest blocks in memory, older blocks through the reader of the journal.

A group at the end of the journal is served from memory, without a read from disk. The block store is derived state: all
of it can be read from the journal.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fabric.router.schedules.due_queue import StoredSchedules
from fabric_protocol.block import Block
from fabric_protocol.block_contents import Contents

if TYPE_CHECKING:
    from fabric.router.shared import Shared

# Memory for the latest blocks: enough for blocks that are not on disk yet, and for consumers about a second behind.
MEMORY_BYTES_MAX: Final = 24 << 20
# Blocks and topics that one search looks at, so that a group with few matches does not delay a turn.
SCAN_BLOCKS_MAX: Final = 256
SCAN_TOPICS_MAX: Final = 1_024
# Blocks that were read from disk and wait for credit: a block is read once, however often its group stops at it.
KEPT_BLOCKS_MAX: Final = 8
KEPT_BYTES_MAX: Final = 1 << 20  # of one block; a larger block is read again
# Blocks that were discarded last. The turns that are not on disk yet have fewer: a turn discards some 300 at most.
DISCARDED_MAX: Final = 4_096
GONE_MAX: Final = 32  # dropped blocks that are removed together, since removing the front of a list is slow


class Damaged(Protocol):
    """What a reader answers for a block that does not match its checksum."""

    @property
    def first_seq(self) -> int: ...
    @property
    def last_seq(self) -> int: ...
    @property
    def why(self) -> str: ...


class Reader(Protocol):
    """Committed blocks on disk."""

    @property
    def schedules(self) -> StoredSchedules: ...
    @property
    def begins_at(self) -> int:
        """The first seq of the first block on disk. Retention raises it before the hub tells the router."""
        ...

    def block_at(self, seq: int) -> Block | Damaged | None:
        """The block with seq, as long as it is on disk, even if retention has removed the message seq."""
        ...

    def next_block(self, seq: int, wanted: Callable[[str], bool]) -> tuple[Block | Damaged | None, int]:
        """The first block at or after seq with a wanted topic, and the seq at which to continue."""
        ...

    def forget(self, wanted: Callable[[str], bool]) -> None:
        """Forget answers of `wanted`: it may want other topics from now on."""
        ...

    def contents(self, seq: int, *, sizes: bool = False) -> tuple[list[Contents], int]:
        """What some blocks from seq on have, without reading their bodies, and the seq at which to go on."""
        ...

    def time_of(self, seq: int) -> int:
        """When the block with seq was accepted; 0 when it is not on disk."""
        ...

    def seek_time(self, ts_us: int) -> int: ...
    def topic_names(self, limit: int) -> tuple[list[str], bool]:
        """Topics of the latest messages, as many as a short search finds; and whether these are all topics."""
        ...

    def next_event(self) -> int:
        """The number that the next delivery event gets."""
        ...

    def first_event(self) -> int:
        """The number of the first delivery event on disk."""
        ...

    def event_blocks(self, number: int, count: int, bytes_max: int) -> Sequence[tuple[int, bytes]]:
        """Some blocks of delivery events, from the block that holds a number on."""
        ...

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        """The first row of the index of idempotency keys at or after a number; an empty row when it is damaged."""
        ...

    def previous_block(self, before: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        """The last block that begins before a seq and has a wanted topic, and the seq before which to continue."""
        ...


class Found(NamedTuple):
    """The next block for a group, or the seq up to which there is none; `more`: the search stopped at its bound."""

    block: Block | Damaged | None
    cursor: int
    more: bool


class OpenBlock(NamedTuple):
    """A block of the open turn, and the seq of its first message: the block itself gets them when it is sealed."""

    block: Block
    base_seq: int


class BlockStore:
    def __init__(self, reader: Reader, shared: "Shared") -> None:
        self._reader = reader
        self._shared = shared
        self.open_blocks: list[OpenBlock] = []  # ascending
        # Contiguous and ascending up to the last appended block; blocks before _start are dropped.
        self._blocks: list[Block] = []
        self._bases: list[int] = []  # base_seq of each
        self._start = 0
        self._bytes = 0
        self._kept: dict[int, Block] = {}  # by the seq at which a group has stopped, the oldest entry first
        self._discarded: dict[int, None] = {}  # base_seq of blocks that may still be on disk, the oldest entry first

    def add(self, block: Block) -> None:
        """Keep a block in memory. A block that is not on disk yet is not dropped."""
        self._blocks.append(block)
        self._bases.append(block.base_seq)
        self._bytes += len(block.raw)
        while self._bytes > MEMORY_BYTES_MAX and self._blocks[self._start].last_seq <= self._shared.committed_seq:
            self._bytes -= len(self._blocks[self._start].raw)
            self._start += 1
        if self._start > GONE_MAX:
            del self._blocks[: self._start], self._bases[: self._start]
            self._start = 0

    def holds(self, seq: int) -> bool:
        """Whether seq is not before the first block in memory."""
        return self._start < len(self._bases) and seq >= self._bases[self._start]

    def keep(self, seq: int, block: Block) -> None:
        """Keep a block that a group has stopped at, because the group will ask for it again."""
        if len(block.raw) <= KEPT_BYTES_MAX and not self.holds(seq):
            self._kept[seq] = block
            if len(self._kept) > KEPT_BLOCKS_MAX:
                del self._kept[next(iter(self._kept))]

    def discard(self, block: Block) -> None:
        """Drop a block that this turn removes from disk. No search finds it from now on."""
        for seq in [seq for seq in self._kept if block.base_seq <= seq <= block.last_seq]:
            del self._kept[seq]
        self._discarded[block.base_seq] = None
        if len(self._discarded) > DISCARDED_MAX:
            del self._discarded[next(iter(self._discarded))]

    def is_discarded(self, base_seq: int) -> bool:
        """Whether a block that may still be on disk was discarded."""
        return base_seq in self._discarded

    def time_of(self, seq: int) -> int:
        """When the message seq was accepted; 0 when it is not stored, or removed and still in memory."""
        if seq < self._shared.removed_below:
            return 0
        if self.holds(seq):
            return self._blocks[bisect_right(self._bases, seq) - 1].ts_us
        return self._reader.time_of(seq)

    def at(self, seq: int) -> Block | Damaged | None:
        """The block with seq."""
        if seq < self._shared.removed_below:
            return None
        if self.holds(seq):
            block = self._blocks[bisect_right(self._bases, seq) - 1]
            return block if seq <= block.last_seq else None
        return self._reader.block_at(seq)

    def awaits_news(self, seq: int) -> bool:
        """Whether retention has removed seq and the hub has not told the router yet."""
        begins_at = self._reader.begins_at
        return seq < begins_at and self._shared.first_seq < begins_at

    def contents(self, seq: int, last_seq: int, *, sizes: bool = False) -> tuple[list[Contents], int]:
        """What some blocks from seq to last_seq have, without discarded blocks, and the seq at which to go on. Blocks
        after last_seq may be on disk before the router has heard of their commit."""
        found, cursor = self._reader.contents(seq, sizes=sizes)
        while found and found[-1].base_seq > last_seq:
            cursor = found.pop().base_seq
        reached = found[-1].last_seq + 1 if found else seq
        return [one for one in found if not self.is_discarded(one.base_seq)], max(reached, min(cursor, last_seq + 1))

    def find(self, cursor: int, horizon: int, wanted: Callable[[str], bool]) -> Found:
        """The first block at or after cursor, up to horizon, with a wanted topic."""
        if not self.holds(cursor):
            kept = self._kept.pop(cursor, None)
            if kept is not None and cursor >= self._reader.begins_at and any(map(wanted, kept.topics)):
                return Found(kept, cursor, more=False)
            block, reached = self._reader.next_block(cursor, wanted)
            if isinstance(block, Block) and self.is_discarded(block.base_seq):
                return Found(None, block.last_seq + 1, more=block.last_seq < horizon)
            return Found(block, cursor, more=False) if block else Found(None, reached, more=reached <= horizon)
        blocks, at, topics = self._blocks, bisect_right(self._bases, cursor) - 1, 0
        for i in range(at, min(at + SCAN_BLOCKS_MAX, len(blocks))):
            block = blocks[i]
            if block.base_seq > horizon:
                return Found(None, cursor, more=False)
            if block.last_seq >= cursor and any(map(wanted, block.topics)):
                return Found(block, cursor, more=False)
            cursor = max(cursor, block.last_seq + 1)
            topics += len(block.topics)
            if topics >= SCAN_TOPICS_MAX:
                break
        return Found(None, cursor, more=cursor <= horizon)

    def find_open(self, cursor: int, wanted: Callable[[str], bool]) -> OpenBlock | None:
        """The first block of the open turn at or after cursor with a wanted topic."""
        at = bisect_right(self.open_blocks, cursor, key=attrgetter("base_seq")) - 1
        for found in islice(self.open_blocks, max(at, 0), None):
            if found.base_seq + found.block.count > cursor and any(map(wanted, found.block.topics)):
                return found
        return None
