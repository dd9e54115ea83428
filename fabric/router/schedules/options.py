"""The options of PUB that delay, repeat or expire a publish: checks, and the times that follow from them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from fabric.records import SaveSchedule
from fabric.router.fields import bounded, text
from fabric.router.publish.producers import POSITIONS
from fabric.router.schedules.cron import CRON_CHARS_MAX, SEARCH_YEARS, Cron
from fabric_protocol.bounds import EVERY_MS, HORIZON_MS, NUMBER_MAX, TIME_US_MAX, YEAR_MS
from fabric_protocol.errors import Code, ProtocolError

HORIZON_US: Final = HORIZON_MS * 1000
NAME_CHARS_MAX: Final = 128
# Expiries are rounded up to this, so that messages with the same ttl that arrive together can share a block.
EXPIRY_GRAIN_US: Final = 10_000

_KNOWN: Final = ("ttl_ms", "delay_ms", "at_us", "every_ms", "cron", "name", *POSITIONS, "origin")


class Timing(NamedTuple):
    ttl_ms: int  # 0: does not expire
    delay_ms: int | None
    at_us: int | None
    every_ms: int  # 0: once
    cron: str
    name: str

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Timing":
        """The options of a PUB. The checks that need the time are in `first_due`."""
        # An unknown option may be of a newer protocol: to ignore it would publish at the wrong time.
        unknown = [name for name in options if name not in _KNOWN]
        if unknown:
            raise _error(f"option {unknown[0]!r:.80} is not known; PUB has {', '.join(_KNOWN)}")
        timing = cls(
            ttl_ms=bounded(options, "ttl_ms", 1, 0, HORIZON_MS),
            delay_ms=_optional(options, "delay_ms", HORIZON_MS),
            at_us=_optional(options, "at_us", NUMBER_MAX),
            every_ms=bounded(options, "every_ms", *EVERY_MS),
            cron=_text(options, "cron", CRON_CHARS_MAX),
            name=_text(options, "name", NAME_CHARS_MAX),
        )
        for one, other in (("delay_ms", "at_us"), ("every_ms", "cron")):
            if options.get(one) is not None and options.get(other) is not None:
                raise _error(f"{one} and {other} exclude each other: give one of them")
        if timing.name and not timing.is_later:
            raise _error("name is the name of a schedule: it needs delay_ms, at_us, every_ms or cron")
        if timing.cron:
            calendar(timing.cron)
        return timing

    @property
    def is_later(self) -> bool:
        return self.delay_ms is not None or self.at_us is not None or bool(self.every_ms or self.cron)

    @property
    def repeats(self) -> bool:
        return bool(self.every_ms or self.cron)

    def first_due(self, wall_us: int) -> int:
        """When the schedule is due first. A schedule that repeats and has no start is due after one interval."""
        start = self.at_us if self.delay_ms is None else wall_us + self.delay_ms * 1000
        if start is not None and start > wall_us + HORIZON_US:
            raise _error(f"at_us {start} is more than {HORIZON_MS // YEAR_MS} years ahead; are these microseconds?")
        if self.cron:
            due_us = calendar(self.cron).after(wall_us if start is None else max(start - 1, wall_us))
            if due_us is None:
                raise _error(f"cron {self.cron!r} has no day within {SEARCH_YEARS} years")
            return due_us
        return wall_us + self.every_ms * 1000 if start is None else start


def next_due(schedule: SaveSchedule, wall_us: int) -> int | None:
    """When a schedule is due again, after wall_us: times that were missed are skipped. None: never.

    A schedule with a stored calendar that this version cannot parse, or that has no later day, is not due again.
    """
    if schedule.every_ms:
        step_us = schedule.every_ms * 1000
        return schedule.due_us + step_us * (max(wall_us - schedule.due_us, 0) // step_us + 1)
    if not schedule.cron:
        return None
    try:
        return calendar(schedule.cron).after(max(schedule.due_us, wall_us))
    except ProtocolError:
        return None


def shown(due_us: int) -> int:
    """A due time for an answer, at most the latest date that clients can show; older versions stored later times."""
    return min(due_us, TIME_US_MAX)


def expiry(start_us: int, ttl_ms: int, own_us: int) -> int:
    """When a message with a ttl expires, counted from start_us; earlier if its block has an earlier expiry."""
    if not ttl_ms:
        return own_us
    expires_us = -(-(start_us + ttl_ms * 1000) // EXPIRY_GRAIN_US) * EXPIRY_GRAIN_US
    return min(expires_us, own_us) if own_us else expires_us


@lru_cache(maxsize=256)
def calendar(cron: str) -> Cron:
    return Cron.parse(cron)


def _optional(options: Mapping[str, Any], name: str, most: int) -> int | None:
    return bounded(options, name, 0, 0, most) if options.get(name) is not None else None


def _text(options: Mapping[str, Any], name: str, chars_max: int) -> str:
    if options.get(name) is None:
        return ""
    value = text(options, name, "", chars_max)
    if not value.strip():
        raise _error(f"{name} is empty: give a text, or leave it out")
    return value


def _error(message: str) -> ProtocolError:
    return ProtocolError(Code.BAD_OPTION, message)
