"""Order by key: who holds which key, and which messages wait behind it.

At most one subscription holds messages of a key, and it gets them in the order of their seqs; all other keys flow. A
lock exists only while something of its key is in flight or waits, so a key that is idle costs nothing and a consumer
that leaves blocks nobody. When a message fails, everything later of its key is taken back, and until it is settled
that key goes one by one.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.records import SaveFailure
from fabric.router.groups.lease import Redelivery
from fabric.router.groups.redelivery import Pending
from fabric.router.ranges import Ranges
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric_protocol.block import PRIORITY_DEFAULT, Block

if TYPE_CHECKING:
    from fabric.router.groups.subscription import Subscription

INFLIGHT_MAX: Final = 16  # of one key, so that a single hot key is not one round trip for each message
# Messages that wait behind locks, in one group. Beyond it nothing new is read until some of them went.
PARKED_MAX: Final = 20_000


class ParkedMessage(NamedTuple):
    """A message that waits for its key."""

    seq: int
    attempt: int
    failures: int
    due: float  # not to be delivered before; 0: it is due


class Lock:
    __slots__ = ("has_failed", "inflight", "key", "listed", "owner", "parked", "suspected")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.owner: Subscription | None = None  # who has what is in flight
        self.inflight = 0
        self.parked: list[ParkedMessage] = []  # ascending by seq
        self.has_failed = False  # a message has failed and is not settled yet
        self.suspected = False  # the first of the parked waits among the suspects
        self.listed: dict[Lock, None] | None = None  # where in `Keys.movable` it stands

    @property
    def limit(self) -> int:
        return 1 if self.has_failed else INFLIGHT_MAX


class Keys:
    __slots__ = ("_due_times", "_names", "_pending", "_suspected", "locks", "movable", "parked")

    def __init__(self, pending: Pending) -> None:
        self.locks: dict[bytes, Lock] = {}
        # Locks with parked messages of which one may go now: to their owner, or (None) to anyone.
        self.movable: dict[Subscription | None, dict[Lock, None]] = {}
        self.parked = 0
        self._pending = pending
        self._suspected: dict[int, Lock] = {}  # by seq: locks whose first message waits among the suspects
        self._due_times: list[tuple[float, bytes]] = []  # a heap: when the first message behind a lock is due
        self._names: tuple[Block | None, list[bytes]] = (None, [])  # of the block that was looked at last

    def names(self, block: Block) -> list[bytes]:
        """The key of each message of a block; a block is often dealt in several goes."""
        if self._names[0] is not block:
            self._names = (block, block.keys())
        return self._names[1]

    def lock(self, key: bytes) -> Lock:
        lock = self.locks.get(key)
        if lock is None:
            lock = self.locks[key] = Lock(key)
        return lock

    def park(self, lock: Lock, held: ParkedMessage) -> None:
        insort(lock.parked, held)
        self.parked += 1

    def unpark(self, lock: Lock) -> ParkedMessage:
        """Take the first that waits; it is in flight from now on."""
        self.parked -= 1
        lock.inflight += 1
        return lock.parked.pop(0)

    def update_lock(self, lock: Lock) -> None:
        """See whether a lock is still needed, and whether something behind it can go."""
        if lock.listed is not None:
            del lock.listed[lock]
            lock.listed = None
        if not lock.inflight:
            lock.owner = None
            if not lock.parked:
                self.locks.pop(lock.key, None)
                return
        if not lock.parked or lock.suspected or lock.inflight >= lock.limit:
            return
        head = lock.parked[0]
        if head.due:
            heappush(self._due_times, (head.due, lock.key))
        elif head.failures < self._pending.suspect_failures:
            lock.listed = self.movable.setdefault(lock.owner, {})
            lock.listed[lock] = None
        elif not lock.inflight:
            lock.suspected = True
            self._suspected[head.seq] = lock
            self._pending.put(Redelivery(-PRIORITY_DEFAULT, head.seq, head.seq, head.attempt, head.failures))

    def done(self, keys: Iterable[bytes]) -> None:
        """Messages of these keys, one for each that is named, are settled."""
        for key in keys:
            if key:
                lock = self.locks[key]
                lock.inflight -= 1
                lock.has_failed = False
                if lock.parked or not lock.inflight:
                    self.update_lock(lock)

    def return_message(self, key: bytes, held: ParkedMessage, *, failed: bool) -> None:
        """A message in flight was not settled: it waits behind its lock again."""
        lock = self.locks[key]
        lock.inflight -= 1
        lock.has_failed |= failed
        self.park(lock, held)
        self.update_lock(lock)

    def admit_suspect(self, seq: int, owner: "Subscription") -> bool:
        """Whether a suspect may go now: it must be the first of its key. It is in flight then."""
        lock = self._suspected.pop(seq, None)
        if lock is None:  # it has no key
            return True
        lock.suspected = False
        if lock.inflight or not lock.parked or lock.parked[0].seq != seq:
            self.update_lock(lock)
            return False
        self.unpark(lock)
        lock.owner = owner
        return True

    def drop_suspect(self, seq: int) -> None:
        """A suspect was settled without being delivered."""
        lock = self._suspected.pop(seq, None)
        if lock is not None:
            lock.suspected = False
            if lock.parked and lock.parked[0].seq == seq:
                self.parked -= 1
                del lock.parked[0]
            self.update_lock(lock)

    def use_attempts_max(self, attempts_max: int) -> None:
        """Other messages are suspects from now on: locks whose first message waits as one are sorted out again."""
        suspected, self._suspected = self._suspected, {}
        self._pending.drop(Ranges((seq, seq) for seq in sorted(suspected)))
        self._pending.use_attempts_max(attempts_max)
        for lock in suspected.values():
            lock.suspected = False
            self.update_lock(lock)

    def drop(self, seqs: Ranges) -> None:
        """Messages that wait behind locks are settled."""
        for lock in list(self.locks.values()):
            kept = [held for held in lock.parked if not seqs.holds(held.seq)]
            if len(kept) == len(lock.parked):
                continue
            for held in lock.parked:  # a message that was parked later may stand before the suspect
                if seqs.holds(held.seq) and self._suspected.pop(held.seq, None) is not None:
                    lock.suspected = False
            if any(held.failures for held in lock.parked) and not any(held.failures for held in kept):
                lock.has_failed = False
            self.parked -= len(lock.parked) - len(kept)
            lock.parked = kept
            self.update_lock(lock)

    def held(self) -> Iterator[ParkedMessage]:
        """What waits behind locks, without what waits among the suspects."""
        for lock in self.locks.values():
            yield from lock.parked[lock.suspected :]

    def next_due(self) -> float:
        return self._due_times[0][0] if self._due_times else NEVER

    def due(self, now: float) -> bool:
        """Let go what is due; True when there was something."""
        rung = False
        while self._due_times and self._due_times[0][0] <= now:
            lock = self.locks.get(heappop(self._due_times)[1])
            if lock is not None and lock.parked and 0 < lock.parked[0].due <= now:
                lock.parked[0] = lock.parked[0]._replace(due=0.0)
                self.update_lock(lock)
                rung = True
        return rung

    def restore(self, row: SaveFailure, due: float, shared: Shared) -> None:
        """After a restart: what has failed before blocks its key until it is settled. What has no key is pending."""
        seq = max(row.first, shared.removed_below)
        while seq <= row.last:
            block = shared.block_store.at(seq)
            end = min(block.last_seq, row.last) if isinstance(block, Block) else row.last
            for one in range(seq, end + 1):
                key = self.names(block)[one - block.base_seq] if isinstance(block, Block) else b""
                if key:
                    lock = self.lock(key)
                    lock.has_failed = True
                    self.park(lock, ParkedMessage(one, row.failures + 1, row.failures, due))
                    self.update_lock(lock)
                else:
                    redelivery = Redelivery(-PRIORITY_DEFAULT, one, one, row.failures + 1, row.failures)
                    self._pending.put(redelivery, due)
            seq = end + 1
