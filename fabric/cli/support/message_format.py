"""Writes messages for `fabric sub`, `get` and `dlq peek`: as text, JSON, lines of JSON, raw bytes, or by a format."""

import base64
import json
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from fabric.cli.support.values import shown_time
from fabric.cli.support.variables import prevailing

if TYPE_CHECKING:
    from fabric_client import Batch, Message

F = TypeVar("F", bound=Callable[..., Any])

SHAPES: Final = ("text", "json", "ndjson", "raw")
_ESCAPES: Final = {"\\n": b"\n", "\\t": b"\t", "\\r": b"\r", "\\0": b"\0", "\\\\": b"\\"}
_TOKEN: Final = re.compile(r"%.|%$|\\.|[^%\\]+|\\$", re.DOTALL)


def shape_options(command: F) -> F:
    """`-f`, `-o` and `--json`: the parameters `template`, `output` and `as_json` of `chosen_shape`."""
    template = click.option("-f", "--format", "template", help=r"Such as '%s %t %v\n', as in 'fabric sub'.")
    output = click.option(
        "-o", "--output", type=click.Choice(SHAPES), help="[default: text on a terminal, else ndjson]"
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
    return template(output(as_json(command)))


class Shape(NamedTuple):
    """`line` formats a message; `opening`, `between` and `closing` surround all messages."""

    line: "Callable[[Message], bytes]"
    opening: bytes = b""
    between: bytes = b""
    closing: bytes = b""
    for_people: bool = False

    def render(self, batch: "Batch", *, first: bool) -> bytes:
        text = self.between.join(map(self.line, batch))
        return text if first else self.between + text


def chosen_shape(*, headers: bool, **options: Any) -> Shape:
    """The shape of `-f`, `-o` and `--json`, the parameters `template`, `output` and `as_json` of a command."""
    chosen = prevailing(**options)
    template, output = chosen["template"], "json" if chosen.get("as_json") else chosen["output"]
    if template is not None and output is not None:
        raise click.UsageError("-f cannot be used with -o or --json", click.get_current_context())
    return shape_of(template, output or ("text" if sys.stdout.isatty() else "ndjson"), headers=headers)


def shape_of(template: str | None, output: str, *, headers: bool = False) -> Shape:
    """The shape for `-f` or `-o`. With `headers`, text has them as well."""
    if template is not None:
        return Shape(_formatter(template))
    match output:
        case "json":
            return Shape(lambda message: _json(message, indent=2), b"[\n", b",\n", b"\n]\n")
        case "ndjson":
            return Shape(lambda message: _json(message) + b"\n")
        case "raw":
            return Shape(lambda message: message.body)  # no newline: it would damage binary data
    line = _coloured if sys.stdout.isatty() else _plain
    return Shape((lambda message: line(message) + _headers(message)) if headers else line, for_people=True)


def record(message: "Message") -> dict[str, Any]:
    """The JSON of a message. `data` is decoded JSON or text; other bytes are in `base64`."""
    row: dict[str, Any] = {
        "seq": message.seq,
        "topic": message.topic,
        "time": shown_time(message.ts),
        "attempt": message.attempt,
    }
    if message.group is not None:
        row["group"] = message.group
    if message.key is not None:
        row["key"] = message.key
    if message.headers:
        row["headers"] = text_headers(message)
    if (origin := message.origin) is not None:
        row["origin"] = {
            "journal": origin.journal.hex(),
            "epoch": origin.epoch,
            "seq": origin.seq,
            "time": shown_time(origin.time),
        }
    try:
        data = message.data
        row["data"] = data.decode() if isinstance(data, bytes) else data
    except ValueError:  # not UTF-8, or marked as JSON and not JSON
        row["base64"] = base64.b64encode(message.body).decode()
    return row


def text_headers(message: "Message") -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else value.decode(errors="replace")
        for name, value in message.headers.items()
    }


def _json(message: "Message", indent: int | None = None) -> bytes:
    return json.dumps(record(message), ensure_ascii=False, indent=indent).encode(errors="replace")


def _shown(body: bytes) -> str:
    """Printable text: control characters are escaped, so that they cannot change the terminal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return repr(body)
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def _plain(message: "Message") -> bytes:
    return f"#{message.seq} {message.topic}{_again(message)}  {_shown(message.body)}\n".encode()


def _coloured(message: "Message") -> bytes:
    head = click.style(f"#{message.seq}", dim=True) + " " + click.style(message.topic, fg="cyan")
    again = click.style(_again(message), fg="yellow") if message.attempt > 1 else ""
    return f"{head}{again}  {_shown(message.body)}\n".encode()


def _again(message: "Message") -> str:
    return f" (attempt {message.attempt})" if message.attempt > 1 else ""


def _headers(message: "Message") -> bytes:
    lines = [
        f"    {_shown(name.encode())}: {_shown(value.encode())}\n" for name, value in text_headers(message).items()
    ]
    return "".join(lines).encode()


_FIELDS: Final[dict[str, "Callable[[Message], bytes]"]] = {
    "t": lambda message: message.topic.encode(),
    "s": lambda message: b"%d" % message.seq,
    "v": lambda message: message.body,
    "k": lambda message: (message.key or "").encode(),
    "h": lambda message: json.dumps(text_headers(message), ensure_ascii=False).encode(errors="replace"),
    "a": lambda message: b"%d" % message.attempt,
    "T": lambda message: shown_time(message.ts).encode(),
    "S": lambda message: b"%d" % len(message.body),
    "g": lambda message: (message.group or "").encode(),
    "%": lambda message: b"%",
}


def _constant(text: bytes) -> "Callable[[Message], bytes]":
    return lambda message: text


def _formatter(template: str) -> "Callable[[Message], bytes]":
    parts: list[Callable[[Message], bytes]] = []
    for token in _TOKEN.findall(template):
        if token[0] == "%":
            if token[1:] not in _FIELDS:
                known = " ".join(f"%{letter}" for letter in _FIELDS)
                raise click.UsageError(f"-f has no field {token!r}; it has {known}")
            parts.append(_FIELDS[token[1:]])
        else:
            parts.append(_constant(_ESCAPES.get(token, token.encode())))
    return lambda message: b"".join([part(message) for part in parts])
