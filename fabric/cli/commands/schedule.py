"""`fabric schedule …`: lists and cancels schedules. `fabric pub --delay` and similar options make them."""

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli.support import completion
from fabric.cli.support.connect import asking_options, connect
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import Column, ago, output_options, say, show_rows, span
from fabric.cli.support.values import shown_bytes, shown_time

if TYPE_CHECKING:
    from fabric_client.core.schedules import Schedule

COLUMNS: Final = (
    Column("ID", "id"),
    Column("NAME", "name", folds=True, usual=None, rank=1),
    Column("DUE", "due_us", ago, rank=0),
    Column("TOPIC", "topic", folds=True, rank=0),
    Column("MESSAGES", "count", usual=1, rank=3),
    Column("BYTES", "bytes", shown_bytes, rank=3),
    Column("EVERY", "every_ms", span, usual=None),
    Column("CRON", "cron", usual=None),
    Column("TTL", "ttl_ms", span, usual=None, rank=3),
)


@click.group("schedule", cls=Noun)
def schedule() -> None:
    """Schedules of delayed and repeated publishes.

    \b
    Examples:
      fabric pub reminders.due 'call Ada' --delay 2h
      fabric pub reports.daily '{}' --cron '0 6 * * *' --name daily-report
      fabric schedule list
      fabric schedule cancel daily-report
    """


@schedule.command("list")
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="Most schedules to list."
)
@output_options
@asking_options
def list_command(count: int, as_json: bool, url: str, connect_timeout: float) -> None:
    """List the schedules, in the order of their due times.

    \b
    Examples:
      fabric schedule list
      fabric schedule list -n 5 --json | jq '.schedules[] | {id, due, topic}'
    """
    with connect(url, connect_timeout) as fab:
        total = fab.info("schedules", n=1)["count"]
        rows = [_row(found) for found in islice(fab.schedules(page=min(count, 500)), count)]
    show_rows("fabric.schedule.list.v1", "schedules", rows, COLUMNS, as_json, "there are no schedules", count=total)
    if total > len(rows) and rows and not as_json:
        click.echo(f"and more: {total:,} in all; see them with -n", err=True)


@schedule.command("cancel")
@click.argument("schedules", metavar="ID_OR_NAME...", nargs=-1, required=True, shell_complete=completion.schedules)
@click.option("--name", "by_name", is_flag=True, help="Take the arguments as names, even if they are numbers.")
@output_options
@asking_options
def cancel_command(schedules: tuple[str, ...], by_name: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Cancel schedules, by the id that 'fabric pub' has printed, or by name.

    \b
    Examples:
      fabric schedule cancel 17
      fabric schedule cancel daily-report

    Exit code 4: there is no such schedule; it may have fired, or may be cancelled already.
    """
    with connect(url, connect_timeout) as fab:
        for text in schedules:
            is_id = not by_name and text.isascii() and text.isdigit() and len(text) < 19
            due = fab.cancel(int(text)) if is_id else fab.cancel(name=text)
            fields = {"schedule": int(text) if is_id else text, "cancelled": True, "due_us": due.timestamp() * 1e6}
            sentence = f"schedule {text}: cancelled; it was due {shown_time(due.timestamp())}"
            say("fabric.schedule.cancel.v1", fields, sentence, as_json)


def _row(found: "Schedule") -> dict[str, Any]:
    return {
        "id": found.id,
        "name": found.name or None,
        "due_us": round(found.due.timestamp() * 1e6),
        "topic": found.topic,
        "count": found.count,
        "bytes": found.bytes,
        "every_ms": round(found.every.total_seconds() * 1000) if found.every else None,
        "cron": found.cron or None,
        "ttl_ms": round(found.ttl.total_seconds() * 1000) if found.ttl else None,
    }
