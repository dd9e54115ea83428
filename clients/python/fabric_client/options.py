"""The words of the API, turned into the words of the wire; shared by both twins."""

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from fabric import block
from fabric.columns import HeaderValue
from fabric.errors import FabricError
from fabric_client.errors import BadMessage
from fabric_client.outgoing import BLOCK_ROOM, MESSAGE_COST, PLAIN, Options, fit, level_of
from fabric_client.publisher import Receipt
from fabric_client.subscription import PREFETCH, Subscription

DEFAULT_URL: Final = "tcp://127.0.0.1:7171"
PUBLISH_S: Final = 30.0  # how long publish() and flush() wait for the hub unless told
ANSWER_S: Final = 10.0  # how long other requests wait
CLOSE_S: Final = 10.0  # how long close() waits for confirms
FETCH_GRACE_S: Final = 2.0  # the hub ends a fetch by itself; so much later its answer must have been lost
GOODBYE_S: Final = 1.0  # how long close() waits for the answer to its goodbye
# A ttl is rounded up to this, so that messages sent together expire together and can share a block.
TTL_STEP_US: Final = 100_000

Start = str | int | float | datetime | Mapping[str, int]


def default_url() -> str:
    return os.environ.get("FABRIC_URL", DEFAULT_URL)


def random_name(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def block_options(
    level: str | None, priority: int | None, ttl: float | None, expires_at: float | datetime | None
) -> Options:
    if level is None and priority is None and ttl is None and expires_at is None:
        return PLAIN
    priority = priority or 0
    if not 0 <= priority <= block.PRIORITY_MAX:
        raise BadMessage(f"priority is 0..{block.PRIORITY_MAX}, not {priority}", "9 is the most urgent")
    expires_us = 0
    if ttl is not None:
        if ttl <= 0:
            raise BadMessage(f"ttl is a positive number of seconds, not {ttl}", "leave it out to keep the message")
        expires_us = -(-round((time.time() + ttl) * 1e6) // TTL_STEP_US) * TTL_STEP_US
    if expires_at is not None:
        expires_us = _microseconds(expires_at)
    return Options(PLAIN.level if level is None else level_of(level), priority, expires_us)


def _microseconds(moment: float | datetime) -> int:
    return round((moment.timestamp() if isinstance(moment, datetime) else moment) * 1e6)


def _start(start: Start) -> Any:
    match start:
        case "first" | "new" | "last":
            return start
        case bool():
            pass
        case int():
            return {"seq": start}
        case float() | datetime():
            return {"time_us": _microseconds(start)}
        case Mapping():
            return dict(start)
    raise FabricError(f"start {start!r} is not a position", "use 'first', 'new', 'last', a seq (int) or a time")


def subscription_maker(
    hook: Callable[[Subscription, bool], None],
    patterns: Sequence[str],
    *,
    group: str | None,
    start: Start | None,
    prefetch: int | None,
    lease: float | None,
    attempts: int | None,
    level: str | None,
    count: int | None = None,
    fetching: bool = False,
) -> Callable[[int], Subscription]:
    """A function that builds the subscription once its channel is known."""
    if not patterns and group is None:
        raise FabricError("nothing to consume", "name at least one pattern, or a group that exists")
    if prefetch is not None and prefetch < 1:
        raise FabricError(f"prefetch is 1 or more, not {prefetch}", "prefetch=1 gives one message at a time")
    request: dict[str, Any] = {}
    if patterns:
        request["patterns"] = list(patterns)
    if group is not None:
        request["group"] = group
    if start is not None:
        request["start"] = _start(start)
    if lease is not None:
        request["lease_ms"] = round(lease * 1000)
    if attempts is not None:
        request["attempts_max"] = attempts
    if level is not None:
        request["level"] = level_of(level).name.lower()

    def make(chan: int) -> Subscription:
        return Subscription(chan, request, prefetch=prefetch or PREFETCH, count_max=count, fetching=fetching, hook=hook)

    return make


def pack(
    topic: str, payloads: Sequence[object], headers: Mapping[str, HeaderValue] | None, options: Options
) -> list[tuple[bytes, int]]:
    """Blocks of many messages on one topic, each with its count."""
    messages = None
    if headers or not all(type(payload) is bytes for payload in payloads):
        messages = [fit(topic, payload, None, None, headers) for payload in payloads]
        payloads = [message.body for message in messages]
    bodies = cast(Sequence[bytes], payloads)
    blocks = []
    for start, stop in _pieces(bodies):
        columns = None if messages is None else [message.headers for message in messages[start:stop]]
        raw = block.encode(
            topic,
            bodies[start:stop],
            headers=columns if columns is not None and any(columns) else None,
            priority=options.priority,
            expires_us=options.expires_us,
        )
        blocks.append((raw, stop - start))
    return blocks


def _pieces(bodies: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where to cut, so that each piece is about a block."""
    start, room = 0, BLOCK_ROOM
    for index, size in enumerate(map(len, bodies)):
        room -= size + MESSAGE_COST
        if room < 0 and index > start:
            yield start, index
            start, room = index, BLOCK_ROOM - size - MESSAGE_COST
    yield start, len(bodies)


def total(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt for several blocks: the first seq, and the sums."""
    return Receipt(receipts[0].seq, sum(r.count for r in receipts), sum(r.duplicates for r in receipts))
