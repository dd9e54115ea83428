"""Arguments of the API, checked and turned into fields of the wire; shared by both clients."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast

from fabric_client.core import wire_values
from fabric_client.core.arguments import (
    Moment,
    check_whole,
    checked_origin,
    due_us,
    listed,
    microseconds,
    patterns_of,
    percent,
    rate_of,
)
from fabric_client.core.outgoing import PLAIN, Options, Prepared, level_of, pieces, prepare
from fabric_client.core.subscription import PREFETCH, Subscription
from fabric_client.core.subscription_driver import SubscriptionDriver
from fabric_client.core.verdict_exceptions import OnError, Seconds, check_on_error, milliseconds, patience, seconds
from fabric_client.errors import BadMessage
from fabric_protocol import block
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError
from fabric_protocol.origin import Origin

PUBLISH_S: Final = 30.0  # how long publish() and flush() wait for the hub by default
ANSWER_S: Final = 10.0  # how long other requests wait
CLOSE_S: Final = 10.0  # how long close() waits for confirms
FETCH_GRACE_S: Final = 2.0  # the hub ends a fetch by itself; this much later its answer was lost
REQUEST_GRACE_S: Final = 0.25  # the same for a request; shorter, because no message is lost with the answer
GOODBYE_S: Final = (0.2, 1.0)  # how long close() waits for the answer to GOODBYE, at least and at most
CONCURRENCY_MAX: Final = 65_536
FETCH_MAX: Final = 1_000_000  # messages of one fetch()
BATCH_LEAST: Final = 32  # first prefetch of a consumer of batches

Start = Literal["first", "new", "last", "last_per_key"] | int | float | datetime | Mapping[str, int]
Order = Literal["none", "key", "strict"]
Backoff = Literal["fixed", "linear", "exponential"]
AckMode = Literal["explicit", "auto"]
OnExpire = Literal["drop", "dead"]
Level = Literal["journaled", "received"]
OnFull = Literal["refuse", "drop_old"]
Keep = Literal["limits", "until_acked", "last_per_key"]
Dedupe = Literal["window", "slide", "until_ack"]


class MessageOptions(TypedDict, total=False):
    """Options of a message that is published at once."""

    key: str | bytes | None  # messages of one key keep their order in groups of order "key"
    headers: Mapping[str, HeaderValue] | None
    id: str | bytes | None  # the hub stores one message per topic and id
    priority: int | None  # 0..9, 9 is delivered first; 4 by default
    ttl: Seconds | None  # the message expires this long after it was accepted, or was due
    expires_at: Moment | None
    level: Level | None  # "journaled" (on disk) or "received" (unsafe)
    origin: Origin | None  # where the message was born, if another journal had it first


class NumberedOptions(TypedDict, total=False):
    """Options of a message of a numbered source; see MessageOptions."""

    key: str | bytes | None
    headers: Mapping[str, HeaderValue] | None
    id: str | bytes | None
    priority: int | None
    ttl: Seconds | None
    expires_at: Moment | None
    origin: Origin | None


class ScheduleOptions(MessageOptions, total=False):
    """Options of a message that is scheduled."""

    name: str | None  # of the schedule; a new schedule replaces the one with the same name


class PublishOptions(ScheduleOptions, total=False):
    """All options of a publish."""

    delay: Seconds | None  # publish the message after this time,
    at: Moment | None  # or at this time;
    every: Seconds | None  # repeat it in this interval,
    cron: str | None  # or by the calendar: five fields, UTC


class GroupOptions(TypedDict, total=False):
    """Settings of a group, fixed when it is created; leave them out to join a group as it is."""

    lease: Seconds | None  # how long a consumer may hold a message without a touch
    lease_max: Seconds | None  # how long a consumer may hold a message in all
    attempts: int | None  # failed attempts until a message is a dead letter; 0: no limit
    backoff: Backoff | None  # how the wait before a redelivery grows with each failed attempt
    backoff_first: Seconds | None
    backoff_max: Seconds | None
    jitter: float | None  # random share of the wait, 0..1, added or subtracted
    order: Order | None
    ack: AckMode | None  # "auto": the hub acks a message when it sends it
    on_expire: OnExpire | None  # an expired message is dropped, or becomes a dead letter
    level: Level | None
    max_in_flight: int | None  # messages that all consumers of the group together may hold; 0: no limit
    rate: str | int | None  # messages in a time, such as "100/s" or "10/min"; 0: no limit
    expires: Seconds | None  # the group is deleted when it had no consumer for so long; 0: never


class TopicOptions(TypedDict, total=False):
    """Settings of a topic."""

    max_age: Seconds | None
    max_msgs: int | None
    max_bytes: int | None
    on_full: OnFull | None  # refuse new messages, or drop the oldest
    keep: Keep | None  # messages within the limits, messages not acked by all groups, or the latest of each key
    dedupe: Dedupe | None  # how long an id is remembered: see docs/ids.md
    dedupe_window: Seconds | None


class QueueOptions(TopicOptions, GroupOptions, total=False):
    """Settings of a queue: the settings of its topic and of its group."""


_TIMES: Final = {
    "lease": "lease_ms",
    "lease_max": "lease_max_ms",
    "backoff_first": "backoff_ms",
    "backoff_max": "backoff_max_ms",
    "expires": "expires_ms",
}
_STEERING: Final = frozenset(PublishOptions.__annotations__) - {"key", "id", "headers"}
_AS_THEY_ARE: Final = {"attempts": "attempts_max", "backoff": "backoff", "order": "order", "ack": "ack"}


def random_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def message_of(
    topic: str,
    data: object,
    *,
    key: str | bytes | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
    id: str | bytes | None = None,
    **rest: Any,
) -> tuple[Prepared, Options]:
    """The prepared message, and its options for the hub."""
    return prepare(topic, data, key, id, headers), steering_of(rest) if rest else PLAIN


def numbered_of(topic: str, data: object, options: Mapping[str, Any]) -> tuple[Prepared, Options]:
    """The same for a message of a numbered source."""
    if not options.keys() <= NumberedOptions.__annotations__.keys():
        unknown = next(name for name in options if name not in NumberedOptions.__annotations__)
        raise TypeError(f"{unknown!r} is not an option of a numbered publish; see NumberedOptions")
    return message_of(topic, data, **options)


def steering_of(options: Mapping[str, Any]) -> Options:
    """The options of a publish for the hub."""
    if not options.keys() <= _STEERING:
        unknown = next(name for name in options if name not in _STEERING)
        known = ", ".join(PublishOptions.__annotations__)
        raise TypeError(f"{unknown!r} is not an option of a publish; the options are: {known}")
    return block_options(**options)


def block_options(
    *,
    level: str | None = None,
    priority: int | None = None,
    ttl: Seconds | None = None,
    expires_at: Moment | None = None,
    delay: Seconds | None = None,
    at: Moment | None = None,
    every: Seconds | None = None,
    cron: str | None = None,
    name: str | None = None,
    origin: Origin | None = None,
) -> Options:
    if priority is None:
        priority = block.PRIORITY_DEFAULT
    if type(priority) is not int or not 0 <= priority <= block.PRIORITY_MAX:
        raise BadMessage(f"priority is 0..{block.PRIORITY_MAX}, not {priority}", "9 is the most urgent")
    for what, value in (("ttl", ttl), ("every", every)):
        if value is not None and seconds(value, what) <= 0:
            raise BadMessage(
                f"{what} is a positive number of seconds, not {value}", "leave it out if you do not want it"
            )
    if delay is not None and at is not None:
        raise BadMessage("delay and at exclude each other", "use one of them")
    if every is not None and cron is not None:
        raise BadMessage("every and cron exclude each other", "use one of them")
    later = {
        "delay_ms": None if delay is None else milliseconds("delay", delay),
        "at_us": None if at is None else due_us("at", at),
        "every_ms": None if every is None else milliseconds("every", every),
        "cron": cron,
    }
    scheduled = any(value is not None for value in later.values())
    if name is not None and not scheduled:
        raise BadMessage(
            "name is the name of a schedule, and this publish is not scheduled", "use it with delay, at, every or cron"
        )
    for what, word in (("cron", cron), ("name", name)):
        if word is not None:
            wire_values.text(word, what)
    when = {"ttl_ms": None if ttl is None else milliseconds("ttl", ttl), **later, "name": name}
    return Options(
        PLAIN.level if level is None else level_of(level),
        priority,
        0 if expires_at is None else due_us("expires_at", expires_at),
        tuple((key, value) for key, value in when.items() if value is not None),
        scheduled,
        None if origin is None else checked_origin(origin, scheduled),
    )


def position(start: Start) -> str | dict[str, int]:
    """A position in the journal, as the wire has it."""
    match start:
        case "first" | "new" | "last" | "last_per_key":
            return str(start)
        case bool():
            pass
        case int():
            return {"seq": start}
        case float() | datetime():
            return {"time_us": microseconds(start)}
        case Mapping():
            return dict(start)
    raise FabricError(
        f"start {start!r} is not a position",
        "use 'first', 'new', 'last', 'last_per_key', a seq (int) or a time (a datetime, or seconds since 1970)",
    )


def group_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a group, as the wire has them. Settings that are None are left out."""
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in GroupOptions.__annotations__:
            known = ", ".join(GroupOptions.__annotations__)
            raise TypeError(f"{name!r} is not a setting of a group; the settings are: {known}")
        if value is None:
            continue
        if name in _TIMES:
            fields[_TIMES[name]] = milliseconds(name, value)
        elif name == "jitter":
            fields["jitter_pct"] = percent(value)
        elif name == "level":
            fields["level"] = level_of(value).name.lower()
        elif name == "rate":
            fields["rate"], fields["rate_ms"] = rate_of(value)
        else:
            fields[_AS_THEY_ARE.get(name, name)] = value
    return fields


def subscription_maker(
    driver: SubscriptionDriver,
    patterns: Sequence[str],
    *,
    group: str | None,
    start: Start | None = None,
    prefetch: int | None = None,
    concurrency: int = 1,
    batches: bool = False,
    count: int | None = None,
    fetching: bool = False,
    renews: bool = True,
    on_error: OnError = "retry",
    settings: Mapping[str, Any],
) -> Callable[[int], Subscription]:
    """A function that builds the subscription for a channel."""
    if not patterns and group is None:
        raise FabricError("nothing to consume", "name at least one pattern, or a group that exists")
    if prefetch is not None:
        check_whole("prefetch", prefetch, 1, "prefetch=1 gives one message at a time")
    if count is not None:
        check_whole("count", count, 0, "it is how many messages you want; leave it out for all that come")
    request = group_fields(settings)
    if patterns:
        request["patterns"] = patterns_of(patterns)
    if group is not None:
        request |= _member_fields(group, concurrency, batches, fetching)
    if start is not None:
        request["start"] = position(start)
    check_on_error(on_error)
    least = None
    if prefetch is None and group is not None and not fetching:
        least = BATCH_LEAST if batches else 2 * concurrency
    return lambda chan: Subscription(
        chan,
        request,
        prefetch=prefetch or max(PREFETCH, least or 0),
        least=least,
        count_max=count,
        fetching=fetching,
        renews=renews,
        on_error=on_error,
        hook=driver.verdicts,
        driver=driver,
    )


def _member_fields(group: str, concurrency: int, batches: bool, fetching: bool) -> dict[str, Any]:
    """The fields of SUB for a member of a group."""
    fields: dict[str, Any] = {"group": group, "concurrency": check_concurrency(concurrency)}
    if batches:
        fields["batches"] = True
    if fetching:
        fields["unsure"] = CONCURRENCY_MAX  # the program holds all it has fetched, and begins it in any order
    return fields


class FetchRequest(NamedTuple):
    """The numbers of a FETCH."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    expires_ms: int
    enough: int


def fetch_request(count: int, at_least: int, timeout: Seconds) -> FetchRequest:
    for what, value, highest in (("count", count, FETCH_MAX), ("at_least", at_least, count)):
        if type(value) is not int or not 1 <= value <= highest:
            raise FabricError(f"{what} is 1..{highest}, not {value!r}", "fetch again for more")
    return FetchRequest(count, milliseconds("timeout", timeout), at_least)


def goodbye_s(timeout: Seconds | None) -> float:
    """How long close() waits for the answer to GOODBYE."""
    least, most = GOODBYE_S
    wanted = patience(timeout)
    return most if wanted is None else min(max(wanted, least), most)


def check_concurrency(concurrency: int) -> int:
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        raise FabricError(
            f"concurrency is 1..{CONCURRENCY_MAX}, not {concurrency!r}", "it is how many messages you work on at once"
        )
    return concurrency


def pack(
    topic: str,
    given: Iterable[object],
    options: Options,
    *,
    keys: Sequence[str | bytes] | None = None,
    ids: Sequence[str | bytes] | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
) -> list[tuple[bytes, int]]:
    """Blocks of many messages on one topic, each with its count."""
    payloads = listed(given)
    if not payloads:
        raise BadMessage("nothing to publish", "give at least one payload")
    for what, column in (("key", keys), ("id", ids)):
        if column is not None and len(column) != len(payloads):
            raise BadMessage(f"{len(column)} {what}s for {len(payloads)} payloads", f"give one {what} for each payload")
    messages = None
    if headers or keys or ids or not all(type(payload) is bytes for payload in payloads):
        messages = [
            prepare(topic, payload, keys[i] if keys else None, ids[i] if ids else None, headers)
            for i, payload in enumerate(payloads)
        ]
        payloads = [message.body for message in messages]
    bodies = cast(Sequence[bytes], payloads)
    blocks = []
    for start, stop in pieces(bodies):
        part = () if messages is None else messages[start:stop]
        raw = block.encode(
            topic,
            bodies[start:stop],
            keys=[message.key for message in part] if keys else None,
            ids=[message.id for message in part] if ids else None,
            headers=[message.headers for message in part] if any(message.headers for message in part) else None,
            priority=options.priority,
            expires_us=options.expires_us,
        )
        blocks.append((raw, stop - start))
    return blocks
