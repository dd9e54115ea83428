"""CommitShare bounds how much one commit contains when several peers publish.

A publish waits for the commit that is under way and then for its own. With one publisher, commits have no bound. With
several publishers, a commit is bounded by what the disk writes in COMMIT_S, so that a peer with large publishes does
not delay a peer with small ones. What the next publish of a peer adds is estimated by its last one. When the next
commit is full, a peer that adds little to it may still do so. A single block may be larger than the bound: its peer
then skips the next commit, which is short for the other peers.

The seconds that the check of a publish takes count as the bytes that the disk writes in that time: a block of many ids
or many topics has few bytes, and delays other peers as a large block does.
"""

from typing import Final

from fabric_protocol.messages import PeerId

COMMIT_S: Final = 0.005
BYTES_MIN: Final = 256 << 10
RATE_FIRST: Final = 100e6  # bytes per second, until a commit was measured
RATE_WEIGHT: Final = 0.2  # weight of the latest commit in the average rate
TOPIC_BYTES: Final = 128  # bytes that a topic counts as: the journal indexes it, and groups are looked up
HEAVY: Final = 2  # a peer whose share of a commit is more than this many times its bound skips the next commit
MEMORY_S: Final = 0.25  # after a publish, a peer counts as a publisher for this long


class CommitShare:
    def __init__(self) -> None:
        self._taken: dict[PeerId, int] = {}  # cost of each peer in the next commit: bytes, or seconds counted as bytes
        self._waiting = 0  # cost of all peers in the next commit
        self._waiting_bytes = 0  # bytes in the next commit
        self._committing_bytes = 0  # bytes in the commit that is under way
        self.submitted_peers: set[PeerId] = set()  # peers with a publish in the commit that is under way
        self._heavy: set[PeerId] = set()  # peers that make the commit under way long: they skip the next commit
        self._rate = RATE_FIRST
        self._publishers: dict[PeerId, int] = {}  # peers that have published in this period: cost of the last publish
        self._previous: dict[PeerId, int] = {}  # peers that have published in the period before, as well
        self._period_at = 0.0

    def is_full(self, peer: PeerId) -> bool:
        """True if the next publish of a peer has to wait for a later commit."""
        is_heavy = peer in self._heavy
        if not (self._waiting or is_heavy):
            return False
        limit, cost = self._limit, self._publishers.get(peer, self._previous.get(peer, 0))
        if self._waiting + cost <= limit and not is_heavy:
            return False
        publishers = len(self._publishers.keys() | self._previous.keys() | {peer})
        return publishers > 1 and (is_heavy or self._taken.get(peer, 0) + cost >= limit / publishers)

    def has_others(self, peer: PeerId) -> bool:
        """True if a publish of another peer is on its way to the disk."""
        return bool(self._taken.keys() - {peer} or self.submitted_peers - {peer})

    @property
    def _limit(self) -> float:
        """Bytes of a commit when several peers publish."""
        return max(BYTES_MIN, self._rate * COMMIT_S)

    def published(self, peer: PeerId, taken_bytes: int, topics: int, now: float, seconds: float) -> None:
        """Count a publish of a peer: seconds of processing, and bytes and topics that wait for the disk (0: it was
        refused)."""
        if now >= self._period_at:
            self._previous, self._publishers, self._period_at = self._publishers, {}, now + MEMORY_S
        cost = max(taken_bytes, int(seconds * self._rate)) + topics * TOPIC_BYTES
        self._publishers[peer] = cost
        self._waiting_bytes += taken_bytes
        self._waiting += cost
        self._taken[peer] = self._taken.get(peer, 0) + cost

    def submitted(self) -> None:
        """A commit begins; it contains all publishes so far."""
        self._committing_bytes, self._waiting_bytes, self._waiting = self._waiting_bytes, 0, 0
        heavy_bytes = HEAVY * self._limit
        self._heavy = {peer for peer, taken in self._taken.items() if taken > heavy_bytes}
        self.submitted_peers = set(self._taken)
        self._taken.clear()

    def committed(self, seconds: float) -> None:
        """The commit is done: measure the rate of the disk."""
        if self._committing_bytes >= BYTES_MIN and seconds > 0:
            self._rate += RATE_WEIGHT * (self._committing_bytes / seconds - self._rate)
        self._committing_bytes = 0
        self.submitted_peers, self._heavy = set(), set()
