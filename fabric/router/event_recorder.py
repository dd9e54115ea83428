"""Delivery events: groups note what happens to deliveries, and the events are written with the turn.

Events that were noted since the last turn become one record of the next turn, so an event is on disk together with the
state that it describes. Events alone do not start a commit at once: they wait for the next commit, or for a second.
When events are off, an event costs one test of `is_on`. `read.story` finds the events of one message again.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from fabric.event_block import EVENTS_MAX, Event, OpenEventBlock
from fabric.records import Record, SaveEvents, SaveSetting
from fabric.router.clock import Clock
from fabric.router.event_index import EventIndex
from fabric.router.part import Part
from fabric.router.timers import NEVER

if TYPE_CHECKING:
    from fabric.router.turn import Turn

WAIT_S: Final = 1.0  # events are committed within this time, when nothing else is
TRIM_S: Final = 10.0  # how often summaries of events that retention has removed are looked for


class EventReader(Protocol):
    """Delivery events on disk."""

    def next_event(self) -> int:
        """The number that the next delivery event gets."""
        ...

    def first_event(self) -> int:
        """The number of the first delivery event on disk; `next_event` when there is none."""
        ...

    def event_blocks(self, number: int, count: int, bytes_max: int) -> Sequence[tuple[int, bytes]]:
        """Some blocks of events, from the block that holds a number on, each with the number of its last event; a
        damaged block is empty. One block at least, if there is one, and then not more than the bounds allow."""
        ...


class Events(Part):
    """The time of an event is wall time at the last `set` of the clock: events of one turn have the same time."""

    def __init__(self, clock: Clock, reader: EventReader, saved: Iterable[SaveSetting] = ()) -> None:
        self.is_on = False
        self.index = EventIndex(saved)
        self._clock = clock
        self._reader = reader
        self._next = 0  # the number of the next event; 0: not read from the journal yet
        self._open: OpenEventBlock | None = None  # None: no event was noted
        self._full: list[OpenEventBlock] = []
        self._sealed: deque[list[tuple[int, OpenEventBlock]]] = deque()  # of turns that are not on disk yet
        self._trim_at = 0.0
        self.commit_at = NEVER  # when events have waited long enough for a commit; NEVER: the wait has not begun

    def __len__(self) -> int:
        """Events that are not written yet."""
        return len(self._open or ()) + sum(map(len, self._full))

    def switch(self, on: bool) -> None:
        """Turn events on or off."""
        if on and not self._next:
            self._next = self._reader.next_event()
        self.is_on = on

    def note(self, kind: int, group: str, client: str, attempt: int, seqs: Iterable[tuple[int, int]]) -> None:
        """Note an event of each range of messages."""
        mark = (self._clock.told_us, kind, group, client, attempt)
        for first, last in seqs:
            block = self._open
            if block is None:
                block = self._open = OpenEventBlock()
            if block.add(mark, first, last) == EVENTS_MAX:
                self._full.append(block)
                self._open, self.commit_at = None, 0.0

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        records: list[Record] = []
        if self._open is not None:
            self._full.append(self._open)
        sealed: list[tuple[int, OpenEventBlock]] = []
        for block in self._full:
            first, count = self._next, len(block)
            records.append(SaveEvents(first, count, block.encode(first)))
            self.index.add(first, block.pairs())
            sealed.append((first, block))
            self._next += count
        self._sealed.append(sealed)
        if records:
            self._open, self._full, self.commit_at = None, [], NEVER
        return records + self.index.rows()

    def committed(self) -> None:
        self._sealed.popleft()

    def unwritten(self, seq: int) -> list[Event]:
        """The events about a message that are not on disk yet."""
        sealed = [pair for blocks in self._sealed for pair in blocks]
        number, found = self._next, list[Event]()
        for block in (*self._full, *([self._open] if self._open is not None else ())):
            sealed.append((number, block))
            number += len(block)
        for first, block in sealed:
            found += block.about(seq, first)
        return found

    def tick(self, now: float, turn: "Turn") -> None:
        """Begin the wait for a commit when there are events. Now and then, remove summaries of removed events."""
        if self._open is not None and self.commit_at == NEVER:
            self.commit_at = now + WAIT_S
        if now >= self._trim_at:
            self._trim_at = now + TRIM_S
            if len(self.index):
                self.index.removed(self._reader.first_event())
