"""`fabric sub`: messages to standard output, as a member of a group or without a trace.

A message of a group is acked after it was written and flushed: whoever reads our output has it then. When that
reader leaves, what could not be written goes back to the group, uncounted.
"""

import os
import sys
import time
from typing import IO, TYPE_CHECKING

import click

from fabric.cli import EXIT_NOTHING, EXIT_PARTLY
from fabric.cli_client import connect, hub_options, sigterm_interrupts
from fabric.cli_shape import SHAPES, Shape, shape_of
from fabric.cli_values import Duration, Position, shown_seconds

if TYPE_CHECKING:
    from fabric_client import Batch, Client, Consumer


@click.command()
@click.argument("patterns", nargs=-1, required=True)
@click.option("--group", help="Share the work with others of this name, and ack what was written.")
@click.option(
    "--start",
    type=Position(),
    help="first, new, last, seq:120, 1h (an hour ago) or 2026-11-16T02:00Z. "
    "A group that exists goes on where it is.  [default: first with --group, else new]",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--timeout", type=Duration(), help="End when no message came for so long.")
@click.option("-f", "--format", "template", help=r"Such as '%s %t %v\n'; see below.")
@click.option("-o", "--output", type=click.Choice(SHAPES), help="[default: text on a terminal, else ndjson]")
@click.option("--ack/--no-ack", default=True, help="With --no-ack, messages go back to the group at the end.")
@click.option("--lease", type=Duration(), help="A new group's lease: how long a message is held without an ack.")
@click.option("--attempts", type=click.IntRange(min=1), help="A new group's number of tries before the dead letters.")
@hub_options
def sub(
    patterns: tuple[str, ...],
    group: str | None,
    start: str | int | float | None,
    count: int | None,
    timeout: float | None,
    template: str | None,
    output: str | None,
    ack: bool,
    lease: float | None,
    attempts: int | None,
    url: str,
    connect_timeout: float,
) -> int:
    """Receive the messages whose topic matches one of PATTERNS.

    \b
    Examples:
      fabric sub 'orders.#'                                  everything from now on
      fabric sub 'orders.#' --start first --timeout 1s       all that is stored
      fabric sub 'orders.*' --group billing --count 10       take ten from a group
      fabric sub '#' --start 1h -f '%T %t %v\\n' | grep error
      fabric sub '$dlq.billing' --start first -o json --timeout 1s

    \b
    Patterns: * is one word, # any number of words, > as the last word one or more.
    Format:   %t topic  %s seq  %v value  %k key  %h headers as JSON  %a attempt
              %T time   %S size in bytes  %g group  %% percent  \\n \\t \\\\ as usual

    Ctrl-C prints a summary and ends with exit code 0. Exit code 7: nothing came before --timeout; 8: less than --count.
    """
    if template is not None and output is not None:
        raise click.UsageError("-f and -o do not go together")
    shape = shape_of(template, output or ("text" if sys.stdout.isatty() else "ndjson"))
    if not ack and group is None:
        raise click.UsageError("--no-ack needs --group; without a group nothing is acked anyway")
    tally = _Tally()
    with sigterm_interrupts(), connect(url, connect_timeout) as fab:
        try:
            consumer = fab.consume_batches(
                *patterns, group=group, start=start, count=count, timeout=timeout, lease=lease, attempts=attempts
            )
            with consumer:
                _stream(consumer, shape, sys.stdout.buffer, tally, ack=ack)
            if group is not None and ack:
                fab.flush()
        except KeyboardInterrupt:
            _settle(fab, tally)
            return 0
        except BrokenPipeError:
            # Whoever read our output has seen enough. Nothing more can be written, not even when Python closes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    if timeout is not None and not tally.count:
        return EXIT_NOTHING
    return EXIT_PARTLY if count is not None and tally.count < count else 0


class _Tally:
    def __init__(self) -> None:
        self.count = 0
        self.redelivered = 0
        self._begun = time.monotonic()

    def add(self, batch: "Batch") -> None:
        self.count += batch.count
        self.redelivered += batch.count if batch.attempt > 1 else 0

    def summary(self) -> str:
        again = f", {self.redelivered:,} redelivered" if self.redelivered else ""
        return f"received {self.count:,} in {shown_seconds(time.monotonic() - self._begun)}{again}"


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
    """The user wants to leave: say what was received, and let the acks reach the hub."""
    click.echo(f"{chr(13)}{tally.summary()}" if sys.stderr.isatty() else tally.summary(), err=True)
    fab.flush(2.0)
