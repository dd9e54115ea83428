"""The methods of the blocking client that consume: loops, handlers, single fetches."""

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any, Unpack

from fabric_client import spans
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
from fabric_client.sync import consumer, worker
from fabric_client.sync.base import Base
from fabric_client.sync.consumer import Consumer, OnRefresh


class Consuming(Base):
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
    ) -> Consumer[Message]:
        """Iterate over the messages that match. With a `group` its consumers share the messages, and every message
        needs a verdict (`with msg:`); without one, every message from now on is delivered and no position is kept.

        Ends after `count` messages, or if none came for `timeout` seconds. `prefetch` is how many unsettled messages
        the hub may send ahead: by default about a tenth of a second of your work (8192 at most), so that messages for
        slow handlers stay in the hub for other consumers; 1 shares most evenly. `concurrency` is how many messages you
        handle at once; `on_error` is the verdict for an exception in `with msg:`: "retry", "reject", "release" or
        "ack". `on_refresh` is called for data refreshes. `GroupOptions` lists the settings of a group, fixed when it is
        created."""
        timeout = patience(timeout)
        check_on_refresh(on_refresh, coroutines=False)
        sub = self._subscribe(
            patterns, settings,
            group=group, start=start, prefetch=prefetch, concurrency=concurrency, on_error=on_error, count=count,
        )  # fmt: skip
        return Consumer(self, self._driver, sub, consumer.messages(self, self._driver, sub, count, timeout, on_refresh))

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
    ) -> Consumer[Batch]:
        """Like `consume`, a delivery at a time: the fastest way to consume. `batch.payloads` is a list of bytes. A
        whole batch counts as begun."""
        timeout = patience(timeout)
        check_on_refresh(on_refresh, coroutines=False)
        sub = self._subscribe(
            patterns, settings,
            group=group, start=start, prefetch=prefetch, batches=True,
            on_error=on_error, count=count,
        )  # fmt: skip
        return Consumer(self, self._driver, sub, consumer.batches(self, self._driver, sub, count, timeout, on_refresh))

    def work(
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
        """Run `handler(message)` on every message of a group, in up to `concurrency` threads. A handler that returns
        acks its message; an exception gives the verdict `on_error`, and `Retry`, `Reject` and `Release` give theirs.
        `handler(message, ctx)` also gets a transaction: the hub stores what it publishes with `ctx.publish` together
        with the ack, or not at all. In a group of order "key" the messages of a key are handled one after the other.
        Without patterns, `work(handler=…, group=…)` consumes from a group that exists.

        Returns how many messages were begun, after `count` of them, if none came for `timeout` seconds, or after
        `stop()`, `close()` or SIGTERM: then no handler begins, and running handlers finish.
        """
        timeout = patience(timeout)
        check_on_refresh(on_refresh, coroutines=False)
        call, names = caller(handler, coroutines=False), patterns_of(patterns)
        with self._runs.begin(get_ident(), self._driver.wake_waiters) as run:
            sub = self._subscribe(
                names, settings,
                group=group, start=start, prefetch=prefetch or 2 * check_concurrency(concurrency),
                concurrency=concurrency, on_error=on_error, count=count,
            )  # fmt: skip
            run.ends_by(lambda: self._driver.halt(sub))
            return worker.work(self._driver, sub, call, concurrency, count, timeout, on_refresh, run)

    def fetch(
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
            sub = self._subscribe(
                patterns, settings,
                group=group, start=start, concurrency=CONCURRENCY_MAX, on_error=on_error, fetching=True,
                renews=renew,
            )  # fmt: skip
        ticket, idle = Ticket(), False
        try:
            with self._driver.lock:
                self._session.fetch(sub, how, ticket)
            self._driver.wait(lambda: ticket.done, how.expires_ms / 1000 + FETCH_GRACE_S)
            self._driver.check()
            with self._driver.lock:
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

    def _subscribe(self, patterns: Sequence[str], settings: Mapping[str, Any], **how: Any) -> Subscription:
        return self._open(subscription_maker(self._driver, patterns, settings=settings, **how), ANSWER_S)
