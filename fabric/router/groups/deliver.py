"""Delivers for groups of order `none` and `strict`: chooses the next member, the number of messages, and sends DELIVER.

The member with the fewest outstanding messages is first, in rotation among equals. A member gets its share of the
messages that wait, so that four idle members get one of four messages each. `deliver_by_key` delivers for groups of
order `key`, with functions of this module.
"""

from collections.abc import Sequence
from typing import Final

from fabric.router.dead_letters.blocks import original
from fabric.router.groups.backlog import pass_by
from fabric.router.groups.group import Group
from fabric.router.groups.lanes import REMOVED, STREAK_MAX, Lane, Runs, Work, next_work, redelivery_work
from fabric.router.groups.lease import Lease
from fabric.router.groups.subscription import UNLIMITED, Subscription
from fabric.router.rounds import LEASE_WORK, TOPIC_WORK
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.block_parts import pick
from fabric_protocol.messages import Deliver, Gap, Happening
from fabric_protocol.names import REDRIVE
from fabric_protocol.runs import split

# Leases of one group in one go; then other groups are served.
LEASES_PER_GO: Final = 64
MANY_READY: Final = 256  # above this, assume that some ready messages have a lower priority instead of scanning all


def deliver(group: Group, now: float, turn: Turn) -> tuple[list[Lease], bool]:
    """Deliver messages to members with credit. Returns the new leases, and whether there is more to deliver."""
    leased: list[Lease] = []
    horizon, wall_us = group.horizon, group.shared.clock.wall_us(now)
    careful = group.pending.suspects or group.reserved is not None or group.strict
    rounds, throttle, room = group.shared.rounds, group.throttle, UNLIMITED
    for _ in range(LEASES_PER_GO):
        if rounds.spent >= rounds.until:  # `is_over`, without a call
            return leased, True
        if throttle is not None and (room := throttle.room(group.members, now)) <= 0:
            return leased, False
        if careful:
            if group.strict and group.pending.waiting:  # later messages wait behind the retrying message
                return leased, False
            lease = deliver_suspect(group, now, wall_us, turn)
            if lease is not None:
                leased.append(lease)
                continue
            if group.strict and group.pending.suspects and not ready_comes_first(group):
                return leased, False
        member, eligible = choose(group)
        if member is None:
            return leased, False
        work, searching = next_work(group, horizon, wall_us, turn)
        if work is None:
            return leased, searching
        count, ahead = work_ahead(group, work, horizon)
        bytes_each = len(work.block.raw) // work.block.count
        if not member.fitting(bytes_each):  # a member with more outstanding messages may have more byte credit
            member, eligible = choose(group, bytes_each)
            if member is None:  # an ack gives byte credit
                put_back(group, work)
                return leased, False
        share = -(-min(count + ahead, room) // eligible)
        take = min(share, member.room(), member.fitting(bytes_each), count)
        if len(group.lanes) > 1:
            take = _limit_streak(group, work, take)
        rotate(group, member)
        lease = _send(group, member, work, take, now, turn)
        if lease is not None:
            leased.append(lease)
    return leased, True


def work_ahead(group: Group, work: Work, horizon: int) -> tuple[int, int]:
    """The number of messages of the work, and about the number of messages after it."""
    count = sum(b - a for a, b in work.runs)
    return count, max(horizon - work.block.last_seq, 0) if work.redelivery is None else len(group.pending.ready)


def choose(group: Group, bytes_each: int = 0) -> tuple[Subscription | None, int]:
    """The member with the fewest outstanding messages, in rotation among equals, and how many members have credit."""
    members, reserved = group.members, group.reserved
    if group.strict:  # later members get messages after the first member has left
        if not members or _is_held_up(group):
            return None, 0
        first = members[0]
        return (first, 1) if first.room() > 0 and first.fitting(bytes_each or 1) else (None, 0)
    best, eligible, n = -1, 0, len(members)
    for i in range(group.next_member, group.next_member + n):
        member = members[i % n]
        if member.room() > 0 and member is not reserved and (not bytes_each or member.fitting(bytes_each)):
            eligible += 1
            if best < 0 or member.outstanding < members[best].outstanding:
                best = i % n
    if best < 0:
        return None, 0
    return members[best], eligible


def rotate(group: Group, member: Subscription) -> None:
    """A member gets a delivery: the member after it is the next among equals."""
    group.next_member = group.members.index(member) + 1


def _is_held_up(group: Group) -> bool:
    """Whether a member of a strict group waits for a former first member that still holds messages."""
    return any(member.outstanding for member in group.members[1:])


def deliver_suspect(group: Group, now: float, wall_us: int, turn: Turn) -> Lease | None:
    """Deliver a suspect alone, to a member that holds nothing else."""
    pending = group.pending
    while pending.suspects:
        if (group.strict or group.keys) and ready_comes_first(group):  # the order of the group
            group.reserved = None  # the member that was reserved for an earlier suspect may be the only one
            return None
        member = _idle_member(group)
        if member is None:
            return None
        suspect = pending.take_suspect()
        work, keys = redelivery_work(group, suspect, wall_us, turn), group.keys
        if work is None:
            if keys is not None:
                keys.drop_suspect(suspect.first)
            continue
        if keys is not None and not keys.admit_suspect(suspect.first, member):
            continue
        names = [keys.names(work.block)[work.runs[0][0]]] if keys is not None else None
        group.reserved = None
        member.suspect = send_delivery(group, member, work, work.runs, now, turn, names)
        return member.suspect
    group.reserved = None
    return None


def ready_comes_first(group: Group) -> bool:
    """Whether a ready message has a lower seq than the first suspect."""
    pending = group.pending
    return bool(pending.ready) and pending.ready[0].first < pending.suspects[0].first


def _idle_member(group: Group) -> Subscription | None:
    """A member that holds nothing. If there is none, a member is reserved: it gets nothing new."""
    members = group.members[:1] if group.strict else group.members
    if group.strict and _is_held_up(group):
        return None
    for member in members:
        if member.outstanding == 0 and member.room() > 0:
            return member
    reachable = [member for member in members if member.session.reachable and member.suspect is None]
    if group.reserved not in reachable:
        group.reserved = min(reachable, key=lambda member: member.outstanding, default=None)
    return None


def _limit_streak(group: Group, work: Work, take: int) -> int:
    """Limit the messages that are delivered in a row while lower priorities wait."""
    if group.streak >= STREAK_MAX:
        group.streak = 0
        return 1
    priority, ready = work.block.priority, group.pending.ready
    if not (
        any(lane.priority < priority and not lane.live for lane in group.lanes)
        or len(ready) > MANY_READY
        or any(-redelivery.rank < priority for redelivery in ready)
    ):
        group.streak = 0  # no lower priority waits
        return take
    take = min(take, STREAK_MAX - group.streak)
    group.streak += take
    return take


def _send(group: Group, member: Subscription, work: Work, take: int, now: float, turn: Turn) -> Lease | None:
    base = work.block.base_seq
    runs, rest = split(work.runs, take)
    if work.lane is not None:
        move_on(group, work, work.lane, rest[0][0] if rest else None, sum(b - a for a, b in runs))
        if group.leases:
            group.open.add(base + runs[0][0], base + runs[-1][1] - 1)
    elif rest and work.redelivery is not None:
        group.pending.put(work.redelivery._replace(first=base + rest[0][0]))
        group.close(base + runs[-1][1], base + rest[0][0] - 1)  # seqs between the runs do not match
    return send_delivery(group, member, work, runs, now, turn)


def move_on(group: Group, work: Work, lane: Lane, place: int | None, count: int) -> None:
    """Move a lane past `count` messages to the first message of its work that was not delivered; None: all were."""
    block, first = work.block, lane.cursor
    if place is not None:
        lane.move(block.base_seq + place, block)
    else:
        lane.move(block.base_seq + work.rest if work.rest is not None else block.last_seq + 1)
    if group.shared.superseded is not None:  # the lane may have passed superseded messages, too
        pass_by(group, block, first, lane.cursor - 1)
    elif group.backlog.count is None or group.backlog.has(block.base_seq):
        group.backlog.ahead -= count
    if lane.cursor <= block.last_seq:
        group.shared.block_store.keep(lane.cursor, block)
    if lane.handed.is_low(lane.cursor):
        group.dirty = group.durable


def send_delivery(
    group: Group,
    member: Subscription,
    work: Work,
    runs: Runs,
    now: float,
    turn: Turn,
    keys: Sequence[bytes] | None = None,
) -> Lease | None:
    """Send DELIVER for some messages of a block. Returns their lease, or None in a group without leases."""
    block, base = work.block, work.block.base_seq
    seqs = [(base + a, base + b - 1) for a, b in runs]
    raw = payload_for(block, runs)
    first_ordinal, count = member.sent + 1, sum(b - a for a, b in runs)
    member.sent += count
    member.bytes_sent += len(raw)
    member.session.messages_out += count
    member.session.bytes_out += len(raw)
    group.tally.delivered += count
    group.shared.counters["deliveries"] += count
    group.shared.rounds.spent += len(raw) + LEASE_WORK + (block.n_topics - 1) * TOPIC_WORK
    origin = block.origin_of(runs[0][0])
    turn.send(member.session.peer, Deliver(member.chan, first_ordinal, work.attempt, flat(seqs), raw, origin))
    if turn.recorder.is_on:  # as `record_event`, without a call
        turn.recorder.note(Happening.DELIVER, group.name, member.session.client, work.attempt, seqs)
    if group.throttle is not None and group.throttle.pace is not None:
        group.throttle.pace.take(count)
        group.dirty = group.durable  # the row tells when the next message may be delivered
    if not group.leases:
        if work.redelivery is not None:
            for a, b in seqs:
                group.close(a, b)
        group.dirty = group.durable
        return None
    if group.expiring:
        for a, b in seqs:
            group.expiring.take(a, b)
    settings = group.settings
    leased = (now + settings.lease_ms / 1000, now + settings.lease_max_ms / 1000)
    lease = Lease(member, first_ordinal, seqs, (group.rank_of(block), work.attempt, work.failures), leased, keys)
    lease.size, lease.expires_us = len(raw), block.expires_us
    member.leases.append(lease)
    member.outstanding += count
    group.shared.held += 1
    return lease


def within_room(group: Group, work: Work, room: int) -> Work:
    """The first messages of the work; the rest stays with the lane or the redelivery."""
    runs, rest = split(work.runs, room)
    if not rest:
        return work
    if work.redelivery is None:
        return work._replace(runs=runs, rest=rest[0][0])
    base, again = work.block.base_seq, work.redelivery
    group.pending.put(again._replace(first=base + rest[0][0]))
    group.close(base + runs[-1][1], base + rest[0][0] - 1)  # seqs between the runs do not match
    return work._replace(runs=runs, redelivery=again._replace(last=base + runs[-1][1] - 1))


def payload_for(block: Block, runs: Runs) -> bytes:
    """The block that a consumer gets. A redriven message gets its original topic."""
    raw = pick(block, runs)
    return original(raw) if block.topics[0].startswith(REDRIVE) else raw


def put_back(group: Group, work: Work) -> None:
    if work.redelivery is not None:
        group.pending.put(work.redelivery)


def send_again(group: Group, lease: Lease) -> list[Deliver | Gap]:
    """The frames of a delivery that a reconnected client has not seen. Messages that retention removed are a gap."""
    runs, frames = lease.runs, list[Deliver | Gap]()
    block, chan = group.shared.block_store.at(runs[-1][1]), lease.sub.chan
    first_seq = group.shared.removed_below if isinstance(block, Block) else runs[-1][1] + 1
    if runs[0][0] < first_seq:
        frames.append(Gap(chan, runs[0][0], min(first_seq - 1, runs[-1][1]), REMOVED))
        runs = [(max(a, first_seq), b) for a, b in runs if b >= first_seq]
    if isinstance(block, Block):
        places = [(a - block.base_seq, b - block.base_seq + 1) for a, b in runs]
        first = lease.ordinal_of(runs[0][0])
        origin = block.origin_of(places[0][0])
        frames.append(Deliver(chan, first, lease.attempt, flat(runs), payload_for(block, places), origin))
    return frames


def record_event(
    turn: Turn, group: Group, kind: Happening, sub: Subscription, attempt: int, seqs: Sequence[tuple[int, int]]
) -> None:
    """Record an event of deliveries if the setting `events` is on."""
    if turn.recorder.is_on:
        turn.recorder.note(kind, group.name, sub.session.client, attempt, seqs)


def flat(runs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Runs as fields of DELIVER. A single run is left out, because the base_seq of the block tells it."""
    return () if len(runs) == 1 else tuple(n for a, b in runs for n in (a, b - a + 1))
