"""The rate of a group as users were promised it: in any window of T ms at most burst + T * rate / rate_ms messages."""

from typing import Final

from fabric.records import GroupSettings
from fabric.router.groups.throttle import BURST_MS

ROUNDING: Final = 1e-6  # of a message: times are floating point here, and whole microseconds in the hub


class Pace:
    """How many messages may still be delivered. That all windows keep the promise is that this is never negative."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, settings: GroupSettings) -> None:
        self._per_s = settings.rate * 1000 / settings.rate_ms
        self._burst = float(max(settings.rate * BURST_MS // settings.rate_ms, 1))
        self._left = self._burst
        self._at = 0.0

    def delivered(self, count: int, now: float) -> None:
        self._left = min(self._left + (now - self._at) * self._per_s, self._burst) - count
        self._at = now
        assert self._left >= -ROUNDING, (
            f"D10: {count} messages are delivered, {-self._left:.3f} more than the rate allows"
        )


def pace_of(settings: GroupSettings, before: GroupSettings | None, pace: Pace | None) -> Pace | None:
    """The pace of a group: that which it had, unless its rate has changed."""
    if before is not None and (before.rate, before.rate_ms) == (settings.rate, settings.rate_ms):
        return pace
    return Pace(settings) if settings.rate else None
