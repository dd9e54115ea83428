"""When messages that came back to a group are too old to be delivered again.

A message that waits at a cursor is known to its lane. What was delivered, came back and waits for its next delivery is
known here, so that it is settled when its time is over, whether or not a consumer asks for it. Only messages with a
time to live are here; of those that a restart brings back, the block is looked at first.
"""

from heapq import heappop, heappush
from typing import Final

from fabric.router.block_store import BlockStore
from fabric.router.ranges import Ranges
from fabric_protocol.block import Block

LOOKS_MAX: Final = 64  # blocks that are read in one go
_UNKNOWN: Final = 1  # in place of a time: the block has to be looked at

Span = tuple[int, int]


class Expiring:
    __slots__ = ("_ends", "_known", "_waiting")

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, int]] = []  # a heap: when, first and last seq of messages of one block
        self._known: set[tuple[int, int, int]] = set()  # the same: what comes back again and again is there once
        self._waiting = Ranges()  # those that wait; others of the heap were delivered again

    def __len__(self) -> int:
        return len(self._ends)

    def put(self, first: int, last: int, expires_us: int = _UNKNOWN) -> None:
        """Messages wait for their next delivery."""
        self._push((expires_us, first, last))
        self._waiting.add(first, last)

    def take(self, first: int, last: int) -> None:
        """Messages are delivered again, or settled."""
        self._waiting.remove(first, last)

    def next_us(self) -> int:
        """When the first of them is too old; 0: never."""
        return self._ends[0][0] if self._ends else 0

    def due(self, wall_us: int, block_store: BlockStore) -> list[Span]:
        """What is too old by now, each of one block. They do not wait any more."""
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
