"""How far the messages of a lane may have been handed turn, as it stands on disk.

`attempt` 1 says: surely the first time. But a hub that dies forgets what it has handed out since its last commit. So a
lane writes down in advance how far it is going to hand out (its mark, in the group's row), and goes no further until
that is on disk. After a restart, what lies between the cursor and the mark has attempt 2: it may have been handed out.

The mark is a step ahead of the cursor, and each row of the group moves it on. Steps grow when the lane had to wait for
a commit; so it costs a fast group nothing, and of a backlog only that much seems to be handed out when it was not. A
group without consumers has a mark that is exact, and so has every group after a hub was stopped in good order.
"""

from typing import Final

STEP_MIN: Final = 256
STEP_MAX: Final = 262_144  # what one lane hands out in the time of two commits, also when the disk is busy
GROWTH: Final = 4
ANYTHING: Final = 1 << 62


class HandedOut:
    __slots__ = ("_number", "_step", "_wanted", "before", "limit", "mark")

    def __init__(self, mark: int = 0, before: int = 0) -> None:
        self.before = before  # seqs up to here may have been handed out before the hub was started
        self.mark = mark  # as in the latest row
        self.limit = mark  # as on disk: nothing beyond is handed out
        self._wanted = 0  # how far the lane would go now
        self._step = STEP_MIN
        self._number = 0  # of the latest change of the mark

    def allows(self, seq: int) -> bool:
        """Whether a message may be handed out now. If not, it is asked for with the next row."""
        if seq <= self.limit:
            return True
        if seq > self._wanted and self.limit:
            self._step = min(self._step * GROWTH, STEP_MAX)
        self._wanted = max(self._wanted, seq)
        return False

    @property
    def is_held(self) -> bool:
        """Whether messages wait for a commit that allows them."""
        return self._wanted > self.limit

    def is_low(self, cursor: int) -> bool:
        """Whether the mark should be moved on before the lane has to wait for it."""
        return cursor + self._step // 2 > self.mark and self.mark == self.limit

    def forget(self) -> None:
        """The group was moved: what comes again is not meant to be the same delivery."""
        self.before = self._wanted = 0

    def write(self, position: int, to: int, *, active: bool) -> int | None:
        """Set the mark for a row that is written now, when all up to a seq goes out as soon as the row is on disk.

        Returns the number of a change that is to be reported by `written`.
        """
        done = max(position - 1, self.before)
        if not active:  # nothing is handed out before the next row
            self._set(done)
            self.limit, self._step, self._wanted = done, STEP_MIN, 0
            return None
        if self.mark > self.limit:  # on its way to the disk
            return None
        if self._wanted > self.limit or to + self._step - self._step // 8 > self.mark:
            self._set(max(done, self._wanted, to) + self._step)
            return self._number
        if self.mark > max(done, to) + 2 * self._step:  # the group was moved back
            self._set(max(done, to) + self._step)
            self.limit = self.mark
        return None

    def written(self, number: int) -> None:
        """A row with a change is on disk."""
        if number == self._number:
            self.limit = self.mark

    def _set(self, mark: int) -> None:
        self.mark = mark
        self._number += 1
