"""Verdicts as exceptions, and the verdict that any other exception of a handler gives.

A handler may raise `Retry(30, "the shop is closed")` at any depth; `with msg:` and `work` turn it into the verdict. Any
other exception is a failure of the handler, and `on_error` names its verdict.
"""

import re
import reprlib
from contextlib import suppress
from datetime import timedelta
from typing import Final, Literal

from fabric_client.core import wire_values
from fabric_protocol.bounds import HORIZON_MS
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict
from fabric_protocol.wire import REASON_CHARS_MAX

SETTLE_S: Final = 10.0  # how long settle() waits for the hub's answer by default

Seconds = float | timedelta | str  # a text such as "30s", "500ms" or "1h30m"
VerdictName = Literal["ack", "retry", "release", "reject"]
SettleName = Literal["ack", "retry", "release", "reject", "touch"]
OnError = VerdictName  # the verdict for an exception in a handler
Argument = int | str | list[int | str] | None  # of a verdict: milliseconds, a reason, both or none
Decision = tuple[Verdict, Argument]  # the verdict and its argument on the wire

ON_ERROR: Final = {
    "retry": Verdict.RETRY,
    "reject": Verdict.REJECT,
    "release": Verdict.RELEASE,
    "ack": Verdict.ACK,
}


class HandlerVerdict(Exception):
    """Raised in a handler to end it with a verdict on its message."""

    def decide(self) -> Decision:
        raise NotImplementedError


class Retry(HandlerVerdict):
    """Deliver the message again, after `delay` (seconds or a timedelta) or the group's backoff. Counts as a failed
    attempt."""

    def __init__(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        super().__init__(reason or "retry")
        self.delay = delay
        self.reason = reason

    def decide(self) -> Decision:
        return Verdict.RETRY, retry_argument(self.delay, self.reason)


class Reject(HandlerVerdict):
    """Make the message a dead letter."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "reject")
        self.reason = reason

    def decide(self) -> Decision:
        return Verdict.REJECT, reason_text(self.reason)


class Release(HandlerVerdict):
    """Return the message to its group, for any consumer. Does not count as an attempt."""

    def decide(self) -> Decision:
        return Verdict.RELEASE, None


_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_HINT: Final = "use a number of seconds, a timedelta, or a text such as '30s', '500ms' or '1h30m'"


def seconds(value: Seconds, what: str = "a duration") -> float:
    """A duration in seconds. Every duration argument of the client is checked here."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer that no float can hold
            return float(value)
    if isinstance(value, str):
        parts = _PART.findall(value)
        if parts and "".join(number + unit for number, unit in parts) == value.strip():
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise FabricError(f"{what} {reprlib.repr(value)} is not a duration", _HINT)


def patience(value: Seconds | None, what: str = "timeout") -> float | None:
    """How long to wait, in seconds; None means without a limit."""
    if value is None:
        return None
    length = seconds(value, what)
    if not length >= 0:
        raise FabricError(f"{what} is 0 seconds or more, not {value!r}", "leave it out for the default")
    return length


def milliseconds(what: str, value: Seconds) -> int:
    """A duration of 0 or more in whole milliseconds; a duration above 0 gives at least 1."""
    length = seconds(value, what)
    if not 0 <= length < float("inf"):
        raise FabricError(f"{what} is a number of seconds, 0 or more, not {value!r}", _HINT)
    if length * 1000 > HORIZON_MS:
        raise FabricError(
            f"{what} is at most 10 years, not {value!r}", "are these seconds? leave it out for the default"
        )
    return round(length * 1000) or (1 if length else 0)


def retry_argument(delay: Seconds | None, reason: str | None) -> Argument:
    """The argument of a RETRY: delay, reason, both or none."""
    wait = None if delay is None else milliseconds("delay", delay)
    if not reason:
        return wait
    return reason_text(reason) if wait is None else [wait, reason_text(reason)]


def reason_text(reason: str) -> str:
    """A reason as the wire has it."""
    return wire_values.reason(reason, REASON_CHARS_MAX)


def verdict_of(name: str, delay: Seconds | None, reason: str | None, lease: Seconds | None = None) -> Decision:
    """The verdict with this name, and its argument on the wire."""
    if name == "touch" and delay is None and reason is None:
        return Verdict.TOUCH, None if lease is None else milliseconds("lease", lease)
    if name != "touch":
        check_on_error(name, "verdict")
    if lease is not None:
        raise FabricError(f"{name!r} takes no lease", "only 'touch' takes a lease")
    if (delay is not None and name != "retry") or (reason is not None and name not in ("retry", "reject")):
        raise FabricError(
            f"{name!r} takes no {'delay' if delay is not None else 'reason'}",
            "'retry' takes a delay and a reason, 'reject' a reason, 'touch' a lease",
        )
    match name:
        case "retry":
            return Verdict.RETRY, retry_argument(delay, reason)
        case "reject":
            return Verdict.REJECT, reason_text(reason or "")
    return ON_ERROR[name], None


def check_on_error(on_error: str, what: str = "on_error") -> None:
    if on_error not in ON_ERROR:
        raise FabricError(f"{what} {on_error!r} is not known", f"use one of {', '.join(map(repr, ON_ERROR))}")


def decision(error: BaseException, on_error: str) -> Decision:
    """The verdict for an exception of a handler."""
    if isinstance(error, HandlerVerdict):
        return error.decide()
    if not isinstance(error, Exception):
        return Verdict.RELEASE, None  # interrupted or cancelled: no failure of the handler
    verdict = ON_ERROR[on_error]
    if verdict in (Verdict.RETRY, Verdict.REJECT):
        return verdict, reason_text(f"{type(error).__name__}: {error}")
    return verdict, None
