"""Intake decides which of the received frames are processed now, and which wait.

Frames that arrive while no frame waits are processed at once. If that costs too much, the rest waits in `arrivals`, and
each peer is served in shares. A publish is confirmed by a commit, so commits are shared as well (`commit_share`). While
a publish of one peer is on its way to the disk, a peer that has used its share is not served for a moment: the journal
thread needs the interpreter to commit, and a long command would delay the confirmation. A share that was used before
the commit counts as well: a publish waits for the commit under way and for its own.
"""

import time
from collections.abc import Callable
from typing import Final

from fabric.hub.arrivals import SHARE_S, Arrival, Arrivals
from fabric.hub.command_kind import is_publish
from fabric.hub.commit_share import CommitShare
from fabric.router.publish.publishing import RETRY_MS
from fabric.router.router import Router
from fabric_protocol import wire
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import PeerId

AT_ONCE_S: Final = 0.002  # seconds of work on frames that arrive while no frame waits; the rest is served in shares
TURN_S: Final = 0.002  # seconds of work on commands in one turn; timers, confirmations and deliveries follow

Process = Callable[[PeerId, list[bytes], float], None]


class Intake:
    def __init__(self, router: Router, process: Process, has_reports: Callable[[], bool]) -> None:
        self.router = router
        self.arrivals = Arrivals()
        self._share = CommitShare()
        self._process = process
        self._has_reports = has_reports  # whether the journal thread has reports
        self._is_committing = False

    # Commits.

    def submitted(self) -> None:
        """A commit begins; it contains all publishes so far."""
        self._share.submitted()
        self._is_committing = True
        self.arrivals.release(behind=self._share.submitted_peers)  # the next commit is for the peers that waited

    def committed(self, seconds: float) -> None:
        """The commit is done; the next one has not begun."""
        self._share.committed(seconds)
        self._is_committing = False
        self.arrivals.release()

    def restored(self, router: Router) -> None:
        """A new router is used, and no commit is under way."""
        self.router, self._share, self._is_committing = router, CommitShare(), False
        self.arrivals.release()

    # Frames.

    def take(self, received: list[Arrival], now: float) -> None:
        """Process received and waiting frames, within the bounds of one turn."""
        arrivals = self.arrivals
        if not arrivals.count:
            received = self._take_at_once(received, now)
        if received:
            self._keep(received, now)
        if now >= arrivals.release_at:
            arrivals.release()
        if arrivals.is_ready:
            self._take_arrivals(now)

    def take_first_publishes(self, received: list[Arrival], now: float) -> list[Arrival]:
        """Process publishes of peers without waiting frames, so that the commit that begins now contains them.

        Returns the other frames.
        """
        rest: list[Arrival] = []
        waiting: set[PeerId] = set()
        for peer, frames in received:
            if (
                peer in waiting
                or self.arrivals.has(peer)
                or not is_publish(frames)
                or time.monotonic() - now >= SHARE_S
                or not self._take_share(peer, frames, now)
            ):
                waiting.add(peer)
                rest.append((peer, frames))
        return rest

    def _take_at_once(self, received: list[Arrival], now: float) -> list[Arrival]:
        """Process received frames in the order of ZeroMQ: a frame of each peer in turn. Returns the frames that have to
        wait: the time is used up, the peer pauses, or the publish is for a later commit."""
        begun = now
        for i, (peer, frames) in enumerate(received):
            if self._pauses_until(peer, now) or not self._take_share(peer, frames, now):
                return received[i:]
            ended = time.monotonic()
            self.arrivals.count_cost(peer, ended - begun, ended, is_bounded=is_publish(frames))
            begun = ended
            if ended - now >= AT_ONCE_S or (ended - now > SHARE_S and self._has_reports()):
                return received[i + 1 :]
        return []

    def _keep(self, received: list[Arrival], now: float) -> None:
        """Queue frames. A publish without room is refused, and the client resends it."""
        arrivals, window_bytes = self.arrivals, self.router.window[1]
        for peer, frames in received:
            if arrivals.has_room(peer, window_bytes) or not is_publish(frames):
                arrivals.put(peer, frames, now)
            else:
                busy = ProtocolError(Code.BUSY, "more publishes wait than the window allows", retry_ms=RETRY_MS)
                self.router.refuse(busy, peer, *wire.request_id(frames))

    def _take_arrivals(self, now: float) -> None:
        """Process waiting frames, a share of each peer in turn, until the time is used up or a commit is done."""
        arrivals, begun = self.arrivals, time.monotonic()
        arrivals.begin_turn()
        while arrivals.is_ready and begun - now < TURN_S:
            peer, frames = arrivals.next()
            if arrivals.is_deferred(peer) or (begun > now + SHARE_S and self._has_reports()):
                break
            if until := self._pauses_until(peer, now):
                arrivals.hold(peer, until)
            elif self._take_share(peer, frames, now):
                ended = time.monotonic()
                arrivals.take(peer, ended - begun)
                arrivals.count_cost(peer, ended - begun, ended, is_bounded=is_publish(frames))
                begun = ended
            else:
                arrivals.hold(peer)

    def _pauses_until(self, peer: PeerId, now: float) -> float:
        """The end of the pause of a peer that has used its share while another peer waits for a commit; 0: no pause."""
        rested_at = self.arrivals.rested_at(peer, now)
        return rested_at if rested_at and self._share.has_others(peer) else 0.0

    def _take_share(self, peer: PeerId, frames: list[bytes], now: float) -> bool:
        """Process the frames of a command; False if they are a publish that has to wait for a later commit."""
        if not is_publish(frames):
            self._process(peer, frames, now)
            return True
        router = self.router  # a fault in the command replaces it
        if self._share.is_full(peer) and (self._is_committing or router.wants_commit(now)):
            return False
        pending_bytes, topics, begun = router.pending_bytes, router.topics_taken, time.monotonic()
        self._process(peer, frames, now)
        taken_bytes, taken_topics = router.pending_bytes - pending_bytes, router.topics_taken - topics
        self._share.published(peer, taken_bytes, taken_topics, now, time.monotonic() - begun)
        return True
