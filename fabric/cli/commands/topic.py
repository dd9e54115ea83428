"""`fabric topic …`: lists topics, changes their settings, removes their messages."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NOT_FOUND
from fabric.cli.support import completion
from fabric.cli.support.connect import all_rows, asking_options, connect
from fabric.cli.support.noun import Noun, hint_if_missing
from fabric.cli.support.settings_options import topic_settings
from fabric.cli.support.tables import (
    Column,
    Failed,
    Row,
    ago,
    confirm,
    counted,
    limit,
    output_options,
    plural,
    say,
    show_fields,
    show_rows,
    span,
    usage,
    yes_option,
)
from fabric.cli.support.values import Moment, Seq, shown_bytes, shown_time

if TYPE_CHECKING:
    from fabric_client import Client

COUNTING_WAIT_S: Final = 3.0  # then the command shows what is counted so far
COUNTING_PAUSE_S: Final = 0.1


def _when(time_us: int) -> str:
    return ago(time_us) if time_us else "-"


COLUMNS: Final = (
    Column("TOPIC", "topic", folds=True),
    Column("MESSAGES", "msgs", counted, rank=0),
    Column("BYTES", "bytes", shown_bytes),
    Column("LAST", "last_us", _when),
    Column("KEEP", "keep", usual="limits"),
    Column("MAX AGE", "max_age_ms", limit(span), usual=0, rank=3),
    Column("MAX MESSAGES", "max_msgs", limit(), usual=0, rank=3),
    Column("MAX BYTES", "max_bytes", limit(shown_bytes), usual=0, rank=3),
    Column("ON FULL", "on_full", usual="refuse", rank=3),
    Column("DEDUPE", "dedupe", usual="window", rank=4),
)
FIELDS: Final = (
    Column("topic", "topic"),
    Column("messages", "msgs", counted),
    Column("bytes", "bytes", shown_bytes),
    Column("first seq", "first_seq"),
    Column("last seq", "last_seq"),
    Column("first message", "first_us", _when),
    Column("last message", "last_us", _when),
    Column("removed below seq", "floor"),
    Column("keep", "keep"),
    Column("max age", "max_age_ms", limit(span)),
    Column("max messages", "max_msgs", limit()),
    Column("max bytes", "max_bytes", limit(shown_bytes)),
    Column("on full", "on_full"),
    Column("dedupe", "dedupe"),
    Column("dedupe window", "dedupe_ms", span),
    Column("queue", "queue"),
    Column("groups", "groups"),
    Column("more keys than it can follow", "overflowed"),
)


def described(row: Row) -> dict[str, Any]:
    """A row of the hub with its settings as fields, for tables and jq."""
    return {**row, **row.get("settings", {})}


def known_topic(fab: "Client", name: str) -> Row:
    """INFO about a topic that has settings or messages. The hub itself answers for every name."""
    row = fab.info("topic", name)
    if not row.get("configured") and next(iter(fab.get(name, last=True, n=1)), None) is None:
        why = f"there is no topic {name!r}: it has no settings, and no message is stored on it"
        raise Failed(why, "'fabric topic list' shows the existing names", EXIT_NOT_FOUND)
    return row


def removed(answer: Row) -> str:
    """The number of removed messages, if the hub has counted them."""
    if "removed" in answer:
        return f"{plural(answer['removed'], 'message')} removed"
    return f"all messages up to seq {answer['up_to']:,} removed" if "up_to" in answer else "all messages removed"


@click.group("topic", cls=Noun)
def topic() -> None:
    """List topics, change their settings, remove their messages.

    \b
    Examples:
      fabric topic create prices --keep last_per_key
      fabric topic create logs.debug --max-age 1h --max-messages 100000 --on-full drop_old
      fabric topic list
      fabric topic purge logs.debug

    A topic need not be created before it is used. Without settings of its own, only the limits of the hub apply.
    """


@topic.command("list")
@output_options
@asking_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List all topics with messages or settings: how many messages they have, their bytes, and their last message.

    \b
    Examples:
      fabric topic list
      fabric topic list --json | jq -r '.topics[].topic'
    """
    with connect(url, connect_timeout) as fab:
        head = _counted(lambda: fab.info("topics", n=1))
        rows = [described(row) for row in all_rows(fab, "topics", "topics")]
    besides = {name: head[name] for name in ("others", "counting", "overflowed") if name in head}
    listed = [row for row in rows if as_json or row["configured"] or not row["topic"].startswith("$")]
    show_rows("fabric.topic.list.v1", "topics", listed, COLUMNS, as_json, "there are no topics", **besides)
    for name, text in NOTES.items():
        if head.get(name) and not as_json:
            click.echo(text)


NOTES: Final = {
    "counting": "the hub still counts, so these numbers are not complete: repeat the command later",
    "overflowed": "the hub has more topics than it can count: some of them are missing here",
}


def _counted(ask: Callable[[], Row]) -> Row:
    """The answer of the hub when it has counted all messages, or after a short wait."""
    end = time.monotonic() + COUNTING_WAIT_S
    while (answer := ask()).get("counting") and time.monotonic() < end:
        time.sleep(COUNTING_PAUSE_S)
    return answer


@topic.command("show")
@click.argument("name", shell_complete=completion.topics)
@output_options
@asking_options
def show_command(name: str, as_json: bool, url: str, connect_timeout: float) -> None:
    """Show the settings and the size of a topic.

    \b
    Examples:
      fabric topic show prices
    """
    with connect(url, connect_timeout) as fab:
        row = described(_counted(lambda: known_topic(fab, name)))
    show_fields("fabric.topic.show.v1", row, FIELDS, as_json)


@topic.command("create")
@click.argument("name")
@topic_settings
@output_options
@asking_options
def create_command(name: str, settings: dict[str, Any], as_json: bool, url: str, connect_timeout: float) -> None:
    """Give the topic NAME settings of its own.

    \b
    Examples:
      fabric topic create prices --keep last_per_key
      fabric topic create orders.created --dedupe-window 1d
      fabric topic create logs.debug --max-bytes 1GB --on-full drop_old
    """
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.topics.create(name, **settings)
    made = "created" if answer.get("created", True) else "already exists with these settings"
    say("fabric.topic.create.v1", answer, f"topic {name}: {made}", as_json)


@topic.command("update")
@click.argument("name", shell_complete=completion.topics)
@topic_settings
@output_options
@asking_options
def update_command(name: str, settings: dict[str, Any], as_json: bool, url: str, connect_timeout: float) -> None:
    """Change settings of a topic. Messages above a new limit are removed.

    \b
    Examples:
      fabric topic update logs.debug --max-age 10m
    """
    if not settings:
        usage("nothing to change; give a setting, such as --max-age 7d")
    with connect(url, connect_timeout) as fab, hint_if_missing(f"'fabric topic create {name}' gives it settings"):
        answer = fab.admin.topics.update(name, **settings)
    say("fabric.topic.update.v1", answer, f"topic {name}: updated", as_json)


@topic.command("delete")
@click.argument("name", shell_complete=completion.topics)
@yes_option
@output_options
@asking_options
def delete_command(name: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Remove the messages of a topic, and its settings if it has any.

    \b
    Examples:
      fabric topic delete logs.debug --yes
    """
    with connect(url, connect_timeout) as fab:
        known_topic(fab, name)
        confirm(f"delete the topic {name} and all its messages", yes)
        answer = fab.admin.topics.delete(name)
    say("fabric.topic.delete.v1", answer, f"topic {name}: deleted, {removed(answer)}", as_json)


@topic.command("purge")
@click.argument("name", shell_complete=completion.topics)
@click.option("--up-to", type=Seq(), help="Remove messages up to this seq, and no later ones.")
@click.option(
    "--before", type=Moment("before"), help="Remove messages from before: 2026-11-16T02:00Z, or 1h (an hour ago)."
)
@click.option("--dry-run", is_flag=True, help="Print how many messages would be removed, and change nothing.")
@yes_option
@output_options
@asking_options
def purge_command(
    name: str,
    up_to: int | None,
    before: float | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Remove the messages of a topic. Groups that have not seen them are told of the gap.

    \b
    Examples:
      fabric topic purge logs.debug --yes
      fabric topic purge logs.debug --up-to 1200 --dry-run   print how many messages that would be
      fabric topic purge logs.debug --before 7d
    """
    if up_to is not None and before is not None:
        usage("give --up-to or --before, not both")
    with connect(url, connect_timeout) as fab:
        known_topic(fab, name)
        if dry_run:
            plan = purge_plan(lambda **page: fab.admin.topics.purge(name, dry_run=True, **page), up_to, before)
            say("fabric.topic.purge.v1", plan, f"would {purging('topic', name, plan)}", as_json)
            return
        confirm(f"remove {_part(up_to, before)} of the topic {name}", yes)
        answer = fab.admin.topics.purge(name, up_to=up_to, before=before)
    say("fabric.topic.purge.v1", answer, f"topic {name}: {removed(answer)}", as_json)


def _part(up_to: int | None, before: float | None) -> str:
    """The messages that a purge removes."""
    if up_to is not None:
        return f"all messages up to seq {up_to:,}"
    return "all messages" if before is None else f"all messages from before {shown_time(before)}"


def purge_plan(ask: Callable[..., Row], up_to: int | None = None, before: float | None = None) -> dict[str, Any]:
    """What a purge would remove, counted by the hub in as many steps as it needs."""
    answer = ask(**_given(up_to=up_to, before=before))
    plan = {**answer, "dry_run": True}
    while answer["more"]:
        answer = ask(**_given(up_to=plan["up_to"], after=answer["next"]))
        plan["removed"] += answer["removed"]
        plan["bytes"] += answer["bytes"]
    return {name: value for name, value in plan.items() if name not in ("more", "next")}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def purging(noun: str, name: str, plan: Row) -> str:
    size = shown_bytes(plan["bytes"])
    return f"remove {plural(plan['removed'], 'message')} ({size}) of the {noun} {name} up to seq {plan['up_to']:,}"
