"""What people write on the command line: sizes, durations, positions, headers. One parser for each, used everywhere.

A value that is not understood is answered with a sentence that shows what would be.
"""

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SIZE_UNITS: Final = {
    "b": 1,
    **{f"{letter}b": 1000 ** (n + 1) for n, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (n + 1) for n, letter in enumerate("kmgt")},
}
_DURATION_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?")
SECONDS_MAX: Final = (
    1000 * 365 * 86_400.0
)  # a thousand years: more is a slip of the finger, and no clock counts that far
BYTES_MAX: Final = 1 << 62


def seconds(text: str) -> float:
    """`90`, `500ms`, `7d`, `1h30m` in seconds. Raises ValueError with a sentence."""
    written = text.strip().lower()
    if _NUMBER.fullmatch(written):
        total = float(written)
    else:
        parts = _DURATION_PART.findall(written)
        if not parts or "".join(number + unit for number, unit in parts) != written:
            raise ValueError(f"{text!r} is not a duration; write 500ms, 30s, 5m, 12h, 7d or 1h30m")
        total = sum(float(number) * DURATION_UNITS[unit] for number, unit in parts)
    if total > SECONDS_MAX:
        raise ValueError(f"{text!r} is longer than a thousand years")
    return total


def size_bytes(text: str) -> int:
    """`4096`, `10GB`, `1.5GiB` in bytes. Raises ValueError with a sentence."""
    match = _SIZE.fullmatch(text.strip().lower())
    unit = (match[2] or "b") if match else ""
    if match is None or unit not in SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; write 4096, 64KB, 500MB, 10GB or 10GiB")
    total = float(match[1]) * SIZE_UNITS[unit]
    if total > BYTES_MAX:
        raise ValueError(f"{text!r} is more than any disk holds")
    return int(total)


def position(text: str, now_s: float) -> str | int | float:
    """Where to start: `first`, `new`, `last`, `seq:N`, a time, or a duration before now. As the client takes it."""
    word = text.strip()
    if word in ("first", "new", "last"):
        return word
    if word.startswith("seq:"):
        if not re.fullmatch(r"\d{1,18}", word[4:]):
            raise ValueError(f"{text!r} is not a position; a seq is written seq:120")
        return int(word[4:])
    try:
        return now_s - seconds(word)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a position; write first, new, last, seq:120, 1h (an hour ago) or 2026-11-16T02:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.astimezone()).timestamp()


def header(text: str) -> tuple[str, str]:
    """`name:value`, as curl writes it."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text!r} is not a header; write name:value")
    return name.strip(), value.strip()


if TYPE_CHECKING:
    _Base = click.ParamType[Any]
else:
    _Base = click.ParamType  # older releases of click know no type argument


class _Parsed(_Base):
    """A parameter whose text goes through one of the parsers above."""

    def parse(self, text: str) -> Any:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already what it should be
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Duration(_Parsed):
    name = "duration"

    def parse(self, text: str) -> float:
        return seconds(text)


class Size(_Parsed):
    name = "size"

    def parse(self, text: str) -> int:
        return size_bytes(text)


class Position(_Parsed):
    name = "position"

    def parse(self, text: str) -> str | int | float:
        return position(text, time.time())


class Header(_Parsed):
    name = "name:value"

    def parse(self, text: str) -> tuple[str, str]:
        return header(text)


def shown_bytes(size: float) -> str:
    """`12.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def shown_seconds(span_s: float) -> str:
    """`31 ms`, `8.2 s`."""
    if span_s < 0.001:
        return f"{span_s * 1e6:.0f} µs"
    if span_s < 1:
        return f"{span_s * 1000:.1f} ms" if span_s < 0.01 else f"{span_s * 1000:.0f} ms"
    return f"{span_s:.1f} s"


def shown_time(moment_s: float) -> str:
    """RFC 3339 in UTC, to the microsecond."""
    return datetime.fromtimestamp(moment_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
