"""Settings of groups and topics as options. A command gets them as one map, with the names of the Python client."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from fabric.cli.support.values import Duration, Rate, Size, Word
from fabric_protocol.bounds import IN_FLIGHT

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[Any], Any]

# By the names of the Python client.
GROUP: Final[dict[str, Option]] = {
    "lease": click.option(
        "--lease", type=Duration(), help="How long a consumer may hold a message without an ack.  [30s]"
    ),
    "lease_max": click.option(
        "--lease-max", type=Duration(), help="Longest lease, however often it is extended.  [1h]"
    ),
    "attempts": click.option(
        "--attempts",
        type=click.IntRange(min=0, max=1000),
        help="Failures until a message becomes a dead letter; 0: never.  [5]",
    ),
    "backoff": click.option(
        "--backoff",
        type=Word(["fixed", "linear", "exponential"]),
        help="How the wait grows with each failure.  [exponential]",
    ),
    "backoff_first": click.option(
        "--backoff-base", "backoff_first", type=Duration(), help="The wait after the first failure.  [500ms]"
    ),
    "backoff_max": click.option("--backoff-max", type=Duration(), help="The longest wait.  [5m]"),
    "jitter": click.option(
        "--jitter",
        type=click.IntRange(min=0, max=100),
        callback=lambda ctx, param, value: None if value is None else value / 100,
        help="Percent by which a wait is randomly longer or shorter.  [10]",
    ),
    "order": click.option(
        "--order",
        type=Word(["none", "key", "strict"]),
        help="none: in parallel. key: messages of a key one after the other. strict: all one after the other.  [none]",
    ),
    "ack": click.option(
        "--ack",
        type=Word(["explicit", "auto"]),
        help="auto: a message is settled when it is sent, and lost if its consumer is lost.  [explicit]",
    ),
    "on_expire": click.option(
        "--on-expire", type=Word(["drop", "dead"]), help="Drop an expired message, or make it a dead letter.  [drop]"
    ),
    "level": click.option(
        "--level",
        type=Word(["journaled", "received"]),
        help="Deliver messages on disk, or on receipt (a crash may lose them).  [journaled]",
    ),
    "max_in_flight": click.option(
        "--max-in-flight",
        type=click.IntRange(min=0, max=IN_FLIGHT[2]),
        help="Messages that all consumers together may hold; 0: no limit.  [0]",
    ),
    "rate": click.option("--rate", type=Rate(), help="Messages in a time: 100/s, 10/min; 0: no limit.  [0]"),
    "expires": click.option(
        "--expires", type=Duration(), help="Delete the group when it had no consumer for so long; 0: never.  [0]"
    ),
}
TOPIC: Final[dict[str, Option]] = {
    "max_age": click.option("--max-age", type=Duration(), help="Remove messages older than this; 0: no limit."),
    "max_msgs": click.option(
        "--max-messages", "max_msgs", type=click.IntRange(min=0), help="Most messages to keep; 0: no limit."
    ),
    "max_bytes": click.option("--max-bytes", type=Size(), help="Most bytes to keep; 0: no limit."),
    "on_full": click.option(
        "--on-full",
        type=Word(["refuse", "drop_old"]),
        help="At a limit, refuse publishes or drop the oldest messages.  [refuse]",
    ),
    "keep": click.option(
        "--keep",
        type=Word(["limits", "until_acked", "last_per_key"]),
        help="until_acked: until all groups have settled it. last_per_key: the latest of each key.  [limits]",
    ),
    "dedupe": click.option(
        "--dedupe",
        type=Word(["window", "slide", "until_ack"]),
        help="How long an id is known: for a time, since its last use, or until all groups have acked.  [window]",
    ),
    "dedupe_window": click.option("--dedupe-window", type=Duration(), help="The time of --dedupe.  [10m]"),
}
# A queue always keeps messages until they are acked, and its group stays until the queue is deleted.
QUEUE_TOPIC: Final = {name: option for name, option in TOPIC.items() if name != "keep"}
QUEUE_GROUP: Final = {name: option for name, option in GROUP.items() if name != "expires"}


def group_settings(command: F) -> F:
    """Adds the settings of a group; the command gets the given values as `settings`."""
    return gathered(command, "settings", GROUP)


def topic_settings(command: F) -> F:
    return gathered(command, "settings", TOPIC)


def queue_settings(command: F) -> F:
    """The settings of a topic and of a group."""
    return gathered(command, "settings", {**QUEUE_TOPIC, **QUEUE_GROUP})


def gathered(command: F, parameter: str, options: Mapping[str, Option]) -> F:
    """Add options to a command, which gets the values that were given as one map."""

    @functools.wraps(command)
    def wrapped(*args: Any, **rest: Any) -> Any:
        values = {name: rest.pop(name) for name in options}
        given = {name: value for name, value in values.items() if value is not None}
        return command(*args, **{parameter: given}, **rest)

    for name in reversed(list(options)):
        wrapped = options[name](wrapped)
    return wrapped  # type: ignore[return-value]
