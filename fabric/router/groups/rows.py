"""Rows of groups: which of them are out of date on disk, when they are written, and what may be done when they are."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from fabric.records import Record, SaveGroup
from fabric.router.groups.group import Group
from fabric.router.groups.handed_out import ANYTHING, HandedOut
from fabric.router.timers import NEVER
from fabric_protocol.block import PRIORITY_DEFAULT

# Settled deliveries may wait this long for a commit of their own; a publish takes them along sooner.
LAZY_S: Final = 0.005


class GroupRows:
    def __init__(self) -> None:
        self._dirty: dict[Group, None] = {}
        self._dirty_since = 0.0  # 0: nothing is dirty, or `settle_down` has not seen it yet
        self._written: deque[list[tuple[Group, HandedOut, int]]] = deque()  # for each sealed turn: see `Group.record`

    def note(self, group: Group) -> None:
        """Remember a group whose row on disk is out of date. Its commit can wait a little for company."""
        if group.dirty:
            self._dirty[group] = None

    def note_all(self, groups: Iterable[Group]) -> None:
        self._dirty.update(dict.fromkeys(group for group in groups if group.durable))

    def drop(self, group: Group) -> None:
        """The group is deleted, and its row with it."""
        self._dirty.pop(group, None)

    def take(self, next_seq: int, *, active: bool) -> list[Record]:
        """The rows to write with this turn, which ends before a seq; `active`: groups go on to hand out."""
        rows: list[Record] = []
        written: list[tuple[Group, HandedOut, int]] = []
        for group in self._dirty:
            if group.durable:
                rows.append(group.record(next_seq, written, active=active))
                rows += group.failures.take_records()
        self._written.append(written)
        self._dirty, self._dirty_since = {}, 0.0
        return rows

    def committed(self) -> Iterator[Group]:
        """The oldest sealed turn is on disk: the groups that may hand out further than before."""
        for group, handed, number in self._written.popleft():
            handed.written(number)
            yield group

    def settle_down(self, now: float, *, answers: bool) -> None:
        """Start the clock of a lazy commit when there is something for it: a row, or answers that wait for one."""
        if (self._dirty or answers) and not self._dirty_since:
            self._dirty_since = now

    def commit_deadline(self) -> float:
        """When settled deliveries have waited long enough for a commit; never, when there are none."""
        return self._dirty_since + LAZY_S if self._dirty_since else NEVER


def handed_to_the_end(saved: SaveGroup) -> SaveGroup:
    """A row that does not say what was handed out before a crash: it may have been all there is."""
    return saved if saved.handed is not None else saved._replace(handed=((PRIORITY_DEFAULT, ANYTHING),))
