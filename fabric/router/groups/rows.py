"""GroupRows: groups with a row on disk that is out of date, when these rows are written, and the marks in them."""

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

# Rows of groups wait this long for a commit; a publish commits them sooner.
COMMIT_DELAY_S: Final = 0.005


class GroupRows(Part):
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._dirty: dict[Group, None] = {}
        self.commit_at = NEVER  # when the commit is due; NEVER: no row waits, or `start_commit_timer` was not called
        self._marks: deque[list[tuple[Group, HandedOut, int]]] = deque()  # of each sealed turn; see `Group.record`
        self.written: list[Group] = []  # groups with a row in the latest turn

    def note(self, group: Group) -> None:
        """Note a group if its row on disk is out of date. The row waits for the next commit, at most COMMIT_DELAY_S."""
        if group.dirty:
            self._dirty[group] = None

    def note_all(self, groups: Iterable[Group]) -> None:
        self._dirty.update(dict.fromkeys(group for group in groups if group.durable))

    def drop(self, group: Group) -> None:
        """Forget a deleted group."""
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
        self._dirty, self.commit_at = {}, NEVER
        return rows

    def written_marks(self) -> Iterator[Group]:
        """The oldest sealed turn is on disk: the groups that may deliver up to a higher mark."""
        for group, handed, number in self._marks.popleft():
            handed.written(number)
            yield group

    def start_commit_timer(self, now: float, *, answers: bool) -> None:
        """Start the wait for a commit if a row or an answer needs it."""
        if self._dirty or answers:
            self.commit_at = min(self.commit_at, now + COMMIT_DELAY_S)


def all_handed_out(saved: SaveGroup) -> SaveGroup:
    """A row without marks, from before a crash: all messages of the journal may have been delivered."""
    return saved if saved.handed is not None else saved._replace(handed=((PRIORITY_DEFAULT, ANYTHING),))
