"""`fabric sub`: writes messages to standard output, as a member of a group or without a group.

A message of a group is acked after it was written and flushed, so that the reader of the output has it. When the reader
closes the output, messages that were not written go back to the group, without a counted attempt. With --exec, a
message is acked when its command has ended with exit code 0.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NO_HUB, EXIT_NOTHING, EXIT_PARTLY, EXIT_USAGE
from fabric.cli.support import completion
from fabric.cli.support.connect import connect, hub_options, sigterm_interrupts
from fabric.cli.support.exec import Command, CommandFailed
from fabric.cli.support.message_format import SHAPES, Shape, chosen_shape
from fabric.cli.support.settings_options import group_settings
from fabric.cli.support.tables import Failed, usage
from fabric.cli.support.values import POSITIONS, Duration, Position, Word, shown_seconds
from fabric.cli.support.variables import prevailing
from fabric_protocol.errors import Code

if TYPE_CHECKING:
    from fabric_client import Batch, Client, Consumer, Message
    from fabric_client.options import Start

ACKS_S: Final = 30.0  # how long the command waits at its end until the hub has the acks, without --timeout
ACKS_S_MIN: Final = 2.0


HELP: Final = """Receive the messages whose topic matches one of PATTERNS. With --group and without PATTERNS, receive
the messages of the group.

\b
Examples:
  fabric sub 'orders.#'                                  all new messages
  fabric sub 'orders.#' --start first --timeout 1s       all stored messages
  fabric sub 'orders.*' --group billing --count 10       ten messages of a group
  fabric sub 'orders.*' --group billing --exec ./charge --on-error retry --attempts 8
  fabric sub '#' --start 1h -f '%T %t %v\\n' | grep error
  fabric sub billing.DLQ --start first --headers --timeout 1s

\b
Patterns: * is one word, # any number of words, > as the last word one or more.
Format:   %t topic  %s seq  %v value  %k key  %h headers as JSON  %a attempt
          %T time   %S size in bytes  %g group  %% percent  \\n \\t \\\\ as usual
COMMAND:  gets the value on its standard input, and FABRIC_TOPIC, FABRIC_SEQ,
          FABRIC_KEY, FABRIC_ATTEMPT, FABRIC_HEADERS; exit code 0 acks

The settings of a group, --lease to --level, are for a new group. To change an existing group, use
'fabric group update'.

Ctrl-C and SIGTERM end the command, and the commands of --exec, with a summary and exit code 0. Exit code 7: no message
came within --timeout; 3: the hub was lost; 8: fewer than --count came, or a command failed.
"""


@click.command(help=HELP)
@click.argument("patterns", nargs=-1, shell_complete=completion.topics)
@click.option(
    "--group",
    shell_complete=completion.groups,
    help="Consume as a member of this group, and ack each message that was written.",
)
@click.option(
    "--start",
    type=Position(),
    help=f"{POSITIONS}. Ignored for an existing group.  [default: first with --group, else new]",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option("--timeout", type=Duration(), help="End when no message came for this time.")
@click.option("-f", "--format", "template", help=r"Such as '%s %t %v\n'; see above.")
@click.option("-o", "--output", type=click.Choice(SHAPES), help="[default: text on a terminal, else ndjson]")
@click.option("--headers", is_flag=True, help="Show headers as well; JSON always has them.")
@click.option("--exec", "command", metavar="COMMAND", help="Run this shell command on each message.")
@click.option(
    "--on-error",
    type=Word(["retry", "reject", "release", "ack"]),
    help="What to do with a message whose command fails.  [default: retry]",
)
@click.option("--concurrency", type=click.IntRange(min=1, max=1000), help="Commands that run at once.  [default: 1]")
@click.option("--no-ack", is_flag=True, help="Do not ack: the messages go back to the group at the end.")
@group_settings
@hub_options
def sub(
    patterns: tuple[str, ...],
    group: str | None,
    start: "Start | None",
    count: int | None,
    timeout: float | None,
    template: str | None,
    output: str | None,
    headers: bool,
    command: str | None,
    on_error: str | None,
    concurrency: int | None,
    no_ack: bool,
    settings: dict[str, Any],
    url: str,
    connect_timeout: float,
) -> int:
    """Receive messages, and write or execute each."""
    _check_group(patterns, group, settings, no_ack=no_ack)
    shows = {"template": template, "output": output, "headers": headers, "no_ack": no_ack}
    command = _chosen_command(command, on_error, concurrency, shows)
    shape = chosen_shape(headers=headers, template=template, output=output)
    from fabric_client import HubError

    tally = _Tally()
    how = {"group": group, "start": start, "count": count, "timeout": timeout, **settings}
    with sigterm_interrupts(), connect(url, connect_timeout) as fab:
        try:
            if command is not None:
                _work(fab, patterns, Command(command), tally, how, on_error or "retry", concurrency or 1)
            else:
                with fab.consume_batches(*patterns, **how) as consumer:
                    _stream(consumer, shape, sys.stdout.buffer, tally, ack=not no_ack)
            if group is not None and not no_ack:
                fab.flush(ACKS_S if timeout is None else max(timeout, ACKS_S_MIN))
        except HubError as error:
            if patterns or error.code != Code.BAD_OPTION:
                raise
            raise Failed(str(error), f"give PATTERNS for the new group {group}", EXIT_USAGE) from error
        except KeyboardInterrupt:
            _settle(fab, tally)
            return 0
        except BrokenPipeError:
            _close_output()
            return 0
        if not (tally.count or fab.connected):
            raise Failed(f"no message came, and the hub at {url} is lost", "start the hub, then try again", EXIT_NO_HUB)
    if timeout is not None and not tally.count and shape.for_people:
        click.echo(f"no message came in {shown_seconds(timeout)}", err=True)
    return _exit_code(tally, count, timeout)


def _exit_code(tally: "_Tally", count: int | None, timeout: float | None) -> int:
    if timeout is not None and not tally.count:
        return EXIT_NOTHING
    return EXIT_PARTLY if tally.failed or (count is not None and tally.count < count) else 0


def _check_group(patterns: Sequence[str], group: str | None, settings: Mapping[str, Any], *, no_ack: bool) -> None:
    """Raise when an option needs --group."""
    if not patterns and group is None:
        usage("give PATTERNS or --group")
    if settings and group is None:
        usage(f"{_written(settings)} is a setting of a group: it needs --group")
    if no_ack and group is None:
        usage("--no-ack needs --group: without a group nothing is acked")


def _chosen_command(
    command: str | None, on_error: str | None, concurrency: int | None, shows: Mapping[str, Any]
) -> str | None:
    """The command of --exec, if it counts. Raise when it does not go with other options."""
    if command is None and (on_error is not None or concurrency is not None):
        usage("--on-error and --concurrency need --exec")
    chosen = prevailing(command=command, **shows)
    found: str | None = chosen.pop("command")
    if found is not None and any(chosen.values()):
        usage("-f, -o, --headers and --no-ack cannot be used with --exec: the command gets the messages")
    return found


class _Tally:
    def __init__(self) -> None:
        self.count = 0
        self.redelivered = 0
        self.failed = 0
        self._begun = time.monotonic()

    def add(self, batch: "Batch") -> None:
        self.count += batch.count
        self.redelivered += batch.count if batch.attempt > 1 else 0

    def summary(self) -> str:
        again = f", {self.redelivered:,} redelivered" if self.redelivered else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"received {self.count:,} in {shown_seconds(time.monotonic() - self._begun)}{again}{failed}"


def _work(
    fab: "Client",
    patterns: Sequence[str],
    command: Command,
    tally: _Tally,
    how: dict[str, Any],
    on_error: str,
    concurrency: int,
) -> None:
    """Run the command for each message; for a group, in `concurrency` threads."""

    def handle(message: "Message") -> None:
        tally.count += 1
        tally.redelivered += message.attempt > 1
        try:
            command.write(command.run(message))
        except CommandFailed as error:
            tally.failed += 1
            click.echo(f"#{message.seq} {message.topic} attempt {message.attempt}: {error}", err=True)
            match on_error:
                case "retry":
                    message.retry(reason=str(error))
                case "reject":
                    message.reject(str(error))
                case "release":
                    message.release()

    with command.interruptible():
        if how["group"] is not None:
            fab.work(patterns, handle, concurrency=concurrency, **how)
            return
        with fab.consume(*patterns, **how) as consumer:
            for message in consumer:
                handle(message)


def _written(settings: Mapping[str, Any]) -> str:
    """The option of the first setting."""
    name = next(iter(settings))
    return "--backoff-base" if name == "backoff_first" else f"--{name.replace('_', '-')}"


def _stream(consumer: "Consumer[Batch]", shape: Shape, out: IO[bytes], tally: _Tally, *, ack: bool) -> None:
    out.write(shape.opening)
    out.flush()
    try:
        for batch in consumer:
            try:
                out.write(shape.render(batch, first=not tally.count))
                out.flush()
            except BaseException:
                batch.release()
                raise
            tally.add(batch)
            if ack:
                batch.ack()
    finally:
        if sys.exc_info()[0] is not BrokenPipeError:
            out.write(shape.closing)
            out.flush()


def _settle(fab: "Client", tally: _Tally) -> None:
    """Print the summary, and wait until the hub has the acks, after Ctrl-C."""
    click.echo(f"{chr(13)}{tally.summary()}" if sys.stderr.isatty() else tally.summary(), err=True)
    fab.flush(ACKS_S_MIN)


def _close_output() -> None:
    """Replace the closed output by /dev/null: Python writes to it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
