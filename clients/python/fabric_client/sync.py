"""The blocking client. The asyncio twin in `aio` has the same words.

The core decides (`session`), the pump does (`pump`); this file is what a program says. Every method may be called
from any thread.
"""

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import zmq

from fabric.columns import HeaderValue
from fabric.errors import FabricError
from fabric_client import consumer
from fabric_client.consumer import Consumer
from fabric_client.errors import BadMessage, PublishRefused
from fabric_client.message import Batch, Message
from fabric_client.options import (
    ANSWER_S,
    CLOSE_S,
    FETCH_GRACE_S,
    GOODBYE_S,
    PUBLISH_S,
    Start,
    block_options,
    default_url,
    pack,
    random_name,
    subscription_maker,
    total,
)
from fabric_client.outgoing import LANE_BODY_MAX, Fit, Options, fit
from fabric_client.publisher import Receipt
from fabric_client.pump import Pump
from fabric_client.session import State
from fabric_client.subscription import Subscription
from fabric_client.ticket import Ticket


def connect(
    url: str | None = None,
    *,
    name: str | None = None,
    producer: str | None = None,
    context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    timeout: float = ANSWER_S,
) -> "Client":
    """A client of the hub at `url` (default: FABRIC_URL, then tcp://127.0.0.1:7171), connected.

    `name` is how the hub lists this client. `producer` names the publisher across restarts of the program: the hub
    keeps its count, and fences an older program of that name. `context` lets inproc:// share the hub's.
    """
    return Client(url, name=name, producer=producer, context=context, timeout=timeout)


class Client:
    """A connection to a hub, used from any number of threads. Close it, or use it in a `with` block."""

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        producer: str | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        timeout: float = ANSWER_S,
    ) -> None:
        self._closed = True
        self._fetchers: dict[object, list[Subscription]] = {}
        name = name or random_name("client")
        self._pump = Pump(url or default_url(), name, producer or random_name("producer"), context)
        self._session = self._pump.session
        self._publisher = self._session.publisher
        try:
            self._pump.start(timeout)
        except BaseException:
            self._pump.stop()
            raise
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether the hub is there right now. Calls wait for it in any case."""
        return self._session.state is State.LIVE

    @property
    def hub(self) -> Mapping[str, Any]:
        """What the hub said in its welcome."""
        return self._session.hub

    # Publishing.

    def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        id: str | bytes | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        expires_at: float | datetime | None = None,
        level: str | None = None,
        timeout: float | None = PUBLISH_S,
    ) -> Receipt:
        """Publish one message and return when the hub has it on disk. Bytes are sent as they are, text as UTF-8,
        everything else as JSON."""
        message = fit(topic, data, key, id, headers)
        options = block_options(level, priority, ttl, expires_at)
        self._make_room(timeout)
        ticket = Ticket()
        with self._pump.lock:
            self._pump.check()
            if message.id:
                self._publisher.put_alone(message, options, ticket)
            else:
                self._publisher.put(message, options, ticket)
        receipt: Receipt = self._await(ticket, timeout, "the publish was not confirmed")
        return receipt

    def publish_many(
        self,
        topic: str,
        payloads: Sequence[object],
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        expires_at: float | datetime | None = None,
        level: str | None = None,
        timeout: float | None = PUBLISH_S,
    ) -> Receipt:
        """Publish many messages on one topic and return when all are on disk. The receipt has the first seq."""
        options = block_options(level, priority, ttl, expires_at)
        if not payloads:
            raise BadMessage("nothing to publish", "give at least one payload")
        blocks = pack(topic, payloads, headers, options)
        tickets: list[Ticket] = []
        for raw, count in blocks:
            self._make_room(timeout)
            tickets.append(Ticket())
            with self._pump.lock:
                self._pump.check()
                self._publisher.put_block(raw, count, options.level, topic, tickets[-1])
                self._pump.turn_locked()
        return total([self._await(ticket, timeout, "the publish was not confirmed") for ticket in tickets])

    def publish_nowait(
        self,
        topic: str,
        data: object,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        id: str | bytes | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        expires_at: float | datetime | None = None,
        level: str | None = None,
    ) -> None:
        """Publish without waiting for the confirm; `flush` waits for all. When the buffer is full this waits for
        room. Raises PublishRefused when the hub has refused messages; unless it is among them, this one is accepted
        all the same."""
        publisher = self._publisher
        lane = publisher.lane
        if (
            (topic == lane.topic or topic in lane.topics)
            and type(data) is bytes
            and len(data) <= LANE_BODY_MAX
            and key is None
            and headers is None
            and id is None
            and priority is None
            and ttl is None
            and expires_at is None
            and level is None
        ):
            # The short cut, without a lock. Look at outgoing.Lane for why nothing gets lost.
            items = lane.items
            items.append(data if lane.topic is not None else (topic, data))
            if len(items) < lane.limit and publisher.lane is lane:
                return
            with self._pump.lock:
                self._pump.check()
                publisher.absorb(lane)
                self._pump.turn_locked()
                self._pump.hand_over_locked()
        else:
            self._gather(fit(topic, data, key, id, headers), block_options(level, priority, ttl, expires_at))
        self._make_room(None)
        if publisher.refusals:
            raise PublishRefused(publisher.take_refusals())

    def _gather(self, message: Fit, options: Options) -> None:
        """The long way of publish_nowait."""
        publisher, pump = self._publisher, self._pump
        with self._pump.lock:
            pump.check()
            first = not publisher.waiting
            if first:
                # Confirms that have arrived may free the line; only then is it known whether to gather or to go.
                pump.turn_locked()
            blocks = publisher.blocks
            publisher.put(message, options)
            if first or publisher.blocks != blocks:
                pump.turn_locked()
                pump.hand_over_locked()
            publisher.open_lane(message)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until `publish_nowait` has room."""
        self._make_room(timeout)

    def flush(self, timeout: float | None = PUBLISH_S) -> None:
        """Wait until the hub has confirmed every publish and every verdict. Raises PublishRefused for messages that
        it refused."""
        self._pump.check()
        with self._pump.lock:
            for sub in self._session.subscriptions.values():
                self._session.flush(sub)
        done = self._pump.wait(lambda: self._session.settled or self._session.error, timeout)
        self._pump.check()
        if self._publisher.refusals:
            raise PublishRefused(self._publisher.take_refusals())
        if not done:
            raise self._pump.too_late(f"{self._publisher.unconfirmed} messages were not confirmed", timeout)

    # Consuming.

    def consume(
        self,
        *patterns: str,
        group: str | None = None,
        start: Start | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        attempts: int | None = None,
        level: str | None = None,
        count: int | None = None,
        timeout: float | None = None,
    ) -> Consumer[Message]:
        """Iterate over the messages that match. With a `group` the work is shared and every message wants a verdict
        (`with msg:`); without one, everything from now on is seen and nothing is remembered.

        Ends after `count` messages, or when none came for `timeout` seconds. `prefetch` is how many unsettled messages
        the hub may send ahead (default 8192, for speed): for slow jobs choose about twice what you work on at once,
        so that the rest stays with the hub for other workers; 1 is fairest. `lease` (seconds), `attempts` and `level`
        are settings of the group, fixed when it is created.
        """
        sub = self._subscribe(
            patterns,
            group=group, start=start, prefetch=prefetch, lease=lease, attempts=attempts, level=level, count=count,
        )  # fmt: skip
        return Consumer(self, sub, consumer.messages(self, self._pump, sub, count, timeout))

    def consume_batches(
        self,
        *patterns: str,
        group: str | None = None,
        start: Start | None = None,
        prefetch: int | None = None,
        lease: float | None = None,
        attempts: int | None = None,
        level: str | None = None,
        count: int | None = None,
        timeout: float | None = None,
    ) -> Consumer[Batch]:
        """Like `consume`, a delivery at a time: the fastest way through. `batch.payloads` is a list of bytes."""
        sub = self._subscribe(
            patterns,
            group=group, start=start, prefetch=prefetch, lease=lease, attempts=attempts, level=level, count=count,
        )  # fmt: skip
        return Consumer(self, sub, consumer.batches(self, self._pump, sub, count, timeout))

    def fetch(
        self,
        *patterns: str,
        group: str | None = None,
        count: int = 1,
        timeout: float = 1.0,
        start: Start | None = None,
        lease: float | None = None,
        attempts: int | None = None,
        level: str | None = None,
    ) -> list[Message]:
        """Up to `count` messages, those that came within `timeout` seconds; an empty list when there are none.
        Messages of a group may be held as long as needed, and want a verdict each."""
        key = (patterns, group, lease, attempts, level) if group is not None else object()
        idle = self._fetchers.setdefault(key, []) if group is not None else []
        sub = idle.pop() if idle else None
        if sub is None or sub.closed or sub.error is not None:
            sub = self._subscribe(
                patterns,
                group=group, start=start, prefetch=None, lease=lease, attempts=attempts, level=level, fetching=True,
            )  # fmt: skip
        ticket = Ticket()
        with self._pump.lock:
            self._session.fetch(sub, count, max(0, round(timeout * 1000)), ticket)
        ended = self._pump.wait(lambda: ticket.done, timeout + FETCH_GRACE_S)
        self._pump.check()
        with self._pump.lock:
            batches = []
            while (batch := sub.take()) is not None:
                batches.append(batch)
        if ended:
            ticket.result()
            idle.append(sub)
        elif not self.connected and not batches:
            self._pump.drop(sub)
            raise self._pump.too_late("the hub did not answer a fetch", timeout)
        sub.unwanted = not ended  # its END was lost with a connection
        if group is None:
            self._pump.drop(sub)
        return [message for batch in batches for message in batch]

    # Everything else.

    def info(self, what: str = "hub", *, timeout: float | None = ANSWER_S) -> dict[str, Any]:
        """What the hub knows: "hub", "groups", "sessions" or "counters"."""
        self._pump.check()
        ticket = Ticket()
        with self._pump.lock:
            self._session.info(what, ticket)
        return dict(self._await(ticket, timeout, f"no answer to info({what!r})"))

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Flush, say goodbye and close. Raises what `flush` would raise; the client is closed in any case."""
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout)
        finally:
            if self.connected:
                goodbye = Ticket()
                with self._pump.lock:
                    self._session.goodbye(goodbye)
                self._pump.wait(lambda: goodbye.done, GOODBYE_S)
            self._pump.stop()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except FabricError:
            if kind is None:  # otherwise the first error is the one to hear about
                raise

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._pump.abandon()

    # Helpers.

    def _make_room(self, timeout: float | None) -> None:
        if self._publisher.full:
            room = self._pump.wait(lambda: not self._publisher.full or self._session.error, timeout)
            self._pump.check()
            if not room:
                raise self._pump.too_late("the publish buffer stayed full", timeout)

    def _subscribe(self, patterns: Sequence[str], **settings: Any) -> Subscription:
        self._pump.check()
        make = subscription_maker(self._pump.verdicts, patterns, **settings)
        ticket = Ticket()
        with self._pump.lock:
            sub = self._session.subscribe(make, ticket)
        try:
            self._await(ticket, ANSWER_S, "the hub did not answer a subscription")
        except BaseException:
            self._pump.drop(sub)
            raise
        return sub

    def _await(self, ticket: Ticket, timeout: float | None, what: str) -> Any:
        if not self._pump.wait(lambda: ticket.done, timeout) and not ticket.done:
            raise self._pump.too_late(what, timeout)
        return ticket.result()
