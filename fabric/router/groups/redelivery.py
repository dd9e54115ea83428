"""Pending: the redeliveries of a group.

`ready` is delivered before new messages of the same priority, lowest seq first. `waiting` becomes ready when it is due.
`suspects` have failed twice, or as often as the group allows: each is delivered alone, to a consumer that holds nothing
else. If that consumer is lost, the suspect is the cause, and no other message becomes a dead letter.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from fabric.router.groups.lease import Redelivery
from fabric.router.ranges import Ranges
from fabric.router.timers import NEVER

SUSPECT_FAILURES: Final = 2


class Pending:
    __slots__ = (
        "fresh",
        "messages",
        "ready",
        "suspect_failures",
        "suspect_messages",
        "suspects",
        "waiting",
        "waiting_messages",
    )

    def __init__(self) -> None:
        self.ready: list[Redelivery] = []  # a heap
        self.waiting: list[tuple[float, Redelivery]] = []  # a heap, by due time
        self.suspects: list[Redelivery] = []  # a heap
        self.suspect_failures = SUSPECT_FAILURES
        self.messages = 0  # in all three
        self.fresh = 0  # of these, messages that wait for attempt 1
        self.waiting_messages = self.suspect_messages = 0  # in `waiting` and in `suspects`

    def __len__(self) -> int:
        return len(self.ready) + len(self.waiting) + len(self.suspects)

    def __iter__(self) -> Iterator[Redelivery]:
        yield from self.ready
        yield from self.suspects
        for _, redelivery in self.waiting:
            yield redelivery

    def use_attempts_max(self, attempts_max: int) -> None:
        """A message with attempts_max failures is suspect, also if attempts_max is 1."""
        self.suspect_failures = min(SUSPECT_FAILURES, attempts_max or SUSPECT_FAILURES)
        redeliveries, self.ready, self.suspects, self.suspect_messages = self.ready + self.suspects, [], [], 0
        for redelivery in redeliveries:
            self._enter(redelivery)

    def put(self, redelivery: Redelivery, due: float = 0.0) -> None:
        """Add a redelivery that is ready at `due`; 0: now."""
        self._count(redelivery, redelivery.size)
        if due:
            heappush(self.waiting, (due, redelivery))
            self.waiting_messages += redelivery.size
        else:
            self._enter(redelivery)

    def _enter(self, redelivery: Redelivery) -> None:
        if redelivery.failures >= self.suspect_failures:
            heappush(self.suspects, redelivery)
            self.suspect_messages += redelivery.size
        else:
            heappush(self.ready, redelivery)

    def _count(self, redelivery: Redelivery, size: int) -> None:
        self.messages += size
        if redelivery.attempt == 1:
            self.fresh += size

    def take(self, rank: int) -> Redelivery | None:
        """Remove and return the first ready redelivery of a rank."""
        ready = self.ready
        if not ready:
            return None
        if ready[0].rank == rank:
            first = heappop(ready)
            self._count(first, -first.size)
            return first
        found = min((redelivery for redelivery in ready if redelivery.rank == rank), default=None)
        if found is not None:
            ready.remove(found)
            heapify(ready)
            self._count(found, -found.size)
        return found

    def take_suspect(self) -> Redelivery:
        """Remove and return the first message of the suspects."""
        redelivery = heappop(self.suspects)
        self._count(redelivery, -1)
        self.suspect_messages -= 1
        if redelivery.first < redelivery.last:
            heappush(self.suspects, redelivery._replace(first=redelivery.first + 1))
        return redelivery._replace(last=redelivery.first)

    def next_due(self) -> float:
        return self.waiting[0][0] if self.waiting else NEVER

    def due(self, now: float) -> list[Redelivery]:
        """Make due redeliveries ready, and return them."""
        moved = []
        while self.waiting and self.waiting[0][0] <= now:
            moved.append(heappop(self.waiting)[1])
            self.waiting_messages -= moved[-1].size
            self._enter(moved[-1])
        return moved

    def drop(self, seqs: Ranges) -> None:
        """Remove messages that were settled."""
        for queue in (self.ready, self.suspects):
            queue[:] = [rest for redelivery in queue for rest in _without(redelivery, seqs)]
            heapify(queue)
        self.waiting = [(due, rest) for due, redelivery in self.waiting for rest in _without(redelivery, seqs)]
        heapify(self.waiting)
        self._recount()

    def use_ready(self, ready: list[Redelivery]) -> None:
        """Replace the ready redeliveries."""
        self.ready = ready
        heapify(ready)
        self._recount()

    def _recount(self) -> None:
        self.messages = self.fresh = 0
        for redelivery in self:
            self._count(redelivery, redelivery.size)
        self.waiting_messages = sum(redelivery.size for _, redelivery in self.waiting)
        self.suspect_messages = sum(redelivery.size for redelivery in self.suspects)

    def clear(self) -> None:
        self.ready.clear()
        self.waiting.clear()
        self.suspects.clear()
        self.messages = self.fresh = self.waiting_messages = self.suspect_messages = 0


def _without(redelivery: Redelivery, seqs: Ranges) -> list[Redelivery]:
    """The rest of a redelivery without some messages."""
    if not seqs.between(redelivery.first, redelivery.last):
        return [redelivery]
    rest = Ranges([(redelivery.first, redelivery.last)])
    for first, last in seqs.between(redelivery.first, redelivery.last):
        rest.remove(first, last)
    return [redelivery._replace(first=first, last=last) for first, last in rest]
