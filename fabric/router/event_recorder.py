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
        self._open: OpenEventBlock | None = None  # None: no event was noted
        self._full: list[OpenEventBlock] = []
        self.commit_at = NEVER  # when events have waited long enough for a commit; NEVER: the wait has not begun

    def __len__(self) -> int:
        """Events that are not written yet."""
        return len(self._open or ()) + sum(map(len, self._full))

    def switch(self, on: bool) -> None:
        """Turn events on or off."""
        if on and not self._next:
            self._next = self._reader.next_event()
        self.is_on = on

    def note(self, kind: int, group: str, client: str, attempt: int, first_seq: int, last_seq: int) -> None:
        """Note an event of messages first_seq..last_seq."""
        block = self._open
        if block is None:
            block = self._open = OpenEventBlock()
        block.add(self._clock.told_us, kind, group, client, attempt, first_seq, last_seq)
        if len(block) == EVENTS_MAX:
            self._full.append(block)
            self._open, self.commit_at = None, 0.0

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        records: list[Record] = []
        if self._open is not None:
            self._full.append(self._open)
        for block in self._full:
            records.append(SaveEvents(self._next, len(block), block.encode(self._next)))
            self._next += len(block)
        if records:
            self._open, self._full, self.commit_at = None, [], NEVER
        return records

    def tick(self, now: float, turn: "Turn") -> None:
        """Begin the wait for a commit when there are events."""
        if self._open is not None and self.commit_at == NEVER:
            self.commit_at = now + WAIT_S
