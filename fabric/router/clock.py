"""Two clocks. `now` only ever goes forward and measures waits; the wall's time is what people and files speak of.

The shell says what time it is; nothing in the core asks. Between two such moments the wall's time is counted on from
`now`, so that all decisions of one turn agree.
"""

from typing import Final

JUMP_US: Final = 1_000  # two readings of two clocks are never quite the same


class Clock:
    __slots__ = ("_offset_us", "jumps", "now", "told_us")

    def __init__(self) -> None:
        self._offset_us = 0
        self.jumps = 0  # how often someone has set it
        self.now = 0.0  # of the command or the tick that is being looked at
        self.told_us = 0  # what the wall showed when it was last set

    def set(self, wall_us: int, now: float) -> None:
        """It is wall_us now. It may be less than before: people set clocks."""
        offset_us = wall_us - int(now * 1e6)
        if abs(offset_us - self._offset_us) > JUMP_US:
            self.jumps += 1
        self._offset_us = offset_us
        self.told_us = wall_us

    def wall_us(self, now: float) -> int:
        return int(now * 1e6) + self._offset_us

    def when(self, wall_us: int) -> float:
        """The `now` at which the wall will show that time, if nobody sets it."""
        return (wall_us - self._offset_us) / 1e6
