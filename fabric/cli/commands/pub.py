"""`fabric pub`: one message, one message for each line of standard input, or the same message many times; now, or when
it is due."""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NO_HUB, EXIT_PARTLY
from fabric.cli.support.connect import connect, hub_options, sigterm_interrupts
from fabric.cli.support.tables import Failed, usage
from fabric.cli.support.values import Duration, Header, Moment, shown_ago, shown_bytes, shown_seconds, shown_time

if TYPE_CHECKING:
    from fabric_client import Client, Receipt

JSON_TYPE: Final = "application/json"
PROGRESS_EVERY_S: Final = 0.2  # on a terminal; otherwise a plain line every PROGRESS_PLAIN_S
PROGRESS_PLAIN_S: Final = 5.0
EVERY_S_MIN: Final = 0.1  # as the hub has it
CONFIRMS_S: Final = 2.0  # how long an interrupted command waits for confirms that are on their way
UNCONFIRMED_MAX: Final = 200_000  # messages of a stream; less than the client's buffer holds
UNCONFIRMED_BYTES_MAX: Final = 32 << 20
ROOM_POLL_S: Final = 0.002
PROGRESS_CHECK: Final = 1000  # messages between looks at the clock


@click.command()
@click.argument("topic")
@click.argument("data", required=False)
@click.option("--lines", is_flag=True, help="Publish each line of standard input as a message.")
@click.option("-H", "--header", "headers", type=Header(), multiple=True, help="Header of each message; repeatable.")
@click.option("--key", help="Key of each message: groups of order 'key' keep the order of a key's messages.")
@click.option("--id", "number", metavar="ID", help="Stored once: of several with the same id, the first counts.")
@click.option("--priority", type=click.IntRange(min=0, max=9), help="0..9; 9 is delivered first.  [default: 4]")
@click.option("--ttl", type=Duration(), help="Expires when it is not delivered by then.")
@click.option("--delay", type=Duration(), help="Publish it so much later.")
@click.option("--at", type=Moment("after"), help="Publish it at this time: 2026-11-16T18:00Z, or 2h (from now).")
@click.option("--every", type=Duration(), help="Publish it again and again, so far apart.")
@click.option(
    "--cron", help="Publish it by the calendar: minute hour day month weekday, UTC, such as '0 6 * * mon-fri'."
)
@click.option("--name", help="Name of the schedule; a new one takes the place of the one that has it.")
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
    number: str | None,
    priority: int | None,
    ttl: float | None,
    delay: float | None,
    at: float | None,
    every: float | None,
    cron: str | None,
    name: str | None,
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
      fabric pub orders.created '{"id": 102}' --id order-102          twice is once
      fabric pub reminders.due 'call Ada' --delay 2h
      fabric pub reports.daily '{}' --cron '0 6 * * *' --name daily-report

    It returns when the hub has everything on disk. What is for later has no seq yet but the id of a schedule: see
    'fabric schedule'. Ctrl-C and SIGTERM end --lines and --count with exit code 130, and say how many are stored.
    """
    later = {"delay": delay, "at": at, "every": every, "cron": cron, "name": name}
    later = {option: value for option, value in later.items() if value is not None}
    if lines and (data not in (None, "-") or count != 1 or output == "seq" or number is not None):
        usage("--lines reads the messages from standard input; DATA, --count, --id and -o seq do not go with it")
    _check_schedule(later, alone=not lines and count == 1, output=output)
    timing = {**later, "ttl": ttl, "priority": priority, "level": None if level == "journaled" else level, "id": number}
    timing = {option: value for option, value in timing.items() if value is not None}
    style = output or ("text" if sys.stdout.isatty() else "json")
    begun = time.monotonic()
    with sigterm_interrupts(), connect(url, min(connect_timeout, timeout)) as fab:
        left = max(round(timeout - (time.monotonic() - begun), 1), 0.0)
        if lines:
            options = message_options(headers, key, b"", as_json=as_json or False)
            _publish_stream(fab, topic, _lines(), {**options, **timing}, timeout, style, show=not no_progress)
            return
        body = body_of(data)
        options = {**message_options(headers, key, body, as_json=as_json), **timing}
        if count > 1:
            _publish_stream(fab, topic, (body for _ in range(count)), options, timeout, style, show=not no_progress)
            return
        begun = time.monotonic()
        receipt = fab.publish(topic, body, timeout=left, **options)
        took_s = time.monotonic() - begun
    word = "stored" if level == "journaled" else "received"
    click.echo(_told(style, topic, len(body), level, receipt, f"{word} in {shown_seconds(took_s)}"))


def _check_schedule(later: Mapping[str, Any], *, alone: bool, output: str | None) -> None:
    """Raise when options of time do not go together."""
    for one, other in (("delay", "at"), ("every", "cron")):
        if one in later and other in later:
            usage(f"--{one} and --{other} exclude each other")
    if "name" in later and len(later) == 1:
        usage("--name is that of a schedule: it needs --delay, --at, --every or --cron")
    if not alone and {"every", "cron", "name"} & set(later):
        usage("--every, --cron and --name go with a single message")
    if later and output == "seq":
        usage("what is for later has no seq yet; '-o json' shows the id of its schedule")
    if later.get("every", 1) < EVERY_S_MIN:
        usage("--every is 100ms or more: more often is a stream, not a schedule")


def _told(style: str, topic: str, size: int, level: str, receipt: "Receipt", how: str) -> str:
    """What became of one message."""
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
    how = "a duplicate: stored before, not again" if receipt.duplicate else how
    return f"{topic} #{receipt.seq}  {shown_bytes(size)}  {how}"


def body_of(data: str | None) -> bytes:
    """DATA, or standard input."""
    if data in (None, "-") and sys.stdin.isatty():
        click.echo("reading the message from standard input; Ctrl-D ends it", err=True)
    return sys.stdin.buffer.read() if data in (None, "-") else os.fsencode(data)


def message_options(
    headers: Iterable[tuple[str, str]], key: str | None, body: bytes, *, as_json: bool | None = None
) -> dict[str, Any]:
    """Only what was asked for: a message without options takes the client's short way."""
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

    progress = _Progress(show)
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
            "what was sent and not confirmed may be stored; what was not sent is withdrawn",
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
    """Wait while much is not confirmed; give up when nothing more is for so long, where the client waits for ever."""
    from fabric_client import Timeout

    left, end = fab.unconfirmed, time.monotonic() + timeout
    while left > UNCONFIRMED_MAX or left * size > UNCONFIRMED_BYTES_MAX:
        time.sleep(ROOM_POLL_S)
        before, left = left, fab.unconfirmed
        if left < before:
            end = time.monotonic() + timeout
        elif time.monotonic() > end:
            raise Timeout(f"nothing more was confirmed for {shown_seconds(timeout)}")


def _tell_interrupted(fab: "Client", count: int) -> None:
    """The user wants to leave: say what became of the messages so far."""
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
