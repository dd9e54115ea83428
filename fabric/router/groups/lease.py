"""Lease: the ordinals of one DELIVER, their seqs, and the ordinals that are still open.

A message is leased while its ordinal is open; `lifecycle` has all states of a message. A verdict on an ordinal that is
not open is stale and changes nothing.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from fabric.router.ranges import Ranges

if TYPE_CHECKING:
    from fabric.router.groups.subscription import Subscription


class Redelivery(NamedTuple):
    """Messages first..last that were delivered before and wait for their next delivery."""

    rank: int  # the negative priority: redeliveries sort by priority, then by seq
    first: int
    last: int
    attempt: int  # of the next delivery
    failures: int  # earlier deliveries that count towards attempts_max

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class DeadLetter(NamedTuple):
    """Messages first..last that a group gives up."""

    first: int
    last: int
    attempts: int
    reason: str  # retries spent, lease lapsed, consumer lost, rejected or expired
    error: str = ""  # the text of the consumer


class Lease:
    """The deliveries of one DELIVER frame, leased to one subscription."""

    __slots__ = (
        "accepted_us",
        "attempt",
        "deadline",
        "done",
        "ends",
        "expires_us",
        "failures",
        "first",
        "gaps",
        "keys",
        "last",
        "open",
        "rank",
        "runs",
        "size",
        "sub",
    )

    def __init__(
        self,
        sub: "Subscription",
        first: int,
        runs: Sequence[tuple[int, int]],
        work: tuple[int, int, int],
        leased: tuple[float, float],
        keys: Sequence[bytes] | None = None,
    ) -> None:
        self.sub = sub
        self.first = first
        self.runs = runs  # ascending (first seq, last seq) of one block
        self.last = first + sum(b - a + 1 for a, b in runs) - 1
        self.rank, self.attempt, self.failures = work
        self.deadline, self.ends = leased  # when the lease lapses, and the limit for touch
        self.open = Ranges([(first, self.last)])  # ordinals without a verdict
        self.size = 0  # bytes of the block in DELIVER
        self.expires_us = 0  # when its messages expire; 0: never
        self.accepted_us = 0  # when its messages were accepted; retention may remove their block
        self.done = False  # no ordinal is open, and the subscription has forgotten the lease
        self.keys = keys  # the key of each ordinal, in a group of order `key`
        # Seqs between the runs do not match the patterns of the group. They count as open until the lease is done, so
        # that the lease is one range on disk also for a narrow pattern.
        self.gaps = [] if keys is not None else [(a + 1, b - 1) for (_, a), (b, _) in pairwise(runs)]

    def seqs(self, first: int, last: int) -> list[tuple[int, int]]:
        """The seqs of ordinals first..last."""
        if len(self.runs) == 1:
            shift = self.runs[0][0] - self.first
            return [(first + shift, last + shift)]
        found, ordinal = [], self.first
        for a, b in self.runs:
            end = ordinal + b - a
            if ordinal <= last and end >= first:
                found.append((a + max(first - ordinal, 0), a + min(last, end) - ordinal))
            ordinal = end + 1
        return found

    def open_seqs(self) -> list[tuple[int, int]]:
        return [pair for a, b in self.open for pair in self.seqs(a, b)]

    def open_after(self, seq: int) -> list[tuple[int, int]]:
        """Open ordinals of messages with a higher seq."""
        for first, last in self.runs:
            if last > seq:
                start = self.ordinal_of(max(first, seq + 1))
                return [(max(a, start), b) for a, b in self.open if b >= start]
        return []

    def open_up_to(self, seq: int) -> list[tuple[int, int]]:
        """Open ordinals of messages with this seq or a lower one."""
        count = sum(min(last, seq) - first + 1 for first, last in self.runs if first <= seq)
        return self.open.within(self.first, self.first + count - 1) if count else []

    def ordinal_of(self, seq: int) -> int:
        """The ordinal of a message of this lease."""
        ordinal = self.first
        for first, last in self.runs:
            if first <= seq <= last:
                return ordinal + seq - first
            ordinal += last - first + 1
        raise AssertionError(f"seq {seq} is not in the lease of {self.runs}")

    def each(self, first: int, last: int) -> Iterator[tuple[int, int, bytes]]:
        """Ordinal, seq and key of the ordinals first..last, in a group of order `key`."""
        assert self.keys is not None
        ordinal = first
        for start, end in self.seqs(first, last):
            for seq in range(start, end + 1):
                yield ordinal, seq, self.keys[ordinal - self.first]
                ordinal += 1
