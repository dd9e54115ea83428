"""`fabric pub`: one message, one message for each line of standard input, or the same message many times."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli_client import connect, hub_options
from fabric.cli_values import Duration, Header, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from fabric_client import Client

JSON_TYPE: Final = "application/json"
PROGRESS_EVERY_S: Final = 0.2  # on a terminal; otherwise a plain line every PROGRESS_PLAIN_S
PROGRESS_PLAIN_S: Final = 5.0
PROGRESS_CHECK: Final = 1000  # messages between looks at the clock


@click.command()
@click.argument("topic")
@click.argument("data", required=False)
@click.option("--lines", is_flag=True, help="Publish each line of standard input as a message.")
@click.option("-H", "--header", "headers", type=Header(), multiple=True, help="Header of each message; repeatable.")
@click.option("--key", help="Ordering key of each message.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Publish DATA so many times.")
@click.option(
    "--json/--no-json",
    "as_json",
    default=None,
    help="Mark the messages as JSON. By default, DATA that is a JSON object or array is marked; lines are not.",
)
@click.option(
    "--level",
    type=click.Choice(["journaled", "received"]),
    default="journaled",
    show_default=True,
    help="When a message is confirmed: on disk, or on receipt (unsafe: a crash loses it).",
)
@click.option(
    "--timeout", type=Duration(), default=30.0, show_default="30s", help="Give up when not confirmed by then."
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "seq"]), help="[default: text on a terminal, else json]"
)
@click.option("--no-progress", is_flag=True, help="Do not show progress.")
@hub_options
def pub(
    topic: str,
    data: str | None,
    lines: bool,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    count: int,
    as_json: bool | None,
    level: str,
    timeout: float,
    output: str | None,
    no_progress: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Publish DATA on TOPIC; without DATA, or with '-', standard input is the message.

    \b
    Examples:
      fabric pub orders.created '{"id": 102, "total": 9.99}'
      fabric pub images.new < photo.jpg
      seq 1 100000 | fabric pub load.lines --lines
      fabric pub orders.created 'again' --count 1000 -H source:shell --key customer-7

    It returns when the hub has everything on disk.
    """
    if lines and (data not in (None, "-") or count != 1 or output == "seq"):
        raise click.UsageError(
            "--lines reads the messages from standard input; DATA, --count and -o seq do not go with it"
        )
    style = output or ("text" if sys.stdout.isatty() else "json")
    with connect(url, connect_timeout) as fab:
        if lines:
            options = _options(headers, key, level, as_json or False)
            _publish_stream(fab, topic, _lines(), options, timeout, style, show=not no_progress)
            return
        body = sys.stdin.buffer.read() if data in (None, "-") else str(data).encode()
        options = _options(headers, key, level, _looks_like_json(body) if as_json is None else as_json)
        if count > 1:
            _publish_stream(fab, topic, (body for _ in range(count)), options, timeout, style, show=not no_progress)
            return
        begun = time.monotonic()
        receipt = fab.publish(topic, body, timeout=timeout, **options)
        took_s = time.monotonic() - begun
    match style:
        case "seq":
            click.echo(receipt.seq)
        case "json":
            click.echo(json.dumps({"topic": topic, "seq": receipt.seq, "bytes": len(body), "level": level}))
        case _:
            word = "stored" if level == "journaled" else "received"
            click.echo(f"{topic} #{receipt.seq}  {shown_bytes(len(body))}  {word} in {shown_seconds(took_s)}")


def _options(headers: Iterable[tuple[str, str]], key: str | None, level: str, as_json: bool) -> dict[str, Any]:
    """Only what was asked for: a message without options takes the client's short way."""
    options: dict[str, Any] = {}
    named = dict(headers)
    if as_json:
        named.setdefault("content-type", JSON_TYPE)
    if named:
        options["headers"] = named
    if key is not None:
        options["key"] = key
    if level != "journaled":
        options["level"] = level
    return options


def _looks_like_json(body: bytes) -> bool:
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")


def _publish_stream(
    fab: "Client",
    topic: str,
    bodies: Iterable[bytes],
    options: dict[str, Any],
    timeout: float,
    style: str,
    *,
    show: bool,
) -> None:
    progress = _Progress(show)
    count = size = 0
    for body in bodies:
        fab.publish_nowait(topic, body, **options)
        count += 1
        size += len(body)
        if count % PROGRESS_CHECK == 0:
            progress.at(count)
    if count:
        fab.flush(timeout)
    took_s = progress.done()
    rate = count / took_s if took_s else 0.0
    if style == "text":
        click.echo(
            f"{topic}  published {count:,} messages, {shown_bytes(size)}, in {shown_seconds(took_s)}: {rate:,.0f} msg/s"
        )
    else:
        click.echo(json.dumps({"topic": topic, "published": count, "bytes": size, "seconds": round(took_s, 6)}))


class _Progress:
    """A line on standard error that is written over on a terminal, and is a new line now and then elsewhere."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._every_s = PROGRESS_EVERY_S if self._terminal else PROGRESS_PLAIN_S
        self._next = self._begun + self._every_s

    def at(self, count: int) -> None:
        now = time.monotonic()
        if not self._show or now < self._next:
            return
        self._next = now + self._every_s
        line = f"sent {count:,}  {count / (now - self._begun):,.0f} msg/s"
        click.echo(f"\r{line}\x1b[K" if self._terminal else line, nl=not self._terminal, err=True)

    def done(self) -> float:
        """Remove the line; seconds since the beginning."""
        if self._show and self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)
        return time.monotonic() - self._begun
