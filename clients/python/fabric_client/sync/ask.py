"""The methods of the blocking client that ask: requests, stored messages, state of the hub, administration."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, overload

from fabric_client import spans
from fabric_client.admin import Admin
from fabric_client.core.arguments import Moment, patterns_of
from fabric_client.core.handlers import check_handler
from fabric_client.core.inbox import Inbox, addressed, inbox_settings, inbox_topic
from fabric_client.core.message import Message
from fabric_client.core.reading import Reading
from fabric_client.core.requests import Reply, Request, next_reply, request_fields, responder_maker, single_block
from fabric_client.core.ticket import Ticket
from fabric_client.core.unconfirmed import Pending
from fabric_client.core.verdict_exceptions import Seconds, patience, seconds
from fabric_client.io.handler_runs import HandlerRuns
from fabric_client.options import ANSWER_S, REQUEST_GRACE_S, check_concurrency, message_of, subscription_maker
from fabric_client.sync import consumer, worker
from fabric_client.sync.base import Base
from fabric_client.sync.consumer import Consumer
from fabric_protocol import messages as m
from fabric_protocol.columns import HeaderValue


class Asking(Base):
    _is_named: bool
    _runs: HandlerRuns
    _inbox: Inbox | None
    _inbox_lock: threading.Lock

    @property
    def admin(self) -> Admin[dict[str, Any]]:
        """Create, change and delete groups, topics and queues; list, redrive and discard dead letters."""
        return Admin(self._administer)

    def info(
        self, what: str = "hub", name: str | None = None, *, timeout: Seconds | None = ANSWER_S, **fields: Any
    ) -> dict[str, Any]:
        """The state of the hub: "hub", "counters", "groups", "group" (with its name), "topics", "topic", "sessions",
        "schedules", "dlq" or "settings". Lists come in pages: if there is `more`, pass `next` as `after`."""
        return self._inform({"what": what, **({} if name is None else {"name": name}), **fields}, timeout)

    def get(
        self,
        topic: str | None = None,
        *,
        seq: int | None = None,
        time: Moment | None = None,
        n: int | None = None,
        last: bool = False,
        by_key: bool = False,
        timeout: Seconds | None = ANSWER_S,
    ) -> Iterator[Message]:
        """Read stored messages of a topic or pattern without a group: from a seq or a time on, the `last` messages, or
        the latest of each key (`by_key`). `n` is how many: by default 1, or all keys with `by_key`."""
        reading = Reading(topic, seq, time, n, last, by_key)
        while not reading.done:
            call, answer = self._call(reading.ask, timeout, "no answer to a get")
            yield from reading.page(answer, call.parts)

    @overload
    def request(
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
    def request(
        self,
        topic: str,
        data: object,
        *,
        timeout: Seconds = ANSWER_S,
        replies_max: int,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Iterator[Reply]: ...

    def request(
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
    ) -> Reply | Iterator[Reply]:
        """Send a request to a responder of the topic, and wait for the reply; with `replies_max`, returns an iterator
        over up to that many. Raises NoResponders at once if the topic has none, TimedOut, or RemoteError if the
        responder failed.

        A `durable` request and its reply are messages in the journal: they survive the end of either program. A second
        request with the same `correlation` does not repeat the first, but continues to wait for its reply.
        """
        timeout = seconds(timeout, "timeout")
        if durable:
            carried = {"headers": headers}
            with spans.requesting(topic, carried, correlation):
                return self._durable(topic, data, timeout, key, carried["headers"], correlation)
        fields, asking = request_fields(timeout, replies_max), spans.Asking(topic, headers)
        raw = single_block(topic, data, key, asking.headers)
        replies = self._replies(lambda rid: m.Request(0, rid, fields, raw), timeout, replies_max, asking)
        return replies if replies_max is not None else next(replies)

    def serve(
        self,
        *patterns: str,
        group: str | None = None,
        concurrency: int = 1,
        count: int | None = None,
        timeout: Seconds | None = None,
    ) -> Consumer[Request]:
        """Iterate over requests to topics that match, and `reply` to each. Responders of one `group` share the
        requests; `concurrency` is how many requests without a final reply the hub may send."""
        timeout = patience(timeout)
        sub = self._open(responder_maker(self._driver, patterns, group, check_concurrency(concurrency)), ANSWER_S)
        return Consumer(self, self._driver, sub, consumer.requests(self, self._driver, sub, count, timeout))

    def respond(
        self,
        patterns: str | Sequence[str],
        handler: Callable[[Request], Any],
        *,
        group: str | None = None,
        concurrency: int = 16,
        count: int | None = None,
        timeout: Seconds | None = None,
    ) -> int:
        """Reply to requests with the result of `handler(request)`, in up to `concurrency` threads; a generator gives
        several replies, an exception gives a RemoteError. Returns how many were answered, after `count` of them, if
        none came for `timeout` seconds, or after `stop()`, `close()` or SIGTERM, as `work` does."""
        timeout = patience(timeout)
        check_handler(handler, "handler(request)", 1, coroutines=False)
        names = patterns_of(patterns)
        make = responder_maker(self._driver, names, group, check_concurrency(concurrency))
        with self._runs.begin(threading.get_ident(), self._driver.wake_waiters) as run:
            sub = self._open(make, ANSWER_S)
            run.ends_by(lambda: self._driver.halt(sub))
            return worker.respond(self._driver, sub, handler, concurrency, count, timeout, run)

    # Helpers.

    def _administer(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self._ask(lambda rid: m.Admin(rid, fields), ANSWER_S, f"no answer to {fields['op']}"))

    def _replies(
        self, make: Callable[[int], m.ToHub], timeout: float, replies_max: int | None, asking: spans.Asking
    ) -> Iterator[Reply]:
        with asking:
            self._driver.check()
            deadline = monotonic() + timeout + REQUEST_GRACE_S
            ticket = Ticket()
            with self._driver.lock:
                call = self._driver.session.ask(make, ticket)
            try:
                while True:
                    came = self._driver.wait(lambda: call.parts or ticket.done, max(0.0, deadline - monotonic()))
                    if not came and not ticket.done:
                        raise self._driver.unanswered(timeout)
                    while (reply := next_reply(call, replies_max)) is not None:
                        if reply.final:
                            asking.end()
                        yield reply
                    if ticket.done and not call.parts:
                        ticket.result()
                        return
            finally:
                self._forget(call)

    def _durable(
        self,
        topic: str,
        data: object,
        timeout: float,
        key: str | bytes | None,
        headers: Mapping[str, HeaderValue] | None,
        correlation: str | None,
    ) -> Reply:
        name = inbox_topic(self._driver.session.handshake.name, self._is_named)
        with self._inbox_lock:
            box = self._inbox
            if box is None or box.sub.closed or box.sub.error is not None:
                make = subscription_maker(self._driver, (name,), settings={}, **inbox_settings(name))
                box = self._inbox = Inbox(self._open(make, ANSWER_S))
        correlation, headers = addressed(name, correlation, headers)
        message, options = message_of(topic, data, key=key, id=correlation, headers=headers)
        ticket = Ticket()
        with self._driver.lock:
            self._driver.session.publisher.put(message, options, ticket)
        deadline = monotonic() + timeout
        self._driver.published([Pending(ticket)], timeout)
        self._driver.wait(lambda: box.look(correlation), max(0.0, deadline - monotonic()))
        return box.take(correlation)
