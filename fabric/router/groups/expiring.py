"""Expiring: when redeliveries of a group expire.

A lane knows when the message at its cursor expires. This table has the messages that were delivered and wait for their
next delivery, so that they are settled when their time to live is over, also without a consumer. It has only messages
with a time to live. For messages that are restored after a restart, the time is read from their block first.
"""

from heapq import heappop, heappush
from typing import Final

from fabric.router.block_store import BlockStore
from fabric.router.ranges import Ranges
from fabric_protocol.block import Block

LOOKS_MAX: Final = 64  # blocks that one call reads
_UNKNOWN: Final = 1  # in place of a time: the block has to be read

Span = tuple[int, int]


class Expiring:
    __slots__ = ("_ends", "_known", "_waiting")

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, int]] = []  # a heap: expires_us, first and last seq of messages of one block
        self._known: set[tuple[int, int, int]] = set()  # the same entries, so that each is in the heap once
        self._waiting = Ranges()  # seqs that wait; other seqs of the heap were delivered again

    def __len__(self) -> int:
        return len(self._ends)

    def put(self, first: int, last: int, expires_us: int = _UNKNOWN) -> None:
        """Add messages that wait for their next delivery."""
        self._push((expires_us, first, last))
        self._waiting.add(first, last)

    def take(self, first: int, last: int) -> None:
        """Remove messages that are delivered again or settled."""
        self._waiting.remove(first, last)

    def next_us(self) -> int:
        """When the first entry expires; 0: never."""
        return self._ends[0][0] if self._ends else 0

    def due(self, wall_us: int, block_store: BlockStore) -> list[Span]:
        """Remove and return the expired messages, each range of one block."""
        found: list[Span] = []
        looks = 0
        while self._ends and self._ends[0][0] <= wall_us and looks < LOOKS_MAX:
            expires_us, first, last = known = heappop(self._ends)
            self._known.discard(known)
            if expires_us != _UNKNOWN:
                found += self._waiting.remove(first, last)
                continue
            looks += 1
            block = block_store.at(first)
            end = min(last, block.last_seq) if isinstance(block, Block) else last
            if isinstance(block, Block) and block.expires_us:
                self._push((block.expires_us, first, end))
            if end < last:
                self._push((_UNKNOWN, end + 1, last))
        if not self._ends:
            self._waiting = Ranges()
        return found

    def _push(self, end: tuple[int, int, int]) -> None:
        if end not in self._known:
            self._known.add(end)
            heappush(self._ends, end)
