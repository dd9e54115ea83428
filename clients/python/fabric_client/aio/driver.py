"""The driver on an event loop: without lock and thread, because everything happens in the thread of the loop.

The loop watches the socket's descriptor, which is edge-triggered; so every wake-up, and every turn that sends, drains
the socket. One timer serves all deadlines of the session.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from fabric_client import spans
from fabric_client.core.batch import Batch
from fabric_client.core.batch_verdicts import VERDICTS_PER_FRAME
from fabric_client.core.begun import ask_before
from fabric_client.core.liveness import Liveness
from fabric_client.core.receipt import Receipt
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.settle import settle
from fabric_client.core.state import State
from fabric_client.core.subscription import FOREVER, VERDICT_DELAY_S, Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.transaction import Transaction, send
from fabric_client.core.unconfirmed import Pending
from fabric_client.core.verdict_exceptions import Decision
from fabric_client.destination import Destination
from fabric_client.io.driver import COMMIT_S, LEARN_S, Driver
from fabric_client.io.greeting import unknown_host
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict


class AsyncDriver(Driver):
    def __init__(
        self,
        to: Destination,
        name: str,
        producer: str | None,
        context: "zmq.Context[zmq.Socket[bytes]] | None",
        liveness: Liveness,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = FOREVER
        self._waiting: dict[asyncio.Future[None], Callable[[], object]] = {}
        super().__init__(to, name, producer, context, liveness)
        self._socket_opened()

    async def start(self, timeout: float) -> None:
        """Wait for the hub's WELCOME."""
        live = await self.wait(lambda: self.session.state in (State.LIVE, State.FAILED), timeout)
        if self.session.error is not None:
            raise self.session.error
        if not live:
            raise self.no_hub(timeout, await asyncio.to_thread(unknown_host, self.to.urls))

    def run_turn(self) -> None:
        """Run a turn, wake the waiting tasks, and set the timer."""
        if self._stopped:
            return
        self.turn()
        if self._waiting:
            for future, ready in list(self._waiting.items()):
                if ready():
                    _finish(future)
        self._set_timer()

    async def wait(self, ready: Callable[[], object], timeout: float | None) -> bool:
        """True once `ready()`; False if the timeout comes first."""
        self.run_turn()
        if ready() or self._stopped:
            return bool(ready())
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting[future] = ready
        try:
            await self._within(future, timeout)
        finally:
            del self._waiting[future]
        return bool(ready())

    async def answer(self, ticket: Ticket, timeout: float | None) -> bool:
        """True once the ticket is done; cheaper than `wait` if many tasks wait at once."""
        if not ticket.done:
            future: asyncio.Future[None] = self._loop.create_future()
            before = ticket.on_done

            def done(ticket: Ticket) -> None:
                if before is not None:
                    before(ticket)
                _finish(future)

            ticket.on_done = done
            await self._within(future, timeout)
        return ticket.done

    async def next_item(
        self, sub: Subscription, timeout: float | None, also: Callable[[], object] = lambda: False
    ) -> Batch | Refresh | None:
        """The next batch or refresh; None after the timeout, at the end of the subscription, or once `also()`."""
        if sub.refused:
            raise sub.refused.pop(0)
        if sub.taken >= VERDICTS_PER_FRAME or not sub.ready or sub.waiting_keys.by_key:
            if (sub.wants_collect or sub.waiting_keys.by_key) and not self._stopped:
                self.session.flush(sub, time.monotonic())  # messages of waiting keys go back first
            self.run_turn()
        if not sub.ready:
            await self.wait(lambda: sub.awake or also(), timeout)
        else:
            await asyncio.sleep(0)  # a consumer that never waits would block the other tasks of the loop
        item = sub.take()
        if item is None:
            sub.raise_error()
        elif sub.unsure:
            await self._learn(sub)
        return item

    async def may_begin(self, sub: Subscription, batch: Batch, timeout: float | None) -> bool:
        """Before a message of the batch is begun, while `sub.careful`: wait until the hub has all verdicts, or knows
        that the consumer is unsure. False at the end of the subscription, or after `timeout` seconds without an
        answer."""
        while not (self._stopped or sub.over):
            question = ask_before(self.session, sub, batch, time.monotonic())
            if question is None:
                if self.session.out:
                    self.run_turn()
                return True
            self.run_turn()
            if not await self.wait(lambda asked=question.ticket: asked.done or sub.over, timeout):  # type: ignore[misc]
                break
            question.answered(time.monotonic())
            if batch.is_void:
                return True
        sub.raise_error()
        return False

    async def _learn(self, sub: Subscription) -> None:
        """Learn the order of the group before the first message is handed out."""
        ticket = Ticket(sub.learned)
        self.session.ask(lambda rid: m.Info(rid, {"what": "group", "name": sub.group}), ticket)
        await self.wait(lambda: ticket.done, LEARN_S)

    async def next_request(self, sub: Responder, timeout: float | None) -> Request | None:
        """The next request to answer; None after the timeout, or at the end of the subscription."""
        await self.wait(lambda: sub.requests or sub.awake, timeout)
        if sub.requests and not sub.stopped:
            return sub.requests.popleft()
        sub.raise_error()
        return None

    async def commit(self, txn: Transaction) -> Receipt | None:
        """Send a transaction and wait for its outcome."""
        if not txn.publishes:
            await self.settle(txn.batch, txn.index, (Verdict.ACK, None), COMMIT_S)
            return None
        self.check()
        count = txn.publishes
        with spans.committing(txn.sent, count):
            outcome = send(txn, self.session.publisher, self.session.flush, Ticket())
            self.run_turn()
            return (await self.published([Pending(outcome, count)], COMMIT_S))[0]

    async def published(self, pending: Sequence[Pending], timeout: float | None) -> list[Receipt]:
        """Wait for the receipts of publishes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for ticket, _ in pending:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not await self.answer(ticket, left):
                    break
        except BaseException as error:
            self.interrupted(pending, error)
            raise
        return self.receipts(pending, timeout)

    async def settle(self, batch: Batch, index: int | None, decision: Decision, timeout: float | None) -> None:
        """Give a verdict and wait for its answer."""
        self.check()
        ticket = Ticket()
        with spans.settling(decision[0].name.lower(), batch, index):
            settle(batch, index, decision, self.session.flush, ticket)
            self.run_turn()
            await self.result(ticket, timeout, "the verdict was not confirmed")

    async def result(self, ticket: Ticket, timeout: float | None, what: str) -> Any:
        """Wait for an answer."""
        if not await self.answer(ticket, timeout):
            raise self.too_late(what, timeout)
        return ticket.result()

    def verdicts(self, sub: Subscription, urgent: bool) -> None:
        """The hook of subscriptions. Called from any thread."""
        if threading.get_ident() != self._thread:
            self._call_soon(lambda: self.verdicts(sub, urgent))
        elif urgent and not self._stopped:
            self.session.flush(sub, time.monotonic())
            self.run_turn()
        elif sub.flush_at == FOREVER:
            sub.flush_at = time.monotonic() + VERDICT_DELAY_S
            self._set_timer()

    def drop(self, sub: Subscription) -> None:
        """Unsubscribe, without waiting. May run in finalizers, in any thread."""
        self._dropped.append(sub)
        if not self._stopped:
            self._call_soon(self.run_turn)

    def halt(self, sub: Subscription) -> None:
        """End the loop over a subscription at its next step. May run in any thread and in signal handlers."""
        sub.stop()
        self._halted.append(sub)
        if not self._stopped:
            self._call_soon(self.run_turn)

    def _call_soon(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def stop(self) -> None:
        self._end()
        if self._timer is not None:
            self._timer.cancel()
        for future in self._waiting:
            _finish(future)

    async def _within(self, future: "asyncio.Future[None]", timeout: float | None) -> None:
        if timeout is None:
            await future
            return
        timer = self._loop.call_later(timeout, _finish, future)
        try:
            await future
        finally:
            timer.cancel()

    def _set_timer(self) -> None:
        """Set the timer for the next deadline. A timer that fires too early stays: that costs less than moving it."""
        deadline = self.session.next_deadline()
        if self._stopped or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        if deadline < FOREVER:
            self._timer_at = deadline
            self._timer = self._loop.call_later(max(0.0, deadline - time.monotonic()), self._due)

    def _due(self) -> None:
        self._timer, self._timer_at = None, FOREVER
        self.run_turn()

    def _socket_opened(self) -> None:
        self._loop.add_reader(self._dealer.fd, self.run_turn)
        if self._dealer.monitor_fd >= 0:
            self._loop.add_reader(self._dealer.monitor_fd, self._on_monitor)

    def _on_monitor(self) -> None:
        self._check_monitor()
        self.run_turn()

    def _close_socket(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_reader(self._dealer.fd)
            if self._dealer.monitor_fd >= 0:
                self._loop.remove_reader(self._dealer.monitor_fd)
        super()._close_socket()


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
