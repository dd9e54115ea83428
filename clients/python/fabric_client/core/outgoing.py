"""Messages on the way to the hub: checked and encoded, in the open block, and in a sealed block.

Nothing here sends. `prepare` and `check_topic` find a bad message in the caller's own stack frame, before it shares a
block with good messages: the hub accepts or refuses a block as a whole.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from fabric_client.core import wire_values
from fabric_client.core.ticket import Ticket
from fabric_client.errors import BadMessage, describe
from fabric_protocol import block, block_parts, names
from fabric_protocol import messages as m
from fabric_protocol.columns import HEADER_NAMES_MAX, HeaderValue
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import Level
from fabric_protocol.origin import Origin

T = TypeVar("T")
Settles = tuple[tuple[int, tuple[tuple[int, int, int, Any], ...]], ...]  # (channel, verdicts), as in a TXN

CONTENT_TYPE: Final = "content-type"  # header with the type of the data: JSON or text; bytes have none
JSON: Final = "application/json"
TEXT: Final = "text/plain"

# One counter bounds a block in messages and in bytes: each message costs MESSAGE_COST on top of its bytes. With
# 128-byte messages a block holds 1,024; more would add latency, and hub and disk gain little beyond 128 KB.
BLOCK_ROOM: Final = 256 << 10
MESSAGE_COST: Final = 128
# The fast path takes small messages only, so that counting them is enough: its block has a MB at most.
FAST_PATH_BODY_MAX: Final = 1024
FAST_PATH_COUNT_MAX: Final = 1024
# Head, topic and offsets of a block of one, so that a message just under the hub's limit still fits.
BLOCK_SLACK: Final = 4 << 10


class Options(NamedTuple):
    """Options that the hub applies to a whole block. Messages share a block only if these are equal."""

    level: Level = Level.JOURNALED
    priority: int = block.PRIORITY_DEFAULT
    expires_us: int = 0
    when: tuple[tuple[str, Any], ...] = ()  # the options of PUB: ttl_ms, delay_ms, at_us ...
    scheduled: bool = False  # confirmed by the id of a schedule, not by seqs
    origin: Origin | None = None  # of the first message

    @property
    def alone(self) -> bool:
        """Whether a message with these options has a block of its own."""
        return self.scheduled or self.origin is not None

    def behind(self, count: int) -> "Options":
        """The options of a block that follows `count` messages with these options."""
        return self if self.origin is None else self._replace(origin=self.origin.shifted(count))

    def fields(self) -> dict[str, Any]:
        """The options of PUB."""
        return {**dict(self.when), **({"origin": self.origin} if self.origin is not None else {})}


PLAIN: Final = Options()


class Prepared(NamedTuple):
    """One message, checked and encoded."""

    topic: str
    body: bytes
    key: bytes
    id: bytes
    headers: Mapping[str, HeaderValue] | None
    cost: int


def prepare(
    topic: str, data: object, key: str | bytes | None, id: str | bytes | None, headers: Mapping[str, HeaderValue] | None
) -> Prepared:
    """Check a message and encode its parts. The topic is checked separately, because that result can be remembered."""
    body, content_type = _body(data)
    cost = len(body) + MESSAGE_COST
    if not isinstance(topic, str):
        raise BadMessage(f"topic is {type(topic).__name__} ({topic!r:.60}), not text", "publish(topic, data)")
    if headers is not None and not isinstance(headers, Mapping):
        raise BadMessage(f"headers is {type(headers).__name__} ({headers!r:.60}), not a dict", "use {name: value}")
    if content_type and (headers is None or CONTENT_TYPE not in headers):
        headers = {**(headers or {}), CONTENT_TYPE: content_type}
    if headers:
        if len(headers) > HEADER_NAMES_MAX:
            raise BadMessage(f"{len(headers)} headers; at most {HEADER_NAMES_MAX} fit", "put them into the body")
        for name, value in headers.items():
            if not isinstance(name, str) or not isinstance(value, str | bytes):
                raise BadMessage(f"header {name!r} is not text to text or bytes", "turn the value into a str first")
            wire_values.text(name, "the name of a header")
            if isinstance(value, str):
                wire_values.text(value, f"header {name!r}")
            cost += len(name) + len(value) + 8
    key_bytes = _short("key", key, block.KEY_BYTES_MAX)
    id_bytes = _short("id", id, block.ID_BYTES_MAX)
    return Prepared(topic, body, key_bytes, id_bytes, headers or None, cost + len(key_bytes) + len(id_bytes))


def _body(data: object) -> tuple[bytes, str]:
    """The bytes of the data, and their content type; empty for bytes."""
    if isinstance(data, bytes):
        return data, ""
    if isinstance(data, str):
        return wire_values.text(data, "the data").encode(), TEXT
    if isinstance(data, bytearray | memoryview):
        return bytes(data), ""
    try:
        return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(), JSON
    except (TypeError, ValueError, RecursionError) as error:
        raise BadMessage(
            f"the data is neither bytes nor text nor JSON: {error}", "encode it to bytes yourself"
        ) from None


def _short(what: str, value: str | bytes | None, limit: int) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, str | bytes | bytearray | memoryview):
        raise BadMessage(f"{what} is {type(value).__name__} ({value!r:.60}), not text or bytes", f"use str({what})")
    raw = wire_values.text(value, what).encode() if isinstance(value, str) else bytes(value)
    if not 1 <= len(raw) <= limit:
        hint = f"use a hash of the longer {what}" if raw else f"leave {what} out for a message without one"
        raise BadMessage(f"{what} is 1..{limit} bytes, not {len(raw)}", hint)
    return raw


def check_topic(topic: str) -> None:
    """Raise unless the hub accepts publishes of a client on this topic."""
    hint = describe(Code.BAD_TOPIC)
    if not isinstance(topic, str):
        raise BadMessage(f"topic {topic!r} is not a name", hint)
    wire_values.text(topic, "topic")
    try:
        names.check_topic(topic)
    except ProtocolError as error:
        raise BadMessage(str(error), hint) from None
    if topic.startswith("$"):
        raise BadMessage(f"topic {topic!r} belongs to the hub", hint)


def pieces(bodies: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """The ranges of the payloads, each about a block."""
    start, room = 0, BLOCK_ROOM
    for index, size in enumerate(map(len, bodies)):
        room -= size + MESSAGE_COST
        if room < 0 and index > start:
            yield start, index
            start, room = index, BLOCK_ROOM - size - MESSAGE_COST
    yield start, len(bodies)


def level_of(name: str) -> Level:
    """The level by its name."""
    try:
        return Level[name.upper()]
    except (KeyError, AttributeError):
        raise BadMessage(f"level {name!r} is not known", "use 'journaled' (on disk) or 'received' (unsafe)") from None


class FastPath:
    """Adds plain small messages to the open block by one append, without a lock. The items are the bodies of one
    `topic`, or pairs of topic and body for all known `topics` once the block has several.

    `items` only grows, and `taken` counts the items that are in blocks, so a late append is never lost. A publishing
    thread appends first and then checks that the publisher still has this fast path. A closing thread replaces the fast
    path first and takes its items afterwards. So either the closing thread sees the item, or the publishing thread sees
    that the fast path is closed.
    """

    __slots__ = ("items", "limit", "taken", "topic", "topics")

    def __init__(self, topic: str | None, topics: Collection[str], limit: int) -> None:
        self.topic = topic
        self.topics = topics
        self.limit = limit  # this many items fill the block
        self.items: list[Any] = []
        self.taken = 0


CLOSED_FAST_PATH: Final = FastPath(None, (), 0)  # matches no topic


class Outgoing:
    """A sealed block. With `settles` it is a transaction: the hub applies these verdicts and stores the block, or does
    neither."""

    __slots__ = ("after", "count", "each", "options", "positions", "pseq", "raw", "rid", "settles", "topics", "waiters")

    def __init__(
        self,
        raw: bytes,
        count: int,
        options: Options,
        topics: tuple[str, ...],
        waiters: list[tuple[int, Ticket]],
        each: bool = False,
        positions: Sequence[int] = (),
    ) -> None:
        self.raw = raw
        self.count = count
        self.options = options
        self.topics = topics
        self.waiters = waiters  # (index of the message, or -1 for the whole block; ticket that gets the receipt)
        self.each = each  # the receipt of the whole block has the seq of every message
        self.settles: Settles = ()
        self.pseq = 0  # 0: gets the next number when it is sent
        self.rid = 0
        self.positions = positions  # of each message, if the client is a numbered source
        self.after = 0  # the position before the first

    def without(self, index: int, count: int = 1) -> None:
        """Remove messages. Only for a block that was never sent, or that the hub has refused."""
        raw, end = block.Block(self.raw), index + count
        self.raw = block_parts.select(raw, [run for run in ((0, index), (end, raw.count)) if run[0] < run[1]])
        self.topics = block.Block(self.raw).topics
        self.count -= count
        self.positions = [*self.positions[:index], *self.positions[end:]]
        left = [(at, waiter) for at, waiter in self.waiters if not index <= at < end]
        self.waiters = [(at - count * (at >= end), waiter) for at, waiter in left]

    def message(self) -> m.Publish | m.Transact:
        """The PUB or TXN."""
        if self.settles:
            return m.Transact(self.rid, self.pseq, self.settles, self.raw)
        if self.positions:
            options = {**self.options.fields(), "last": self.positions[-1], "after": self.after}
            return m.Publish(self.rid, self.pseq, self.options.level, self.raw, options)
        if self.options.when or self.options.origin is not None:
            return m.Publish(self.rid, self.pseq, self.options.level, self.raw, self.options.fields())
        return m.Publish(self.rid, self.pseq, self.options.level, self.raw)


# A message of a block that cannot be encoded: a block of its own, or the error; topic; body; ticket.
Single = tuple[bytes | Exception, str, bytes, Ticket | None]


class OpenBlock:
    """The open block: messages that wait until the block is full, or until nothing is in flight.

    Columns that few messages use (topics, keys, ids, headers) are made when the first one does, and padded when they
    are next touched.
    """

    __slots__ = (
        "_headers", "_ids", "_keys", "_topics", "first_topic", "options", "payloads", "positions", "room", "waiters",
    )  # fmt: skip

    def __init__(self) -> None:
        self.options = PLAIN
        self._clear()

    def _clear(self) -> None:
        self.first_topic = ""
        self.room = BLOCK_ROOM
        self.payloads: list[bytes] = []
        self.waiters: list[tuple[int, Ticket]] = []  # (index of the message, ticket that gets the receipt)
        self._topics: list[str] | None = None
        self._keys: list[bytes] | None = None
        self._ids: list[bytes] | None = None
        self._headers: list[Mapping[str, HeaderValue] | None] | None = None
        self.positions: list[int] = []  # of each message, if the client is a numbered source

    def takes(self, options: Options, cost: int) -> bool:
        return not self.payloads or (self.options == options and cost <= self.room)

    def add(self, message: Prepared, options: Options, waiter: Ticket | None = None, position: int = 0) -> None:
        count = self._even()
        if position:
            self.positions.append(position)
        self._name(message.topic, 1, options)
        if message.key:
            self._keys = _pad(self._keys or [], count, b"")
            self._keys.append(message.key)
        if message.id:
            self._ids = _pad(self._ids or [], count, b"")
            self._ids.append(message.id)
        if message.headers:
            self._headers = _pad(self._headers or [], count, None)
            self._headers.append(message.headers)
        self.payloads.append(message.body)  # last: it makes the message part of the block
        self.room -= message.cost
        if waiter is not None:
            self.waiters.append((count, waiter))

    def _even(self) -> int:
        """Remove what an interrupted call has left in the columns; returns how many messages there are."""
        count = len(self.payloads)
        for column in (self._topics, self._keys, self._ids, self._headers, self.positions):
            if column is not None and len(column) > count:
                del column[count:]
        return count

    def take_singly(self) -> list[Single]:
        """Each message as a block of its own; the open block is empty afterwards."""
        count, waiters, singles = len(self.payloads), dict(self.waiters), list[Single]()
        topics = _pad(self._topics or [], count, self.first_topic)
        keys, ids = _pad(self._keys or [], count, b""), _pad(self._ids or [], count, b"")
        headers = _pad(self._headers or [], count, None)
        for index, (topic, body) in enumerate(zip(topics, self.payloads, strict=True)):
            made: bytes | Exception
            try:
                made = block.encode(
                    topic,
                    [body],
                    keys=[keys[index]] if keys[index] else None,
                    ids=[ids[index]] if ids[index] else None,
                    headers=[headers[index]] if headers[index] else None,
                    priority=self.options.priority,
                    expires_us=self.options.expires_us,
                )
            except Exception as error:
                made = error
            singles.append((made, topic, body, waiters.get(index)))
        self._clear()
        return singles

    def remove(self, index: int) -> None:
        """Remove one message."""
        self.room += len(self.payloads.pop(index)) + MESSAGE_COST
        for column in (self._topics, self._keys, self._ids, self._headers, self.positions):
            if column is not None and index < len(column):
                column.pop(index)
        self.waiters = [(at - (at > index), waiter) for at, waiter in self.waiters if at != index]
        if not self.payloads:
            self._clear()

    def extend(self, fast_path: "FastPath") -> None:
        """Add the items of a fast path that were not taken."""
        self._even()
        count = len(fast_path.items)
        bodies: Sequence[bytes] = fast_path.items[fast_path.taken : count]
        if fast_path.topic is not None:
            self._name(fast_path.topic, len(bodies), PLAIN)
        else:
            topics, bodies = zip(*bodies, strict=True)
            if not self.payloads:
                self.options, self.first_topic = PLAIN, topics[0]
            self._topics = _pad(self._topics or [], len(self.payloads), self.first_topic)
            self._topics.extend(topics)
        self.room -= sum(map(len, bodies)) + MESSAGE_COST * len(bodies)
        # A signal handler may raise after a call, so there is no call between these two.
        fast_path.taken = count
        self.payloads.extend(bodies)

    @property
    def mixed(self) -> bool:
        """Whether it has several topics."""
        return self._topics is not None

    def _name(self, topic: str, count: int, options: Options) -> None:
        """Record the topic of messages that are added next."""
        if not self.payloads:
            self.options, self.first_topic = options, topic
        elif self._topics is not None or topic != self.first_topic:
            self._topics = _pad(self._topics or [], len(self.payloads), self.first_topic)
            self._topics.extend([topic] * count)

    def take(self) -> tuple[bytes, tuple[str, ...]]:
        """The encoded block and its topics; the open block is empty afterwards."""
        raw, topics = self.encoded()
        self._clear()
        return raw, topics

    def encoded(self) -> tuple[bytes, tuple[str, ...]]:
        """The encoded block and its topics."""
        count = len(self.payloads)
        topics: str | Sequence[str] = self.first_topic
        if self._topics is not None:
            topics = _pad(self._topics, count, self.first_topic)
        raw = block.encode(
            topics,
            self.payloads,
            keys=None if self._keys is None else _pad(self._keys, count, b""),
            ids=None if self._ids is None else _pad(self._ids, count, b""),
            headers=None if self._headers is None else _pad(self._headers, count, None),
            priority=self.options.priority,
            expires_us=self.options.expires_us,
        )
        return raw, (topics,) if isinstance(topics, str) else tuple(dict.fromkeys(topics))


def _pad(column: list[T], count: int, empty: T) -> list[T]:
    """The column, extended or cut to `count` items."""
    if len(column) < count:
        column.extend([empty] * (count - len(column)))
    elif len(column) > count:
        del column[count:]
    return column
