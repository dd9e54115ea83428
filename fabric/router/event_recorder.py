"""Delivery events: what was delivered to whom and what became of it, noted in passing and written with the turn.

Groups note; nothing is counted or looked up here. What was noted since the last turn becomes one record of the next
one, so an event is on disk together with what it speaks of. Events alone do not hurry a commit: they wait for the
next one, or for a second. Switched off, an event costs one look at `is_on`.
"""

from typing import TYPE_CHECKING, Final, Protocol

from fabric.event_block import EVENTS_MAX, Gathering
from fabric.records import Record, SaveEvents
from fabric.router.clock import Clock
from fabric.router.part import Part
from fabric.router.timers import NEVER

if TYPE_CHECKING:
    from fabric.router.turn import Turn

WAIT_S: Final = 1.0  # what was noted goes to disk within this time, when nothing else does


class EventReader(Protocol):
    """Delivery events on disk."""

    def next_event(self) -> int:
        """The number that the next delivery event gets."""
        ...


class Events(Part):
    """The time of an event is that of the clock when it was last set: all events of one round agree."""

    def __init__(self, clock: Clock, reader: EventReader) -> None:
        self.is_on = False
        self._clock = clock
        self._reader = reader
        self._next = 0  # the number of the next event; 0: the journal was not asked yet
        self._gathering = Gathering()
        self._full: list[Gathering] = []
        self._since = 0.0  # 0: nothing waits, or `tick` has not seen it yet

    def __len__(self) -> int:
        """Events that are not written yet."""
        return len(self._gathering) + sum(map(len, self._full))

    def switch(self, on: bool) -> None:
        """Note what happens to deliveries from now on, or no more."""
        if on and not self._next:
            self._next = self._reader.next_event()
        self.is_on = on

    def note(self, kind: int, group: str, client: str, attempt: int, first_seq: int, last_seq: int) -> None:
        """Something happened to messages first_seq..last_seq."""
        gathering = self._gathering
        gathering.add(self._clock.told_us, kind, group, client, attempt, first_seq, last_seq)
        if len(gathering) == EVENTS_MAX:
            self._full.append(gathering)
            self._gathering = Gathering()

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        if not self._gathering and not self._full:
            return []
        self._since = 0.0
        taken, self._full = [*self._full, self._gathering] if self._gathering else self._full, []
        records: list[Record] = []
        for gathering in taken:
            records.append(SaveEvents(self._next, len(gathering), gathering.encode(self._next)))
            self._next += len(gathering)
        if taken:
            self._gathering = Gathering()
        return records

    def tick(self, now: float, turn: "Turn") -> None:
        """Start the clock of a lazy commit when there is something for it."""
        if not self._since and self._gathering:
            self._since = now

    def commit_deadline(self) -> float:
        """When what was noted has waited long enough for a commit; never, when there is nothing."""
        if self._full:
            return 0.0
        return self._since + WAIT_S if self._since else NEVER
