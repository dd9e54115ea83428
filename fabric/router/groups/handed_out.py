"""HandedOut: the mark of a lane, the highest seq that the lane may have delivered, as it stands on disk.

Attempt 1 means that a delivery is surely the first. But a hub that dies forgets its deliveries since the last commit.
So a lane writes a mark above its cursor into the group's row, and delivers nothing above the mark that is on disk.
After a restart, messages from the cursor to the mark have attempt 2, because they may have been delivered.

The mark is one step above the cursor, and each row of the group moves the mark. Steps grow when the lane had to wait
for a commit, so a fast group does not wait. In a backlog, at most one step of messages has attempt 2 without an
earlier delivery. The mark of a group without consumers is exact, and so are all marks after the hub was drained.
"""

from typing import Final

STEP_MIN: Final = 256
STEP_MAX: Final = 262_144  # above what one lane delivers in the time of two commits on a busy disk
GROWTH: Final = 4
ANYTHING: Final = 1 << 62


class HandedOut:
    __slots__ = ("_number", "_step", "_wanted", "before", "limit", "mark")

    def __init__(self, mark: int = 0, before: int = 0) -> None:
        self.before = before  # seqs up to this may have been delivered before the hub started
        self.mark = mark  # in the latest row
        self.limit = mark  # on disk; the lane delivers nothing above it
        self._wanted = 0  # the highest seq that `allows` has refused
        self._step = STEP_MIN
        self._number = 0  # number of the latest change of the mark

    def allows(self, seq: int) -> bool:
        """Whether a message may be delivered now. If not, the next row moves the mark to it or above."""
        if seq <= self.limit:
            return True
        if seq > self._wanted and self.limit:
            self._step = min(self._step * GROWTH, STEP_MAX)
        self._wanted = max(self._wanted, seq)
        return False

    @property
    def is_held(self) -> bool:
        """Whether messages wait for the commit of a higher mark."""
        return self._wanted > self.limit

    def is_low(self, cursor: int) -> bool:
        """Whether the mark should move now, before the lane has to wait."""
        return cursor + self._step // 2 > self.mark and self.mark == self.limit

    def forget(self) -> None:
        """The group was moved: attempts begin at 1 again."""
        self.before = self._wanted = 0

    def write(self, position: int, to: int, *, active: bool) -> int | None:
        """Set the mark for a row that is written now. When the row is on disk, the lane delivers up to the seq `to`.

        Returns the number of the change, for `written`, or None if the limit does not depend on this row.
        """
        done = max(position - 1, self.before)
        if not active:  # the group delivers nothing before the next row
            self._set(done)
            self.limit, self._step, self._wanted = done, STEP_MIN, 0
            return None
        if self.mark > self.limit:  # the mark is not on disk yet
            return None
        if self._wanted > self.limit or to + self._step - self._step // 8 > self.mark:
            self._set(max(done, self._wanted, to) + self._step)
            return self._number
        if self.mark > max(done, to) + 2 * self._step:  # the group was moved back
            self._set(max(done, to) + self._step)
            self.limit = self.mark
        return None

    def written(self, number: int) -> None:
        """The row with a change is on disk."""
        if number == self._number:
            self.limit = self.mark

    def _set(self, mark: int) -> None:
        self.mark = mark
        self._number += 1
