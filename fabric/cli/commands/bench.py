"""`fabric bench`: runs the chosen measurements on a hub in a temporary folder, and prints each figure at once."""

import json
from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fabric.cli.support.connect import sigterm_interrupts
from fabric.cli.support.values import Duration, Size

if TYPE_CHECKING:
    from fabric.bench.figures import Figure
    from fabric.bench.parts import Settings

PARTS: Final = (
    "e2e",
    "publish",
    "drain",
    "kib",
    "singles",
    "latency",
    "topics",
    "groups",
    "journal",
    "delayed",
    "keys",
    "ids",
    "shares",
    "start",
    "info",
    "pulse",
    "events",
    "curve",
    "tenants",
)
SHORT: Final = PARTS[:6]
GROWTH: Final = PARTS[6:9]


HELP: Final = """Measure this machine, on a hub of its own in a temporary folder.

\b
Examples:
  fabric bench                                  the most important figures, in half a minute
  fabric bench e2e --seconds 5s --repeats 5
  fabric bench growth --queued 20000000         many topics, many groups, a long journal
  fabric bench info --queued 20000000           how fast the lists of a full hub are
  fabric bench --data /var/lib --json > bench.json

\b
Parts:
  e2e      publish + deliver + ack, one producer and one consumer at the same time
  publish  publish alone                 drain    deliver + ack alone, 1 and 2 consumers
  kib      1 KiB next to LMDB alone      singles  single messages from 50 connections
  latency  publish to handler at 2,000 msg/s, next to one synced commit
  delayed  memory and lateness of delayed publishes
  keys     order by key, with 10,000 keys
  ids      an id on every message, at first and when --queued ids are known
  shares   one publish beside clients that flood the hub
  start    from the start of the hub until it is ready, and until clients are back
  info     lists of 1,000 groups and 10,000 topics over --queued messages, and 'fabric group list'
  pulse    what a viewer costs the hub that asks for a pulse four times a second
  events   what delivery events cost the hub
  curve    what encryption costs, and how soon 2,000 encrypted clients are back after kill -9
  tenants  what a principal that floods leaves to another one
  growth   topics, groups, journal       all      everything; without parts: the first six

Producers and consumers are processes of their own; they use the Python client, with an object for each message.
"""


@click.command(help=HELP)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, "growth", "all"]), metavar="[PART]...")
@click.option(
    "--size", type=Size(), default=128, show_default=True, help="Bytes of a message, if the part does not fix them."
)
@click.option("--seconds", type=Duration(), default=1.5, show_default="1.5s", help="Length of one run.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="Messages of one run, instead of --seconds.")
@click.option("--repeats", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs; the median counts.")
@click.option(
    "--queued",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="Messages for the parts journal, delayed and info, ids for the part ids.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Parent of the temporary folder: measures this disk.  [default: the system's]",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of lines.")
@click.option(
    "--save", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Also write the JSON to this file."
)
def bench(
    parts: tuple[str, ...],
    size: int,
    seconds: float,
    count: int,
    repeats: int,
    queued: int,
    data: Path | None,
    as_json: bool,
    save: Path | None,
) -> None:
    """Measure the parts, and print each figure as soon as it is measured."""
    import logging
    import tempfile

    from fabric.bench import machine, report
    from fabric.bench.parts import Settings

    logging.getLogger("fabric_client").setLevel(logging.CRITICAL)  # a part that kills its hub expects lost connections
    settings = Settings(size=size, seconds=seconds, messages=count, repeats=repeats, queued=queued, folder=data)
    about = machine.describe(data or Path(tempfile.gettempdir()))
    if not as_json:
        click.echo("\n".join(report.heading(about)))
    figures = []
    with closing(_measured(chosen(parts), settings)) as measured:
        for figure in measured:
            figures.append(figure)
            if not as_json:
                click.echo(report.line(figure))
    document = json.dumps(report.as_json(about, settings._replace(folder=None)._asdict(), figures), indent=1)
    if as_json:
        click.echo(document)
    if save is not None:
        save.write_text(document + "\n")


def _measured(parts: Iterable[str], settings: "Settings") -> "Generator[Figure, None, None]":
    """The figures of each part, on a new hub for each part: so their order does not matter."""
    from fabric.bench import curve, delayed, growth, ids, keys, lists, recording, shares, start, tenants, viewing
    from fabric.bench import parts as short

    homes = {**dict.fromkeys(SHORT, short), **dict.fromkeys(GROWTH, growth)}
    homes |= {"delayed": delayed, "keys": keys, "ids": ids, "shares": shares, "start": start}
    homes |= {"info": lists, "pulse": viewing, "events": recording, "curve": curve, "tenants": tenants}
    for part in parts:
        with sigterm_interrupts(), short.Bench(settings) as hub:
            yield from getattr(homes[part], f"part_{part}")(hub)


def chosen(words: tuple[str, ...]) -> list[str]:
    """The chosen parts, each once, in order."""
    wanted = set(words or SHORT)
    if "all" in wanted:
        return list(PARTS)
    return [part for part in PARTS if part in wanted or ("growth" in wanted and part in GROWTH)]
