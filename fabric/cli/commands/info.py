"""`fabric info`: shows the hub's answers to INFO with the field names of the wire."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from fabric.cli import EXIT_NOT_FOUND
from fabric.cli.commands.topic import known_topic
from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.noun import hint_if_missing, not_found_hint
from fabric.cli.support.tables import Column, Failed, Row, output_options, print_table, show_fields, usage

NAMED: Final = {"group": "the name of a group", "topic": "the name of a topic"}
MAY_BE_NAMED: Final = ("dlq", "schedules")
QUESTIONS: Final = (
    "hub", "health", "counters", "settings", "groups", "group", "topics", "topic", "sessions", "schedules", "dlq",
)  # fmt: skip
# The name of the list in the answer, and the module with its columns.
_LISTS: Final = {
    "groups": ("groups", "group"),
    "topics": ("topics", "topic"),
    "sessions": ("sessions", "session"),
    "schedules": ("schedules", "schedule"),
    "dlq": ("groups", "dlq"),
}


@click.command("info")
@click.argument("what", type=click.Choice(QUESTIONS), default="hub", metavar="[WHAT]")
@click.argument("name", required=False)
@output_options
@asking_options
def info(what: str, name: str | None, as_json: bool, url: str, connect_timeout: float) -> None:
    """Show what the hub answers about WHAT: itself (hub), its counters, its settings, or one of the lists.

    \b
    Examples:
      fabric info
      fabric info counters
      fabric info group billing
      fabric info dlq billing --json

    Fields have the names of the wire protocol. 'fabric group list' and similar commands are easier to read.
    """
    if what in NAMED and name is None:
        usage(f"'fabric info {what}' needs {NAMED[what]}")
    if name is not None and what not in NAMED and what not in MAY_BE_NAMED:
        usage(f"'fabric info {what}' takes no name")
    listed, module = _LISTS.get(what, (None, ""))
    with connect(url, connect_timeout) as fab:
        if what == "topic":
            known_topic(fab, str(name))
        with hint_if_missing(not_found_hint(what)):
            answer = _whole(lambda **after: fab.info(what, name, **after), listed)
    if what == "schedules" and name is not None and not answer["schedules"]:
        raise Failed(f"there is no schedule {name!r}", not_found_hint("schedule"), EXIT_NOT_FOUND)
    schema = f"fabric.info.{what}.v1"
    rows = answer.get(listed or "")
    if as_json or rows is None:
        show_fields(schema, answer, _columns(answer), as_json)
        return
    rest = {field: value for field, value in answer.items() if field != listed}
    if rest:
        show_fields(schema, rest, _columns(rest), as_json)
    if rows:
        columns: Sequence[Column] = importlib.import_module(f"fabric.cli.commands.{module}").COLUMNS
        rows = [{**row, **row.get("settings", {})} for row in rows]
        print_table(rows, [column for column in columns if any(column.key in row for row in rows)])
    elif not rest:
        click.echo("there are none")


def _whole(ask: Callable[..., dict[str, Any]], listed: str | None) -> dict[str, Any]:
    """The answer with all pages of its list."""
    answer = ask()
    while listed is not None and answer.get("more") and answer.get("next") is not None:
        page = ask(after=answer["next"])
        answer = {**page, listed: answer[listed] + page[listed]}
    return {field: value for field, value in answer.items() if field not in ("more", "next") or listed is None}


def _columns(fields: Row) -> list[Column]:
    """A line for each field."""
    return [Column(name.replace("_", " "), name) for name in fields]
