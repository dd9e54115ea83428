"""Tallies: the numbers of all topics with messages, whether they have settings or not.

Nothing is counted before the first question, and nothing while messages are published: a walk reads the journal once,
a few hundred blocks in a tick, with pauses if blocks have many topics, and goes on when it is asked again. When
retention of the journal or a purge has removed a part of a counted topic, a second walk counts all topics anew and
takes the place of the first when it is complete.
"""

from typing import TYPE_CHECKING, Final

from fabric.router.part import Part
from fabric.router.timers import NEVER
from fabric.router.topics.walk import Tally, Walk

if TYPE_CHECKING:
    from fabric.router.shared import Shared
    from fabric.router.turn import Turn

READS_PER_TICK: Final = 2  # calls of the reader, about a millisecond each
READS_PER_QUESTION: Final = 4
# After a question, new blocks are counted so often and for so long, so that the next question need not wait.
FOLLOW_EVERY_S: Final = 1.0
FOLLOW_S: Final = 60.0
# Topics are counted anew this often at most, and then for a small share of the time.
AGAIN_S: Final = 60.0
AGAIN_SHARE: Final = 50  # a walk of one second is followed by so many seconds without a second walk


class Tallies(Part):
    def __init__(self, shared: "Shared") -> None:
        self._shared = shared
        self._walk: Walk | None = None  # None: no question was asked yet
        self._next: Walk | None = None  # counts all topics anew
        self._is_asked = False
        self._is_stale = False  # a part of a counted topic was removed
        self._target = 0  # the walk goes on to this seq
        self._look_at = NEVER  # when the target is set anew
        self._follow_until = 0.0
        self._again_at = 0.0  # when a second walk may begin
        self._began = 0.0

    def ask(self) -> Walk:
        """The numbers as far as they are counted; some new blocks are counted now, others by the next ticks."""
        walk, self._walk = self._walk or Walk(self._shared), None  # after an exception, all is counted anew
        self._is_asked, self._target = True, self._shared.committed_seq
        self._count(walk, self._target, READS_PER_QUESTION, self._shared.clock.now)
        self._walk = walk
        return walk

    def _count(self, walk: Walk, target: int, reads: int, now: float) -> None:
        """Count some blocks, unless the walk pauses."""
        if self._shared.pace.begin(now):
            for _ in range(reads):
                if not walk.step(target, self._shared.pace, now):
                    break

    @property
    def is_counting(self) -> bool:
        """Whether committed blocks are not counted yet."""
        return self._walk is None or self._walk.at <= self._shared.committed_seq

    def find(self, name: str) -> Tally | None:
        """The tally of a topic with stored messages; a stale tally is counted anew, later."""
        tally = self._walk.find(name) if self._walk is not None else None
        if tally is not None and tally.is_stale:
            self._is_stale = True
        return tally

    def remove(self, name: str, floor: int) -> None:
        """An administrator has removed the messages of a topic below a seq."""
        for walk in (self._walk, self._next):
            if walk is not None:
                walk.remove(name, floor)

    def next_deadline(self) -> float:
        if self._walk is None:
            return NEVER
        if self._is_asked:
            return 0.0
        if self._walk.at <= self._target or self._next is not None:
            return self._shared.pace.due
        return self._look_at

    def tick(self, now: float, turn: "Turn") -> None:
        walk = self._walk
        if walk is None:
            return
        if self._is_asked:
            self._is_asked, self._follow_until, self._look_at = False, now + FOLLOW_S, now
        if now >= self._look_at:
            self._target, self._look_at = self._shared.committed_seq, NEVER
            walk.forget_removed()
            if self._is_stale and self._next is None and now >= self._again_at:
                self._next, self._is_stale, self._began = Walk(self._shared), False, now
        self._count(walk, self._target, READS_PER_TICK, now)
        if self._next is not None:
            self._go_on(self._next, now)
        if self._look_at == NEVER and walk.at > self._target and now < self._follow_until:
            self._look_at = now + FOLLOW_EVERY_S

    def _go_on(self, walk: Walk, now: float) -> None:
        """Go on with the second walk."""
        committed_seq = self._shared.committed_seq
        self._count(walk, committed_seq, READS_PER_TICK, now)
        if walk.at > committed_seq:
            self._walk, self._next = walk, None
            self._again_at = now + max(AGAIN_S, AGAIN_SHARE * (now - self._began))
