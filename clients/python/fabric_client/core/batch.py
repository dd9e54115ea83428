"""The Batch: the messages of one delivery.

Payloads, topics, headers, keys and ids are decoded from the shared block when the program asks for them. Verdicts are
collected in `batch.verdicts`; the subscription turns them into ACKs.
"""

from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fabric_client import spans
from fabric_client.core.batch_verdicts import NEVER, BatchVerdicts
from fabric_client.core.message import Message
from fabric_client.core.transaction import Transaction
from fabric_client.core.verdict_exceptions import (
    SETTLE_S,
    Argument,
    Decision,
    HandlerVerdict,
    Release,
    Seconds,
    SettleName,
    decision,
    milliseconds,
    patience,
    reason_text,
    retry_argument,
    verdict_of,
)
from fabric_client.core.verdict_rows import Row
from fabric_protocol.block import Block
from fabric_protocol.block_parts import cut
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict
from fabric_protocol.origin import Origin
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription


class Batch:
    """The messages of one delivery, settled together or one by one.

    `payloads`, a list of bytes, is the fastest access. Iterating gives `Message`s. `with batch:` acks every message
    without a verdict at the end of the block, and asks for a retry of them if the block raises.
    """

    __slots__ = (
        "__weakref__", "_headers", "_ids", "_keys", "_payloads", "_topics", "attempt", "block", "contexts", "count",
        "first_ordinal", "generation", "leased_at", "seqs", "subscription", "verdicts",
    )  # fmt: skip

    def __init__(
        self,
        subscription: "Subscription",
        block: Block,
        first_ordinal: int,
        attempt: int,
        seqs: tuple[int, ...],
        now: float,
    ) -> None:
        self.subscription = subscription
        self.block = block
        self.count = block.count
        self.first_ordinal = first_ordinal
        self.attempt = attempt
        self.seqs = seqs
        self.generation = subscription.generation
        self.leased_at = now
        self.verdicts = BatchVerdicts(block.count, first_ordinal, 1 if subscription.settles else NEVER)
        self.contexts: dict[int, Transaction] | None = None  # `message.context`, by index
        self._payloads: list[bytes] | None = None
        self._topics: list[str] | None = None
        self._headers: list[dict[str, HeaderValue]] | None = None
        self._keys: list[bytes] | None = None
        self._ids: list[bytes] | None = None

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Message]:
        for index, body in enumerate(self.payloads):
            yield Message(self, index, body)

    def __repr__(self) -> str:
        return f"<Batch of {self.count} from seq {self.seq}, attempt {self.attempt}>"

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            self._payloads = self.block.payloads()
        return self._payloads

    @property
    def topics(self) -> list[str]:
        if self._topics is None:
            self._topics = self.block.topic_names()
        return self._topics

    @property
    def headers(self) -> list[dict[str, HeaderValue]]:
        if self._headers is None:
            self._headers = self.block.headers()
        return self._headers

    @property
    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = self.block.keys()
        return self._keys

    @property
    def ids(self) -> list[bytes]:
        if self._ids is None:
            self._ids = self.block.ids()
        return self._ids

    @property
    def seq(self) -> int:
        """The seq of the first message."""
        return self.seq_of(0)

    @property
    def last_seq(self) -> int:
        return self.seq_of(self.count - 1)

    def origin_of(self, index: int) -> Origin | None:
        """The origin of a message; None if it was published to this hub."""
        return self.block.origin_of(self.seq_of(index) - self.seq_of(0))

    @property
    def ts(self) -> float:
        """When the hub accepted these messages, in seconds since 1970."""
        return self.block.ts_us / 1e6

    @property
    def priority(self) -> int:
        return self.block.priority

    @property
    def group(self) -> str | None:
        return self.subscription.group

    def seq_of(self, index: int) -> int:
        if not self.seqs:
            return self.block.base_seq + index
        for first, count in zip(self.seqs[::2], self.seqs[1::2], strict=True):
            if index < count:
                return first + index
            index -= count
        raise IndexError("the batch has no message with this index")

    def message(self, index: int) -> Message:
        return Message(self, index, self.payloads[index])

    # Verdicts, from any thread.

    def ack(self) -> None:
        """Ack every message without a verdict."""
        self.verdicts.is_whole = True
        if self.verdicts.takes_verdicts:
            self.noted()

    def retry(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        """Ask for another delivery of every message without a verdict, after `delay` or the group's backoff. Counts as
        a failed attempt."""
        self._give_rest(Verdict.RETRY, retry_argument(delay, reason))

    def release(self) -> None:
        """Return every message without a verdict to its group. Does not count as an attempt."""
        self._give_rest(Verdict.RELEASE, None)

    def reject(self, reason: str = "") -> None:
        """Make every message without a verdict a dead letter."""
        self._give_rest(Verdict.REJECT, reason_text(reason))

    def settle(
        self,
        verdict: SettleName = "ack",
        *,
        delay: Seconds | None = None,
        reason: str | None = None,
        lease: Seconds | None = None,
        timeout: Seconds | None = SETTLE_S,
    ) -> Any:
        """Give a verdict on every message without one, and wait until the hub has it on disk; see `Message.settle`."""
        return self.settle_now(None, verdict_of(verdict, delay, reason, lease), timeout)

    def settle_now(self, index: int | None, decision: Decision, timeout: Seconds | None) -> Any:
        """Give a verdict on one message, or with None on every message without one, and wait for the answer."""
        if self.subscription.driver is None:
            raise FabricError("this message takes no verdict", "consume with a group to give verdicts")
        return self.subscription.driver.settle(self, index, decision, patience(timeout))

    def touch(self, lease: Seconds | None = None) -> None:
        """Extend the lease. The client does this by itself; call it for another length, in seconds."""
        lease_ms = None if lease is None else milliseconds("lease", lease)
        self.subscription.touch(self, 0, self.count - 1, lease_ms)

    def span(self) -> spans.Span:
        """`with batch, batch.span():` makes one span for the handling of all messages; see `Message.span`."""
        return spans.processing_all(self, Release)

    def transaction(self) -> Transaction:
        """A transaction: the hub stores its publishes together with the ack of every message without a verdict, or
        stores nothing."""
        return Transaction(self, None)

    def __enter__(self) -> "Batch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.ack()
            return False
        verdict, arg = decision(error, self.subscription.on_error)
        if verdict is Verdict.ACK:
            self.ack()
        else:
            self._give_rest(verdict, arg)
        return isinstance(error, HandlerVerdict)

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)

    def give(self, verdict: Verdict, index: int, arg: Argument) -> None:
        """Give a verdict other than ACK on one message."""
        self.note(verdict, index, arg)
        if self.verdicts.takes_verdicts:
            self.noted()

    def _give_rest(self, verdict: Verdict, arg: Argument) -> None:
        for index in self.verdicts.open_indexes():
            self.note(verdict, index, arg)
        if self.verdicts.takes_verdicts:
            self.noted()

    def note(self, verdict: Verdict, index: int, arg: Argument) -> None:
        """Record a verdict other than ACK. The key of a message that comes again starts to wait before the verdict can
        be harvested."""
        sub = self.subscription
        again = verdict in (Verdict.RETRY, Verdict.RELEASE)
        if again and sub.waiting_keys.ordered and self.generation == sub.generation:
            sub.waiting_keys.failed(self, index)
            sub.careful = True
        self.verdicts.others.append((verdict, index, arg))

    def noted(self) -> None:
        """Let the subscription send the verdicts soon; at once if they fill an ACK."""
        self.subscription.noted(self, self.verdicts.note())

    # For the subscription.

    @property
    def is_void(self) -> bool:
        """Whether the hub has forgotten this delivery, and will deliver its messages again."""
        return self.subscription.settles and self.generation != self.subscription.generation

    def is_gone(self, index: int) -> bool:
        """Whether this consumer no longer holds the message, or its key waits for an earlier message."""
        waiting = self.subscription.waiting_keys
        return self.is_void or index in self.verdicts.taken_back or (bool(waiting) and waiting.must_wait(self, index))

    def touch_row(self, now: float) -> list[Row]:
        """The row that renews the lease: a TOUCH of one open message, since the lease covers the whole delivery."""
        self.leased_at = now
        ordinals = [self.first_ordinal + index for index in self.verdicts.open_indexes()[:1]]
        return [(Verdict.TOUCH, ordinal, ordinal, None) for ordinal in ordinals]

    def among(self, ordinals: Sequence[Sequence[int]]) -> list[int]:
        """The indexes of the messages whose ordinals are in one of the ranges."""
        found: list[int] = []
        for first, last in ordinals:
            low, high = first - self.first_ordinal, last - self.first_ordinal
            found.extend(range(max(low, 0), min(high + 1, self.count)))
        return found

    def without(self, indexes: Collection[int]) -> "list[Batch]":
        """The other messages of the batch, as batches of adjacent messages."""
        left = [index for index in range(self.count) if index not in indexes]
        return [self.piece(start, stop) for start, stop in runs_of(left)]

    def piece(self, start: int, stop: int) -> "Batch":
        """Messages start..stop-1 as a new batch. Only for a batch that was not handed out."""
        seqs: tuple[int, ...] = ()
        if self.seqs:
            seqs = tuple(number for index in range(start, stop) for number in (self.seq_of(index), 1))
        block = Block(cut(self.block, start, stop))
        block.origin = self.origin_of(start)
        return type(self)(self.subscription, block, self.first_ordinal + start, self.attempt, seqs, self.leased_at)

    def forget_payloads(self) -> None:
        """Free memory: an ACK keeps the batch until it is answered, and needs no payloads."""
        self._payloads = None


class FetchedBatch(Batch):
    """A batch of `fetch`: what the program drops without a verdict is released.

    Python ignores an exception that is raised in a finalizer, and so it ignores Ctrl-C there. Batches of loops are
    many, and have none.
    """

    __slots__ = ()

    def __del__(self) -> None:
        verdicts = getattr(self, "verdicts", None)  # none if an exception has interrupted __init__
        if verdicts is not None and not verdicts.is_complete:
            self.subscription.forgotten(self)
