"""The asyncio client: the twin of `sync`, with the same words.

It is used from the thread of its event loop. `publish_nowait` is a plain method here too; where the blocking one would
wait for room it raises BufferFull, and `await fab.drain()` is how to wait.
"""

import warnings
from collections.abc import Generator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import zmq

from fabric.columns import HeaderValue
from fabric.errors import FabricError
from fabric_client import async_consumer
from fabric_client.async_consumer import AsyncConsumer
from fabric_client.errors import BadMessage, BufferFull, PublishRefused
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
from fabric_client.reactor import Reactor
from fabric_client.session import State
from fabric_client.subscription import Subscription
from fabric_client.ticket import Ticket


def aconnect(
    url: str | None = None,
    *,
    name: str | None = None,
    producer: str | None = None,
    context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
    timeout: float = ANSWER_S,
) -> "Connecting":
    """An asyncio client of the hub at `url`: `fab = await aconnect()`, or `async with aconnect() as fab`."""
    return Connecting(AsyncClient(url, name=name, producer=producer, context=context, timeout=timeout))


class Connecting:
    """A client that becomes connected by being awaited or entered."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client

    def __await__(self) -> Generator[Any, None, "AsyncClient"]:
        return self._client._start().__await__()

    async def __aenter__(self) -> "AsyncClient":
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)


class AsyncClient:
    """A connection to a hub, used from the tasks of one event loop. Made by `aconnect`."""

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
        self._asked = (
            url or default_url(),
            name or random_name("client"),
            producer or random_name("producer"),
            context,
        )
        self._timeout = timeout
        self._fetchers: dict[object, list[Subscription]] = {}

    async def _start(self) -> "AsyncClient":
        self._reactor = Reactor(*self._asked)
        self._session = self._reactor.session
        self._publisher = self._session.publisher
        try:
            await self._reactor.start(self._timeout)
        except BaseException:
            self._reactor.stop()
            raise
        self._closed = False
        return self

    @property
    def connected(self) -> bool:
        """Whether the hub is there right now. Calls wait for it in any case."""
        return self._session.state is State.LIVE

    @property
    def hub(self) -> Mapping[str, Any]:
        """What the hub said in its welcome."""
        return self._session.hub

    # Publishing.

    async def publish(
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
        await self.drain(timeout)
        ticket = Ticket()
        self._gather(message, options, ticket)
        receipt: Receipt = await self._await(ticket, timeout, "the publish was not confirmed")
        return receipt

    async def publish_many(
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
        tickets: list[Ticket] = []
        for raw, count in pack(topic, payloads, headers, options):
            await self.drain(timeout)
            self._reactor.check()
            tickets.append(Ticket())
            self._publisher.put_block(raw, count, options.level, topic, tickets[-1])
            self._reactor.pump()
        return total([await self._await(ticket, timeout, "the publish was not confirmed") for ticket in tickets])

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
        """Publish without waiting for the confirm; `flush` waits for all. Raises BufferFull when there is no room
        (the message is not accepted; `drain` waits for room), and PublishRefused when the hub has refused messages
        (unless it is among them, this one is accepted all the same)."""
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
            lane.items.append(data if lane.topic is not None else (topic, data))
            if len(lane.items) < lane.limit:
                return
            publisher.absorb(lane)
            self._reactor.pump()
        else:
            if publisher.full:
                raise BufferFull("the publish buffer is full", "the hub is slower than you: await fab.drain()")
            message = fit(topic, data, key, id, headers)
            self._gather(message, block_options(level, priority, ttl, expires_at), None)
            if not publisher.full:
                publisher.open_lane(message)
        if publisher.refusals:
            raise PublishRefused(publisher.take_refusals())

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until `publish_nowait` has room."""
        if self._publisher.full:
            room = await self._reactor.wait(lambda: not self._publisher.full or self._session.error, timeout)
            self._reactor.check()
            if not room:
                raise self._reactor.too_late("the publish buffer stayed full", timeout)

    async def flush(self, timeout: float | None = PUBLISH_S) -> None:
        """Wait until the hub has confirmed every publish and every verdict. Raises PublishRefused for messages that
        it refused."""
        self._reactor.check()
        for sub in self._session.subscriptions.values():
            self._session.flush(sub)
        done = await self._reactor.wait(lambda: self._session.settled or self._session.error, timeout)
        self._reactor.check()
        if self._publisher.refusals:
            raise PublishRefused(self._publisher.take_refusals())
        if not done:
            raise self._reactor.too_late(f"{self._publisher.unconfirmed} messages were not confirmed", timeout)

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
    ) -> AsyncConsumer[Message]:
        """Iterate over the messages that match, with `async for`; see `Client.consume` for the settings. What the hub
        has against the subscription is raised by the first step of the iteration."""
        sub = self._subscribe(
            Ticket(), patterns,
            group=group, start=start, prefetch=prefetch, lease=lease, attempts=attempts, level=level, count=count,
        )  # fmt: skip
        return AsyncConsumer(sub, async_consumer.messages(self._reactor, sub, count, timeout))

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
    ) -> AsyncConsumer[Batch]:
        """Like `consume`, a delivery at a time: the fastest way through. `batch.payloads` is a list of bytes."""
        sub = self._subscribe(
            Ticket(), patterns,
            group=group, start=start, prefetch=prefetch, lease=lease, attempts=attempts, level=level, count=count,
        )  # fmt: skip
        return AsyncConsumer(sub, async_consumer.batches(self._reactor, sub, count, timeout))

    async def fetch(
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
            opened = Ticket()
            sub = self._subscribe(
                opened, patterns,
                group=group, start=start, prefetch=None, lease=lease, attempts=attempts, level=level, fetching=True,
            )  # fmt: skip
            await self._await(opened, ANSWER_S, "the hub did not answer a subscription")
        ticket = Ticket()
        self._session.fetch(sub, count, max(0, round(timeout * 1000)), ticket)
        self._reactor.pump()
        ended = await self._reactor.answer(ticket, timeout + FETCH_GRACE_S)
        self._reactor.check()
        batches = list(iter(sub.take, None))
        if ended:
            ticket.result()
            idle.append(sub)
        elif not self.connected and not batches:
            self._reactor.drop(sub)
            raise self._reactor.too_late("the hub did not answer a fetch", timeout)
        sub.unwanted = not ended  # its END was lost with a connection
        if group is None:
            self._reactor.drop(sub)
        return [message for batch in batches for message in batch]

    # Everything else.

    async def info(self, what: str = "hub", *, timeout: float | None = ANSWER_S) -> dict[str, Any]:
        """What the hub knows: "hub", "groups", "sessions" or "counters"."""
        self._reactor.check()
        ticket = Ticket()
        self._session.info(what, ticket)
        self._reactor.pump()
        return dict(await self._await(ticket, timeout, f"no answer to info({what!r})"))

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """Flush, say goodbye and close. Raises what `flush` would raise; the client is closed in any case."""
        if self._closed:
            return
        self._closed = True
        try:
            await self.flush(timeout)
        finally:
            if self.connected:
                goodbye = Ticket()
                self._session.goodbye(goodbye)
                self._reactor.pump()
                await self._reactor.answer(goodbye, GOODBYE_S)
            self._reactor.stop()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except FabricError:
            if kind is None:  # otherwise the first error is the one to hear about
                raise

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self._reactor.stop()

    # Helpers.

    def _gather(self, message: Fit, options: Options, ticket: Ticket | None) -> None:
        publisher, reactor = self._publisher, self._reactor
        reactor.check()
        first = not publisher.waiting
        if first:
            # Confirms that have arrived may free the line; only then is it known whether to gather or to go.
            reactor.pump()
        blocks = publisher.blocks
        if message.id and ticket is not None:
            publisher.put_alone(message, options, ticket)
        else:
            publisher.put(message, options, ticket)
        if first or publisher.blocks != blocks:
            reactor.pump()

    def _subscribe(self, ticket: Ticket, patterns: Sequence[str], **settings: Any) -> Subscription:
        self._reactor.check()
        sub = self._session.subscribe(subscription_maker(self._reactor.verdicts, patterns, **settings), ticket)
        self._reactor.pump()
        return sub

    async def _await(self, ticket: Ticket, timeout: float | None, what: str) -> Any:
        if not await self._reactor.answer(ticket, timeout):
            raise self._reactor.too_late(what, timeout)
        return ticket.result()
