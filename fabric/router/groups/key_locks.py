"""Keys: the locks of a group of order `key`, and the messages that are parked behind them.

At most one subscription holds messages of a key, and gets them in the order of their seqs; other keys do not wait. A
lock exists only while a message of its key is in flight or parked, so an idle key costs nothing and a consumer that
leaves blocks no key. When a message fails, later messages of its key are taken back, and messages of this key are
delivered one by one until it is settled.
"""

from bisect import insort
from collections.abc import Iterable
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

INFLIGHT_MAX: Final = 16  # of one key; above 1, so that a key does not cost one round trip for each message
# Parked messages of one group. At this number, the group reads no new messages until some are delivered.
PARKED_MAX: Final = 20_000


class ParkedMessage(NamedTuple):
    """A message that waits behind the lock of its key."""

    seq: int
    attempt: int
    failures: int
    due: float  # not delivered before this time; 0: due


class Lock:
    __slots__ = ("has_failed", "inflight", "key", "listed", "owner", "parked", "suspected")

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.owner: Subscription | None = None  # holds the messages in flight
        self.inflight = 0
        self.parked: list[ParkedMessage] = []  # ascending by seq
        self.has_failed = False  # a message of the key has failed and is not settled
        self.suspected = False  # the first parked message is in `Pending.suspects`
        self.listed: dict[Lock, None] | None = None  # the dictionary of `Keys.movable` that has this lock

    @property
    def limit(self) -> int:
        return 1 if self.has_failed else INFLIGHT_MAX


class Keys:
    __slots__ = ("_due_times", "_names", "_pending", "_suspected", "fresh", "locks", "movable", "parked", "waiting")

    def __init__(self, pending: Pending) -> None:
        self.locks: dict[bytes, Lock] = {}
        # Locks with a parked message that may be delivered now: to the owner, or (None) to any member.
        self.movable: dict[Subscription | None, dict[Lock, None]] = {}
        self.parked = 0
        self.fresh = 0  # parked messages that wait for attempt 1
        self.waiting = 0  # parked messages that are not due yet, or that nothing has made ready since
        self._pending = pending
        self._suspected: dict[int, Lock] = {}  # by seq: locks with `suspected`
        self._due_times: list[tuple[float, bytes]] = []  # a heap: when the first parked message of a key is due
        self._names: tuple[Block | None, list[bytes]] = (None, [])  # the latest block, and the keys of its messages

    def names(self, block: Block) -> list[bytes]:
        """The key of each message of a block. The latest block is cached: it often takes several deliveries."""
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
        self._count(held, 1)

    def unpark(self, lock: Lock) -> ParkedMessage:
        """Take the first parked message; it then counts as in flight."""
        held = lock.parked.pop(0)
        self._count(held, -1)
        lock.inflight += 1
        return held

    def _count(self, held: ParkedMessage, change: int) -> None:
        self.parked += change
        if held.attempt == 1:
            self.fresh += change
        if held.due:
            self.waiting += change

    @property
    def suspected(self) -> int:
        """Parked messages that are in `Pending.suspects`."""
        return len(self._suspected)

    def update_lock(self, lock: Lock) -> None:
        """Remove a lock without messages, or list it in `movable` if its first parked message may be delivered."""
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
        """One message in flight is settled for each key in `keys`."""
        for key in keys:
            if key:
                lock = self.locks[key]
                lock.inflight -= 1
                lock.has_failed = False
                if lock.parked or not lock.inflight:
                    self.update_lock(lock)

    def return_message(self, key: bytes, held: ParkedMessage, *, failed: bool) -> None:
        """Park a message that was in flight and is not settled."""
        lock = self.locks[key]
        lock.inflight -= 1
        lock.has_failed |= failed
        self.park(lock, held)
        self.update_lock(lock)

    def admit_suspect(self, seq: int, owner: "Subscription") -> bool:
        """True if a suspect is the first message of its key; it then counts as in flight."""
        lock = self._suspected.pop(seq, None)
        if lock is None:  # the message has no key
            return True
        lock.suspected = False
        if lock.inflight or not lock.parked or lock.parked[0].seq != seq:
            self.update_lock(lock)
            return False
        self.unpark(lock)
        lock.owner = owner
        return True

    def drop_suspect(self, seq: int) -> None:
        """Remove a suspect that was settled without a delivery."""
        lock = self._suspected.pop(seq, None)
        if lock is not None:
            lock.suspected = False
            if lock.parked and lock.parked[0].seq == seq:
                self._count(lock.parked.pop(0), -1)
            self.update_lock(lock)

    def use_attempts_max(self, attempts_max: int) -> None:
        """Change which messages are suspect: locks with `suspected` are updated."""
        suspected, self._suspected = self._suspected, {}
        self._pending.drop(Ranges((seq, seq) for seq in sorted(suspected)))
        self._pending.use_attempts_max(attempts_max)
        for lock in suspected.values():
            lock.suspected = False
            self.update_lock(lock)

    def drop(self, seqs: Ranges) -> None:
        """Remove parked messages that were settled."""
        for lock in list(self.locks.values()):
            kept = [held for held in lock.parked if not seqs.holds(held.seq)]
            if len(kept) == len(lock.parked):
                continue
            for held in lock.parked:  # a message that was parked later may be before the suspect
                if seqs.holds(held.seq):
                    self._count(held, -1)
                    if self._suspected.pop(held.seq, None) is not None:
                        lock.suspected = False
            if any(held.failures for held in lock.parked) and not any(held.failures for held in kept):
                lock.has_failed = False
            lock.parked = kept
            self.update_lock(lock)

    def next_due(self) -> float:
        return self._due_times[0][0] if self._due_times else NEVER

    def due(self, now: float) -> bool:
        """Make parked messages ready that are due; True if there were any."""
        moved = False
        while self._due_times and self._due_times[0][0] <= now:
            lock = self.locks.get(heappop(self._due_times)[1])
            if lock is not None and lock.parked and 0 < lock.parked[0].due <= now:
                lock.parked[0] = lock.parked[0]._replace(due=0.0)
                self.waiting -= 1
                self.update_lock(lock)
                moved = True
        return moved

    def restore(self, row: SaveFailure, due: float, shared: Shared) -> None:
        """After a restart: park failed messages behind their keys. Failed messages without a key are pending."""
        seq = max(row.first, shared.removed_below)
        while seq <= row.last:
            block = shared.block_store.at(seq)
            end = min(block.last_seq, row.last) if isinstance(block, Block) else row.last
            for at in range(seq, end + 1):
                key = self.names(block)[at - block.base_seq] if isinstance(block, Block) else b""
                if key:
                    lock = self.lock(key)
                    lock.has_failed = True
                    self.park(lock, ParkedMessage(at, row.failures + 1, row.failures, due))
                    self.update_lock(lock)
                else:
                    redelivery = Redelivery(-PRIORITY_DEFAULT, at, at, row.failures + 1, row.failures)
                    self._pending.put(redelivery, due)
            seq = end + 1
