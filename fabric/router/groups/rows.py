"""Rows of groups: which of them are out of date on disk, when they are written, and what may be done when they are."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from fabric.records import Record, SaveGroup
from fabric.router.groups.group import Group
from fabric.router.groups.handed_out import ANYTHING, HandedOut
from fabric.router.part import Part
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric_protocol.block import PRIORITY_DEFAULT

# Settled deliveries may wait this long for a commit of their own; a publish takes them along sooner.
COMMIT_DELAY_S: Final = 0.005


class GroupRows(Part):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._dirty: dict[Group, None] = {}
        self._dirty_since = 0.0  # 0: nothing is dirty, or `start_commit_timer` has not seen it yet
        self._marks: deque[list[tuple[Group, HandedOut, int]]] = deque()  # for each sealed turn: see `Group.record`
        self.written: list[Group] = []  # with the latest turn

    def note(self, group: Group) -> None:
        """Remember a group whose row on disk is out of date. Its commit can wait a little for company."""
        if group.dirty:
            self._dirty[group] = None

    def note_all(self, groups: Iterable[Group]) -> None:
        self._dirty.update(dict.fromkeys(group for group in groups if group.durable))

    def drop(self, group: Group) -> None:
        """The group is deleted, and its row with it."""
        self._dirty.pop(group, None)

    def rows(self) -> list[Record]:
        """The rows to write with this turn."""
        rows: list[Record] = []
        marks: list[tuple[Group, HandedOut, int]] = []
        self.written = [group for group in self._dirty if group.durable]
        for group in self.written:
            rows.append(group.record(self._shared.next_seq, marks, active=not self._shared.draining))
            rows += group.failures.rows()
        self._marks.append(marks)
        self._dirty, self._dirty_since = {}, 0.0
        return rows

    def written_marks(self) -> Iterator[Group]:
        """The oldest sealed turn is on disk: the groups that may hand out further than before."""
        for group, handed, number in self._marks.popleft():
            handed.written(number)
            yield group

    def start_commit_timer(self, now: float, *, answers: bool) -> None:
        """Start the clock of a lazy commit when there is something for it: a row, or answers that wait for one."""
        if (self._dirty or answers) and not self._dirty_since:
            self._dirty_since = now

    def commit_deadline(self) -> float:
        """When settled deliveries have waited long enough for a commit; never, when there are none."""
        return self._dirty_since + COMMIT_DELAY_S if self._dirty_since else NEVER


def all_handed_out(saved: SaveGroup) -> SaveGroup:
    """A row that does not say what was handed out before a crash: it may have been all there is."""
    return saved if saved.handed is not None else saved._replace(handed=((PRIORITY_DEFAULT, ANYTHING),))
