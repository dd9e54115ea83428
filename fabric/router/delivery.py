"""One DELIVER on its way: which ordinals it gave out, which seqs are behind them, which are still unsettled.

The life of a message in a group, drawn once in clients/PROTOCOL.md:

      publish         deliver            ack
     --------> READY --------> LEASED ---------> DONE
                 ^               | |
                 '---------------' '-----------> DEAD
      retry, release, lapse,         reject, or attempts spent
      consumer gone

READY is a place in `Group.cursor`, `Group.ready` or `Group.waiting`; LEASED is an open ordinal of a parcel; DONE and
DEAD are absence from `Group.open`. A verdict on an ordinal that is no longer open is stale and changes nothing.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from fabric.router.ranges import Ranges

if TYPE_CHECKING:
    from fabric.router.members import Subscription


class Backlog(NamedTuple):
    """Messages first..last that were delivered before and wait for their next delivery."""

    first: int
    last: int
    attempt: int  # number of the next delivery, 2 and up
    failures: int  # how many of the earlier ones count towards attempts_max


class Parcel:
    """The deliveries of one DELIVER frame, leased to one subscription."""

    __slots__ = ("attempt", "deadline", "failures", "first", "gaps", "last", "open", "runs", "sub")

    def __init__(
        self,
        sub: "Subscription",
        first: int,
        runs: Sequence[tuple[int, int]],
        work: tuple[int, int],
        deadline: float,
    ) -> None:
        self.sub = sub
        self.first = first
        self.runs = runs  # ascending (first seq, last seq) of one block
        self.last = first + sum(b - a + 1 for a, b in runs) - 1
        self.attempt, self.failures = work
        self.deadline = deadline
        self.open = Ranges([(first, self.last)])  # ordinals not yet settled
        # Seqs between the runs are not this group's; they count as open until the parcel is done, so that a group
        # with a narrow pattern is still one range on disk.
        self.gaps = [(a_last + 1, b_first - 1) for (_, a_last), (b_first, _) in pairwise(runs)]

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
