"""Frames that were received and not processed yet: a queue for each peer, served in shares.

The unit of a share is what a frame costs the hub, not how many frames there are: each peer is served for a moment, then
the next one. A frame that costs more than its share is paid for in the rounds that follow, as long as other peers wait.
Frames of one peer keep their order. ZeroMQ gives frames of all peers in turn and cannot be asked for those of one, so
something is received in every turn, and a peer that has too much waiting here is refused more.
"""

from collections import deque
from typing import Final

from fabric_protocol.messages import PeerId

Frames = list[bytes]
Arrival = tuple[PeerId, Frames]

FRAMES_MAX: Final = 256  # that wait here; beyond these
BYTES_MAX: Final = 8 << 20  # two figures, each turn receives only a few
CROWDED_BYTES: Final = 1 << 20  # received in one turn then; most of it is refused, and the other peers wait meanwhile
PEER_BYTES_MIN: Final = 1 << 20  # of one peer that wait here, however little its window is
SHARE_S: Final = 0.001  # of work for one peer, then the next one is served
DEBT_MAX_S: Final = 0.05  # more is not paid for, so that no peer waits longer than that for its next frame


class _Queue:
    __slots__ = ("bytes", "debt_s", "frames")

    def __init__(self) -> None:
        self.frames: deque[tuple[Frames, int]] = deque()  # with their size
        self.bytes = 0
        self.debt_s = -SHARE_S  # work beyond the share; below zero: what is left of it


class Arrivals:
    def __init__(self) -> None:
        self._queues: dict[PeerId, _Queue] = {}
        self._ring: deque[PeerId] = deque()  # peers with frames, in the order in which they are served
        self._held: list[PeerId] = []  # the same, but they wait for the disk
        self._served: PeerId | None = None  # the peer that was served last in this turn,
        self._several = False  # and whether others were before
        self.count = 0
        self.bytes = 0

    @property
    def is_ready(self) -> bool:
        """Some peer can be served."""
        return bool(self._ring)

    @property
    def is_crowded(self) -> bool:
        return self.count >= FRAMES_MAX or self.bytes >= BYTES_MAX

    @property
    def room(self) -> tuple[int, int]:
        """Frames and bytes to be received in this turn. However crowded it is here, a peer that is new must get in."""
        if self.is_crowded:
            return 2 * (len(self._queues) + 1), CROWDED_BYTES
        return FRAMES_MAX - self.count, BYTES_MAX - self.bytes

    def has(self, peer: PeerId) -> bool:
        return peer in self._queues

    def has_room(self, peer: PeerId, window_bytes: int) -> bool:
        """Whether another publish of a peer may wait here: as much as its window allows it to send."""
        queue = self._queues.get(peer)
        return queue is None or queue.bytes < max(window_bytes, PEER_BYTES_MIN)

    def put(self, peer: PeerId, frames: Frames) -> None:
        queue = self._queues.get(peer)
        if queue is None:
            queue = self._queues[peer] = _Queue()
            self._ring.append(peer)
        size = sum(map(len, frames))
        queue.frames.append((frames, size))
        queue.bytes += size
        self.count += 1
        self.bytes += size

    def begin_turn(self) -> None:
        self._served, self._several = None, False

    def is_deferred(self, peer: PeerId) -> bool:
        """Whether the peer of `next` has to wait for the next turn: it has had more than its share, and what other
        peers have said in this turn is to go on its way first."""
        return self._queues[peer].debt_s > 0.0 and (self._several or self._served not in (None, peer))

    def next(self) -> Arrival:
        """The peer whose turn it is, and its first frames, which stay here. To be called when `is_ready`."""
        ring, queues = self._ring, self._queues
        queue = queues[ring[0]]
        while queue.debt_s > 0.0 and len(ring) > 1:
            queue.debt_s -= SHARE_S
            ring.rotate(-1)
            queue = queues[ring[0]]
        return ring[0], queue.frames[0][0]

    def take(self, peer: PeerId, seconds: float) -> None:
        """The first frames of a peer were processed, and have cost so much."""
        self._several |= self._served not in (None, peer)
        self._served = peer
        queue = self._queues[peer]
        _, size = queue.frames.popleft()
        queue.bytes -= size
        queue.debt_s = min(queue.debt_s + seconds, DEBT_MAX_S)
        self.count -= 1
        self.bytes -= size
        if not queue.frames:
            self._ring.remove(peer)
            del self._queues[peer]

    def hold(self, peer: PeerId) -> None:
        """Serve a peer no more until `release`."""
        self._ring.remove(peer)
        self._held.append(peer)

    def release(self) -> None:
        """Serve again the peers that were held."""
        self._ring.extend(self._held)
        self._held.clear()
