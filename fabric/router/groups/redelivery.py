"""What a group has delivered before and must deliver again: now, later, or with care.

`ready` goes out before anything new of the same priority, lowest seq first. `waiting` is ready when it is due.
`suspects` have failed twice, or have one failure left: each goes out alone, to a consumer that holds nothing else. So
the loss of that consumer is known to be its doing, and no other message becomes a dead letter by it.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from fabric.router.groups.lease import Redelivery
from fabric.router.ranges import Ranges
from fabric.router.timers import NEVER

SUSPECT_FAILURES: Final = 2


class Pending:
    __slots__ = ("ready", "suspect_failures", "suspects", "waiting")

    def __init__(self) -> None:
        self.ready: list[Redelivery] = []  # a heap
        self.waiting: list[tuple[float, Redelivery]] = []  # a heap, by due time
        self.suspects: list[Redelivery] = []  # a heap
        self.suspect_failures = SUSPECT_FAILURES

    def __len__(self) -> int:
        return len(self.ready) + len(self.waiting) + len(self.suspects)

    def __iter__(self) -> Iterator[Redelivery]:
        yield from self.ready
        yield from self.suspects
        for _, redelivery in self.waiting:
            yield redelivery

    def use_attempts_max(self, attempts_max: int) -> None:
        """A message with as many failures as a dead letter has is a suspect, also where that is one."""
        self.suspect_failures = min(SUSPECT_FAILURES, attempts_max or SUSPECT_FAILURES)
        redeliveries, self.ready, self.suspects = self.ready + self.suspects, [], []
        for redelivery in redeliveries:
            self.put(redelivery)

    def put(self, redelivery: Redelivery, due: float = 0.0) -> None:
        """To be delivered again, not before `due`."""
        if due:
            heappush(self.waiting, (due, redelivery))
        else:
            heappush(self.suspects if redelivery.failures >= self.suspect_failures else self.ready, redelivery)

    def take(self, rank: int) -> Redelivery | None:
        """The first that is ready of that rank, whatever else is ready."""
        ready = self.ready
        if not ready:
            return None
        if ready[0].rank == rank:
            return heappop(ready)
        found = min((redelivery for redelivery in ready if redelivery.rank == rank), default=None)
        if found is not None:
            ready.remove(found)
            heapify(ready)
        return found

    def take_suspect(self) -> Redelivery:
        """The first message of the first suspects; the others stay."""
        redelivery = heappop(self.suspects)
        if redelivery.first < redelivery.last:
            heappush(self.suspects, redelivery._replace(first=redelivery.first + 1))
        return redelivery._replace(last=redelivery.first)

    def next_due(self) -> float:
        return self.waiting[0][0] if self.waiting else NEVER

    def due(self, now: float) -> list[Redelivery]:
        """Move what has waited long enough; returns it."""
        moved = []
        while self.waiting and self.waiting[0][0] <= now:
            moved.append(heappop(self.waiting)[1])
            self.put(moved[-1])
        return moved

    def drop(self, seqs: Ranges) -> None:
        """Messages are settled: they are not delivered again."""
        for queue in (self.ready, self.suspects):
            queue[:] = [rest for redelivery in queue for rest in _without(redelivery, seqs)]
            heapify(queue)
        self.waiting = [(due, rest) for due, redelivery in self.waiting for rest in _without(redelivery, seqs)]
        heapify(self.waiting)

    def clear(self) -> None:
        self.ready.clear()
        self.waiting.clear()
        self.suspects.clear()


def _without(redelivery: Redelivery, seqs: Ranges) -> list[Redelivery]:
    """What is left of a redelivery without some messages."""
    if not seqs.between(redelivery.first, redelivery.last):
        return [redelivery]
    rest = Ranges([(redelivery.first, redelivery.last)])
    for first, last in seqs.between(redelivery.first, redelivery.last):
        rest.remove(first, last)
    return [redelivery._replace(first=first, last=last) for first, last in rest]
