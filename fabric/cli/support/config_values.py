"""Values of options in a configuration file: typed values of the file to values of the option, and back to text.

A text means what it means on the command line. A number may stand for a duration in seconds, a size in bytes or a
number; true and false are for flags; an option that may be repeated takes a list.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

import click

from fabric.cli.support.config_file import shown
from fabric.cli.support.values import DURATION_UNITS, SIZE_UNITS, Duration, Size

# The largest unit that divides a value is its unit; a week has no use for people.
_SPANS: Final = [(unit, int(DURATION_UNITS[unit])) for unit in ("d", "h", "m", "s")]
_SIZES: Final = sorted(SIZE_UNITS.items(), key=lambda unit: -unit[1])
_UNITS: Final = {unit: unit.upper().replace("IB", "iB") for unit in SIZE_UNITS}
_NAMED_DEFAULT: Final = re.compile(r"\[default: ([^\]]+)\]")


def key(option: click.Option) -> str:
    """The name of an option in a file: its long name."""
    return max(option.opts, key=len).lstrip("-")


def converted(option: click.Option, value: Any, context: click.Context) -> Any:
    """The option's value. Raises ValueError with what is allowed."""
    given = _given(option, value)
    if given is None:
        raise ValueError(f"{shown(value)} is not allowed; allowed is {allowed(option)}")
    try:
        return option.type_cast_value(context, given)
    except click.UsageError as error:
        raise ValueError(f"{_reason(option, value, error)}; allowed is {allowed(option)}") from None
    except (ValueError, OSError, OverflowError) as error:  # such as a path with a zero byte
        raise ValueError(f"{shown(value)} is not allowed: {error}; allowed is {allowed(option)}") from None


def _reason(option: click.Option, value: Any, error: click.UsageError) -> str:
    """What is wrong, where click's own sentence names its types or repeats what is allowed."""
    if isinstance(option.type, click.IntRange | click.Choice | type(click.BOOL)):
        return f"{shown(value)} is not allowed"
    return error.message.rstrip(".").partition("; write ")[0]


def from_variable(option: click.Option, text: str, context: click.Context) -> Any:
    """The option's value from the text of a variable. Raises ValueError with what is allowed."""
    try:
        words = option.type.split_envvar_value(text) if option.multiple else text
    except click.UsageError as error:
        raise ValueError(error.message) from None
    return converted(option, list(words) if option.multiple else words, context)


def _given(option: click.Option, value: Any) -> Any:
    """A value as click takes it, or None if its type is wrong."""
    if not option.multiple:
        return _word(option.type, value)
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not items:  # a hub without an address would not be reached
        return None
    words = [_word(option.type, item) for item in items]
    return None if None in words else words


def _word(kind: Any, value: Any) -> Any:
    if isinstance(value, str):
        return None if isinstance(kind, click.Path) and not value else value
    if isinstance(value, bool):
        return value if isinstance(kind, type(click.BOOL)) else None
    if isinstance(value, int | float) and isinstance(kind, Duration | Size | type(click.INT) | type(click.FLOAT)):
        return _digits(value)
    return None


def _digits(value: float) -> str | None:
    """A number as on the command line; None if it has too many digits."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:.12f}".rstrip("0").rstrip(".")
    return str(value) if value.bit_length() < 1024 else None


def allowed(option: click.Option) -> str:
    """What an option takes, in words."""
    return f"a list of {option.type.name}s" if option.multiple else _allowed(option.type)


def _allowed(kind: Any) -> str:
    match kind:
        case Duration():
            return 'a duration such as "30s" or "7d", or a number of seconds'
        case Size():
            return 'a size such as "500MB" or "10GiB", or a number of bytes'
        case click.Choice():
            return "one of " + ", ".join(f'"{choice}"' for choice in kind.choices)
        case click.IntRange():
            least = f" of {kind.min} or more" if kind.min is not None else ""
            return f"a whole number{least}" + (f", at most {kind.max}" if kind.max is not None else "")
        case click.Path():
            return "a path"
    if isinstance(kind, type(click.BOOL)):
        return "true or false"
    return f"a {getattr(kind, 'name', 'text')}"


# From values to text.


def text_of(option: click.Option, value: Any) -> Any:
    """A value as it is written in a file: the same value when it is read again. None: not set."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list | tuple):
        return [text_of_one(option.type, item) for item in value]
    return text_of_one(option.type, value)


def text_of_one(kind: Any, value: Any) -> Any:
    if isinstance(kind, Duration) and isinstance(value, int | float):
        return _span(value)
    if isinstance(kind, Size) and isinstance(value, int):
        unit, size = next(((unit, size) for unit, size in _SIZES if value % size == 0), ("b", 1))
        return f"{value // size}{_UNITS[unit]}" if value and size > 1 else value
    return value if isinstance(value, int | float) else str(value)


def _span(value_s: float) -> Any:
    if value_s and value_s == int(value_s):
        unit, size = next((unit, size) for unit, size in _SPANS if int(value_s) % size == 0)
        return f"{int(value_s) // size}{unit}"
    as_ms = round(value_s * 1000)
    return f"{as_ms}ms" if value_s and as_ms / 1000 == value_s else value_s if value_s else 0


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def named_default(option: click.Option) -> str:
    """What the help says about the default: `keep` for [default: keep]; or empty."""
    named = _NAMED_DEFAULT.search(option.help or "")
    return named[1] if named else ""


def template_value(option: click.Option, context: click.Context) -> Any:
    """The default of an option as it is written in a file. An option without a default has the value that its help
    names, such as [default: 1GiB], or the name of its value, such as "FILE"."""
    default = option.get_default(context)
    if isinstance(default, str | int | float | Path | list | tuple):  # else there is none
        return text_of(option, option.type_cast_value(context, default))
    if option.is_flag:
        return False
    named = named_default(option).partition(";")[0]
    if named and not isinstance(option.type, click.Path) and getattr(option.type, "name", "") != "text":
        try:
            return text_of(option, converted(option, named, context))
        except ValueError:
            pass
    if isinstance(option.type, click.Choice):
        return option.type.choices[0]
    word = option.metavar or getattr(option.type, "name", "text").upper()
    return [word] if option.multiple else word
