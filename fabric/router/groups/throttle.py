"""Throttle: how many messages a group may deliver now, by its settings `max_in_flight` and `rate`.

`rate` is a bucket: a delivery takes one message out of it, and time fills it up to the burst. In any window of T
milliseconds, a group delivers at most `burst + T * rate / rate_ms` messages. All numbers are whole: a message costs as
many units as `rate_ms` has microseconds, and each microsecond pays back `rate` units.

A group without these settings has no throttle.
"""

from collections.abc import Iterable
from typing import Final

from fabric.records import GroupSettings
from fabric.router.groups.subscription import UNLIMITED, Subscription
from fabric.router.timers import NEVER

BURST_MS: Final = 100  # the burst is the messages of this time, and at least one: a pause does not become a flood
# A group that has waited is served again when the messages of this time may be delivered: at most 100 times a second.
WAKE_MS: Final = 10


class Throttle:
    __slots__ = ("due", "max_in_flight", "pace")

    def __init__(self, settings: GroupSettings, before: "Throttle | None") -> None:
        self.max_in_flight = settings.max_in_flight
        pace: Pace | None = before.pace if before is not None else None
        if not settings.rate:
            pace = None
        elif pace is None or not pace.is_of(settings):
            pace = Pace(settings.rate, settings.rate_ms)
        self.pace: Pace | None = pace
        self.due = NEVER  # when the rate allows the next message, if messages may wait for it

    def room(self, members: Iterable[Subscription], now: float) -> int:
        """How many messages may be delivered now."""
        room = UNLIMITED
        if self.max_in_flight:
            room = self.max_in_flight - sum(member.outstanding for member in members)
        if self.pace is not None:
            self.due = NEVER
            if room > 0:
                room = min(room, self.pace.room(int(now * 1e6)))
                if room <= 0:
                    self.due = self.pace.next_us() / 1e6
        return room

    def is_due(self, now: float) -> bool:
        """Whether the wait for the next message is over; True once."""
        if self.due > now:
            return False
        self.due = NEVER
        return True


def throttle_of(settings: GroupSettings, before: Throttle | None) -> Throttle | None:
    """The throttle of a group with these settings. The bucket of the same rate is kept."""
    return Throttle(settings, before) if settings.max_in_flight or settings.rate else None


class Pace:
    """The bucket of a rate. It is full at first, and after a change of the rate."""

    __slots__ = ("_at_us", "_cost", "_debt", "_debt_max", "_rate", "_rate_ms", "burst")

    def __init__(self, rate: int, rate_ms: int) -> None:
        self._rate = rate
        self._rate_ms = rate_ms
        self.burst = max(rate * BURST_MS // rate_ms, 1)
        self._cost = rate_ms * 1000  # of a message
        self._debt_max = self.burst * self._cost
        self._debt = 0  # of the messages that were delivered, at `_at_us`
        self._at_us = 0

    def is_of(self, settings: GroupSettings) -> bool:
        return (self._rate, self._rate_ms) == (settings.rate, settings.rate_ms)

    def room(self, now_us: int) -> int:
        """How many messages may be delivered now."""
        if now_us > self._at_us:
            self._debt = max(self._debt - (now_us - self._at_us) * self._rate, 0)
            self._at_us = now_us
        return (self._debt_max - self._debt) // self._cost

    def take(self, count: int) -> None:
        """Messages are delivered."""
        self._debt += count * self._cost

    def next_us(self) -> int:
        """When the messages of WAKE_MS may be delivered, one at least. The microsecond more is above the rounding of
        times in seconds."""
        wanted = max(min(self._rate * WAKE_MS // self._rate_ms, self.burst), 1)
        missing = self._debt + wanted * self._cost - self._debt_max
        return self._at_us + -(-missing // self._rate) + 1

    @property
    def full_us(self) -> int:
        """When the bucket is full."""
        return self._at_us + -(-self._debt // self._rate)

    def restore(self, full_us: int, now_us: int) -> None:
        """Go on as before a restart. A clock that was set back does not make the group wait longer than for a burst."""
        self._at_us = now_us
        self._debt = min(max(full_us - now_us, 0) * self._rate, self._debt_max)
