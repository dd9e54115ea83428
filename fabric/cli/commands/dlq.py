"""`fabric dlq …`: lists dead letters, redrives them to their group, or discards them.

A group's dead letters are named by the group (`billing`), as `billing.DLQ` or by their topic, `$dlq.billing`.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from fabric.cli import EXIT_NOT_FOUND, EXIT_NOTHING, EXIT_PARTLY
from fabric.cli.support import completion
from fabric.cli.support.connect import all_rows, asking_options, connect
from fabric.cli.support.message_format import chosen_shape, shape_options
from fabric.cli.support.noun import Noun
from fabric.cli.support.tables import (
    Column,
    Failed,
    Row,
    ago,
    confirm,
    output_options,
    plural,
    say,
    short,
    show_rows,
    usage,
    yes_option,
)
from fabric.cli.support.values import Moment, Seq
from fabric_protocol.names import canonical, dead_letter_group

if TYPE_CHECKING:
    from fabric_client import Client

F = TypeVar("F", bound=Callable[..., Any])

PAGE: Final = 1_000
LETTERS: Final = (
    Column("SEQ", "seq"),
    Column("TOPIC", "topic", folds=True, rank=0),
    Column("ATTEMPTS", "attempts"),
    Column("DIED", "time_us", ago),
    Column("REASON", "reason", rank=1),
    Column("ERROR", "error", short, folds=True, rank=1),
    Column("WAS SEQ", "origin_seq", rank=3),
    Column("REDRIVEN", "redriven", usual=0, rank=4),
    Column("PARKED", "parked", usual=False, rank=3),
)
COLUMNS: Final = (
    Column("GROUP", "group", folds=True),
    Column("DEAD LETTERS", "count", rank=0),
    Column("FIRST SEQ", "first_seq"),
)


class Choice(NamedTuple):
    """A filter for dead letters; empty: all."""

    reason: str | None
    topic: str | None
    before: float | None

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}

    def passes(self, letter: Row) -> bool:
        """Whether a dead letter passes, as in the hub."""
        return (
            (self.reason is None or letter["reason"] == self.reason)
            and (self.topic is None or _matches(self.topic, letter["topic"]))
            and (self.before is None or letter["time_us"] < self.before * 1e6)
        )


def filters(command: F) -> F:
    """`--reason`, `--topic` and `--before`."""
    reason = click.option("--reason", help="Only dead letters with this reason, as 'fabric dlq list' shows it.")
    topic = click.option(
        "--topic", metavar="PATTERN", help="Only dead letters that were published on a topic that matches."
    )
    before = click.option(
        "--before", type=Moment("before"), help="Only dead letters from before: 2026-11-16T02:00Z, or 1h (an hour ago)."
    )
    return reason(topic(before(command)))


@click.group("dlq", cls=Noun)
def dlq() -> None:
    """Dead letters: messages that a group has given up after too many failures.

    \b
    Examples:
      fabric dlq list                                  the groups with dead letters
      fabric dlq list billing
      fabric dlq peek billing 4711                     the message, and why it failed
      fabric dlq redrive billing --reason rejected     deliver again, to that group only
      fabric dlq discard billing.DLQ --before 30d --yes

    GROUP may be written billing, billing.DLQ or '$dlq.billing'.
    """


@dlq.command("list")
@click.argument("group", required=False, shell_complete=completion.letters)
@filters
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=100, show_default=True, help="Most dead letters to list."
)
@output_options
@asking_options
def list_command(
    group: str | None,
    reason: str | None,
    topic: str | None,
    before: float | None,
    count: int,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    """List the dead letters of GROUP, the oldest first; without GROUP, the groups with dead letters.

    \b
    Examples:
      fabric dlq list
      fabric dlq list billing --topic 'orders.*' --before 1h
      fabric dlq list billing --json | jq -r '.letters[].error' | sort | uniq -c
    """
    choice = _choice(reason, topic, before)
    if group is None and choice.given:
        usage("--reason, --topic and --before need a GROUP")
    with connect(url, connect_timeout) as fab:
        if group is None:
            rows = all_rows(fab, "dlq", "groups")
            show_rows("fabric.dlq.groups.v1", "groups", rows, COLUMNS, as_json, "there are no dead letters")
            return
        name = dead_letter_group(group)
        total = fab.info("dlq", name)["count"]
        found = list[Row]()
        for letter in _letters(fab, name, choice):
            if len(found) == count:
                break
            found.append(letter)
        else:
            total = len(found) if choice.given else total
    nothing = "no dead letter matches" if choice.given else f"group {name} has no dead letters"
    more = len(found) == count and total > count
    show_rows("fabric.dlq.list.v1", "letters", found, LETTERS, as_json, nothing, group=name, count=total, more=more)
    if more and not as_json:
        click.echo(f"and more: {total:,} in all; see them with -n", err=True)


@dlq.command("peek")
@click.argument("group", shell_complete=completion.letters)
@click.argument("seqs", type=Seq(), nargs=-1)
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="Without SEQS: how many.")
@shape_options
@asking_options
def peek_command(
    group: str,
    seqs: tuple[int, ...],
    count: int,
    template: str | None,
    output: str | None,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> int:
    """Print dead letters: the message, and its history in the headers. The dead letters stay.

    \b
    Examples:
      fabric dlq peek billing                         the oldest
      fabric dlq peek billing 4711 4712
      fabric dlq peek billing -n 10 -f '%s %h %v\\n'
    """
    name = dead_letter_group(group)
    shape = chosen_shape(headers=True, template=template, output=output, as_json=as_json)
    with connect(url, connect_timeout) as fab:
        fab.info("dlq", name)  # raises when there is no such group
        topic = f"$dlq.{name}"
        found = (
            [message for seq in seqs for message in fab.get(topic, seq=seq, n=1) if message.seq == seq]
            if seqs
            else list(fab.get(topic, n=count))
        )
    out = sys.stdout.buffer
    out.write(shape.opening + shape.between.join(map(shape.line, found)) + shape.closing)
    out.flush()
    missing = set(seqs) - {message.seq for message in found}
    if missing:
        shown = ", ".join(map(str, sorted(missing)))
        code = EXIT_PARTLY if found else EXIT_NOT_FOUND
        raise Failed(
            f"group {name} has no dead letter {shown}", f"'fabric dlq list {name}' shows the dead letters", code
        )
    if not found and shape.for_people:
        click.echo(f"group {name} has no dead letters", err=True)
    return 0 if found else EXIT_NOTHING


def _changing(done: str) -> Callable[[F], F]:
    """The options of redrive and discard."""

    def decorate(command: F) -> F:
        for option in reversed(
            [
                click.argument("group", shell_complete=completion.letters),
                click.argument("seqs", type=Seq(), nargs=-1),
                filters,
                click.option("--all", "everything", is_flag=True, help="All dead letters of the group."),
                click.option("--max", "most", type=click.IntRange(min=1), help="Most dead letters, the oldest first."),
                click.option("--dry-run", is_flag=True, help=f"Print how many would be {done}, and change nothing."),
                yes_option,
                output_options,
                asking_options,
            ]
        ):
            command = option(command)
        return command

    return decorate


@dlq.command("redrive")
@_changing("redriven")
def redrive_command(**given: Any) -> None:
    """Deliver dead letters to their group again, as new messages without failures. No other group gets them.

    \b
    Examples:
      fabric dlq redrive billing 4711 4712
      fabric dlq redrive billing --reason 'lease lapsed' --topic 'orders.*'
      fabric dlq redrive billing --all --dry-run
      fabric dlq redrive billing --all --yes

    A message that became a dead letter three times is parked: it is redriven only by its seq.
    """
    _change("redrive", "redriven", **given)


@dlq.command("discard")
@_changing("discarded")
def discard_command(**given: Any) -> None:
    """Discard dead letters. The journal keeps their bytes until retention removes them.

    \b
    Examples:
      fabric dlq discard billing 4711
      fabric dlq discard billing --before 30d --dry-run
      fabric dlq discard billing --all --yes
    """
    _change("discard", "discarded", **given)


def _change(
    verb: str,
    done: str,
    *,
    group: str,
    seqs: tuple[int, ...],
    reason: str | None,
    topic: str | None,
    before: float | None,
    everything: bool,
    most: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    url: str,
    connect_timeout: float,
) -> None:
    choice, name = _choice(reason, topic, before), dead_letter_group(group)
    if bool(seqs) + bool(choice.given) + everything != 1:
        usage("choose dead letters by SEQS, by a filter (--reason, --topic, --before) or with --all")
    if seqs and (most is not None or dry_run):
        usage("--max and --dry-run cannot be used with SEQS")
    schema = f"fabric.dlq.{verb}.v1"
    with connect(url, connect_timeout) as fab:
        if seqs:
            total = {done: 0, "skipped": 0}
            for at in range(0, len(seqs), PAGE):
                _add(total, getattr(fab.admin.dead_letters(name), verb)(seqs[at : at + PAGE]))
        else:
            count = _count(fab, name, choice)
            count = count if most is None else min(count, most)
            if dry_run:
                fields = {"group": name, done: 0, f"would_be_{done}": count}
                say(schema, fields, f"would {verb} {plural(count, 'dead letter')} of {name}", as_json)
                return
            if count:
                confirm(f"{verb} {plural(count, 'dead letter')} of {name}", yes)
            total = _in_parts(getattr(fab.admin.dead_letters(name), verb), choice, count, done)
    skipped = f", {total['skipped']:,} skipped (parked or unreadable)" if total["skipped"] else ""
    say(schema, {"group": name, **total}, f"{done} {plural(total[done], 'dead letter')} of {name}{skipped}", as_json)


def _in_parts(act: Callable[..., Row], choice: Choice, count: int, done: str) -> dict[str, int]:
    """Call `act` for `count` dead letters: the hub does a bounded number at once. New dead letters come last."""
    total = {done: 0, "skipped": 0}
    after: int | None = None
    while total[done] + total["skipped"] < count:
        answer = act(**choice.given, after=after, n=count - total[done] - total["skipped"])
        _add(total, answer)
        if not answer["more"]:
            break
        after = answer["next"]
    return total


def _add(total: dict[str, int], answer: Row) -> None:
    for name in total:
        total[name] += answer[name]


def _count(fab: "Client", name: str, choice: Choice) -> int:
    if not choice.given:
        return int(fab.info("dlq", name)["count"])
    return sum(1 for _ in _letters(fab, name, choice))


def _letters(fab: "Client", name: str, choice: Choice) -> Iterator[Row]:
    after: int | None = None
    while True:
        page = fab.admin.dead_letters(name).list(after=after, n=PAGE)
        yield from filter(choice.passes, page["letters"])
        if not page["more"]:
            return
        after = page["next"]


def _choice(reason: str | None, topic: str | None, before: float | None) -> Choice:
    if topic is not None:
        canonical(topic)  # raises when it is no pattern
    return Choice(reason, topic, before)


def _matches(pattern: str, topic: str) -> bool:
    return re.fullmatch(_expression(canonical(pattern).split(".")), f"{topic}.") is not None


def _expression(words: Sequence[str]) -> str:
    wild = {"*": r"[^.]+\.", "#": r"(?:[^.]+\.)*"}
    return "".join(wild.get(word) or re.escape(word) + r"\." for word in words)
