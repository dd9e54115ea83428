"""Delivery events: who was handed what and what became of it, noted in passing and written with the turn.

Groups note; nothing is counted or looked up here. What was noted since the last turn becomes one record of the next
one, so an event is on disk together with what it speaks of. Events alone do not hurry a commit: they wait for the
next one, or for a second. Switched off, a group has nobody to note to, and that is all it costs.
"""

from typing import Final

from fabric.event_block import EVENTS_MAX, Gathering
from fabric.records import Record, SaveEvents
from fabric.router.clock import Clock
from fabric.router.timers import NEVER

WAIT_S: Final = 1.0  # what was noted goes to disk within this time, when nothing else does


class Events:
    """The time of an event is that of the clock when it was last set: all events of one round agree."""

    def __init__(self, clock: Clock, next_number: int) -> None:
        self._clock = clock
        self._next = next_number
        self._gathering = Gathering()
        self._full: list[Gathering] = []
        self._since = 0.0  # 0: nothing waits, or `settle_down` has not seen it yet

    def __len__(self) -> int:
        """Events that are not written yet."""
        return len(self._gathering) + sum(map(len, self._full))

    def note(self, kind: int, group: str, client: str, attempt: int, first_seq: int, last_seq: int) -> None:
        """Something happened to messages first_seq..last_seq."""
        gathering = self._gathering
        gathering.add(self._clock.told_us, kind, group, client, attempt, first_seq, last_seq)
        if len(gathering) == EVENTS_MAX:
            self._full.append(gathering)
            self._gathering = Gathering()

    def take(self) -> list[Record]:
        """The rows to write with this turn."""
        self._since = 0.0
        taken, self._full = [*self._full, self._gathering] if self._gathering else self._full, []
        records: list[Record] = []
        for gathering in taken:
            records.append(SaveEvents(self._next, len(gathering), gathering.encode(self._next)))
            self._next += len(gathering)
        if taken:
            self._gathering = Gathering()
        return records

    def settle_down(self, now: float) -> None:
        """Start the clock of a lazy commit when there is something for it."""
        if not self._since and self._gathering:
            self._since = now

    def commit_deadline(self) -> float:
        """When what was noted has waited long enough for a commit; never, when there is nothing."""
        if self._full:
            return 0.0
        return self._since + WAIT_S if self._since else NEVER
