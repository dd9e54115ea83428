"""Two clocks: `now` only goes forward and measures waits; wall time is the time of day, in microseconds since 1970.

The hub sets both; no part of the router reads a clock. Between two calls of `set`, wall time is computed from `now`, so
that all decisions of one turn agree.
"""

from typing import Final

JUMP_US: Final = 1_000  # the clocks are read one after the other, so their difference varies by less than this


class Clock:
    __slots__ = ("_offset_us", "jumps", "now", "told_us")

    def __init__(self) -> None:
        self._offset_us = 0
        self.jumps = 0  # how often wall time was set to another time
        self.now = 0.0  # of the current command or tick
        self.told_us = 0  # wall time at the last `set`

    def set(self, wall_us: int, now: float) -> None:
        """Set both clocks. Wall time may go back, because an administrator may set the clock of the machine."""
        offset_us = wall_us - int(now * 1e6)
        if abs(offset_us - self._offset_us) > JUMP_US:
            self.jumps += 1
        self._offset_us = offset_us
        self.now = now
        self.told_us = wall_us

    def wall_us(self, now: float) -> int:
        return int(now * 1e6) + self._offset_us

    def when(self, wall_us: int) -> float:
        """The `now` at which wall time will be wall_us, unless it is set."""
        return (wall_us - self._offset_us) / 1e6
