"""`fabric top`: a live view of a hub on a terminal; elsewhere, and with --once, views are printed."""

import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from fabric.cli.support.connect import hear_client, hub_options, present, sigterm_interrupts, told_origin
from fabric.cli.support.destination import credentials_of
from fabric.cli.support.tables import output_options, usage
from fabric.cli.support.values import Duration

if TYPE_CHECKING:
    from fabric.top.state import State

PAGES: Final = ("groups", "topics", "sessions")
INTERVAL_MIN_S: Final = 0.1  # ten answers a second: the eye sees no more, and the hub must not be slowed by a view
ANSWER_S: Final = 10.0
CLOSE_S: Final = 0.5  # a hub that does not answer must not delay the end of the command


@click.command("top")
@click.option("--once", is_flag=True, help="Print one view, after one interval, and end.")
@click.option(
    "--interval", type=Duration(), default=1.0, show_default="1s", help="How often the hub is asked; 100ms or more."
)
@click.option("--page", type=click.Choice(PAGES), default="groups", show_default=True, help="The first page.")
@click.option("--sort", metavar="COLUMN", help="Order by a column, such as ready; its name in JSON.")
@click.option("--reverse", is_flag=True, help="The other way round.")
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Only names that have TEXT in them.")
@click.option(
    "--timeout",
    type=Duration(),
    help="How long to wait for an answer; with --once, time for the whole command.  [default: 10s for each answer]",
)
@output_options
@hub_options
def top(
    once: bool,
    interval: float,
    page: str,
    sort: str | None,
    reverse: bool,
    wanted: str,
    timeout: float | None,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> int:
    """Watch a hub: rates, messages that wait, in flight and retrying, dead letters, topics and sessions.

    \b
    Examples:
      fabric top
      fabric top --sort oldest_s --filter orders
      fabric top --page sessions --interval 500ms
      fabric top --once -o table
      fabric top --once -o json | jq -r '.groups[] | select(.ready > 1000).group'

    Keys: q quits, ? shows all keys, Tab turns the page, Enter shows details of a row, / filters, < and > change the
    order, p pauses. Where standard output is not a terminal, a view is printed at each interval until Ctrl-C.
    """
    from fabric.top import columns
    from fabric.top.state import State

    known = [column.key for column in columns.BY_PAGE[page]]
    if sort is not None and sort not in known:
        usage(f"the page of {page} has no column {sort!r}; --sort takes {', '.join(known)}")
    if interval < INTERVAL_MIN_S:
        usage("--interval must be 100ms or more")
    if timeout is not None and timeout <= 0:
        usage("--timeout must be more than 0")
    if once and timeout is not None and timeout <= interval:
        usage("--timeout must be longer than --interval: with --once, the hub is asked twice, for the rates")
    state = State(page, sort, reverse, wanted)
    options = Options(url, connect_timeout, interval, timeout, as_json, once)
    import asyncio  # late: its import takes long

    hear_client()
    with sigterm_interrupts():
        return asyncio.run(watch(options, state))


class Options(NamedTuple):
    url: str
    connect_s: float
    interval_s: float
    timeout_s: float | None
    as_json: bool
    once: bool


async def watch(options: Options, state: "State") -> int:
    """Connect, and show or print the hub; returns the exit code."""
    import asyncio

    import fabric_client
    from fabric.top.printer import Printer, is_dumb

    deadline_s = time.monotonic() + options.timeout_s if options.once and options.timeout_s else None
    connect_s = min(options.connect_s, options.timeout_s or options.connect_s)
    answer_s = options.timeout_s or ANSWER_S
    to = present(options.url)
    with told_origin(to):
        fab = await fabric_client.aconnect(
            options.url, credentials=credentials_of(to), name="fabric-top", timeout=connect_s
        )
    try:
        if not (options.once or options.as_json) and sys.stdout.isatty() and not is_dumb():
            from fabric.top.loop import Top

            return await Top(fab, options.url, state, options.interval_s, answer_s).run()
        printer = Printer(fab, options.url, state, options.interval_s, options.as_json)
        if not options.once:
            await printer.run(answer_s)
        try:
            async with asyncio.timeout_at(deadline_s):
                await printer.once(answer_s)
        except fabric_client.Timeout:
            raise
        except TimeoutError as error:  # of the whole command
            raise fabric_client.Timeout(f"no answer in {options.timeout_s:g} s", "give a longer --timeout") from error
    finally:
        await fab.close(timeout=CLOSE_S)
    return 0
