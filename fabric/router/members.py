"""A subscription: one consumer's membership in a group, with its credit and what it holds."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.router.delivery import Parcel
from fabric.router.key_index import KeyIndex
from fabric.router.ranges import Ranges

if TYPE_CHECKING:
    from fabric.router.groups import Group
    from fabric.router.sessions import Session

UNLIMITED: Final = 1 << 62
# Deliveries that are not settled, each of one message or more: they cost memory, and time when the consumer goes.
HELD_MAX: Final = 16_384  # of one subscription, whatever its credit is
HELD_MIN: Final = 64  # however many others hold
ALL_HELD_MAX: Final = 524_288  # of all together; above it only subscriptions get more that hold few
UNSURE_ATTEMPTS: Final = 3  # from this attempt on a loss counts, also of a consumer that is unsure what it has begun
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
        "batches",
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
        "unsure",
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
        self.batches = False  # it begins whole deliveries, so many at once, and not single messages
        self.unsure = 0  # how many of the oldest open ordinals may be begun or done; 0: as many as `concurrency` are
        self.stuck: set[int] = set()  # ordinals that were begun, have lapsed, and were not spoken of since
        self.alone: Parcel | None = None  # a suspect; nothing else is sent until it is settled
        self.away = Ranges()  # ordinals that were taken back while the client was not connected
        self.fetch: FetchOrder | None = None
        self.key_index: KeyIndex | None = None  # while rows of one ACK are applied

    def room(self) -> int:
        """How many messages may be sent now, by ordinal credit; 0 also when bytes or the connection forbid."""
        if self.alone is not None:
            return 0
        held = len(self.parcels)
        if held >= HELD_MIN and (held >= HELD_MAX or self.group.commons.held >= ALL_HELD_MAX):
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

    def begun(self) -> Ranges:
        """Ordinals that count as begun if the consumer is lost now: the oldest open ones, as many as it can work on at
        once. While it is unsure which they are, none, unless there is one only, or it was delivered too often for that.
        """
        if not self.unsure or self.outstanding == 1:
            return self._oldest(self.concurrency - len(self.stuck))
        often = [span for parcel in self.parcels if parcel.attempt >= UNSURE_ATTEMPTS for span in parcel.open]
        return Ranges(often)

    def kept(self) -> Ranges:
        """Ordinals that can be begun, or done and not spoken of: what stays with a consumer without a connection."""
        return self._oldest(max(self.unsure, self.concurrency) - len(self.stuck))

    def _oldest(self, count: int) -> Ranges:
        """So many of the oldest open ordinals that can be handled at the same time."""
        found, keys = Ranges(), set[bytes]()
        if self.group.strict and not self.unsure:
            count = min(count, 1)
        for parcel in self.parcels if count > 0 else ():
            if parcel.keys is not None and not self.unsure:
                count -= self._oldest_of_keys(parcel, parcel.keys, keys, count, found)
            elif self.batches:
                count -= 1
                for first, last in parcel.open:
                    found.add(first, last)
            else:
                for first, last in parcel.open:
                    last = min(last, first + count - 1)
                    if first <= last:
                        found.add(first, last)
                        count -= last - first + 1
            if count <= 0:
                break
        return found

    def _oldest_of_keys(
        self, parcel: Parcel, names: Sequence[bytes], keys: set[bytes], count: int, found: Ranges
    ) -> int:
        """Messages of one key are handled one after the other: only the oldest of each can be begun."""
        added = 0
        for first, last in parcel.open:
            for ordinal in range(first, last + 1):
                key = names[ordinal - parcel.first]
                if key in keys:
                    continue
                if added == count:
                    return added
                if key:
                    keys.add(key)
                found.add(ordinal, ordinal)
                added += 1
        return added

    def forget(self, parcel: Parcel) -> None:
        if self.alone is parcel:
            self.alone = None
        at = bisect_right(self.parcels, parcel.first, key=_first_ordinal) - 1
        assert self.parcels[at] is parcel
        del self.parcels[at]
        self.group.commons.held -= 1
