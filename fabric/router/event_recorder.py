"""Delivery events: groups note what happens to deliveries, and the events are written with the turn.

Events that were noted since the last turn become one record of the next turn, so an event is on disk together with the
state that it describes. Events alone do not start a commit at once: they wait for the next commit, or for a second.
When events are off, an event costs one test of `is_on`.
"""

from typing import TYPE_CHECKING, Final, Protocol

from fabric.event_block import EVENTS_MAX, OpenEventBlock
from fabric.records import Record, SaveEvents
from fabric.router.clock import Clock
from fabric.router.part import Part
from fabric.router.timers import NEVER

if TYPE_CHECKING:
    from fabric.router.turn import Turn

WAIT_S: Final = 1.0  # events are committed within this time, when nothing else is


class EventReader(Protocol):
    """Delivery events on disk."""

    def next_event(self) -> int:
        """The number that the next delivery event gets."""
        ...


class Events(Part):
    """The time of an event is wall time at the last `set` of the clock: events of one turn have the same time."""

    def __init__(self, clock: Clock, reader: EventReader) -> None:
        self.is_on = False
        self._clock = clock
        self._reader = reader
        self._next = 0  # the number of the next event; 0: not read from the journal yet
        self._open = OpenEventBlock()
        self._full: list[OpenEventBlock] = []
        self._since = 0.0  # when the wait for a commit began; 0: it has not begun

    def __len__(self) -> int:
        """Events that are not written yet."""
        return len(self._open) + sum(map(len, self._full))

    def switch(self, on: bool) -> None:
        """Turn events on or off."""
        if on and not self._next:
            self._next = self._reader.next_event()
        self.is_on = on

    def note(self, kind: int, group: str, client: str, attempt: int, first_seq: int, last_seq: int) -> None:
        """Note an event of messages first_seq..last_seq."""
        block = self._open
        block.add(self._clock.told_us, kind, group, client, attempt, first_seq, last_seq)
        if len(block) == EVENTS_MAX:
            self._full.append(block)
            self._open = OpenEventBlock()

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        if not self._open and not self._full:
            return []
        self._since = 0.0
        taken, self._full = [*self._full, self._open] if self._open else self._full, []
        records: list[Record] = []
        for block in taken:
            records.append(SaveEvents(self._next, len(block), block.encode(self._next)))
            self._next += len(block)
        if taken:
            self._open = OpenEventBlock()
        return records

    def tick(self, now: float, turn: "Turn") -> None:
        """Begin the wait for a commit when there are events."""
        if not self._since and self._open:
            self._since = now

    def commit_deadline(self) -> float:
        """When events have waited long enough for a commit; NEVER when there are none."""
        if self._full:
            return 0.0
        return self._since + WAIT_S if self._since else NEVER
