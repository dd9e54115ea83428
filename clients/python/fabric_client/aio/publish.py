"""The methods of the asyncio client that publish, as in `sync.publish`."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack, overload

from fabric_client import spans
from fabric_client.aio.base import AsyncBase
from fabric_client.core.arguments import Moment, listed
from fabric_client.core.outgoing import FAST_PATH_BODY_MAX, Options, Prepared
from fabric_client.core.publisher import Publisher
from fabric_client.core.receipt import Receipt, Scheduled, total
from fabric_client.core.schedules import Schedule, cancelled_due, check_one_schedule, schedule_choice, schedule_page
from fabric_client.core.session import Session
from fabric_client.core.source import put, source_of
from fabric_client.core.ticket import Ticket
from fabric_client.core.unconfirmed import Pending
from fabric_client.core.verdict_exceptions import Seconds, patience
from fabric_client.errors import BufferFull, ConnectionLost, Timeout, refusal_error
from fabric_client.options import (
    ANSWER_S,
    PUBLISH_S,
    MessageOptions,
    NumberedOptions,
    PublishOptions,
    ScheduleOptions,
    message_of,
    numbered_of,
    pack,
    steering_of,
)
from fabric_protocol import messages as m
from fabric_protocol.columns import HeaderValue


class AsyncPublishing(AsyncBase):
    _session: Session
    _publisher: Publisher

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        **options: Unpack[MessageOptions],
    ) -> Receipt: ...

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        delay: Seconds,
        every: Seconds | None = None,
        cron: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        at: Moment,
        every: Seconds | None = None,
        cron: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        every: Seconds,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        cron: str,
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    @overload
    async def publish(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        **options: Unpack[PublishOptions],
    ) -> Receipt: ...

    async def publish(
        self, topic: str, data: object, *, timeout: Seconds | None = PUBLISH_S, **options: Unpack[PublishOptions]
    ) -> Receipt:
        """Publish one message and return when the hub has it on disk. Bytes are sent as they are; text as UTF-8, and
        other data as JSON, with a header for the type, so that `data` of the message is what was published.
        `PublishOptions` lists the options. With `delay`, `at`, `every` or `cron` the hub keeps the message until it is
        due, and the result is a `Scheduled` with the id of the schedule."""
        with spans.publishing(topic, options) as sent:
            return sent.stored(await self._publish(*message_of(topic, data, **options), timeout))

    async def _publish(
        self, message: Prepared, options: Options, timeout: Seconds | None, position: int | None = None
    ) -> Receipt:
        await self.drain(timeout)
        ticket = Ticket()
        self._gather(message, options, ticket, position)
        return (await self._driver.published([Pending(ticket)], patience(timeout)))[0]

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[object],
        *,
        keys: Sequence[str | bytes] | None = None,
        ids: Sequence[str | bytes] | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        timeout: Seconds | None = PUBLISH_S,
        **options: Any,
    ) -> Receipt:
        """Publish many messages on one topic and return when all are on disk. The receipt has the first seq; with `ids`
        it has the seq of each message, and which of them the hub had already. `PublishOptions` lists more options."""
        payloads, carried = listed(payloads), {"headers": headers}
        with spans.joining("send", topic, carried, len(payloads)):
            columns = {"keys": keys, "ids": ids, **carried}
            return await self._publish_many(topic, payloads, steering_of(options), columns, timeout)

    async def _publish_many(
        self,
        topic: str,
        payloads: Sequence[object],
        steering: Options,
        columns: Mapping[str, Any],
        timeout: Seconds | None,
    ) -> Receipt:
        blocks = pack(topic, payloads, steering, **columns)
        check_one_schedule(steering, len(blocks))
        pending, each = [Pending(Ticket(), count) for _, count in blocks], columns["ids"] is not None
        sent = 0
        try:
            for (raw, count), (ticket, _) in zip(blocks, pending, strict=True):
                await self.drain(timeout)
                self._driver.check()
                self._publisher.put_block(raw, count, steering.behind(sent), topic, ticket, each=each)
                sent += count
                self._driver.run_turn()
        except (Timeout, ConnectionLost):
            raise self._driver.unpublished(pending, patience(timeout)) from None
        except BaseException as error:
            self._driver.interrupted(pending, error)
            raise
        return total(await self._driver.published(pending, patience(timeout)))

    def publish_nowait(self, topic: str, data: object, **options: Unpack[PublishOptions]) -> None:
        """Publish without waiting for the confirm; `flush` waits for all. Raises BufferFull if there is no room (the
        message is not accepted; `drain` waits for room), and PublishRefused if the hub has refused earlier messages
        (this message is accepted nevertheless, unless it is among them)."""
        publisher = self._publisher
        fast_path = publisher.fast_path
        if (
            not options
            and (topic == fast_path.topic or topic in fast_path.topics)
            and type(data) is bytes
            and len(data) <= FAST_PATH_BODY_MAX
            and (not spans.live or spans.current() is spans.quiet or not spans.joins())
        ):
            fast_path.items.append(data if fast_path.topic is not None else (topic, data))
            if len(fast_path.items) < fast_path.limit:
                return
            publisher.absorb(fast_path)
            self._driver.run_turn()
        else:
            if publisher.full:
                raise BufferFull("the publish buffer is full", "the hub is slower than you: await fab.drain()")
            with spans.joining("create", topic, options):
                message, steering = message_of(topic, data, **options)
                self._gather(message, steering, None)
            if not publisher.full:
                publisher.open_fast_path(message)
        if publisher.refusals:
            raise refusal_error(publisher.take_refusals())

    @property
    def position(self) -> int:
        """The last position of this numbered source that the hub has on disk; 0 if there is none. After a crash, go on
        with the positions above it."""
        return source_of(self._publisher).cursor

    async def publish_numbered(
        self,
        position: int,
        topic: str,
        data: object,
        *,
        timeout: Seconds | None = PUBLISH_S,
        **options: Unpack[NumberedOptions],
    ) -> Receipt:
        """Publish the message of a position of this source (`aconnect(source=...)`) and return when the hub has it on
        disk. Positions rise from message to message and may jump. A position that the hub has is not stored again: the
        receipt is a `duplicate`, and its seq is 0 unless the hub was asked."""
        with spans.publishing(topic, options) as sent:
            return sent.stored(await self._publish(*numbered_of(topic, data, options), timeout, position))

    def publish_numbered_nowait(
        self, position: int, topic: str, data: object, **options: Unpack[NumberedOptions]
    ) -> None:
        """The same without waiting for the confirm; `flush` waits for all. Raises BufferFull if there is no room. If
        the hub refuses a message for good, those behind it are not stored, so that `position` does not pass it, and
        this or `flush` raises PublishRefused with all of them."""
        if self._publisher.full:
            raise BufferFull("the publish buffer is full", "the hub is slower than you: await fab.drain()")
        with spans.joining("create", topic, options):
            self._gather(*numbered_of(topic, data, options), None, position)
        if self._publisher.refusals:
            raise refusal_error(self._publisher.take_refusals())

    async def drain(self, timeout: Seconds | None = None) -> None:
        """Wait until `publish_nowait` has room."""
        if self._publisher.full:
            timeout = patience(timeout)
            room = await self._driver.wait(lambda: not self._publisher.full or self._session.error, timeout)
            self._driver.check()
            if not room:
                raise self._driver.too_late("the publish buffer stayed full", timeout)

    @property
    def unconfirmed(self) -> int:
        """How many messages the hub has not confirmed yet."""
        return self._publisher.unconfirmed

    async def flush(self, timeout: Seconds | None = PUBLISH_S) -> None:
        """Wait until the hub has confirmed every publish and every verdict. Without all confirmations in time it raises
        Unconfirmed, Timeout or ConnectionLost, whose `verdicts` names the messages with unconfirmed verdicts. Otherwise
        it raises PublishRefused for messages that the hub refused, the hub's refusal of verdicts, and
        VerdictsUnconfirmed, which names messages whose verdicts were lost with a session since the last flush. A
        verdict that came too late counts as confirmed: only `settle()` of a message tells that it had no effect."""
        self._driver.check()
        for sub in list(self._session.subscriptions.values()):
            self._session.flush(sub)
        timeout = patience(timeout)
        done = await self._driver.wait(lambda: self._session.settled or self._session.error, timeout)
        self._driver.flushed(done, timeout)

    async def cancel(
        self, id: int | Receipt | None = None, *, name: str | None = None, timeout: Seconds | None = ANSWER_S
    ) -> datetime:
        """Cancel a scheduled publish, by its id or by its name; returns when it would have been due. Raises NotFound if
        there is no such schedule: it was published, was cancelled, or never existed."""
        choice = schedule_choice(id, name)
        return cancelled_due(await self._ask(lambda rid: m.Cancel(rid, choice), timeout, "no answer to a cancel"))

    async def schedules(self, *, page: int = 100, timeout: Seconds | None = ANSWER_S) -> AsyncIterator[Schedule]:
        """The pending schedules, in the order in which they are due; fetched a page at a time, for `async for`."""
        after: Any = None
        while True:
            answer = await self._inform(schedule_page(after, page), timeout)
            for row in answer["schedules"]:
                yield Schedule.of(row)
            after = answer.get("next")
            if not answer.get("more"):
                return

    def _gather(self, message: Prepared, options: Options, ticket: Ticket | None, position: int | None = None) -> None:
        publisher, driver = self._publisher, self._driver
        driver.check()
        first = not publisher.waiting
        if first:
            # Confirms that have arrived decide whether the message is sent at once or waits in the open block.
            driver.run_turn()
        blocks = publisher.blocks
        put(publisher, message, options, ticket, position)
        if first or publisher.blocks != blocks:
            driver.run_turn()
