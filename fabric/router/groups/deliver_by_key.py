"""Delivers for groups of order `key`: a message goes to the member that holds its key, or waits behind the lock."""

from itertools import pairwise, takewhile

from fabric.router.groups.deliver import (
    LEASES_PER_GO,
    choose,
    deliver_suspect,
    move_on,
    rotate,
    send_delivery,
    within_room,
    work_ahead,
)
from fabric.router.groups.group import Group
from fabric.router.groups.key_locks import PARKED_MAX, Keys, Lock, ParkedMessage
from fabric.router.groups.lanes import REMOVED, Work, deliverable_runs, next_work
from fabric.router.groups.lease import Lease
from fabric.router.groups.subscription import UNLIMITED, Subscription
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.runs import runs_of


def deliver_by_key(group: Group, keys: Keys, now: float, turn: Turn) -> tuple[list[Lease], bool]:
    """Deliver messages to members with credit. Returns the new leases, and whether there is more to deliver."""
    leased: list[Lease] = []
    horizon, wall_us, rounds = group.horizon, group.shared.clock.wall_us(now), group.shared.rounds
    throttle, room = group.throttle, UNLIMITED
    for _ in range(LEASES_PER_GO):
        if rounds.is_over:
            return leased, True
        if throttle is not None and (room := throttle.room(group.members, now)) <= 0:
            return leased, False
        if group.pending.suspects or group.reserved is not None:
            lease = deliver_suspect(group, now, wall_us, turn)
            if lease is not None:
                leased.append(lease)
                continue
        if not group.pending.ready:  # a ready message may have the key of a parked message, and a lower seq
            parked = keys.parked
            for member in group.members:
                if throttle is not None:
                    room = throttle.room(group.members, now)
                leased += _unpark(group, keys, member, room, now, wall_us, turn)
            if keys.parked < parked:  # delivered, or settled as a gap: the next parked message may follow
                continue
        if keys.parked >= PARKED_MAX:
            return leased, False
        chosen, eligible = choose(group)
        if chosen is None:
            return leased, False
        work, searching = next_work(group, horizon, wall_us, turn)
        if work is None:
            return leased, searching
        if throttle is not None:
            work = within_room(group, work, room)
        count, ahead = work_ahead(group, work, horizon)
        rotate(group, chosen)
        deal = _KeyDelivery(group, keys, chosen, work)
        leased += deal.deliver(-(-min(count + ahead, room) // eligible), now, turn)
        if deal.is_blocked:
            return leased, False
    return leased, True


class _KeyDelivery:
    """The delivery of one block. A message goes to the member that holds its key, to the next member, or is parked."""

    def __init__(self, group: Group, keys: Keys, member: Subscription, work: Work) -> None:
        self._group = group
        self._keys = keys
        self._member = member
        self._work = work
        self._bytes_each = len(work.block.raw) // work.block.count
        self._rooms: dict[Subscription, int] = {}
        self._assigned: dict[Subscription, list[int]] = {}
        self.is_blocked = False  # the first message could not be delivered or parked

    def deliver(self, share: int, now: float, turn: Turn) -> list[Lease]:
        work, base = self._work, self._work.block.base_seq
        self._rooms[self._member] = min(share, self._room(self._member))
        stop = self._assign()
        self.is_blocked = stop == work.runs[0][0]
        self._move_on(stop)
        names = self._keys.names(work.block)
        leases = []
        for member, places in self._assigned.items():
            lease = send_delivery(
                self._group, member, work, runs_of(places), now, turn, [names[place] for place in places]
            )
            assert lease is not None, f"seq {base} was not leased"
            leases.append(lease)
        return leases

    def _assign(self) -> int:
        """Assign each message to a member or park it. Returns the place after the last assigned message."""
        work, keys, rooms, hands = self._work, self._keys, self._rooms, self._assigned
        names, locks, default = keys.names(work.block), keys.locks, self._member
        for a, b in work.runs:
            for place in range(a, b):
                member, key = default, names[place]
                lock = locks.get(key) if key else None
                if lock is not None:
                    owner = lock.owner
                    if lock.parked or owner is None or lock.inflight >= lock.limit or not self._has_room(owner):
                        held = ParkedMessage(work.block.base_seq + place, work.attempt, work.failures, 0.0)
                        keys.park(lock, held)
                        if work.block.expires_us:
                            self._group.expiring.put(held.seq, held.seq, work.block.expires_us)
                        if lock.parked[0] is held:
                            keys.update_lock(lock)
                        continue
                    member = owner
                elif rooms[default] <= 0:
                    return place
                elif key:
                    lock = locks[key] = Lock(key)
                    lock.owner = default
                if lock is not None:
                    lock.inflight += 1
                rooms[member] -= 1
                hand = hands.get(member)
                if hand is None:
                    hand = hands[member] = []
                hand.append(place)
        return work.runs[-1][1]

    def _has_room(self, member: Subscription) -> bool:
        room = self._rooms.get(member)
        if room is None:
            room = self._rooms[member] = self._room(member)
        return room > 0

    def _room(self, member: Subscription) -> int:
        if member is self._group.reserved:
            return 0
        return min(member.room(), member.fitting(self._bytes_each))

    def _move_on(self, stop: int) -> None:
        """Open the messages that were assigned or parked; the rest stays with the lane or the redelivery."""
        group, work, base = self._group, self._work, self._work.block.base_seq
        dealt = [(a, min(b, stop)) for a, b in work.runs if a < stop]
        if work.lane is not None:
            for a, b in dealt:
                group.open.add(base + a, base + b - 1)
            passed = sum(b - a for a, b in dealt)
            move_on(group, work, work.lane, stop if stop < work.runs[-1][1] else None, passed)
        elif work.redelivery is not None:
            if stop < work.runs[-1][1]:
                group.pending.put(work.redelivery._replace(first=base + stop))
            for (_, a), (b, _) in pairwise([*dealt, (stop, stop)]):
                group.close(base + a, base + b - 1)  # seqs between the runs do not match


def _unpark(
    group: Group, keys: Keys, member: Subscription, most: int, now: float, wall_us: int, turn: Turn
) -> list[Lease]:
    """Deliver to a member the parked messages of keys that it holds or that no member holds, up to a number."""
    room = 0 if member is group.reserved else min(member.room(), most)
    taken: list[tuple[ParkedMessage, Lock]] = []
    for source in (member, None):
        locks = keys.movable.get(source)
        while locks and len(taken) < room:
            lock = next(iter(locks))
            while len(taken) < room and lock.inflight < lock.limit and _may_go(group, lock):
                taken.append((keys.unpark(lock), lock))
            lock.owner = member
            keys.update_lock(lock)
        if locks is not None and not locks:
            keys.movable.pop(source, None)
    taken.sort()
    return _send_parked(group, keys, member, taken, now, wall_us, turn)


def _may_go(group: Group, lock: Lock) -> bool:
    head = lock.parked[0] if lock.parked else None
    return head is not None and not head.due and head.failures < group.pending.suspect_failures


def _send_parked(
    group: Group,
    keys: Keys,
    member: Subscription,
    taken: list[tuple[ParkedMessage, Lock]],
    now: float,
    wall_us: int,
    turn: Turn,
) -> list[Lease]:
    """Deliver messages that are not parked any more, block by block. A message without byte credit is parked again."""
    leases: list[Lease] = []
    while taken:
        seq, attempt, failures, _ = taken[0][0]
        block = group.shared.block_store.at(seq)
        if not isinstance(block, Block):
            if group.open.holds(seq):  # otherwise the gap was reported before
                group.lost(seq, seq, REMOVED if block is None else block.why, turn)
            keys.done([taken.pop(0)[1].key])
            continue
        last_seq = block.last_seq
        here = list(takewhile(lambda pair: pair[0].seq <= last_seq and pair[0][1:3] == (attempt, failures), taken))  # noqa: B023
        fits = member.fitting(len(block.raw) // block.count)
        taken = taken[len(here) :]
        if fits < len(here):  # later messages may have the same keys, so they wait too
            for held, lock in reversed([*here[fits:], *taken]):
                keys.return_message(lock.key, held, failed=False)
            here, taken = here[:fits], []
        places = []
        for held, lock in here:
            if deliverable_runs(group, block, held.seq, held.seq, wall_us, turn)[0]:
                places.append(held.seq - block.base_seq)
            else:
                group.close(held.seq, held.seq)
                keys.done([lock.key])
        if places:
            names = keys.names(block)
            work = Work(block, [], attempt, failures, None, None)
            lease = send_delivery(group, member, work, runs_of(places), now, turn, [names[place] for place in places])
            assert lease is not None
            leases.append(lease)
    return leases
