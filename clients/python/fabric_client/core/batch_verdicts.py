"""The verdicts on the messages of one batch, from the call that gives a verdict to the rows of an ACK.

A verdict must cost very little, so `message.ack()` is one append to `acked`, from any thread and without a lock;
`harvest` turns the indexes into ranges of ordinals when the subscription sends its next ACK. There is no reference to
the batch here: without a cycle, a batch that the program drops is finalized at once.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from fabric_client.core.verdict_exceptions import Argument
from fabric_client.core.verdict_rows import Row, extend, extend_range
from fabric_protocol.messages import Verdict

VERDICTS_PER_FRAME: Final = 500  # this many verdicts are sent without waiting for more
NEVER: Final = 1 << 62
_NOTHING: Final[frozenset[int]] = frozenset()


class BatchVerdicts:
    """Verdicts by index of the message in its batch.

    `acked` only grows, so that an append from another thread is never lost; `settled` holds the indexes that are in an
    ACK already. An ack that makes `acked` as long as `due` must call `Batch.noted`.
    """

    __slots__ = (
        "_count", "_first_ordinal", "_sent", "acked", "due", "is_listed", "is_whole", "others", "settled", "taken_back",
    )  # fmt: skip

    def __init__(self, count: int, first_ordinal: int, due: int) -> None:
        self._count = count
        self._first_ordinal = first_ordinal
        self._sent = 0  # so many of `acked` are in `settled`
        self.acked: list[int] = []
        self.others: deque[tuple[Verdict, int, Argument]] = (
            deque()
        )  # verdicts other than ACK: (verdict, index, argument)
        self.settled: set[int] = set()
        self.taken_back: frozenset[int] = _NOTHING  # settled because the hub took them back, or they went back to it
        self.is_listed = False  # the subscription has the batch in `dirty`
        self.is_whole = False  # every message without another verdict is acked
        self.due = due

    @property
    def takes_verdicts(self) -> bool:
        """False for messages without a group, and where the hub acks what it sends."""
        return self.due != NEVER

    @property
    def is_complete(self) -> bool:
        """Whether every message has a verdict that was harvested, or is acked by an ack of the whole batch."""
        return self.is_whole or len(self.settled) == self._count

    def open_indexes(self) -> Sequence[int]:
        """Messages without a verdict."""
        if self.is_whole:
            return ()
        if not self.acked and not self.others and not self.settled:
            return range(self._count)
        closed = self.settled.union(self.acked[self._sent :], (index for _, index, _ in self.others))
        return [index for index in range(self._count) if index not in closed]

    def given(self) -> list[int]:
        """Messages that have been settled or acked."""
        return sorted(self.settled.union(self.acked))

    def unsettled(self, indexes: Iterable[int]) -> set[int]:
        """The indexes that are not settled yet."""
        return set(indexes).difference(self.settled)

    def settle(self, indexes: Collection[int]) -> bool:
        """Mark messages as settled without an ACK of this subscription. True if no other message is left; an ack of the
        whole batch does not count, since it was not sent yet."""
        self.settled = self.settled.union(indexes)
        return len(self.settled) == self._count

    def take_back(self, indexes: Collection[int]) -> None:
        """Mark messages that this consumer no longer holds; `settle` follows."""
        self.taken_back = self.taken_back.union(indexes)

    def refuse(self) -> None:
        """Make every further ack call `Batch.noted`, which raises because the subscription is closed."""
        self.due = 0

    def note(self) -> bool:
        """The slow path of an ack: choose the next `due`. True if the verdicts fill an ACK.

        `due` is set before `Subscription.noted` reads `is_listed`, and `harvest` takes the two steps in the opposite
        order. So in every interleaving of two threads either the batch is listed or the next ack comes here.
        """
        count = len(self.acked)
        self.due = count + VERDICTS_PER_FRAME
        return count - self._sent >= VERDICTS_PER_FRAME

    def harvest(self, acks: list[Row], others: list[Row]) -> int:
        """Add the verdicts since the last harvest to the rows of an ACK; returns how many messages they settle.

        A batch that is acked meanwhile is listed again. See `note` for the order of steps.
        """
        first, before = self._first_ordinal, len(self.settled)
        while self.others:
            verdict, index, arg = self.others.popleft()
            if index not in self.settled:
                self.settled.add(index)
                extend_range(others, verdict, first + index, first + index, arg)
        count = len(self.settled) - before
        acked = self._rest() if self.is_whole else self._fresh_acks()
        if len(acked) == self._count:
            extend_range(acks, Verdict.ACK, first, first + self._count - 1)
        else:
            extend(acks, Verdict.ACK, (first + index for index in sorted(acked)))
        return count + len(acked)

    def rows(self) -> list[Row]:
        """The verdicts since the last harvest as rows."""
        rows: list[Row] = []
        self.harvest(rows, rows)
        return rows

    def _rest(self) -> Collection[int]:
        everything = range(self._count)
        return set(everything).difference(self.settled) if self.settled else everything

    def _fresh_acks(self) -> set[int]:
        acked, start = self.acked, self._sent
        count = len(acked)
        self.due = count + 1
        if len(acked) > count:
            self.is_listed = True
        self._sent = count
        fresh = set(acked[start:count])
        if self.settled:
            fresh -= self.settled
            self.settled |= fresh
        else:
            self.settled = fresh.copy()
        return fresh
