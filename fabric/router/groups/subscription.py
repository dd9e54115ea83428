"""Subscription: one consumer of a group, with its credit and its leases."""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.router.groups.key_index import KeyIndex
from fabric.router.groups.lease import Lease
from fabric.router.ranges import Ranges
from fabric_protocol.messages import Fetch

if TYPE_CHECKING:
    from fabric.router.groups.group import Group
    from fabric.router.sessions.session import Session

UNLIMITED: Final = 1 << 62
# Leases, each of one message or more. They cost memory, and time when the consumer leaves.
HELD_MAX: Final = 16_384  # of one subscription, whatever its credit
HELD_MIN: Final = 64  # of one subscription, whatever other subscriptions hold
ALL_HELD_MAX: Final = 524_288  # of all subscriptions; above it, a subscription gets no more than HELD_MIN
UNSURE_ATTEMPTS: Final = 3  # from this attempt on, a loss is a failure also if the consumer is unsure what it has begun
_first_ordinal = attrgetter("first")


class OpenFetch(NamedTuple):
    """An open FETCH. END closes it at the target, at the deadline, or at `enough` when no more messages are ready."""

    rid: int
    first: int  # the last ordinal before the FETCH
    target: int
    enough: int  # the ordinal that ends it when no more messages are ready
    deadline: float


class Subscription:
    """Credit is cumulative: the client names the highest ordinal and the most bytes that it accepts in all."""

    __slots__ = (
        "away",
        "batches",
        "bytes_max",
        "bytes_sent",
        "chan",
        "concurrency",
        "fetch",
        "group",
        "key_index",
        "lapsed",
        "leases",
        "ordinal_max",
        "outstanding",
        "sent",
        "session",
        "suspect",
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
        unsure: int = 0,
        *,
        batches: bool = False,
    ) -> None:
        self.session = session
        self.chan = chan
        self.group = group
        self.ordinal_max = ordinal_max
        self.bytes_max = bytes_max
        self.sent = 0  # the last ordinal sent
        self.bytes_sent = 0
        self.outstanding = 0  # ordinals sent and without a verdict
        self.leases: list[Lease] = []  # ascending by first ordinal
        self.concurrency = concurrency  # handlers that can work at the same time
        self.batches = batches  # a handler takes a whole delivery, not a single message
        self.unsure = unsure  # so many of the oldest open ordinals may be begun or done; 0: `concurrency` are begun
        self.lapsed: set[int] = set()  # ordinals that were begun, have lapsed, and have no later verdict
        self.suspect: Lease | None = None  # lease of a suspect; nothing else is sent until it ends
        self.away = Ranges()  # ordinals that were taken back while the client was away
        self.fetch: OpenFetch | None = None
        self.key_index: KeyIndex | None = None  # while the rows of one ACK are applied

    def grant(self, ordinal_max: int, bytes_max: int, unsure: int) -> None:
        """Set the credit to the numbers of a CREDIT frame."""
        self.ordinal_max, self.bytes_max, self.unsure = ordinal_max, bytes_max, unsure

    def begin_fetch(self, message: Fetch, deadline: float) -> None:
        """Give credit for the messages of a FETCH, until its deadline."""
        self.ordinal_max, self.bytes_max = self.sent + message.count, UNLIMITED
        enough = self.sent + min(message.enough or message.count, message.count)
        self.fetch = OpenFetch(message.rid, self.sent, self.ordinal_max, enough, deadline)

    def has_fetched(self, *, all_of_it: bool) -> bool:
        """Whether an open FETCH has reached its target, or `enough` if not `all_of_it`."""
        return self.fetch is not None and self.sent >= (self.fetch.target if all_of_it else self.fetch.enough)

    def room(self) -> int:
        """How many messages may be sent now by ordinal credit; 0 without byte credit or without a connection."""
        if self.suspect is not None:
            return 0
        held = len(self.leases)
        if held >= HELD_MIN and (held >= HELD_MAX or self.group.shared.held >= ALL_HELD_MAX):
            return 0
        if self.bytes_sent >= self.bytes_max and (self.outstanding or not self.group.leases):
            return 0  # without leases nothing is outstanding, and the bytes alone decide
        return self.ordinal_max - self.sent if self.session.reachable else 0

    def fitting(self, bytes_each: int) -> int:
        """How many messages of a size the byte credit allows; at least 1 when nothing is outstanding."""
        return max((self.bytes_max - self.bytes_sent) // max(bytes_each, 1), 0 if self.outstanding else 1)

    def leases_in(self, first: int, last: int) -> list[Lease]:
        """Leases with ordinals in first..last."""
        leases = self.leases
        at = max(bisect_right(leases, first, key=_first_ordinal) - 1, 0)
        end = bisect_right(leases, last, at, key=_first_ordinal) if last > first else min(at + 1, len(leases))
        return [lease for lease in leases[at:end] if lease.first <= last and lease.last >= first]

    def begun(self) -> Ranges:
        """Ordinals that count as begun if the consumer is lost now: the oldest open ordinals, one for each handler.
        For an unsure consumer: its only open ordinal, or ordinals with UNSURE_ATTEMPTS attempts.
        """
        if not self.unsure or self.outstanding == 1:
            return self._oldest(self.concurrency - len(self.lapsed))
        often = [span for lease in self.leases if lease.attempt >= UNSURE_ATTEMPTS for span in lease.open]
        return Ranges(often)

    def kept(self) -> Ranges:
        """Ordinals that may be begun, or done without a verdict yet. A consumer without a connection keeps them."""
        return self._oldest(max(self.unsure, self.concurrency) - len(self.lapsed))

    def _oldest(self, count: int) -> Ranges:
        """The oldest open ordinals, up to a count, that can be handled at the same time."""
        found, keys = Ranges(), set[bytes]()
        if self.group.strict and not self.unsure:
            count = min(count, 1)
        for lease in self.leases if count > 0 else ():
            if lease.keys is not None and not self.unsure:
                count -= self._oldest_of_keys(lease, lease.keys, keys, count, found)
            elif self.batches:
                count -= 1
                for first, last in lease.open:
                    found.add(first, last)
            else:
                for first, last in lease.open:
                    last = min(last, first + count - 1)
                    if first <= last:
                        found.add(first, last)
                        count -= last - first + 1
            if count <= 0:
                break
        return found

    def _oldest_of_keys(self, lease: Lease, names: Sequence[bytes], keys: set[bytes], count: int, found: Ranges) -> int:
        """Messages of one key are handled one after the other, so only the oldest message of each key can be begun."""
        added = 0
        for first, last in lease.open:
            for ordinal in range(first, last + 1):
                key = names[ordinal - lease.first]
                if key in keys:
                    continue
                if added == count:
                    return added
                if key:
                    keys.add(key)
                found.add(ordinal, ordinal)
                added += 1
        return added

    def forget(self, lease: Lease) -> None:
        if self.suspect is lease:
            self.suspect = None
        at = bisect_right(self.leases, lease.first, key=_first_ordinal) - 1
        assert self.leases[at] is lease
        del self.leases[at]
        self.group.shared.held -= 1
