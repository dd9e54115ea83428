"""Questions and answers with the asyncio client: the twin of `sync_ask`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from time import monotonic
from typing import Any, overload

from fabric_client.admin import Admin
from fabric_client.aio import consumer as async_consumer
from fabric_client.aio import worker as async_worker
from fabric_client.aio.base import AsyncBase
from fabric_client.aio.consumer import AsyncConsumer
from fabric_client.core.arguments import Moment, patterns_of
from fabric_client.core.inbox import Mailbox, addressed, inbox, mailbox_settings
from fabric_client.core.message import Message
from fabric_client.core.reading import Reading
from fabric_client.core.requests import Reply, Request, next_reply, one, request_fields, responder_maker
from fabric_client.core.ticket import Ticket
from fabric_client.core.unconfirmed import Pending
from fabric_client.core.verdict_exceptions import Seconds, patience, seconds
from fabric_client.core.work_queue import check_handler
from fabric_client.io.shifts import Shifts
from fabric_client.options import ANSWER_S, REQUEST_GRACE_S, check_concurrency, message_of, subscription_maker
from fabric_protocol import messages as m
from fabric_protocol.columns import HeaderValue


class AsyncAsking(AsyncBase):
    _is_named: bool
    _shifts: Shifts
    _mailbox: Mailbox | None
    _mailbox_lock: asyncio.Lock

    @property
    def admin(self) -> Admin[Awaitable[dict[str, Any]]]:
        """Make, change and remove groups, topics and queues; look after dead letters. Every word is awaited."""
        return Admin(self._administer)

    async def info(
        self, what: str = "hub", name: str | None = None, *, timeout: Seconds | None = ANSWER_S, **fields: Any
    ) -> dict[str, Any]:
        """What the hub knows: "hub", "counters", "groups", "group" (with its name), "topics", "topic", "sessions",
        "schedules", "dlq", "settings". Lists come in pages: `more` and `next`, which is given as `after`."""
        return await self._inform({"what": what, **({} if name is None else {"name": name}), **fields}, timeout)

    async def get(
        self,
        topic: str | None = None,
        *,
        seq: int | None = None,
        time: Moment | None = None,
        n: int | None = None,
        last: bool = False,
        by_key: bool = False,
        timeout: Seconds | None = ANSWER_S,
    ) -> AsyncIterator[Message]:
        """Read stored messages of a topic or pattern without a group: from a seq or a time on, the `last` ones, or the
        latest of each key (`by_key`). `n` is how many: 1 unless told, all keys with `by_key`."""
        reading = Reading(topic, seq, time, n, last, by_key)
        while not reading.done:
            call, answer = await self._call(reading.ask, timeout, "no answer to a get")
            for message in reading.page(answer, call.parts):
                yield message

    @overload
    async def request(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds = ANSWER_S,
        replies_max: None = None,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        durable: bool = False,
        correlation: str | None = None,
    ) -> Reply: ...

    @overload
    async def request(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds = ANSWER_S,
        replies_max: int,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> AsyncIterator[Reply]: ...

    async def request(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds = ANSWER_S,
        replies_max: int | None = None,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        durable: bool = False,
        correlation: str | None = None,
    ) -> Reply | AsyncIterator[Reply]:
        """Ask whoever answers that topic, and wait for the reply; with `replies_max`, an iterator over up to so many.
        Raises NoResponders at once when nobody answers it, TimedOut, or RemoteError when the one who answers failed.

        A `durable` request is a message in the journal, and so is its answer: it survives the end of either program.
        Asking again with the same `correlation` does not repeat the request, but goes on waiting for its answer.
        """
        timeout = seconds(timeout, "timeout")
        if durable:
            return await self._durable(topic, data, timeout, key, headers, correlation)
        fields, raw = request_fields(timeout, replies_max), one(topic, data, key, headers)
        replies = self._replies(lambda rid: m.Request(0, rid, fields, raw), timeout, replies_max)
        return replies if replies_max is not None else await anext(replies)

    def serve(
        self,
        *patterns: str,
        group: str | None = None,
        concurrency: int = 1,
        count: int | None = None,
        timeout: Seconds | None = None,
    ) -> AsyncConsumer[Request]:
        """Iterate over requests to topics that match, and `reply` to each. Those of one `group` share the requests;
        `concurrency` is how many unanswered ones the hub may send."""
        timeout = patience(timeout)
        make = responder_maker(self._reactor, patterns, group, check_concurrency(concurrency))
        sub = self._begin(make, Ticket())
        return AsyncConsumer(self._reactor, sub, async_consumer.requests(self._reactor, sub, count, timeout))

    async def respond(
        self,
        patterns: str | Sequence[str],
        handler: Callable[[Request], Any],
        *,
        group: str | None = None,
        concurrency: int = 16,
        count: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """Answer requests with what `handler(request)` returns, up to `concurrency` at once: coroutines in tasks, plain
        functions in threads. A generator answers with several replies, an exception with a RemoteError. Returns how
        many were answered, after `count` of them, when none came for `timeout` seconds, or after `stop()`, `close()` or
        SIGTERM, as `work` does."""
        timeout = patience(timeout)
        check_handler(handler, "handler(request)", 1)
        names = patterns_of(patterns)
        make = responder_maker(self._reactor, names, group, check_concurrency(concurrency))
        with self._shifts.begin(asyncio.current_task(), self._reactor.pump) as shift:
            sub = await self._open(make, ANSWER_S)
            shift.ends_by(lambda: self._reactor.halt(sub))
            return await async_worker.respond(self._reactor, sub, handler, concurrency, count, timeout, shift)

    # Helpers.

    async def _administer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(await self._ask(lambda rid: m.Admin(rid, fields), ANSWER_S, f"no answer to {fields['op']}"))

    async def _replies(
        self, make: Callable[[int], m.ToHub], timeout: float, replies_max: int | None
    ) -> AsyncIterator[Reply]:
        self._reactor.check()
        deadline = monotonic() + timeout + REQUEST_GRACE_S
        ticket = Ticket()
        call = self._reactor.session.ask(make, ticket)
        self._reactor.pump()
        try:
            while True:
                left = max(0.0, deadline - monotonic())
                if replies_max is None:
                    came = await self._reactor.answer(ticket, left)
                else:
                    came = await self._reactor.wait(lambda: call.parts or ticket.done, left)
                if not came and not ticket.done:
                    raise self._reactor.unanswered(timeout)
                while (reply := next_reply(call, replies_max)) is not None:
                    yield reply
                if ticket.done and not call.parts:
                    ticket.result()
                    return
        finally:
            self._forget(call)

    async def _durable(
        self,
        topic: str,
        data: object,
        timeout: float,
        key: str | bytes | None,
        headers: Mapping[str, HeaderValue] | None,
        correlation: str | None,
    ) -> Reply:
        name = inbox(self._reactor.session.name, self._is_named)
        async with self._mailbox_lock:
            box = self._mailbox
            if box is None or box.sub.closed or box.sub.error is not None:
                make = subscription_maker(self._reactor, (name,), settings={}, **mailbox_settings(name))
                box = self._mailbox = Mailbox(await self._open(make, ANSWER_S))
        correlation, headers = addressed(name, correlation, headers)
        message, options = message_of(topic, data, key=key, id=correlation, headers=headers)
        ticket = Ticket()
        self._reactor.session.publisher.put(message, options, ticket)
        self._reactor.pump()
        deadline = monotonic() + timeout
        await self._reactor.published([Pending(ticket)], timeout)
        await self._reactor.wait(lambda: box.look(correlation), max(0.0, deadline - monotonic()))
        return box.take(correlation)
