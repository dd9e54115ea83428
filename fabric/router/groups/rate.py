"""Rate: how fast the messages that wait in a group become fewer, from two samples of their number."""

from typing import Final

SAMPLE_S: Final = 2.0  # between two samples: a consumer that acknowledges in batches must not look like a stop
OLD_S: Final = 30.0  # a sample that is older tells nothing about the present


class Rate:
    __slots__ = ("_at", "_before", "_level", "_then")

    def __init__(self) -> None:
        self._at = self._before = -OLD_S  # when the two samples were taken
        self._level = self._then = 0

    def note(self, now: float, level: int) -> None:
        """Take a sample, unless the latest is too young."""
        if now - self._at >= SAMPLE_S:
            self._before, self._then = self._at, self._level
            self._at, self._level = now, level

    def drain_s(self, now: float, level: int) -> float | None:
        """The seconds until no message waits, if they become fewer as fast as now; None: they do not, or too little is
        known."""
        if level == 0:
            return 0.0
        at, then = (self._before, self._then) if now - self._at < SAMPLE_S else (self._at, self._level)
        if now - at > OLD_S or now <= at or then <= level:
            return None
        return round(level * (now - at) / (then - level), 1)
