"""The driver of the blocking client: what a caller can wait for.

`caller_runs` has the threads; here each call gives the session something to do under the lock, and then waits for the
outcome without it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from fabric_client import spans
from fabric_client.core.batch import Batch
from fabric_client.core.batch_verdicts import VERDICTS_PER_FRAME
from fabric_client.core.begun import ask_before
from fabric_client.core.receipt import Receipt
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.settle import settle
from fabric_client.core.state import State
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.transaction import Transaction, send
from fabric_client.core.unconfirmed import Pending, all_done
from fabric_client.core.verdict_exceptions import Decision
from fabric_client.io.driver import COMMIT_S, LEARN_S
from fabric_client.io.greeting import unknown_host
from fabric_client.sync.caller_runs import CallerRuns
from fabric_protocol import messages as m
from fabric_protocol.messages import Verdict


class SyncDriver(CallerRuns):
    """Its methods are called without the lock, from any thread."""

    def start(self, timeout: float) -> None:
        """Wait for the hub's WELCOME."""
        live = self.wait(
            lambda: self.session.state is not State.OPENING and self.session.state is not State.LOST, timeout
        )
        if self.session.error is not None:
            raise self.session.error
        if not live:
            raise self.no_hub(timeout, unknown_host(self.to.urls))
        self._thread.start()

    def next_item(
        self, sub: Subscription, timeout: float | None, also: Callable[[], object] = lambda: False
    ) -> Batch | Refresh | None:
        """The next batch or refresh; None after the timeout, at the end of the subscription, or once `also()`."""
        with self.lock:
            if sub.refused:
                raise sub.refused.pop(0)
            if sub.taken < VERDICTS_PER_FRAME and sub.ready and not (sub.waiting_keys.by_key or sub.unsure):
                return sub.take()
            if not self._stopped:
                if sub.wants_collect or sub.waiting_keys.by_key:  # messages of waiting keys go back first
                    self.session.flush(sub, time.monotonic())
                self.turn_locked()
                self.hand_over_locked()
            item = sub.take()
        if item is None:
            self.wait(lambda: sub.awake or also(), timeout)
            with self.lock:
                item = sub.take()
                if item is None:
                    sub.raise_error()
        if sub.unsure and item is not None:
            self._learn(sub)
        return item

    def may_begin(self, sub: Subscription, batch: Batch, timeout: float | None) -> bool:
        """Before a message of the batch is begun, while `sub.careful`: wait until the hub has all verdicts, or knows
        that the consumer is unsure. False at the end of the subscription, or after `timeout` seconds without an
        answer."""
        while True:
            with self.lock:
                if self._stopped or sub.over:
                    break
                question = ask_before(self.session, sub, batch, time.monotonic())
                if question is None:
                    if self.session.out:
                        self.turn_locked()
                    self.hand_over_locked()
                    return True
            if not self.wait(lambda asked=question.ticket: asked.done or sub.over, timeout):  # type: ignore[misc]
                break
            with self.lock:
                question.answered(time.monotonic())
            if batch.is_void:
                return True
        sub.raise_error()
        return False

    def _learn(self, sub: Subscription) -> None:
        """Learn the order of the group before the first message is handed out."""
        ticket = Ticket(sub.learned)
        with self.lock:
            self.session.ask(lambda rid: m.Info(rid, {"what": "group", "name": sub.group}), ticket)
        self.wait(lambda: ticket.done, LEARN_S)

    def next_request(self, sub: Responder, timeout: float | None) -> Request | None:
        """The next request to answer; None after the timeout, or at the end of the subscription."""
        self.wait(lambda: sub.requests or sub.awake, timeout)
        with self.lock:
            if sub.requests and not sub.stopped:
                return sub.requests.popleft()
            sub.raise_error()
        return None

    def commit(self, txn: Transaction) -> Receipt | None:
        """Send a transaction and wait for its outcome."""
        if not txn.publishes:
            self.settle(txn.batch, txn.index, (Verdict.ACK, None), COMMIT_S)
            return None
        self.check()
        count = txn.publishes
        with spans.committing(txn.sent, count):
            with self.lock:
                outcome = send(txn, self.session.publisher, self.session.flush, Ticket())
            return self.published([Pending(outcome, count)], COMMIT_S)[0]

    def published(self, pending: Sequence[Pending], timeout: float | None) -> list[Receipt]:
        """Wait for the receipts of publishes."""
        try:
            self.wait(all_done(pending), timeout)
        except BaseException as error:
            with self.lock:
                self.interrupted(pending, error)
            raise
        with self.lock:
            return self.receipts(pending, timeout)

    def settle(self, batch: Batch, index: int | None, decision: Decision, timeout: float | None) -> None:
        """Give a verdict and wait for its answer."""
        self.check()
        ticket = Ticket()
        with spans.settling(decision[0].name.lower(), batch, index):
            with self.lock:
                settle(batch, index, decision, self.session.flush, ticket)
            self.result(ticket, timeout, "the verdict was not confirmed")

    def result(self, ticket: Ticket, timeout: float | None, what: str) -> Any:
        """Wait for an answer."""
        if not self.wait(lambda: ticket.done, timeout) and not ticket.done:
            raise self.too_late(what, timeout)
        return ticket.result()
