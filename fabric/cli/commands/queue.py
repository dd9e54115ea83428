"""`fabric queue …`: a topic that keeps each message until it is acked, and the group of the same name."""

from typing import Any, Final

import click

from fabric.cli.commands.topic import described, purge_plan, purging, removed
from fabric.cli.support import completion
from fabric.cli.support.connect import all_rows, asking_options, connect
from fabric.cli.support.noun import Noun
from fabric.cli.support.settings_options import queue_settings
from fabric.cli.support.tables import Column, confirm, counted, limit, output_options, say, show_rows, yes_option
from fabric.cli.support.values import shown_bytes

COLUMNS: Final = (
    Column("QUEUE", "queue", folds=True),
    Column("MESSAGES", "msgs", counted, rank=0),
    Column("BYTES", "bytes", shown_bytes, rank=3),
    Column("CONSUMERS", "members"),
    Column("IN FLIGHT", "outstanding"),
    Column("RETRYING", "redelivering", rank=4),
    Column("DEAD", "dead_letters", rank=1),
    Column("MAX MESSAGES", "max_msgs", limit(), usual=0, rank=5),
)


@click.group("queue", cls=Noun)
def queue() -> None:
    """Work queues: a topic that keeps each message until it is acked, and the group of the same name.

    \b
    Examples:
      fabric queue create jobs --attempts 3 --max-messages 100000
      fabric pub jobs 'resize cat.jpg'
      fabric sub --group jobs --exec ./resize
      fabric queue list
    """


@queue.command("list")
@output_options
@asking_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List all queues and the number of their messages.

    \b
    Examples:
      fabric queue list
      fabric queue list --json | jq '.queues[] | {queue, msgs}'
    """
    with connect(url, connect_timeout) as fab:
        topics = [row for row in map(described, all_rows(fab, "topics", "topics")) if row["queue"]]
        groups = {row["group"]: row for row in all_rows(fab, "groups", "groups")} if topics else {}
        dead = {row["group"]: row["count"] for row in all_rows(fab, "dlq", "groups")} if topics else {}
    rows = []
    for row in topics:
        name = row["topic"]
        rows.append({**groups.get(name, {}), **row, "queue": name, "dead_letters": dead.get(name, 0)})
    show_rows(
        "fabric.queue.list.v1",
        "queues",
        rows,
        COLUMNS,
        as_json,
        "there are no queues; create one with 'fabric queue create NAME'",
    )


@queue.command("create")
@click.argument("name")
@queue_settings
@output_options
@asking_options
def create_command(name: str, settings: dict[str, Any], as_json: bool, url: str, connect_timeout: float) -> None:
    """Create the queue NAME: publish to the topic of that name, consume with the group of that name.

    \b
    Examples:
      fabric queue create jobs
      fabric queue create mail --attempts 10 --backoff-max 1h --max-messages 100000 --on-full refuse
    """
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.queues.create(name, **settings)
    made = "created" if answer.get("created", True) else "already exists with these settings"
    sentence = f"queue {name}: {made}; consume it with 'fabric sub --group {name}'"
    say("fabric.queue.create.v1", answer, sentence, as_json)


@queue.command("delete")
@click.argument("name", shell_complete=completion.topics)
@yes_option
@output_options
@asking_options
def delete_command(name: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Delete a queue: its messages, the settings of its topic, and its group.

    \b
    Examples:
      fabric queue delete jobs --yes
    """
    with connect(url, connect_timeout) as fab:
        fab.admin.queues.purge(name, dry_run=True)  # is there such a queue?
        confirm(f"delete the queue {name} and all its messages", yes)
        answer = fab.admin.queues.delete(name)
    say("fabric.queue.delete.v1", answer, f"queue {name}: deleted, {removed(answer)}", as_json)


@queue.command("purge")
@click.argument("name", shell_complete=completion.topics)
@click.option("--dry-run", is_flag=True, help="Print how many messages would be removed, and change nothing.")
@yes_option
@output_options
@asking_options
def purge_command(name: str, dry_run: bool, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Remove all messages of a queue.

    \b
    Examples:
      fabric queue purge jobs --dry-run       print how many messages that would be
      fabric queue purge jobs --yes
    """
    with connect(url, connect_timeout) as fab:
        if dry_run:
            plan = purge_plan(lambda **page: fab.admin.queues.purge(name, dry_run=True, after=page.get("after")))
            say("fabric.queue.purge.v1", plan, f"would {purging('queue', name, plan)}", as_json)
            return
        fab.admin.queues.purge(name, dry_run=True)  # is there such a queue?
        confirm(f"remove all messages of the queue {name}", yes)
        answer = fab.admin.queues.purge(name)
    say("fabric.queue.purge.v1", answer, f"queue {name}: {removed(answer)}", as_json)
