"""The methods of the asyncio client that consume, as in `sync.consume`."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from fabric_client import spans
from fabric_client.aio import consumer as async_consumer
from fabric_client.aio import worker as async_worker
from fabric_client.aio.base import AsyncBase
from fabric_client.aio.consumer import AsyncConsumer, OnRefresh
from fabric_client.core.arguments import patterns_of
from fabric_client.core.batch import Batch
from fabric_client.core.fetchers import Fetchers, fetched
from fabric_client.core.handlers import caller, check_on_refresh
from fabric_client.core.message import Message
from fabric_client.core.session import Session
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import OnError, Seconds, patience
from fabric_client.io.handler_runs import HandlerRuns
from fabric_client.options import (
    ANSWER_S,
    CONCURRENCY_MAX,
    FETCH_GRACE_S,
    GroupOptions,
    Start,
    check_concurrency,
    fetch_request,
    subscription_maker,
)


class AsyncConsuming(AsyncBase):
    _session: Session
    _fetchers: Fetchers
    _runs: HandlerRuns

    def consume(
        self,
        *patterns: str,
        group: str | None = None,
        start: Start | None = None,
        prefetch: int | None = None,
        concurrency: int = 1,
        on_error: OnError = "retry",
        on_refresh: OnRefresh | None = None,
        count: int | None = None,
        timeout: Seconds | None = None,
        **settings: Unpack[GroupOptions],
    ) -> AsyncConsumer[Message]:
        """Iterate over the messages that match, with `async for`; see `Client.consume` for the settings. If the hub
        refuses the subscription, the first step of the iteration raises."""
        timeout = patience(timeout)
        check_on_refresh(on_refresh)
        sub = self._begin(
            self._maker(
                patterns, settings,
                group=group, start=start, prefetch=prefetch, concurrency=concurrency, on_error=on_error, count=count,
            ),
            Ticket(),
        )  # fmt: skip
        return AsyncConsumer(self._driver, sub, async_consumer.messages(self._driver, sub, count, timeout, on_refresh))

    def consume_batches(
        self,
        *patterns: str,
        group: str | None = None,
        start: Start | None = None,
        prefetch: int | None = None,
        on_error: OnError = "retry",
        on_refresh: OnRefresh | None = None,
        count: int | None = None,
        timeout: Seconds | None = None,
        **settings: Unpack[GroupOptions],
    ) -> AsyncConsumer[Batch]:
        """Like `consume`, a delivery at a time: the fastest way to consume. `batch.payloads` is a list of bytes. A
        whole batch counts as begun."""
        timeout = patience(timeout)
        check_on_refresh(on_refresh)
        sub = self._begin(
            self._maker(
                patterns, settings,
                group=group, start=start, prefetch=prefetch, batches=True,
                on_error=on_error, count=count,
            ),
            Ticket(),
        )  # fmt: skip
        return AsyncConsumer(self._driver, sub, async_consumer.batches(self._driver, sub, count, timeout, on_refresh))

    async def work(
        self,
        patterns: str | Sequence[str] = (),
        handler: Callable[..., Any] | None = None,
        *,
        group: str,
        start: Start | None = None,
        prefetch: int | None = None,
        concurrency: int = 16,
        on_error: OnError = "retry",
        on_refresh: OnRefresh | None = None,
        count: int | None = None,
        timeout: Seconds | None = None,
        **settings: Unpack[GroupOptions],
    ) -> int:
        """Run `handler(message)` on every message of a group, up to `concurrency` at once: coroutines in tasks, plain
        functions in threads, so that they do not block the event loop. A handler that returns acks its message; an
        exception gives the verdict `on_error`, and `Retry`, `Reject` and `Release` give theirs. `handler(message, ctx)`
        also gets a transaction: the hub stores what it publishes with `ctx.publish` together with the ack, or not at
        all. In a group of order "key" the messages of a key are handled one after the other. Without patterns,
        `work(handler=…, group=…)` consumes from a group that exists.

        Returns how many messages were begun, after `count` of them, if none came for `timeout` seconds, or after
        `stop()`, `close()` or SIGTERM: then no handler begins, and running handlers finish.
        """
        timeout = patience(timeout)
        check_on_refresh(on_refresh)
        call, names = caller(handler), patterns_of(patterns)
        make = self._maker(
            names, settings,
            group=group, start=start, prefetch=prefetch or 2 * check_concurrency(concurrency),
            concurrency=concurrency, on_error=on_error, count=count,
        )  # fmt: skip
        with self._runs.begin(asyncio.current_task(), self._driver.run_turn) as run:
            sub = await self._open(make, ANSWER_S)
            run.ends_by(lambda: self._driver.halt(sub))
            return await async_worker.work(self._driver, sub, call, concurrency, count, timeout, on_refresh, run)

    async def fetch(
        self,
        *patterns: str,
        group: str | None = None,
        count: int = 1,
        at_least: int = 1,
        timeout: Seconds = 1.0,
        start: Start | None = None,
        renew: bool = True,
        on_error: OnError = "retry",
        **settings: Unpack[GroupOptions],
    ) -> list[Message]:
        """Up to `count` messages: the ready messages, or else the first that come within `timeout` seconds; an empty
        list if there are none. With `at_least`, waits for that many, but not longer than `timeout`. Messages of a group
        may be held as long as needed, and need a verdict each; a message that the program drops goes back. With
        `renew=False` the client does not renew leases: a message that is held longer than the group's lease goes to
        another consumer."""
        how, began_ns = fetch_request(count, at_least, timeout), spans.clock()
        key = (patterns, group, on_error, renew, *settings.items())
        sub = self._fetchers.take(key) if group is not None else None
        if sub is None:
            make = self._maker(
                patterns, settings,
                group=group, start=start, concurrency=CONCURRENCY_MAX, on_error=on_error, fetching=True,
                renews=renew,
            )  # fmt: skip
            sub = await self._open(make, ANSWER_S)
        ticket, idle = Ticket(), False
        try:
            self._session.fetch(sub, how, ticket)
            self._driver.run_turn()
            await self._driver.answer(ticket, how.expires_ms / 1000 + FETCH_GRACE_S)
            self._driver.check()
            messages = fetched(sub)
            if ticket.done:
                ticket.result()
                idle = group is not None
            elif not messages and not self._session.live:
                raise self._driver.too_late("the hub did not answer a fetch", how.expires_ms / 1000)
        finally:
            displaced = self._fetchers.put(key, sub) if idle else sub
            if displaced is not None:
                self._driver.drop(displaced)
        spans.received_all("fetch", messages, began_ns, group)
        return messages

    def _maker(self, patterns: Sequence[str], settings: Mapping[str, Any], **how: Any) -> Callable[[int], Subscription]:
        return subscription_maker(self._driver, patterns, settings=settings, **how)
