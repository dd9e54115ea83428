"""Values on the command line: sizes, durations, positions, times, headers. All commands use these parsers.

The error about a wrong value shows valid values.
"""

import re
import shlex
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from fabric_protocol.bounds import TIME_US_MAX

DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SIZE_UNITS: Final = {
    "b": 1,
    **{f"{letter}b": 1000 ** (n + 1) for n, letter in enumerate("kmgt")},
    **{f"{letter}ib": 1024 ** (n + 1) for n, letter in enumerate("kmgt")},
}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
SECONDS_MAX: Final = 1000 * 365 * 86_400.0  # a thousand years: more is a typing error
BYTES_MAX: Final = 1 << 62


def seconds(text: str) -> float:
    """`90`, `500ms`, `7d`, `1h30m` in seconds. Raises ValueError with valid examples."""
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
    """`4096`, `10GB`, `1.5GiB` in bytes. Raises ValueError with valid examples."""
    match = _SIZE.fullmatch(text.strip().lower())
    unit = (match[2] or "b") if match else ""
    if match is None or unit not in SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; write 4096, 64KB, 500MB, 10GB or 10GiB")
    total = float(match[1]) * SIZE_UNITS[unit]
    if total > BYTES_MAX:
        raise ValueError(f"{text!r} is more than any disk holds")
    return int(total)


POSITIONS: Final = "first, new, last, last_per_key, seq:120, 1h (an hour ago) or 2026-11-16T02:00Z"


def position(text: str, now_s: float) -> "Start":
    """A position for the client: a word, `seq:N`, a time, or a duration before now."""
    word = text.strip()
    match word.replace("-", "_"):
        case "first" | "new" | "last" | "last_per_key" as known:
            return known
    if word.startswith("seq:"):
        if not re.fullmatch(r"[0-9]{1,18}", word[4:]):
            raise ValueError(f"{text!r} is not a position; a seq is written seq:120")
        return int(word[4:])
    if _NUMBER.fullmatch(word):
        as_seq = f"seq:{word} (a seq) or " if word.isdecimal() else ""
        raise ValueError(f"{text!r} is not a position; write {as_seq}{word}s (seconds ago)")
    try:
        return moment(word, now_s, "before")
    except ValueError:
        raise ValueError(f"{text!r} is not a position; write {POSITIONS}") from None


def moment(text: str, now_s: float, side: Literal["before", "after"]) -> float:
    """A time in seconds since 1970, from a time or from a duration before or after now."""
    word = text.strip()
    ago = "in an hour" if side == "after" else "an hour ago"
    if _NUMBER.fullmatch(word):
        raise ValueError(f"{text!r} is not a time; write {word}s for seconds, 1h ({ago}) or 2026-11-16T02:00Z")
    try:
        span_s = seconds(word)
        return now_s + span_s if side == "after" else max(now_s - span_s, 0.0)  # 0: before all messages
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(word)
        return (found if found.tzinfo else found.astimezone()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time; write 2026-11-16T02:00Z or 1h ({ago})") from None


def seq(text: str) -> int:
    """`120`, `#120` or `seq:120`; `first` is 1. Raises ValueError with valid examples."""
    word = text.strip().removeprefix("seq:").removeprefix("#")
    if word == "first":
        return 1
    if not re.fullmatch(r"[0-9]{1,18}", word):
        raise ValueError(f"{text!r} is not a seq; write 120 or first")
    return int(word)


def header(text: str) -> tuple[str, str]:
    """`name:value`, as curl writes it."""
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise ValueError(f"{text!r} is not a header; write name:value")
    return name.strip(), value.strip()


if TYPE_CHECKING:
    from fabric_client.options import Start

    _Base = click.ParamType[Any]
else:
    _Base = click.ParamType  # older releases of click have no type argument


class Parsed(_Base):
    """A parameter that is parsed by a function above."""

    def parse(self, text: str) -> Any:
        raise NotImplementedError

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, already parsed
        try:
            return self.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        """Several values in a variable are separated by spaces; a value with spaces is quoted."""
        try:
            return shlex.split(rv)
        except ValueError as error:
            raise click.UsageError(f"{rv!r} in the environment cannot be split into values: {error}") from None


class Text(Parsed):
    """Any text; for options that can be repeated."""

    name = "text"

    def parse(self, text: str) -> str:
        return text


class Duration(Parsed):
    name = "duration"

    def parse(self, text: str) -> float:
        return seconds(text)


class Rate(Parsed):
    """Messages in a time. The client turns it into the numbers of the wire."""

    name = "rate"

    def parse(self, text: str) -> str:
        if not re.fullmatch(r"0|[0-9]{1,9}/(s|min|h|d)", text.strip().lower()):
            raise ValueError(f"{text!r} is not a rate; write 100/s, 10/min, 500/h or 1000/d; 0 is no limit")
        return text


class Size(Parsed):
    name = "size"

    def parse(self, text: str) -> int:
        return size_bytes(text)


class Position(Parsed):
    name = "position"

    def parse(self, text: str) -> "Start":
        return position(text, time.time())


class Moment(Parsed):
    """A time, or a duration before or after now."""

    name = "time"

    def __init__(self, side: Literal["before", "after"]) -> None:
        self._side = side

    def parse(self, text: str) -> float:
        return moment(text, time.time(), self._side)


class Seq(Parsed):
    name = "seq"

    def parse(self, text: str) -> int:
        return seq(text)


class Name(Parsed):
    """A new name of a principal or of a context."""

    name = "name"

    def __init__(self, what: str, *reserved: str) -> None:
        self._what = what
        self._reserved = reserved

    def parse(self, text: str) -> str:
        if text in self._reserved:
            raise ValueError(f"{text!r} is reserved; choose another name")
        if not _NAME.fullmatch(text):
            allowed = "up to 64 letters, digits, '.', '_' or '-', and begin with a letter or a digit"
            raise ValueError(f"{text!r} is not a name of a {self._what}; write {allowed}")
        return text


class Word(click.Choice):  # type: ignore[type-arg]  # older releases of click have no type argument
    """A word of the protocol. `drop-old` means `drop_old`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value.replace("-", "_") if isinstance(value, str) else value, param, ctx)


class Header(Parsed):
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
    """RFC 3339 in UTC, with microseconds; a later time than datetime can hold is shown as its last."""
    return (
        datetime.fromtimestamp(min(moment_s, TIME_US_MAX / 1e6), UTC)
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z")
    )


def shown_span(span_s: float) -> str:
    """A duration in its largest two units, as the parser takes it: `7d`, `1h30m`, `500ms`."""
    if span_s < 1:
        return f"{span_s * 1000:.0f}ms"
    left, parts = round(span_s), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,}{unit}")
    return "".join(parts[:2])


def shown_ago(moment_s: float, now_s: float) -> str:
    """`5m ago`, `in 2h`."""
    span_s = moment_s - now_s
    if abs(span_s) < 1:
        return "now"
    return f"in {shown_span(span_s)}" if span_s > 0 else f"{shown_span(-span_s)} ago"
