"""Publishes that are stored together with the verdict on the message they come from, or not at all.

A transaction only collects; `commit` sends everything in one TXN. When the hub says STALE nothing was done: the message
had been taken back, and whoever has it now will publish in our place.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

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
        self._over = False

    @property
    def publishes(self) -> int:
        """How many messages it will publish."""
        return len(self.open_block.payloads)

    def indexes(self) -> Collection[int]:
        """The messages that it acks, by their places in the batch."""
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
        """Publish with the ack, in one commit of the hub."""
        if self._over:
            raise FabricError("this transaction is over", "publish before the handler returns")
        check_topic(topic)
        self.open_block.add(prepare(topic, data, key, id, headers), PLAIN)

    def reply(self, data: object, *, headers: Mapping[str, HeaderValue] | None = None) -> None:
        """Answer a durable request: to the topic and with the correlation that its headers name."""
        asked = self.batch.headers[self.index or 0]
        inbox = asked.get("reply-to")
        if not isinstance(inbox, str):
            raise BadMessage("the message is no request: it has no header reply-to", "publish on a topic of yours")
        answer = dict(headers or {})
        if "correlation" in asked:
            answer["correlation"] = asked["correlation"]
        self.publish(inbox, data, headers=answer)

    def commit(self) -> Any:
        """Send it. Blocks with the blocking client, is awaited with the other; gives the receipt of the publishes, None
        without any."""
        self._over = True
        shell = self.batch.subscription.driver
        assert shell is not None
        return shell.commit(self)

    def commit_now(self) -> None:
        """For `with`."""
        result = self.commit()
        if inspect.iscoroutine(result):
            result.close()
            raise FabricError("nothing was sent: this client is an asyncio one", "use 'async with'")

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
    """Hand a transaction to the publisher; the ticket gets its outcome, and the subscription hears of it first. Gives
    what the publisher knows the transaction by."""
    batch, indexes = txn.batch, list(txn.indexes())
    sub = batch.subscription
    if not sub.settles:
        ticket.fail(FabricError("a transaction needs a message that wants an ack", "consume with a group"))
        return ticket
    late = sub.closed or batch.generation != sub.generation or any(map(batch.is_gone, indexes))
    if late or not indexes:
        ticket.fail(Stale("the message is no longer ours; nothing was published", describe(Code.STALE)))
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

    def through(outcome: Ticket) -> None:
        _settle(batch, indexes, outcome.error)
        if sub.wants_collect:
            flush(sub)
        if outcome.error is not None:
            ticket.fail(outcome.error)
        else:
            ticket.succeed(outcome.value)

    outcome = Ticket(through)
    try:
        publisher.put_transaction(txn.open_block, ((sub.chan, tuple(rows)),), outcome)
    except FabricError as error:
        outcome.fail(error)
    return outcome


def _settle(batch: "Batch", indexes: Collection[int], error: FabricError | None) -> None:
    """A transaction is through: what that means for its messages."""
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
