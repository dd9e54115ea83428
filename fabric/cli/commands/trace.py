"""`fabric trace`: what happened to one message, in order of time, and what it waits for now."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fabric.cli import EXIT_NOT_FOUND
from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.message_story import Ask, collect, lines, seq_of
from fabric.cli.support.noun import hint_if_missing
from fabric.cli.support.tables import PIPE_WIDTH, Failed, document, output_options, readable, usage

OFF = "events are off, so deliveries are not recorded: 'fabric setting set events on' records them from now on"

NOT_FOUND = "'fabric get --last -o json' shows the newest messages with their seqs and keys"


@click.command("trace")
@click.argument("seq", required=False, type=click.IntRange(min=1))
@click.option("--id", "id_", metavar="ID", help="The newest message with this id, instead of SEQ.")
@click.option("--key", metavar="KEY", help="The newest message with this key, instead of SEQ.")
@click.option("--topic", metavar="PATTERN", help="With --id or --key: only messages of these topics; this is quicker.")
@click.option("--before", type=click.IntRange(min=1), help="With --id or --key: only messages below this seq.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Read this journal, which no hub uses, instead of asking a hub.",
)
@output_options
@asking_options
def trace(
    seq: int | None,
    id_: str | None,
    key: str | None,
    topic: str | None,
    before: int | None,
    data: Path | None,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Show what happened to one message: its deliveries and verdicts, its dead letters and redrives, and what it waits
    for now in each group.

    \b
    Examples:
      fabric trace 1042
      fabric trace --id order-17 --topic 'orders.#'
      fabric trace --key customer-5 -o json
      fabric trace 1042 --data ./fabric-data        without a hub

    Deliveries are recorded while the setting events is on: 'fabric setting set events on'. Exit code 4: there is no
    such message.
    """
    if (seq is not None) + (id_ is not None) + (key is not None) != 1:
        usage("give a SEQ, or --id, or --key")
    if seq is not None and (topic is not None or before is not None):
        usage("--topic and --before need --id or --key")
    with _asking(data, url, connect_timeout) as ask:
        if seq is None:
            seq = seq_of(ask, before, id=id_, key=key, pattern=topic)
        if seq is None:
            raise Failed(f"there is no message with {_wanted(id_, key, topic, before)}", NOT_FOUND, EXIT_NOT_FOUND)
        with hint_if_missing(NOT_FOUND):
            story = collect(ask, seq)
    if as_json:
        told = {**story, "steps": [readable(step) for step in story["steps"]]}
        told["message"] = _readable(story["message"]) if story["message"] is not None else None
        told["groups"] = [readable(row) for row in story["groups"]]
        click.echo(document("fabric.trace.v1", told))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH
        click.echo("\n".join(lines(story, width)))
        if not story["recording"]:
            click.echo(click.style("hint: ", fg="cyan") + OFF, err=True)


def _readable(message: dict[str, Any]) -> dict[str, Any]:
    """A message for JSON, with times as text."""
    origin = {"origin": readable(message["origin"])} if "origin" in message else {}
    return {**readable(message), **origin}


def _wanted(id_: str | None, key: str | None, topic: str | None, before: int | None) -> str:
    """The message that was looked for."""
    what = f"id {id_!r}" if id_ is not None else f"key {key!r}"
    on = f" on a topic that matches {topic!r}" if topic is not None else ""
    return what + on + (f" below seq {before:,}" if before is not None else "")


@contextmanager
def _asking(data: Path | None, url: str, connect_s: float) -> Iterator[Ask]:
    """Asks a hub, or a journal without a hub."""
    if data is None:
        with connect(url, connect_s) as fab:
            yield fab.info
        return
    from fabric.hub.offline import OfflineHub  # late: a hub is rarely started by a command

    with OfflineHub(data) as hub:
        yield hub.info
