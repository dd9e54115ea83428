"""Arrivals holds frames that were received and not processed yet: one queue for each peer, served in shares.

A share is measured in seconds of work, not in frames: the hub serves one peer for SHARE_S, then the next peer. If a
frame costs more than the share, the peer is passed over in the following rounds, as long as other peers wait. Frames of
one peer keep their order. A peer also has a time at which it has rested for the work that it was served; `intake` makes
it wait until then while a publish of another peer is on its way to the disk.

ZeroMQ returns frames of all peers in turn and cannot be asked for the frames of one peer. So the hub receives some
frames in every turn, and refuses publishes of a peer that has too many bytes waiting here.
"""

import math
from collections import deque
from collections.abc import Set
from typing import Final

from fabric.hub.command_kind import Frames, is_question
from fabric_protocol.messages import PeerId

Arrival = tuple[PeerId, Frames]

TURN_FRAMES: Final = 64  # frames received in one turn: to receive and to answer each costs time
FRAMES_MAX: Final = 256  # frames of all peers that wait here; above this number,
BYTES_MAX: Final = 8 << 20  # or above this number of bytes, the queues are crowded: a turn receives only a few frames
CROWDED_BYTES: Final = 1 << 20  # received in a turn when crowded: most of it is refused while other peers wait
PEER_BYTES_MIN: Final = 1 << 20  # bytes of one peer that may wait here, even if its window is smaller
SHARE_S: Final = 0.001  # seconds of work for one peer before the next peer is served
DEBT_MAX_S: Final = 0.05  # bounds how long a peer waits for its next frame after an expensive frame
PAUSE: Final = 2  # a peer pauses this many times as long as it was served: receiving and answering cost as much again
PAUSE_MAX_S: Final = 0.02  # the longest pause


class _Queue:
    __slots__ = ("bytes", "debt_s", "frames")

    def __init__(self, debt_s: float) -> None:
        self.frames: deque[tuple[Frames, int]] = deque()  # frames with their size
        self.bytes = 0
        self.debt_s = debt_s  # seconds of work beyond the share; below zero: the rest of the share


class Arrivals:
    def __init__(self) -> None:
        self._queues: dict[PeerId, _Queue] = {}
        self._rotation: deque[PeerId] = deque()  # peers with frames, in the order in which they are served
        self._held: list[PeerId] = []  # peers with frames that wait for the next commit
        self.release_at = math.inf  # when held peers are served again, even if no commit is done
        self._served: PeerId | None = None  # the peer that was served last in this turn
        self._several = False  # more than one peer was served in this turn
        self._rested_at: dict[PeerId, float] = {}  # when each peer has paused enough for the work that it was served
        self.count = 0
        self.bytes = 0

    @property
    def is_ready(self) -> bool:
        """True if a peer can be served."""
        return bool(self._rotation)

    @property
    def is_crowded(self) -> bool:
        return self.count >= FRAMES_MAX or self.bytes >= BYTES_MAX

    @property
    def room(self) -> tuple[int, int]:
        """Frames and bytes to receive in this turn. It is never zero, so that the hub hears of new peers."""
        if self.is_crowded:
            return 2 * (len(self._queues) + 1), CROWDED_BYTES
        return min(FRAMES_MAX - self.count, TURN_FRAMES), BYTES_MAX - self.bytes

    def has(self, peer: PeerId) -> bool:
        return peer in self._queues

    def has_room(self, peer: PeerId, window_bytes: int) -> bool:
        """True if one more publish of a peer may wait here: the bound is the peer's window."""
        queue = self._queues.get(peer)
        return queue is None or queue.bytes < max(window_bytes, PEER_BYTES_MIN)

    def put(self, peer: PeerId, frames: Frames, now: float) -> None:
        queue = self._queues.get(peer)
        if queue is None:
            rested_at = self.rested_at(peer, now)  # work that was done while no frame of the peer waited is a debt, too
            queue = self._queues[peer] = _Queue((rested_at - now) / PAUSE if rested_at else -SHARE_S)
            self._rotation.append(peer)
        size = sum(map(len, frames))
        queue.frames.append((frames, size))
        queue.bytes += size
        self.count += 1
        self.bytes += size

    def begin_turn(self) -> None:
        self._served, self._several = None, False

    def is_deferred(self, peer: PeerId) -> bool:
        """True if the peer of `next` has to wait for the next turn: it has used more than its share, and frames of
        other peers were processed in this turn, so their results leave first."""
        return self._queues[peer].debt_s > 0.0 and (self._several or self._served not in (None, peer))

    def next(self) -> Arrival:
        """The next peer to serve, and its first frames, which stay in the queue. To be called when `is_ready`."""
        rotation, queues = self._rotation, self._queues
        queue = queues[rotation[0]]
        while queue.debt_s > 0.0 and len(rotation) > 1:
            queue.debt_s -= SHARE_S
            rotation.rotate(-1)
            queue = queues[rotation[0]]
        return rotation[0], queue.frames[0][0]

    def take(self, peer: PeerId, seconds: float) -> None:
        """Remove the first frames of a peer: they were processed in so many seconds."""
        self._several |= self._served not in (None, peer)
        self._served = peer
        queue = self._queues[peer]
        _, size = queue.frames.popleft()
        queue.bytes -= size
        queue.debt_s = min(queue.debt_s + seconds, DEBT_MAX_S)
        self.count -= 1
        self.bytes -= size
        if not queue.frames:
            self._rotation.remove(peer)
            del self._queues[peer]

    def count_cost(self, peer: PeerId, seconds: float, ended: float, *, is_bounded: bool) -> None:
        """Count the seconds of a command. A publish is bounded by commits, and counts only if it took long."""
        if seconds > SHARE_S or not is_bounded:
            rested_at = max(self._rested_at.get(peer, 0.0), ended) + PAUSE * seconds
            self._rested_at[peer] = min(rested_at, ended + PAUSE_MAX_S)

    def rested_at(self, peer: PeerId, now: float) -> float:
        """When a peer that was served more than its share has paused enough for it; 0: it has."""
        rested_at = self._rested_at.get(peer, 0.0)
        return rested_at if rested_at - now > PAUSE * SHARE_S else 0.0

    def drop_questions(self, peer: PeerId) -> None:
        """A peer is gone: its waiting commands that change nothing have no reader of their answers."""
        queue = self._queues.get(peer)
        if queue is None:
            return
        kept = deque((frames, size) for frames, size in queue.frames if not is_question(frames))
        size = sum(size for _, size in kept)
        self.count -= len(queue.frames) - len(kept)
        self.bytes -= queue.bytes - size
        queue.frames, queue.bytes = kept, size
        if not kept:
            (self._held if peer in self._held else self._rotation).remove(peer)
            del self._queues[peer]

    def forget(self, peer: PeerId) -> None:
        """A peer is gone, and no frame of it waits."""
        self._rested_at.pop(peer, None)

    def hold(self, peer: PeerId, until: float = math.inf) -> None:
        """Do not serve a peer until `release`, which is due at a time."""
        self._rotation.remove(peer)
        self._held.append(peer)
        self.release_at = min(self.release_at, until)

    def release(self, behind: Set[PeerId] = frozenset()) -> None:
        """Serve the held peers again; the peers in `behind` come after all others."""
        self._rotation.extend(self._held)
        if behind and len(self._rotation) > 1:
            self._rotation = deque(sorted(self._rotation, key=behind.__contains__))
        self._held.clear()
        self.release_at = math.inf
