"""Intake: which of the frames that have arrived are processed now, and which wait.

What arrives while nothing waits is processed at once. When that costs too much the rest waits in `arrivals`, and each
peer is served in shares. A publish is confirmed by a commit, so commits are shared as well (`commit_share`); and while
the publish of one peer is on its way to the disk, another peer that had its share waits: the journal thread needs
the interpreter to commit, and a long command would delay the confirmation.
"""

import time
from collections.abc import Callable
from typing import Final

from fabric.hub.arrivals import SHARE_S, Arrival, Arrivals
from fabric.hub.commit_share import CommitShare, is_publish
from fabric.router.publish.publishing import RETRY_MS
from fabric.router.router import Router
from fabric_protocol import wire
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import PeerId

AT_ONCE_S: Final = 0.002  # of work on what came in while nothing waited; then each peer gets its share
TURN_S: Final = 0.002  # of work on commands in one turn; then timers, confirmations and deliveries get theirs
YIELD: Final = 2  # a peer that was served waits this many times as long: to receive and to answer costs as much again
YIELD_MAX_S: Final = 0.02  # since the commit began

Process = Callable[[PeerId, list[bytes], float], None]


class Intake:
    def __init__(self, router: Router, process: Process, has_reports: Callable[[], bool]) -> None:
        self.router = router
        self.arrivals = Arrivals()
        self._share = CommitShare()
        self._process = process
        self._has_reports = has_reports  # of the journal thread
        self._is_committing = False
        self._submitted_at = 0.0

    # What the disk does.

    def submitted(self) -> None:
        """A commit begins, with all that was taken so far."""
        self._share.submitted()
        self._is_committing, self._submitted_at = True, time.monotonic()
        self.arrivals.release()

    def committed(self, seconds: float) -> None:
        """The commit is done; the next one has not begun."""
        self._share.committed(seconds)
        self._is_committing = False
        self.arrivals.committed()

    def restored(self, router: Router) -> None:
        """There is a new router, and nothing is on its way to the disk."""
        self.router, self._share, self._is_committing = router, CommitShare(), False
        self.arrivals.release()

    # What arrives.

    def take(self, received: list[Arrival], now: float) -> None:
        """Process what was received and what waits, as far as one turn goes."""
        arrivals = self.arrivals
        if not arrivals.count:
            received = self._take_at_once(received, now)
        if received:
            self._keep(received)
        if now >= arrivals.release_at:
            arrivals.release()
        if arrivals.is_ready:
            self._take_arrivals(now)

    def take_first_publishes(self, received: list[Arrival], now: float) -> list[Arrival]:
        """Process the publishes of peers of which nothing waits, so that they are in the commit that begins now and not
        in the one after it. Returns the rest."""
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
        """Process what was received, in the order of ZeroMQ: a frame of each peer in turn. Returns what has to wait,
        because the frames before it have cost enough, or because it is for a later commit."""
        begun = now
        for i, (peer, frames) in enumerate(received):
            if now < self._yields_until(peer) or not self._take_share(peer, frames, now):
                return received[i:]
            ended = time.monotonic()
            self.arrivals.count_cost(peer, ended - begun, is_bounded=is_publish(frames))
            begun = ended
            if ended - now >= AT_ONCE_S or (ended - now > SHARE_S and self._has_reports()):
                return received[i + 1 :]
        return []

    def _keep(self, received: list[Arrival]) -> None:
        """Let frames wait for their share. A publish for which there is no room is refused: the client resends it."""
        arrivals, window_bytes = self.arrivals, self.router.window[1]
        for peer, frames in received:
            if arrivals.has_room(peer, window_bytes) or not is_publish(frames):
                arrivals.put(peer, frames)
            else:
                busy = ProtocolError(Code.BUSY, "more publishes wait than the window allows", retry_ms=RETRY_MS)
                self.router.refuse(busy, peer, *wire.request_id(frames))

    def _take_arrivals(self, now: float) -> None:
        """Process what waits, a share of each peer in turn, until this has cost enough or a commit is done."""
        arrivals, begun = self.arrivals, time.monotonic()
        arrivals.begin_turn()
        while arrivals.is_ready and begun - now < TURN_S:
            peer, frames = arrivals.next()
            if arrivals.is_deferred(peer) or (begun > now + SHARE_S and self._has_reports()):
                break
            if now < (until := self._yields_until(peer)):
                arrivals.hold(peer, until)
            elif self._take_share(peer, frames, now):
                ended = time.monotonic()
                arrivals.take(peer, ended - begun)
                arrivals.count_cost(peer, ended - begun, is_bounded=is_publish(frames))
                begun = ended
            else:
                arrivals.hold(peer)

    def _yields_until(self, peer: PeerId) -> float:
        """Until when a peer that had its share waits for publishes of others; 0: it does not wait."""
        excess_s = self.arrivals.excess_s(peer)
        if not excess_s or not self._share.has_others(peer):
            return 0.0
        return self._submitted_at + min(YIELD * excess_s, YIELD_MAX_S)

    def _take_share(self, peer: PeerId, frames: list[bytes], now: float) -> bool:
        """Process the frames of a command; False: it is a publish that has to wait for another commit."""
        if not is_publish(frames):
            self._process(peer, frames, now)
            return True
        router = self.router  # it may be replaced meanwhile
        if self._share.is_full(peer) and (self._is_committing or router.wants_commit(now)):
            return False
        pending_bytes, topics, begun = router.pending_bytes, router.topics_taken, time.monotonic()
        self._process(peer, frames, now)
        taken_bytes, taken_topics = router.pending_bytes - pending_bytes, router.topics_taken - topics
        self._share.published(peer, taken_bytes, taken_topics, now, time.monotonic() - begun)
        return True
