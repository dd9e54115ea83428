"""What the observer knows of messages and of time, and what a crash would take back."""

from collections import Counter, defaultdict
from heapq import heappush
from typing import Any, Final

from tests.simulation.ledgers import GroupBook, Published, Scheduled

GRAIN_US: Final = 10_000  # by so much a message may live longer than it was told
Undo = tuple[Any, ...]
Counts = defaultdict[str, int]  # a Counter takes ten times as long to add something


class Unclear(Exception):
    """What is right cannot be seen from outside: the life ends here."""


class Facts:
    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.log: list[int] = []  # ident of each message that was sealed, by seq - 1
        self.topics: list[str] = []
        self.expires: dict[int, int] = {}  # by seq
        self.origin: dict[int, int] = {}  # of a redriven message: the seq that it had first
        self.first_seq = 1
        self.durable = 0  # the last seq on disk
        self.served = 0  # the last that the hub knows to be on disk
        self.groups: dict[str, GroupBook] = {}
        self.turn = 0  # number of the turn that is being gathered
        self.wall_us = 0
        self.undo: list[Undo] = []  # of this turn
        self.accepted: list[Published] = []  # in this turn
        self.schedules: list[Scheduled] = []  # some may have fired in this turn
        self.dead: Counter[tuple[str, int]] = Counter()  # letters that this turn owes
        self.turn_wall_us = 0  # the latest time that it showed in this turn
        self.wall_max_us = 0  # the latest time that the wall ever showed
        self._alarms: list[tuple[float, int, Any]] = []
        self._count = 0
        self._ephemerals = 0

    def is_expired(self, seq: int) -> bool:
        expires = self.expires.get(seq)
        return expires is not None and expires + GRAIN_US <= self.wall_us

    def may_be_dropped(self, seq: int) -> bool:
        """Whether it has expired at some time; the wall's clock may have been set since."""
        expires = self.expires.get(seq)
        return expires is not None and expires <= self.wall_max_us

    def is_optional(self, group: GroupBook, seq: int) -> bool:
        return seq in group.optional or self.may_be_dropped(seq)

    def alarm(self, when: float, what: Any) -> None:
        self._count += 1
        heappush(self._alarms, (when, self._count, what))
