"""Where the router finds blocks: the latest in memory, the rest through a reader that the shell provides.

A live group is served from memory and costs no disk read. The block store is derived state: losing it loses nothing.
"""

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from fabric.router.schedules.due_queue import StoredSchedules
from fabric_protocol.block import Block

if TYPE_CHECKING:
    from fabric.router.shared import Shared

# Memory for the latest blocks. Enough for what is in flight to the disk plus consumers a second or so behind.
SHELF_BYTES_MAX: Final = 24 << 20
# Non-matching blocks looked at in one go, so that a narrow group cannot hold up a turn.
SCAN_BLOCKS_MAX: Final = 256
SCAN_TOPICS_MAX: Final = 4_096
# Blocks that were read from disk and wait for credit: each is read once, however often its group has to stop at it.
KEPT_BLOCKS_MAX: Final = 8
KEPT_BYTES_MAX: Final = 1 << 20  # of one of them; a larger one is read again
GONE_MAX: Final = 32  # dropped blocks that wait to be cleared together, since the front of a list is dear to cut


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
        """Where the first block begins that is on disk. Retention moves it before the router is told."""
        ...

    def block_at(self, seq: int) -> Block | Damaged | None:
        """The block that holds seq, as long as it is on disk: also when retention has removed seq from it."""
        ...

    def next_block(self, seq: int, wanted: Callable[[str], bool]) -> tuple[Block | Damaged | None, int]:
        """The first block at or after seq with a wanted topic, and the seq at which to go on."""
        ...

    def forget(self, wanted: Callable[[str], bool]) -> None:
        """Whoever asks with this from now on may want other topics than before."""
        ...

    def seek_time(self, ts_us: int) -> int: ...
    def topic_names(self, limit: int) -> tuple[list[str], bool]:
        """Topics of the latest messages, as many as can be found without a long search; whether that is all."""
        ...

    def next_event(self) -> int:
        """The number that the next delivery event gets."""
        ...

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        """The first row of the index of idempotency keys at or after a number; an empty one when it is damaged."""
        ...

    def previous_block(self, before: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        """The last block that begins before a seq and has a wanted topic, and the seq before which to go on."""
        ...


class Found(NamedTuple):
    """The next block for a group, or how far there is none; `more` when the search stopped only to stay short."""

    block: Block | Damaged | None
    cursor: int
    more: bool


class BlockStore:
    def __init__(self, reader: Reader, shared: "Shared") -> None:
        self._reader = reader
        self._shared = shared
        self._blocks: list[Block] = []  # contiguous and ascending up to the last appended; those before _start are gone
        self._bases: list[int] = []  # base_seq of each
        self._start = 0
        self._bytes = 0
        self._kept: dict[int, Block] = {}  # by the seq that will be asked for, the oldest first

    def add(self, block: Block) -> None:
        """Keep a block. What is not on disk yet is not dropped from memory."""
        self._blocks.append(block)
        self._bases.append(block.base_seq)
        self._bytes += len(block.raw)
        while self._bytes > SHELF_BYTES_MAX and self._blocks[self._start].last_seq <= self._shared.committed_seq:
            self._bytes -= len(self._blocks[self._start].raw)
            self._start += 1
        if self._start > GONE_MAX:
            del self._blocks[: self._start], self._bases[: self._start]
            self._start = 0

    def holds(self, seq: int) -> bool:
        """Whether seq is not before what is in memory."""
        return self._start < len(self._bases) and seq >= self._bases[self._start]

    def keep(self, seq: int, block: Block) -> None:
        """A group stops at a seq of a block, and will ask for it again."""
        if len(block.raw) <= KEPT_BYTES_MAX and not self.holds(seq):
            self._kept[seq] = block
            if len(self._kept) > KEPT_BLOCKS_MAX:
                del self._kept[next(iter(self._kept))]

    def discard(self, block: Block) -> None:
        """A block is removed from disk, and must not be found here."""
        for seq in [seq for seq in self._kept if block.base_seq <= seq <= block.last_seq]:
            del self._kept[seq]

    def at(self, seq: int) -> Block | Damaged | None:
        """The block that holds seq."""
        if seq < self._shared.removed_below:
            return None
        if self.holds(seq):
            block = self._blocks[bisect_right(self._bases, seq) - 1]
            return block if seq <= block.last_seq else None
        return self._reader.block_at(seq)

    def awaits_news(self, seq: int) -> bool:
        """Whether retention has removed what lies at seq, and the router was not told yet."""
        begins_at = self._reader.begins_at
        return seq < begins_at and self._shared.first_seq < begins_at

    def find(self, cursor: int, horizon: int, wanted: Callable[[str], bool]) -> Found:
        """The first block at or after cursor, up to horizon, with a wanted topic."""
        if not self.holds(cursor):
            kept = self._kept.pop(cursor, None)
            if kept is not None and cursor >= self._reader.begins_at and any(map(wanted, kept.topics)):
                return Found(kept, cursor, more=False)
            block, reached = self._reader.next_block(cursor, wanted)
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
