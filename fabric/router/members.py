"""A subscription: one consumer's membership in a group, with its credit and what it holds."""

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.router.delivery import Parcel
from fabric.router.key_index import KeyIndex
from fabric.router.ranges import Ranges

if TYPE_CHECKING:
    from fabric.router.groups import Group
    from fabric.router.sessions import Session

UNLIMITED: Final = 1 << 62
_first_ordinal = attrgetter("first")


class FetchOrder(NamedTuple):
    """An open FETCH. END closes it at an ordinal, at a time, or when enough was sent and no more is ready."""

    rid: int
    first: int  # ordinals sent before it
    target: int
    enough: int  # the ordinal that is enough
    deadline: float


class Subscription:
    """Credit is cumulative: the client names the highest ordinal and the most bytes that it will take."""

    __slots__ = (
        "alone",
        "away",
        "bytes_max",
        "bytes_sent",
        "chan",
        "concurrency",
        "fetch",
        "group",
        "key_index",
        "ordinal_max",
        "outstanding",
        "parcels",
        "sent",
        "session",
        "stuck",
    )

    def __init__(
        self,
        session: "Session",
        chan: int,
        group: "Group",
        ordinal_max: int,
        bytes_max: int,
        concurrency: int = 1,
    ) -> None:
        self.session = session
        self.chan = chan
        self.group = group
        self.ordinal_max = ordinal_max
        self.bytes_max = bytes_max
        self.sent = 0  # the last ordinal given out
        self.bytes_sent = 0
        self.outstanding = 0  # ordinals given out and not settled
        self.parcels: list[Parcel] = []  # ascending by first ordinal
        self.concurrency = concurrency  # handlers that can be at work at once
        self.stuck: set[int] = set()  # ordinals that were begun, have lapsed, and were not spoken of since
        self.alone: Parcel | None = None  # a suspect; nothing else is sent until it is settled
        self.away = Ranges()  # ordinals that were taken back while the client was not connected
        self.fetch: FetchOrder | None = None
        self.key_index: KeyIndex | None = None  # while rows of one ACK are applied

    def room(self) -> int:
        """How many messages may be sent now, by ordinal credit; 0 also when bytes or the connection forbid."""
        if self.alone is not None:
            return 0
        if self.bytes_sent >= self.bytes_max and (self.outstanding or not self.group.leases):
            return 0  # where nothing is acked, nothing is ever outstanding, and the bytes alone decide
        return self.ordinal_max - self.sent if self.session.reachable else 0

    def fitting(self, bytes_each: int) -> int:
        """How many messages of that size the byte credit admits; one when nothing is outstanding."""
        return max((self.bytes_max - self.bytes_sent) // max(bytes_each, 1), 0 if self.outstanding else 1)

    def parcels_in(self, first: int, last: int) -> list[Parcel]:
        """Parcels with ordinals in first..last."""
        parcels = self.parcels
        at = max(bisect_right(parcels, first, key=_first_ordinal) - 1, 0)
        end = bisect_right(parcels, last, at, key=_first_ordinal) if last > first else min(at + 1, len(parcels))
        return [parcel for parcel in parcels[at:end] if parcel.first <= last and parcel.last >= first]

    def started(self) -> int:
        """The last ordinal that a handler can have begun: they begin in order, so many at once as the client said."""
        left = self.concurrency - len(self.stuck)  # a handler that lets a lease lapse is still at it
        for parcel in self.parcels if left > 0 else ():
            for first, last in parcel.open:
                if last - first + 1 >= left:
                    return first + left - 1
                left -= last - first + 1
        return self.sent if left > 0 else 0

    def forget(self, parcel: Parcel) -> None:
        if self.alone is parcel:
            self.alone = None
        at = bisect_right(self.parcels, parcel.first, key=_first_ordinal) - 1
        assert self.parcels[at] is parcel
        del self.parcels[at]
