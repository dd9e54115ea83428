"""The Batch: the messages of one delivery, and the account of their verdicts.

A verdict (`ack` and its kin) must cost next to nothing, so it is one append to a list of its batch, without a lock
and from any thread; `harvest` turns such lists into ranges when the subscription next sends. Everything else about a
message (topic, headers, key, seq) is decoded from the shared block when asked for.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from fabric_client.core.message import Message
from fabric_client.core.transaction import Transaction
from fabric_client.core.verdict_exceptions import (
    SETTLE_S,
    Decision,
    HandlerVerdict,
    Seconds,
    VerdictName,
    decision,
    milliseconds,
    patience,
    reason_text,
    retry_argument,
    verdict_of,
)
from fabric_client.core.verdict_rows import Row, extend, extend_range
from fabric_protocol.block import Block, cut
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription

VERDICTS_PER_FRAME: Final = 500  # so many verdicts are sent without waiting for more
NEVER: Final = 1 << 62
_NOTHING: Final[frozenset[int]] = frozenset()


class Batch:
    """The messages of one delivery, settled together or one by one.

    `payloads` is the fast way through: a list of bytes. Iterating gives `Message`s. `with batch:` acks what is left
    on leaving, and asks for a retry of it when the body raised.
    """

    __slots__ = (
        "__weakref__", "_contexts", "_done", "_due", "_headers", "_ids", "_keys", "_listed", "_lost", "_other",
        "_payloads", "_sent", "_settled", "_sub", "_topics", "_whole", "attempt", "block", "count", "first_ordinal",
        "generation", "leased_at", "seqs",
    )  # fmt: skip

    def __init__(
        self, sub: "Subscription", block: Block, first_ordinal: int, attempt: int, seqs: tuple[int, ...], now: float
    ) -> None:
        self._sub = sub
        self.block = block
        self.count = block.count
        self.first_ordinal = first_ordinal
        self.attempt = attempt
        self.seqs = seqs
        self.generation = sub.generation
        self.leased_at = now
        self._payloads: list[bytes] | None = None
        self._topics: list[str] | None = None
        self._headers: list[dict[str, HeaderValue]] | None = None
        self._keys: list[bytes] | None = None
        self._ids: list[bytes] | None = None
        # Verdicts. `_done` (acked indexes) only ever grows, so that an append from another thread is never lost;
        # `_sent` and `_settled` say what of it has been dealt with. Reaching `_due` takes the slow path.
        self._done: list[int] = []
        self._other: deque[tuple[Verdict, int, Any]] = deque()
        self._sent = 0
        self._settled: set[int] = set()
        self._lost: frozenset[int] = _NOTHING  # settled, because they are not ours any more
        self._contexts: dict[int, Transaction] | None = None
        self._listed = False
        self._whole = False  # all that has no other verdict is acked
        self._due = 1 if sub.settles else NEVER

    def __del__(self) -> None:
        if self._sub.fetching and not self.complete:
            self._sub.forgotten(self)

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
        """Of the first message."""
        return self.seq_of(0)

    @property
    def last_seq(self) -> int:
        return self.seq_of(self.count - 1)

    @property
    def ts(self) -> float:
        """When the hub accepted these messages, in seconds since 1970."""
        return self.block.ts_us / 1e6

    @property
    def priority(self) -> int:
        return self.block.priority

    @property
    def group(self) -> str | None:
        return self._sub.group

    def seq_of(self, index: int) -> int:
        if not self.seqs:
            return self.block.base_seq + index
        for first, count in zip(self.seqs[::2], self.seqs[1::2], strict=True):
            if index < count:
                return first + index
            index -= count
        raise IndexError("a batch has no such message")

    def ack(self) -> None:
        """Done with all that has no verdict yet."""
        self._whole = True
        if self._due != NEVER:
            self._noted()

    def retry(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        """What has no verdict yet failed: deliver it again, after `delay` or the group's backoff."""
        self._settle_rest(Verdict.RETRY, retry_argument(delay, reason))

    def release(self) -> None:
        """What has no verdict yet goes to someone else; not counted as an attempt."""
        self._settle_rest(Verdict.RELEASE, None)

    def reject(self, reason: str = "") -> None:
        """What has no verdict yet goes to the dead letters."""
        self._settle_rest(Verdict.REJECT, reason_text(reason))

    def settle(
        self,
        verdict: VerdictName = "ack",
        *,
        delay: Seconds | None = None,
        reason: str | None = None,
        timeout: Seconds | None = SETTLE_S,
    ) -> Any:
        """Give a verdict on all that has none yet, and wait until the hub has it on disk; see `Message.settle`."""
        return self._settle_now(None, verdict_of(verdict, delay, reason), timeout)

    def touch(self, lease: Seconds | None = None) -> None:
        """Still at work. The client does this by itself; call it to ask for another length, in seconds."""
        self._sub.touch(self, 0, self.count - 1, None if lease is None else milliseconds("lease", lease))

    def transaction(self) -> Transaction:
        """What is published in it is stored together with the ack of all that has no verdict yet, or not at all."""
        return Transaction(self, None)

    def __enter__(self) -> "Batch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self.ack()
            return False
        verdict, arg = decision(error, self._sub.on_error)
        if verdict is Verdict.ACK:
            self.ack()
        else:
            self._settle_rest(verdict, arg)
        return isinstance(error, HandlerVerdict)

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)

    def _settle_now(self, index: int | None, decision: Decision, timeout: Seconds | None) -> Any:
        if self._sub.shell is None:
            raise FabricError("this message takes no verdict", "consume with a group to give verdicts")
        return self._sub.shell.settle(self, index, decision, patience(timeout))

    def message(self, index: int) -> Message:
        return Message(self, index, self.payloads[index])

    # For the subscription.

    @property
    def complete(self) -> bool:
        """Whether nothing more is expected of us."""
        return self._whole or len(self._settled) == self.count

    def open_indexes(self) -> Sequence[int]:
        """Messages without a verdict."""
        if self._whole:
            return ()
        if not self._done and not self._other and not self._settled:
            return range(self.count)
        closed = self._settled.union(self._done[self._sent :], (index for _, index, _ in self._other))
        return [index for index in range(self.count) if index not in closed]

    def touch_row(self, now: float) -> list[Row]:
        """What renews the lease, which covers the delivery: a touch of one open message."""
        self.leased_at = now
        ordinals = [self.first_ordinal + index for index in self.open_indexes()[:1]]
        return [(Verdict.TOUCH, ordinal, ordinal, None) for ordinal in ordinals]

    def among(self, ordinals: Sequence[Sequence[int]]) -> list[int]:
        """The messages whose ordinals are in one of the ranges."""
        found: list[int] = []
        for first, last in ordinals:
            low, high = first - self.first_ordinal, last - self.first_ordinal
            found.extend(range(max(low, 0), min(high + 1, self.count)))
        return found

    def without(self, indexes: Collection[int]) -> "list[Batch]":
        """What is left of the batch without some of its messages, as batches of neighbours."""
        left = [index for index in range(self.count) if index not in indexes]
        return [self.piece(start, stop) for start, stop in runs_of(left)]

    def piece(self, start: int, stop: int) -> "Batch":
        """Messages start..stop-1 as a batch of their own. For a batch that nobody has seen."""
        seqs: tuple[int, ...] = ()
        if self.seqs:
            seqs = tuple(number for index in range(start, stop) for number in (self.seq_of(index), 1))
        block = Block(cut(self.block, start, stop))
        return Batch(self._sub, block, self.first_ordinal + start, self.attempt, seqs, self.leased_at)

    @property
    def is_void(self) -> bool:
        """Whether the hub has forgotten this delivery, and gives its messages out anew."""
        return self._sub.settles and self.generation != self._sub.generation

    def is_gone(self, index: int) -> bool:
        """Whether the message is not ours any more, or must wait for an earlier one."""
        sub = self._sub
        return self.is_void or index in self._lost or (bool(sub.bars) and sub.bars.barred(self, index))

    def harvest(self, acks: list[Row], others: list[Row]) -> int:
        """Add the verdicts given since the last time to the rows of an ACK; how many messages they settle.

        A batch that gets an ack meanwhile is listed again. See `_noted` for the order of steps.
        """
        first, before = self.first_ordinal, len(self._settled)
        while self._other:
            verdict, index, arg = self._other.popleft()
            if index not in self._settled:
                self._settled.add(index)
                extend_range(others, verdict, first + index, first + index, arg)
        count = len(self._settled) - before
        acked = self._rest() if self._whole else self._fresh_acks()
        if len(acked) == self.count:
            extend_range(acks, Verdict.ACK, first, first + self.count - 1)
        else:
            extend(acks, Verdict.ACK, (first + index for index in sorted(acked)))
        return count + len(acked)

    def _rest(self) -> Collection[int]:
        everything = range(self.count)
        return set(everything).difference(self._settled) if self._settled else everything

    def _fresh_acks(self) -> set[int]:
        done, start = self._done, self._sent
        count = len(done)
        self._due = count + 1
        if len(done) > count:
            self._listed = True
        self._sent = count
        fresh = set(done[start:count])
        if self._settled:
            fresh -= self._settled
            self._settled |= fresh
        else:
            self._settled = fresh.copy()
        return fresh

    # Verdicts, from any thread.

    def _settle_rest(self, verdict: Verdict, arg: Any) -> None:
        for index in self.open_indexes():
            self._note(verdict, index, arg)
        if self._due != NEVER:
            self._noted()

    def _settle(self, verdict: Verdict, index: int, arg: Any) -> None:
        self._note(verdict, index, arg)
        if self._due != NEVER:
            self._noted()

    def _note(self, verdict: Verdict, index: int, arg: Any) -> None:
        """Write down a verdict that is no ack. What must come again bars its key first, so that the bar is there
        whenever the verdict is found."""
        sub = self._sub
        if sub.bars.ordered and verdict in (Verdict.RETRY, Verdict.RELEASE) and self.generation == sub.generation:
            sub.bars.failed(self, index)
            sub.careful = True
        self._other.append((verdict, index, arg))

    def _noted(self) -> None:
        """The slow path of a verdict: see to it that the subscription sends it soon.

        Here `_due` is set before `_listed` is read, and `harvest` does the two the other way round; so whichever way
        two threads interleave, the batch ends up listed or its next verdict comes through here.
        """
        count = len(self._done)
        self._due = count + VERDICTS_PER_FRAME
        self._sub.noted(self, count - self._sent >= VERDICTS_PER_FRAME)
