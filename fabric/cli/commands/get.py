"""`fabric get`: reads stored messages without a group, and changes nothing."""

import sys
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NOTHING
from fabric.cli.support import completion
from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.message_format import Shape, chosen_shape, shape_options
from fabric.cli.support.tables import usage
from fabric.cli.support.values import Moment, Seq

if TYPE_CHECKING:
    from fabric_client import Message

ALL: Final = 1 << 62


@click.command("get")
@click.argument("pattern", required=False, shell_complete=completion.topics)
@click.option("--from", "seq", type=Seq(), help="From this seq on: 120, or first.  [default: first]")
@click.option(
    "--time", "moment", type=Moment("before"), help="From this time on: 2026-11-16T02:00Z, or 1h (an hour ago)."
)
@click.option("--last", is_flag=True, help="The last messages.")
@click.option("--by-key", is_flag=True, help="Only the latest message of each topic and key.")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="Most messages to read.  [default: 10; with --by-key all]"
)
@click.option("--all", "everything", is_flag=True, help="All messages.")
@click.option("--headers", is_flag=True, help="Show headers as well; JSON always has them.")
@shape_options
@asking_options
def get(
    pattern: str | None,
    seq: int | None,
    moment: float | None,
    last: bool,
    by_key: bool,
    count: int | None,
    everything: bool,
    headers: bool,
    template: str | None,
    output: str | None,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> int:
    """Read stored messages whose topic matches PATTERN, without a group. Without PATTERN, read all topics.

    \b
    Examples:
      fabric get 'orders.#' --last -n 3              the three newest
      fabric get --from 1200 -n 100                  a hundred from seq 1200 on
      fabric get 'orders.#' --time 1h --all -f '%T %v\\n'
      fabric get prices --by-key                     the latest of each key
      fabric get billing.DLQ --all -o json           dead letters

    Exit code 7: there are no such messages. Removed and expired messages are not shown.
    """
    if (seq is not None) + (moment is not None) + last > 1:
        usage("--from, --time and --last exclude each other")
    if last and by_key:
        usage("--last and --by-key exclude each other")
    if everything and count is not None:
        usage("-n and --all exclude each other")
    shape = chosen_shape(headers=headers, template=template, output=output, as_json=as_json)
    most = ALL if everything else count or (ALL if by_key else 10)
    asked: dict[str, Any] = {"seq": seq, "time": moment, "last": last, "by_key": by_key}
    if last and most > 1000:
        usage("--last reads at most 1000 messages; read more with --from or --time")
    with connect(url, connect_timeout) as fab:
        found = fab.get(pattern, **asked, n=most if last or most == ALL else most + 1)
        shown = _write(shape, islice(found, most))
        following = None if last else next(found, None)
    if following is not None and shape.for_people:
        click.echo(f"there are more: go on with --from {following.seq}, or --all", err=True)
    if not shown and shape.for_people:
        click.echo("there are no such messages", err=True)
    return 0 if shown else EXIT_NOTHING


def _write(shape: Shape, messages: "Iterator[Message]") -> int:
    """Write messages as they come; returns their number."""
    out, count = sys.stdout.buffer, 0
    out.write(shape.opening)
    for message in messages:
        out.write((shape.between if count else b"") + shape.line(message))
        count += 1
    out.write(shape.closing)
    out.flush()
    return count
