"""`fabric group …`: lists, creates, changes, moves and deletes groups."""

import time
from typing import TYPE_CHECKING, Any, Final

import click

from fabric.cli import EXIT_NOTHING
from fabric.cli.support import completion
from fabric.cli.support.connect import all_rows, asking_options, connect, hub_options
from fabric.cli.support.noun import Noun
from fabric.cli.support.settings_options import group_settings
from fabric.cli.support.tables import (
    Column,
    Failed,
    Row,
    confirm,
    limit,
    output_options,
    plural,
    print_table,
    say,
    show_fields,
    show_rows,
    some,
    span,
    usage,
    waited,
    yes_option,
)
from fabric.cli.support.values import POSITIONS, Duration, Position, Seq, Text

PHASES: Final = ("none", "syncing", "ended", "ready", "degraded")  # of a refresh, by number
POLL_S: Final = 0.1  # between two requests for the phase of a refresh
COLUMNS: Final = (
    Column("GROUP", "group", folds=True),
    Column("PATTERNS", "patterns", some, folds=True, rank=3),
    Column("CONSUMERS", "members"),
    Column("READY", "ready", rank=0),
    Column("IN FLIGHT", "outstanding", rank=3),
    Column("RETRYING", "redelivering", rank=4),
    Column("DEAD", "dead_letters", rank=1),
    Column("OLDEST", "oldest_age_ms", waited, rank=2),
    Column("STATE", "state", rank=1),
)
_FIELDS: Final = (
    Column("group", "group"),
    Column("patterns", "patterns"),
    Column("state", "state"),
    Column("next seq", "cursor"),
    Column("ready", "ready"),
    Column("  seconds to drain", "drain_s"),
    Column("oldest message waits for", "oldest_age_ms", waited),
    Column("settled up to", "floor"),
    Column("in flight", "outstanding"),
    Column("to be delivered again", "redelivering"),
    Column("  after a wait", "waiting"),
    Column("  alone, as suspects", "suspects"),
    Column("with failures", "failed"),
    Column("behind their key", "parked"),
    Column("expired", "expired"),
    Column("dead letters", "dead_letters"),
    Column("lease", "lease_ms", span),
    Column("lease at most", "lease_max_ms", span),
    Column("attempts", "attempts_max", limit()),
    Column("backoff", "backoff"),
    Column("backoff base", "backoff_ms", span),
    Column("backoff at most", "backoff_max_ms", span),
    Column("jitter", "jitter_pct", "{}%".format),
    Column("order", "order"),
    Column("ack", "ack"),
    Column("on expire", "on_expire"),
    Column("level", "level"),
    Column("in flight at most", "max_in_flight", limit()),
    Column("rate", "pace"),
    Column("expires", "expires_ms", lambda ms: span(ms) if ms else "never"),
    Column("consumers", "members"),
)
_CONSUMERS: Final = (
    Column("CONSUMER", "client", folds=True),
    Column("SESSION", "session"),
    Column("CHANNEL", "chan"),
    Column("IN FLIGHT", "outstanding"),
)

if TYPE_CHECKING:
    from fabric_client.options import Start


@click.group("group", cls=Noun)
def group() -> None:
    """List, create, change, move and delete groups.

    \b
    Examples:
      fabric group list
      fabric group create billing 'orders.*' --attempts 8 --order key
      fabric group seek billing 1h                  deliver the last hour again
      fabric group settle billing --up-to 1200
      fabric group pause billing

    The first consumer also creates its group, as in 'fabric sub'. 'fabric group create' creates it before.
    """


@group.command("list")
@output_options
@asking_options
def list_command(as_json: bool, url: str, connect_timeout: float) -> None:
    """List all groups, and how many messages wait for them.

    \b
    Examples:
      fabric group list
      fabric group list --json | jq -r '.groups[] | select(.ready > 1000).group'

    READY counts messages that match the group and were not delivered yet; --json has ready_exact: whether the hub has
    counted all of them. OLDEST is how long the oldest message waits that is not settled.
    """
    with connect(url, connect_timeout) as fab:
        rows = [row for row in all_rows(fab, "groups", "groups") if row.get("durable", True)]
        dead = {row["group"]: row["count"] for row in all_rows(fab, "dlq", "groups")}
    rows = [_with_state({**row, "dead_letters": dead.get(row["group"], 0)}) for row in rows]
    show_rows("fabric.group.list.v1", "groups", rows, COLUMNS, as_json, "there are no groups")


@group.command("show")
@click.argument("name", shell_complete=completion.groups)
@output_options
@asking_options
def show_command(name: str, as_json: bool, url: str, connect_timeout: float) -> None:
    """Show the settings, the position and the consumers of a group.

    \b
    Examples:
      fabric group show billing
      fabric group show billing --json | jq .settings
    """
    with connect(url, connect_timeout) as fab:
        row = _with_state(fab.info("group", name))
    show_fields("fabric.group.show.v1", row, _FIELDS, as_json)
    if row["consumers"] and not as_json:
        click.echo()
        print_table(row["consumers"], _CONSUMERS)


@group.command("create")
@click.argument("name")
@click.argument("patterns", nargs=-1, required=True, shell_complete=completion.topics)
@click.option("--start", type=Position(), help=f"{POSITIONS}.  [default: first]")
@group_settings
@output_options
@asking_options
def create_command(
    name: str,
    patterns: tuple[str, ...],
    start: "Start | None",
    settings: dict[str, Any],
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Create the group NAME for the topics that match one of PATTERNS.

    \b
    Examples:
      fabric group create billing 'orders.*'
      fabric group create audit '#' --start new --attempts 0
      fabric group create stock 'items.#' --order key --lease 2m --backoff-base 1s
      fabric group create mails 'mail.#' --rate 10/min --max-in-flight 5
      fabric group create dashboard-7 'prices.*' --start new --expires 1h

    If the group exists with the same settings, 'create' succeeds; with other settings it fails with exit code 6.
    """
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.groups.create(name, *patterns, start=start, **settings)
    made = "created" if answer.get("created", True) else "already exists with these settings"
    say("fabric.group.create.v1", answer, f"group {name}: {made}, next seq {answer['cursor']:,}", as_json)


@group.command("update")
@click.argument("name", shell_complete=completion.groups)
@click.option(
    "--pattern", "patterns", type=Text(), multiple=True, help="New pattern; repeatable. Replaces all patterns."
)
@group_settings
@output_options
@asking_options
def update_command(
    name: str, patterns: tuple[str, ...], settings: dict[str, Any], as_json: bool, url: str, connect_timeout: float
) -> None:
    """Change settings of an existing group. Order and level cannot be changed.

    \b
    Examples:
      fabric group update billing --attempts 10 --backoff-max 1h
      fabric group update billing --rate 100/s --max-in-flight 0
      fabric group update billing --pattern 'orders.*' --pattern 'refunds.*'
    """
    if not patterns and not settings:
        usage("nothing to change; give a setting, such as --attempts 10")
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.groups.update(name, patterns=patterns or None, **settings)
    say("fabric.group.update.v1", answer, f"group {name}: updated", as_json)


@group.command("delete")
@click.argument("name", shell_complete=completion.groups)
@yes_option
@output_options
@asking_options
def delete_command(name: str, yes: bool, as_json: bool, url: str, connect_timeout: float) -> None:
    """Delete a group and its position. Messages stay in the journal; dead letters stay until they are discarded.

    \b
    Examples:
      fabric group delete billing
      fabric group delete billing --yes
    """
    with connect(url, connect_timeout) as fab:
        found = _with_state(fab.info("group", name))
        confirm(f"delete the group {name} with {plural(found['members'], 'consumer')}, {found['ready']:,} ready", yes)
        answer = fab.admin.groups.delete(name)
    say("fabric.group.delete.v1", answer, f"group {name}: deleted", as_json)


@group.command("seek")
@click.argument("name", shell_complete=completion.groups)
@click.argument("position", type=Position())
@click.option("--dry-run", is_flag=True, help="Print how many messages come again or are skipped, and change nothing.")
@yes_option
@output_options
@asking_options
def seek_command(
    name: str,
    position: "Start",
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Move a group to POSITION: messages from there on are delivered (again), messages before are not.

    \b
    Examples:
      fabric group seek billing first                deliver all messages again
      fabric group seek billing seq:1200 --dry-run   print how many messages that would be
      fabric group seek billing 1h --yes             the last hour again, without a question
      fabric group seek billing new                  skip all stored messages
      fabric group seek prices last_per_key          the latest of each key, then new messages

    Open deliveries become void, and failures are reset. The command prints the old position: seek there to go back. It
    asks before messages come again or are skipped. The number is an upper bound: messages of all topics are counted.
    """
    with connect(url, connect_timeout) as fab:
        plan = fab.admin.groups.seek(name, position, dry_run=True)
        if dry_run:
            say("fabric.group.seek.v1", {**plan, "dry_run": True}, f"would {_move(name, plan)}", as_json)
            return
        if plan["again"] or plan["skipped"]:
            confirm(_move(name, plan), yes)
        answer = fab.admin.groups.seek(name, position)
    moved = f"group {name}: next seq {answer['cursor']:,}; before it was {answer['before']:,}"
    say("fabric.group.seek.v1", answer, moved + _meaning(answer), as_json)


def _move(name: str, plan: Row) -> str:
    return f"move the group {name} from seq {plan['before']:,} to seq {plan['cursor']:,}{_meaning(plan)}"


def _meaning(plan: Row) -> str:
    """How many messages a seek delivers again or skips."""
    again = f", up to {plural(plan['again'], 'message')} again" if plan["again"] else ""
    skipped = f", up to {plural(plan['skipped'], 'message')} skipped" if plan["skipped"] else ""
    return again + skipped


@group.command("settle")
@click.argument("name", shell_complete=completion.groups)
@click.option("--up-to", type=Seq(), required=True, help="The last seq that is settled.")
@click.option("--dry-run", is_flag=True, help="Print how many messages would be settled, and change nothing.")
@yes_option
@output_options
@asking_options
def settle_command(
    name: str, up_to: int, dry_run: bool, yes: bool, as_json: bool, url: str, connect_timeout: float
) -> None:
    """Settle all messages of a group up to a seq: the group will not deliver them any more.

    \b
    Examples:
      fabric group settle billing --up-to 1200 --dry-run   print how many messages that would be
      fabric group settle billing --up-to 1200             settle them, after a question
      fabric group settle billing --up-to 1200 --yes       without a question

    Consumers that hold some of these messages are told, and their verdicts are stale. Later messages stay as they are.
    The number is an upper bound: messages of all topics are counted.
    """
    with connect(url, connect_timeout) as fab:
        plan = fab.admin.groups.settle(name, up_to, dry_run=True)
        if dry_run:
            say("fabric.group.settle.v1", {**plan, "dry_run": True}, f"would {_settling(name, plan)}", as_json)
            return
        if plan["settled"]:
            confirm(_settling(name, plan), yes)
        answer = fab.admin.groups.settle(name, up_to)
    done = f"group {name}: settled up to seq {answer['floor']:,}, {plural(answer['settled'], 'message')} at most"
    say("fabric.group.settle.v1", answer, done, as_json)


def _settling(name: str, plan: Row) -> str:
    held = f", {plan['leased']:,} of them in flight" if plan["leased"] else ""
    return f"settle up to {plural(plan['settled'], 'message')} of the group {name} up to seq {plan['up_to']:,}{held}"


@group.command("pause")
@click.argument("name", shell_complete=completion.groups)
@output_options
@asking_options
def pause_command(name: str, as_json: bool, url: str, connect_timeout: float) -> None:
    """Deliver no more messages to a group until it is resumed. Open deliveries may still be acked.

    \b
    Examples:
      fabric group pause billing
    """
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.groups.pause(name)
    say("fabric.group.pause.v1", answer, f"group {name}: paused; resume with 'fabric group resume {name}'", as_json)


@group.command("resume")
@click.argument("name", shell_complete=completion.groups)
@output_options
@asking_options
def resume_command(name: str, as_json: bool, url: str, connect_timeout: float) -> None:
    """Resume deliveries to a paused group.

    \b
    Examples:
      fabric group resume billing
    """
    with connect(url, connect_timeout) as fab:
        answer = fab.admin.groups.resume(name)
    say("fabric.group.resume.v1", answer, f"group {name}: resumed", as_json)


@group.command("refresh")
@click.argument("name", shell_complete=completion.groups)
@click.option("--from", "start", type=Position(), help=f"{POSITIONS}.  [default: first]")
@click.option("--timeout", type=Duration(), help="Time after which the refresh is degraded.  [default: 10m]")
@click.option(
    "--wait", is_flag=True, help="Wait until all consumers are ready; exit code 7 if they are not ready in time."
)
@output_options
@hub_options
def refresh_command(
    name: str,
    start: "Start | None",
    timeout: float | None,
    wait: bool,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """Tell all consumers of a group to drop their local copies and load them again.

    \b
    Examples:
      fabric group refresh search-index
      fabric group refresh prices --from last_per_key --wait
    """
    with connect(url, connect_timeout) as fab:
        answer = dict(fab.admin.groups.refresh(name, start=start, timeout=timeout))
        number, phase = answer["refresh"], "syncing"
        while wait and phase in ("syncing", "ended"):
            time.sleep(POLL_S)
            now = fab.info("group", name)["refresh"]
            phase = PHASES[now[2]] if now[0] == number else "replaced by a newer refresh"
    answer["phase"] = phase
    sentence = f"group {name}: refresh {number} up to seq {answer['target']:,} is {phase}"
    if not wait and not as_json:
        sentence += f"; see its phase with 'fabric group show {name}'"
    say("fabric.group.refresh.v1", answer, sentence, as_json)
    if wait and phase != "ready":
        raise Failed(
            f"refresh {number} of {name} is {phase}", "check its consumers with 'fabric group show'", EXIT_NOTHING
        )


def _with_state(row: Row) -> dict[str, Any]:
    """A row of the hub with a word about the state of the group."""
    number, _, phase = row.get("refresh") or (0, 0, 0)
    states = [f"refresh {number} {PHASES[phase]}"] if phase in (1, 2, 4) else []
    if row.get("paused"):
        states.insert(0, "paused")
    pace = f"{row['rate']:,} in {span(row['rate_ms'])}" if row.get("rate") else "no limit"
    state = ", ".join(states) or ("working" if row.get("members") else "no consumers")
    return {"ready": row.get("behind", 0), **row, "pace": pace, "state": state}  # an older hub has no `ready`
