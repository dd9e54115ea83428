"""Arguments of calls that are checked before anything is sent."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from fabric_client.errors import BadMessage
from fabric_protocol.bounds import RATE_MS, TIME_US_MAX
from fabric_protocol.errors import FabricError
from fabric_protocol.origin import Origin, read_origin

Moment = float | datetime
EARLIEST_DUE_US: Final = 946_684_800_000_000  # 2000-01-01
_RATE_UNITS_MS: Final = {"s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_RATE: Final = re.compile(r"([0-9]{1,9})/(s|min|h|d)")


def microseconds(moment: Moment) -> int:
    """A time in microseconds since 1970, as the wire has it."""
    time_s = moment.timestamp() if isinstance(moment, datetime) else moment
    is_number = isinstance(time_s, int | float) and not isinstance(time_s, bool)
    if not is_number or not 0 <= time_s <= TIME_US_MAX / 1e6:  # also refuses nan
        raise BadMessage(f"{moment!r} is not a time between 1970 and 9999", "use a datetime, or seconds since 1970")
    return round(time_s * 1e6)


def due_us(what: str, moment: Moment) -> int:
    """The time of a schedule or an expiry. A time before 2000 is refused: it is seconds from now, or a mistake."""
    time_us = microseconds(moment)
    if time_us < EARLIEST_DUE_US:
        hint = "for seconds from now use ttl=" if what == "expires_at" else "for seconds from now use delay="
        raise BadMessage(f"{what} is {moment!r}, a time before 2000", f"{hint}; a number is seconds since 1970")
    return time_us


def rate_of(rate: object) -> tuple[int, int]:
    """A rate such as "100/s" or "10/min" as the wire has it: messages, and in how many milliseconds."""
    found = _RATE.fullmatch(rate.strip().lower()) if isinstance(rate, str) else None
    if found is not None:
        return int(found[1]), _RATE_UNITS_MS[found[2]]
    if (type(rate) is int and rate == 0) or rate == "0":
        return 0, RATE_MS[1]
    raise FabricError(f"rate {rate!r:.60} is not a rate", "write '100/s', '10/min', '500/h' or '1000/d'; 0 is no limit")


def patterns_of(given: object) -> list[str]:
    """The patterns of a call, each checked to be text. The hub checks their grammar."""
    hint = "give each pattern as a text of its own: 'orders.*', 'refunds.*', or *patterns for the patterns of a list"
    if not isinstance(given, Iterable):
        raise FabricError(f"patterns {given!r} are not texts", hint)
    patterns: list[Any] = [given] if isinstance(given, str | bytes) else list(given)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise FabricError(f"pattern {pattern!r:.60} is {type(pattern).__name__}, not text", hint)
    return patterns


def check_whole(what: str, value: object, least: int, hint: str) -> None:
    """Raise unless a value is a whole number, and not below `least`."""
    if type(value) is not int or value < least:
        raise FabricError(f"{what} is {least} or more, a whole number, not {value!r}", hint)


def checked_origin(origin: Origin, scheduled: bool) -> Origin:
    """The origin that a program gives."""
    if scheduled:
        raise BadMessage("a message with an origin is not scheduled", "publish it when the origin has published it")
    try:
        return read_origin(origin)
    except ValueError as error:
        raise BadMessage(str(error), "give the origin of a message: Origin(journal, epoch, seq, time_us)") from None


def listed(payloads: object) -> Sequence[object]:
    """The payloads as a list. A single payload is refused: its characters or bytes would become messages."""
    if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping) or not isinstance(payloads, Iterable):
        kind = type(payloads).__name__
        raise BadMessage(f"payloads is {kind}, not a list of payloads", "publish() takes a single message")
    return payloads if isinstance(payloads, Sequence) else list(payloads)


def percent(part: object) -> int:
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
        raise FabricError(f"jitter is a number from 0 to 1, not {part!r}", "0.1 is a tenth of the wait")
    return round(part * 100)
