"""`fabric request` and `fabric respond`: requests and replies. Neither is stored."""

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_PARTLY
from fabric.cli.commands.pub import body_of, message_options
from fabric.cli.support.connect import connect, hub_options, sigterm_interrupts
from fabric.cli.support.exec import Command, CommandFailed
from fabric.cli.support.message_format import text_headers
from fabric.cli.support.tables import Failed, usage
from fabric.cli.support.values import Duration, Header, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from fabric_client import Reply, Request

TIMEOUT_S: Final = 10.0


@click.command("request")
@click.argument("topic")
@click.argument("data", required=False)
@click.option("-H", "--header", "headers", type=Header(), multiple=True, help="Header of the request; repeatable.")
@click.option("--key", help="Key of the request.")
@click.option(
    "--replies",
    type=click.IntRange(min=1, max=10_000),
    help="Most replies to take, where a responder sends several.  [default: 1]",
)
@click.option(
    "--timeout", type=Duration(), default=TIMEOUT_S, show_default="10s", help="How long to wait for the replies."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "raw", "ndjson"]),
    default="text",
    show_default=True,
    help="text: the body and a newline. raw: the body alone. ndjson: the body and its fields.",
)
@click.option("--json", "as_json", is_flag=True, help="Same as -o ndjson.")
@hub_options
def request(
    topic: str,
    data: str | None,
    headers: tuple[tuple[str, str], ...],
    key: str | None,
    replies: int | None,
    timeout: float,
    output: str,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Send a request to the responders of TOPIC, and print the reply. Without DATA, or with '-', standard input is the
    request.

    \b
    Examples:
      fabric request time.now ''
      fabric request prices.get '{"item": 7}' --timeout 2s
      fabric request files.list '' --replies 1000 --json

    Exit code 4: the topic has no responder. 3: no reply in time. 1: the responder failed. 8: some replies came in
    time, but not the last.
    """
    from fabric_client import TimedOut

    if not timeout:
        usage("--timeout must be more than 0")
    body = body_of(data)
    options = message_options(headers, key, body)
    show = _record if as_json or output == "ndjson" else _body if output == "raw" else _lines
    count, begun = 0, time.monotonic()
    with connect(url, min(connect_timeout, timeout)) as fab:
        found: Iterator[Reply]
        left = max(round(timeout - (time.monotonic() - begun), 1), 0.1)
        if replies is None:
            found = iter([fab.request(topic, body, timeout=left, **options)])
        else:
            found = fab.request(topic, body, timeout=left, replies_max=replies, **options)
        try:
            for reply in found:
                sys.stdout.buffer.write(show(reply))
                sys.stdout.buffer.flush()
                count += 1
        except TimedOut:
            if not count:
                raise
            hint = "give a longer --timeout, or fewer --replies"
            raise Failed(f"{count} of {replies} replies came in time", hint, EXIT_PARTLY) from None


@click.command("respond")
@click.argument("patterns", nargs=-1, required=True)
@click.option("--exec", "command", metavar="COMMAND", help="Answer with the output of this shell command.")
@click.option("--echo", is_flag=True, help="Answer with the request itself.")
@click.option("--reply", "text", help="Answer with this text.")
@click.option("--lines", is_flag=True, help="Send each line of the output as a reply of its own.")
@click.option("--group", help="Share the requests with the other responders of this group.")
@click.option(
    "--concurrency", type=click.IntRange(min=1, max=1000), default=16, show_default=True, help="Requests at once."
)
@click.option("--count", type=click.IntRange(min=1), help="End after this number of requests.")
@click.option("--timeout", type=Duration(), help="End when no request came for this time.")
@click.option("--quiet", is_flag=True, help="Do not write a line for each request.")
@hub_options
def respond(
    patterns: tuple[str, ...],
    command: str | None,
    echo: bool,
    text: str | None,
    lines: bool,
    group: str | None,
    concurrency: int,
    count: int | None,
    timeout: float | None,
    quiet: bool,
    url: str,
    connect_timeout: float,
) -> int:
    """Answer requests to topics that match one of PATTERNS, until Ctrl-C.

    \b
    Examples:
      fabric respond time.now --exec 'date -u +%FT%TZ'
      fabric respond 'text.upper' --exec 'tr a-z A-Z' --group upper
      fabric respond files.list --exec 'ls -1' --lines
      fabric respond 'ping.#' --echo

    The command gets the request on its standard input and FABRIC_TOPIC, FABRIC_KEY and FABRIC_HEADERS (JSON) in its
    environment. If its exit code is not 0, the client gets an error with the code and the last line of standard error.
    """
    if (command is not None) + echo + (text is not None) != 1:
        usage("give one of --exec COMMAND, --echo and --reply TEXT")
    if lines and command is None:
        usage("--lines needs --exec")
    shell = Command(command) if command is not None else None
    handler = _handler(_answerer(shell, text), quiet=quiet, lines=lines)
    with sigterm_interrupts() if shell is None else shell.interruptible(), connect(url, connect_timeout) as fab:
        try:
            done = fab.respond(patterns, handler, group=group, concurrency=concurrency, count=count, timeout=timeout)
        except KeyboardInterrupt:
            return 0
    return EXIT_PARTLY if count is not None and done < count else 0


def _answerer(shell: Command | None, text: str | None) -> "Callable[[Request], bytes]":
    if shell is not None:
        return shell.run
    if text is not None:
        fixed = text.encode()
        return lambda asked: fixed
    return lambda asked: asked.body


def _handler(answer: "Callable[[Request], bytes]", *, quiet: bool, lines: bool) -> "Callable[[Request], bytes | None]":
    """A handler that answers a request, and prints a line about it."""
    from fabric_client import Release

    def handle(asked: "Request") -> bytes | None:
        begun = time.monotonic()
        try:
            reply = answer(asked)
        except CommandFailed as error:
            click.echo(f"{asked.topic}  {shown_bytes(len(asked.body))} -> {error}", err=True)
            asked.fail(str(error))
            return None
        except Release:
            asked.fail("the responder was interrupted")
            return None
        if not quiet:
            took = shown_seconds(time.monotonic() - begun)
            click.echo(f"{asked.topic}  {shown_bytes(len(asked.body))} -> {shown_bytes(len(reply))}  {took}", err=True)
        if not lines:
            return reply
        for line in reply.splitlines():
            asked.reply(line, final=False)
        asked.end()
        return None

    return handle


def _body(reply: "Reply") -> bytes:
    return reply.body


def _lines(reply: "Reply") -> bytes:
    return reply.body if reply.body.endswith(b"\n") else reply.body + b"\n"


def _record(reply: "Reply") -> bytes:
    row: dict[str, Any] = {"topic": reply.topic, "from": reply.sender, "final": reply.final}
    if reply.headers:
        row["headers"] = text_headers(reply)
    try:
        data = reply.data
        row["data"] = data.decode() if isinstance(data, bytes) else data
    except ValueError:
        row["base64"] = base64.b64encode(reply.body).decode()
    return json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"
