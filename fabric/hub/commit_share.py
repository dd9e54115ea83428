"""How much one commit takes in when several peers publish.

A publish waits for the commit that is under way and then for its own. With one publisher commits may be as large as
they get; with several, each is bounded by what the disk writes in a few milliseconds, so that a publisher of much does
not make a publisher of little wait for it. A peer that has little in the next commit is let in though that is full. A
single block may be larger than the bound; then its peer is not in the next commit, which is short for the others.

The time that a publish takes to be checked counts as the bytes that the disk writes in it: a block of many ids or many
topics has few bytes, and makes others wait as a large one does.
"""

from typing import Final

from fabric_protocol.messages import PeerId
from fabric_protocol.wire import Verb

COMMIT_S: Final = 0.005
BYTES_MIN: Final = 256 << 10
RATE_FIRST: Final = 100e6  # bytes a second, before anything was measured
RATE_WEIGHT: Final = 0.2  # of the latest commit, in the rate
HEAVY: Final = 2  # a peer that has so many times the bytes of a commit in one, since its blocks are large, skips one
MEMORY_S: Final = 0.25  # a peer counts as a publisher for so long

_PUBLISHES: Final = (Verb.PUB, Verb.TXN)


def is_publish(frames: list[bytes]) -> bool:
    return len(frames) == 2 and len(frames[0]) > 1 and frames[0][1] in _PUBLISHES


class CommitShare:
    def __init__(self) -> None:
        self._taken: dict[PeerId, int] = {}  # cost for the next commit: bytes, or what counts as bytes
        self._waiting = 0  # the same of all peers
        self._waiting_bytes = 0  # for the next commit
        self._committing_bytes = 0  # of the commit that is under way
        self._heavy: set[PeerId] = set()  # peers that make it long: what they send next is for the one after the next
        self._rate = RATE_FIRST
        self._publishers: set[PeerId] = set()  # of this period,
        self._previous: set[PeerId] = set()  # and of the one before it
        self._period_at = 0.0

    def is_full(self, peer: PeerId) -> bool:
        """Whether the next publish of a peer has to wait for another commit."""
        if self._waiting < BYTES_MIN and peer not in self._heavy:
            return False
        limit = self._limit
        if self._waiting < limit and peer not in self._heavy:
            return False
        publishers = len(self._publishers | self._previous | {peer})
        return publishers > 1 and (peer in self._heavy or self._taken.get(peer, 0) >= limit / publishers)

    @property
    def _limit(self) -> float:
        """Bytes of a commit when there are several publishers."""
        return max(BYTES_MIN, self._rate * COMMIT_S)

    def published(self, peer: PeerId, taken_bytes: int, now: float, seconds: float) -> None:
        """A publish of a peer was processed in so many seconds, and so many bytes of it wait for the disk: none, if it
        was refused."""
        if now >= self._period_at:
            self._previous, self._publishers, self._period_at = self._publishers, set(), now + MEMORY_S
        self._publishers.add(peer)
        cost = max(taken_bytes, int(seconds * self._rate))
        self._waiting_bytes += taken_bytes
        self._waiting += cost
        self._taken[peer] = self._taken.get(peer, 0) + cost

    def submitted(self) -> None:
        """All that was taken so far is in the commit that begins."""
        self._committing_bytes, self._waiting_bytes, self._waiting = self._waiting_bytes, 0, 0
        heavy_bytes = HEAVY * self._limit
        self._heavy = {peer for peer, taken in self._taken.items() if taken > heavy_bytes}
        self._taken.clear()

    def committed(self, seconds: float) -> None:
        if self._committing_bytes >= BYTES_MIN and seconds > 0:
            self._rate += RATE_WEIGHT * (self._committing_bytes / seconds - self._rate)
        self._committing_bytes = 0
        self._heavy = set()
