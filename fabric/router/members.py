"""A subscription: one consumer's membership in a group, with its credit and what it holds."""

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.router.delivery import Parcel

if TYPE_CHECKING:
    from fabric.router.groups import Group
    from fabric.router.sessions import Session

UNLIMITED: Final = 1 << 62
_first_ordinal = attrgetter("first")


class FetchOrder(NamedTuple):
    """An open FETCH: close it with END at this ordinal or at this time."""

    rid: int
    first: int  # ordinals sent before it
    target: int
    deadline: float


class Subscription:
    """Credit is cumulative: the client names the highest ordinal and the most bytes that it will take."""

    __slots__ = (
        "bytes_max",
        "bytes_sent",
        "chan",
        "fetch",
        "group",
        "ordinal_max",
        "outstanding",
        "parcels",
        "sent",
        "session",
    )

    def __init__(self, session: "Session", chan: int, group: "Group", ordinal_max: int, bytes_max: int) -> None:
        self.session = session
        self.chan = chan
        self.group = group
        self.ordinal_max = ordinal_max
        self.bytes_max = bytes_max
        self.sent = 0  # the last ordinal given out
        self.bytes_sent = 0
        self.outstanding = 0  # ordinals given out and not settled
        self.parcels: list[Parcel] = []  # ascending by first ordinal
        self.fetch: FetchOrder | None = None

    def room(self) -> int:
        """How many messages may be sent now, by ordinal credit; 0 also when bytes or the connection forbid."""
        if self.bytes_sent >= self.bytes_max and (self.outstanding or not self.group.durable):
            return 0  # where nothing is acked, nothing is ever outstanding, and the bytes alone decide
        return self.ordinal_max - self.sent if self.session.reachable else 0

    def fitting(self, bytes_each: int) -> int:
        """How many messages of that size the byte credit admits; one when nothing is outstanding."""
        return max((self.bytes_max - self.bytes_sent) // max(bytes_each, 1), 0 if self.outstanding else 1)

    def parcels_in(self, first: int, last: int) -> list[Parcel]:
        """Parcels with ordinals in first..last."""
        at = max(bisect_right(self.parcels, first, key=_first_ordinal) - 1, 0)
        found = []
        for parcel in self.parcels[at:]:
            if parcel.first > last:
                break
            if parcel.last >= first:
                found.append(parcel)
        return found

    def forget(self, parcel: Parcel) -> None:
        at = bisect_right(self.parcels, parcel.first, key=_first_ordinal) - 1
        assert self.parcels[at] is parcel
        del self.parcels[at]
