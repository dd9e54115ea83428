"""`fabric pub`: publishes a message once or many times, or each line of standard input; now or later."""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NO_HUB, EXIT_PARTLY
from fabric.cli.support import completion
from fabric.cli.support.connect import connect, hub_options, sigterm_interrupts
from fabric.cli.support.progress import RateLine
from fabric.cli.support.settings_options import F, Option, gathered
from fabric.cli.support.tables import Failed, usage
from fabric.cli.support.values import Duration, Header, Moment, shown_ago, shown_bytes, shown_seconds, shown_time
from fabric_protocol.bounds import EVERY_MS

if TYPE_CHECKING:
    from fabric_client import Client, Receipt

JSON_TYPE: Final = "application/json"
CONFIRMS_S: Final = 2.0  # how long an interrupted command waits for confirms
UNCONFIRMED_MAX: Final = 200_000  # messages of a stream; fewer than the client's buffer holds
UNCONFIRMED_BYTES_MAX: Final = 32 << 20
ROOM_POLL_S: Final = 0.002
PROGRESS_CHECK: Final = 1000  # messages between two checks of the clock


# Names of parameters are the client's names of the options.
OPTIONS: Final[dict[str, Option]] = {
    "id": click.option(
        "--id", metavar="ID", help="Id of the message. The hub stores only the first message with an id."
    ),
    "priority": click.option(
        "--priority", type=click.IntRange(min=0, max=9), help="0..9; 9 is delivered first.  [default: 4]"
    ),
    "ttl": click.option("--ttl", type=Duration(), help="The message expires if it is not delivered within this time."),
    "delay": click.option("--delay", type=Duration(), help="Publish after this time."),
    "at": click.option("--at", type=Moment("after"), help="Publish at this time: 2026-11-16T18:00Z, or 2h (from now)."),
    "every": click.option("--every", type=Duration(), help="Publish again and again, with this time in between."),
    "cron": click.option(
        "--cron", help="Publish by the calendar: minute hour day month weekday, UTC, such as '0 6 * * mon-fri'."
    ),
    "name": click.option("--name", help="Name of the schedule; replaces the schedule of this name."),
}
LATER: Final = ("delay", "at", "every", "cron", "name")  # options that make a schedule


def _publish_options(command: F) -> F:
    return gathered(command, "options", OPTIONS)


@click.command()
@click.argument("topic", shell_complete=completion.topics)
@click.argument("data", required=False)
@click.option("--lines", is_flag=True, help="Publish each line of standard input as a message.")
@click.option("-H", "--header", "headers", type=Header(), multiple=True, help="Header of each message; repeatable.")
@click.option("--key", help="Key of each message: groups of order 'key' keep the order of a key's messages.")
@_publish_options
@click.option("--count", type=click.IntRange(min=1), default=1, help="How often to publish DATA.")
@click.option(
    "--json/--no-json",
    "as_json",
    default=None,
    help="Mark the messages as JSON. By default, only DATA that is a JSON object or array is marked.",
)
@click.option(
    "--level",
    type=click.Choice(["journaled", "received"]),
    default="journaled",
    show_default=True,
    help="When the hub confirms a message: on disk, or on receipt (unsafe: a crash loses it).",
)
@click.option(
    "--timeout",
    type=Duration(),
    default=30.0,
    show_default="30s",
    help="Fail if the messages are not confirmed in this time.",
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
    options: dict[str, Any],
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
      fabric pub orders.created '{"id": 102}' --id order-102          stored once, however often
      fabric pub reminders.due 'call Ada' --delay 2h
      fabric pub reports.daily '{}' --cron '0 6 * * *' --name daily-report

    The command ends when all messages are on disk. A message for later has no seq yet, but the id of a schedule: see
    'fabric schedule'. Ctrl-C and SIGTERM end --lines and --count with a summary and exit code 130.
    """
    if lines and (data not in (None, "-") or count != 1 or output == "seq" or "id" in options):
        usage("--lines reads the messages from standard input; DATA, --count, --id and -o seq cannot be used with it")
    _check_schedule(options, alone=not lines and count == 1, output=output)
    if level != "journaled":
        options["level"] = level
    style = output or ("text" if sys.stdout.isatty() else "json")
    end = time.monotonic() + timeout
    with sigterm_interrupts(), connect(url, min(connect_timeout, timeout)) as fab:
        left = max(round(end - time.monotonic(), 1), 0.0)
        body = b"" if lines else body_of(data)
        options |= message_options(headers, key, body, as_json=bool(as_json) if lines else as_json)
        if lines or count > 1:
            bodies = _lines() if lines else itertools.repeat(body, count)
            _publish_stream(fab, topic, bodies, options, timeout, style, show=not no_progress)
            return
        begun = time.monotonic()
        receipt = fab.publish(topic, body, timeout=left, **options)
        took_s = time.monotonic() - begun
    click.echo(_told(style, topic, len(body), level, receipt, took_s))


def _check_schedule(options: Mapping[str, Any], *, alone: bool, output: str | None) -> None:
    """Raise when options of a schedule exclude each other."""
    later = {name: options[name] for name in LATER if name in options}
    for one, other in (("delay", "at"), ("every", "cron")):
        if one in later and other in later:
            usage(f"--{one} and --{other} exclude each other")
    if "name" in later and len(later) == 1:
        usage("--name is the name of a schedule: it needs --delay, --at, --every or --cron")
    if not alone and {"every", "cron", "name"} & set(later):
        usage("--every, --cron and --name are for a single message")
    if later and output == "seq":
        usage("a message for later has no seq yet; '-o json' shows the id of its schedule")
    if later.get("every", 1) * 1000 < EVERY_MS[0]:
        usage(f"--every is {EVERY_MS[0]}ms or more")


def _told(style: str, topic: str, size: int, level: str, receipt: "Receipt", took_s: float) -> str:
    """The text about a published message."""
    if style == "seq":
        return str(receipt.seq)
    if receipt.schedule or receipt.due is not None:
        due_s = receipt.due.timestamp() if receipt.due else 0.0
        if style == "json":
            return json.dumps({"topic": topic, "schedule": receipt.schedule, "due": shown_time(due_s), "bytes": size})
        ago = shown_ago(due_s, time.time())
        return f"{topic} schedule {receipt.schedule}  {shown_bytes(size)}  due {shown_time(due_s)} ({ago})"
    if style == "json":
        fields = {"topic": topic, "seq": receipt.seq, "bytes": size, "level": level, "duplicate": receipt.duplicate}
        return json.dumps(fields)
    word = "stored" if level == "journaled" else "received"
    how = "a duplicate: the id was stored before" if receipt.duplicate else f"{word} in {shown_seconds(took_s)}"
    return f"{topic} #{receipt.seq}  {shown_bytes(size)}  {how}"


def body_of(data: str | None) -> bytes:
    """DATA, or standard input."""
    if data in (None, "-") and sys.stdin.isatty():
        click.echo("reading the message from standard input; Ctrl-D ends it", err=True)
    return sys.stdin.buffer.read() if data in (None, "-") else os.fsencode(data)


def message_options(
    headers: Iterable[tuple[str, str]], key: str | None, body: bytes, *, as_json: bool | None = None
) -> dict[str, Any]:
    """The options that were given: without options, a publish takes the client's fast path."""
    options: dict[str, Any] = {}
    named = dict(headers)
    if _looks_like_json(body) if as_json is None else as_json:
        named.setdefault("content-type", JSON_TYPE)
    if named:
        options["headers"] = named
    if key is not None:
        options["key"] = key
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
        yield line.removesuffix(b"\n").removesuffix(b"\r")


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
    from fabric_client import ConnectionLost, Timeout

    progress = RateLine(is_silent=not show)
    count = size = look_at = 0
    try:
        for body in bodies:
            fab.publish_nowait(topic, body, **options)
            count += 1
            size += len(body)
            if count % PROGRESS_CHECK == 0 or size >= look_at:
                look_at = size + UNCONFIRMED_BYTES_MAX // 8
                _wait_for_room(fab, size / count, timeout)
                progress.at(count)
        if count:
            fab.flush(timeout)
    except KeyboardInterrupt:
        progress.done()
        _tell_interrupted(fab, count)
        raise
    except (ConnectionLost, Timeout) as error:
        progress.done()
        stored = count - fab.unconfirmed
        raise Failed(
            f"{stored:,} of {count:,} messages stored; {error}",
            "messages that were sent and not confirmed may be stored; messages that were not sent are withdrawn",
            EXIT_PARTLY if stored else EXIT_NO_HUB,
        ) from error
    took_s = progress.done()
    rate = count / took_s if took_s else 0.0
    if style == "text":
        click.echo(
            f"{topic}  published {count:,} messages, {shown_bytes(size)}, in {shown_seconds(took_s)}: {rate:,.0f} msg/s"
        )
    else:
        click.echo(json.dumps({"topic": topic, "published": count, "bytes": size, "seconds": round(took_s, 6)}))


def _wait_for_room(fab: "Client", size: float, timeout: float) -> None:
    """Wait while much is not confirmed. Raise after `timeout` without a confirm: the client would wait for ever."""
    from fabric_client import Timeout

    left, end = fab.unconfirmed, time.monotonic() + timeout
    while left > UNCONFIRMED_MAX or left * size > UNCONFIRMED_BYTES_MAX:
        time.sleep(ROOM_POLL_S)
        before, left = left, fab.unconfirmed
        if left < before:
            end = time.monotonic() + timeout
        elif time.monotonic() > end:
            raise Timeout(f"no message was confirmed for {shown_seconds(timeout)}")


def _tell_interrupted(fab: "Client", count: int) -> None:
    """Print how many messages are stored, after Ctrl-C."""
    from fabric_client import FabricError

    sent = 0
    try:
        fab.flush(CONFIRMS_S)
    except FabricError as error:
        sent = getattr(error, "unconfirmed", 0)
        click.echo(f"{error}", err=True)
    unconfirmed = fab.unconfirmed
    words = [f"interrupted: {max(count - unconfirmed, 0):,} of {count:,} messages stored"]
    if sent:
        words.append(f"{sent:,} not confirmed: these may be stored or not")
    if unconfirmed > sent:
        words.append(f"{unconfirmed - sent:,} never sent, and withdrawn")
    click.echo(", ".join(words), err=True)
