"""Publishes that the hub stores together with the ack of the message that they result from, or not at all.

A transaction only collects; `commit` sends everything in one TXN. If the hub answers STALE nothing was stored: it had
taken the message back, and the consumer that gets the message next publishes instead.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fabric_client import spans
from fabric_client.core.outgoing import PLAIN, OpenBlock, check_topic, prepare
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import reason_text
from fabric_client.core.verdict_rows import VERDICT_ROWS_MAX, Row, extend
from fabric_client.errors import BadMessage, Closed, Stale, Unconfirmed, describe
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Verdict

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.publisher import Publisher
    from fabric_client.core.subscription import Subscription


class Transaction:
    """Made by `message.transaction()`, `batch.transaction()` and `message.context`; a handler gets it as `ctx`."""

    def __init__(self, batch: "Batch", index: int | None) -> None:
        self.batch = batch
        self.index = index
        self.open_block = OpenBlock()
        self.sent: list[spans.Sent] = []  # the publishes that have spans
        self._over = False

    @property
    def publishes(self) -> int:
        """How many messages it will publish."""
        return len(self.open_block.payloads)

    def indexes(self) -> Collection[int]:
        """The indexes of the messages that it acks."""
        return self.batch.verdicts.open_indexes() if self.index is None else (self.index,)

    def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        id: str | bytes | None = None,
    ) -> None:
        """Publish together with the ack."""
        if self._over:
            raise FabricError("this transaction is over", "publish before the handler returns")
        check_topic(topic)
        carried = {"headers": headers}
        with spans.joining("create", topic, carried) as sent:
            self.open_block.add(prepare(topic, data, key, id, carried["headers"]), PLAIN)
            if sent.span is not None:
                self.sent.append(sent)

    def reply(self, data: object, *, headers: Mapping[str, HeaderValue] | None = None) -> None:
        """Reply to a durable request, on the topic and with the correlation of its headers."""
        asked = self.batch.headers[self.index or 0]
        inbox = asked.get("reply-to")
        if not isinstance(inbox, str):
            raise BadMessage(
                "the message is no durable request: it has no header reply-to", "use publish() with a topic"
            )
        answer = dict(headers or {})
        if "correlation" in asked:
            answer["correlation"] = asked["correlation"]
        self.publish(inbox, data, headers=answer)

    def commit(self) -> Any:
        """Send it. Blocks in the blocking client; in the asyncio client the result is awaited. Gives the receipt of the
        publishes, or None without any."""
        self._over = True
        driver = self.batch.subscription.driver
        assert driver is not None
        return driver.commit(self)

    def commit_now(self) -> None:
        """For `with`."""
        result = self.commit()
        if inspect.iscoroutine(result):
            result.close()
            raise FabricError("nothing was sent: this is an asyncio client", "use 'async with'")

    async def commit_soon(self) -> None:
        """For `async with`."""
        result = self.commit()
        if inspect.isawaitable(result):
            await result

    def _rolled_back(self, error: BaseException) -> bool:
        self._over = True
        if self.index is None:
            return self.batch.__exit__(type(error), error, None)
        return self.batch.message(self.index).fail_with(error)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            return self._rolled_back(error)
        if not self._over:
            self.commit_now()
        return False

    async def __aenter__(self) -> "Transaction":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            return self._rolled_back(error)
        if not self._over:
            await self.commit_soon()
        return False


def send(txn: Transaction, publisher: "Publisher", flush: "Callable[[Subscription], None]", ticket: Ticket) -> Ticket:
    """Put a transaction into the publisher; the ticket gets its outcome after the subscription was updated. Returns the
    ticket that the publisher fills."""
    batch, indexes = txn.batch, list(txn.indexes())
    sub = batch.subscription
    if not sub.settles:
        ticket.fail(FabricError("a transaction needs a message that takes an ack", "consume with a group"))
        return ticket
    late = sub.closed or batch.generation != sub.generation or any(map(batch.is_gone, indexes))
    if late or not indexes:
        ticket.fail(Stale("the hub has taken the message back; nothing was published", describe(Code.STALE)))
        return ticket
    rows: list[Row] = []
    extend(rows, Verdict.ACK, (batch.first_ordinal + index for index in indexes))
    if len(rows) > VERDICT_ROWS_MAX:
        ticket.fail(
            FabricError(
                f"the messages of this transaction are {len(rows)} separate ranges; {VERDICT_ROWS_MAX} fit in one",
                "settle fewer messages of a batch beforehand, or make the prefetch smaller",
            )
        )
        return ticket

    def finish(outcome: Ticket) -> None:
        _settle(batch, indexes, outcome.error)
        if sub.wants_collect:
            flush(sub)
        if outcome.error is not None:
            ticket.fail(outcome.error)
        else:
            ticket.succeed(outcome.value)

    outcome = Ticket(finish)
    try:
        publisher.put_transaction(txn.open_block, ((sub.chan, tuple(rows)),), outcome)
    except FabricError as error:
        outcome.fail(error)
    return outcome


def _settle(batch: "Batch", indexes: Collection[int], error: FabricError | None) -> None:
    """Settle the messages of a finished transaction."""
    sub = batch.subscription
    if not sub.is_held(batch) or isinstance(error, Closed | Unconfirmed):
        return
    if error is None:
        sub.confirmed(batch, indexes)
    elif isinstance(error, Stale):
        sub.give_up(batch, indexes)
    else:
        for index in indexes:
            batch.note(Verdict.RETRY, index, reason_text(str(error)))
        sub.noted(batch, urgent=False)
