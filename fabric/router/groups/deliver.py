"""Handing out: which member is next, how much it gets, and the DELIVER that says so.

Least loaded first, in turn among equals; shares shrink when many idle members wait, so that four jobs and four idle
workers means one each. Order by key has its own way of dealing, in `deliver_by_key`, out of the same parts.
"""

from collections.abc import Sequence
from typing import Final

from fabric.router.dead_letters.blocks import revived
from fabric.router.groups.group import Group
from fabric.router.groups.lanes import REMOVED, STREAK_MAX, Runs, Work, next_work, redelivery_work
from fabric.router.groups.lease import Lease
from fabric.router.groups.subscription import Subscription
from fabric.router.rounds import LEASE_WORK, TOPIC_WORK
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.block_parts import pick
from fabric_protocol.messages import Deliver, Gap, Happening
from fabric_protocol.names import REDRIVE
from fabric_protocol.runs import split

# Leases handed out by one group in one go; then others get their turn.
LEASES_PER_GO: Final = 64
MANY_READY: Final = 256  # then some of what is ready is taken for less urgent, without a look at all of it


def deliver(group: Group, now: float, turn: Turn) -> tuple[list[Lease], bool]:
    """Hand out what there is to whoever has room. Returns new leases, and whether there is more to do."""
    leased: list[Lease] = []
    horizon, wall_us = group.horizon, group.shared.clock.wall_us(now)
    careful = group.pending.suspects or group.reserved is not None or group.strict
    rounds = group.shared.rounds
    for _ in range(LEASES_PER_GO):
        if rounds.is_over:
            return leased, True
        if careful:
            if group.strict and group.pending.waiting:  # all behind it wait with it
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
        if not member.fitting(bytes_each):  # someone who holds more may have more bytes left
            member, eligible = choose(group, bytes_each)
            if member is None:  # they will fit when something is acked
                put_back(group, work)
                return leased, False
        share = -(-(count + ahead) // eligible)
        take = min(share, member.room(), member.fitting(bytes_each), count)
        if len(group.lanes) > 1:
            take = _limit_streak(group, work, take)
        lease = _send(group, member, work, take, now, turn)
        if lease is not None:
            leased.append(lease)
    return leased, True


def work_ahead(group: Group, work: Work, horizon: int) -> tuple[int, int]:
    """How many messages the work has, and about how many there are after it."""
    count = sum(b - a for a, b in work.runs)
    return count, max(horizon - work.block.last_seq, 0) if work.redelivery is None else len(group.pending.ready)


def choose(group: Group, bytes_each: int = 0) -> tuple[Subscription | None, int]:
    """The member with the fewest outstanding, the next in turn among equals; and how many have room."""
    members, reserved = group.members, group.reserved
    if group.strict:  # those who joined later take over when the first one leaves
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
    group.next_member = (best + 1) % n
    return members[best], eligible


def _is_held_up(group: Group) -> bool:
    """In strict order, nobody is next while someone who was first before still holds something."""
    return any(member.outstanding for member in group.members[1:])


def deliver_suspect(group: Group, now: float, wall_us: int, turn: Turn) -> Lease | None:
    """Deliver a message that has failed repeatedly, alone, to a member that holds nothing else."""
    pending = group.pending
    while pending.suspects:
        if (group.strict or group.keys) and ready_comes_first(group):
            return None  # in order
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
    """Whether something is ready that comes before the first suspect."""
    pending = group.pending
    return bool(pending.ready) and pending.ready[0].first < pending.suspects[0].first


def _idle_member(group: Group) -> Subscription | None:
    """A member that holds nothing. When there is none, one is kept free from now on."""
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
    """Count what goes out in a row past lower priorities, so that they are not starved."""
    if group.streak >= STREAK_MAX:
        group.streak = 0
        return 1
    priority, ready = work.block.priority, group.pending.ready
    if not (
        any(lane.priority < priority and not lane.live for lane in group.lanes)
        or len(ready) > MANY_READY
        or any(-redelivery.rank < priority for redelivery in ready)
    ):
        group.streak = 0  # nothing lower waits
        return take
    take = min(take, STREAK_MAX - group.streak)
    group.streak += take
    return take


def _send(group: Group, member: Subscription, work: Work, take: int, now: float, turn: Turn) -> Lease | None:
    block, base = work.block, work.block.base_seq
    runs, rest = split(work.runs, take)
    rest += work.later
    if work.lane is not None:
        work.lane.move(base + rest[0][0] if rest else block.last_seq + 1, block if rest else None)
        if rest:
            group.shared.block_store.keep(work.lane.cursor, block)
        if work.lane.handed.is_low(work.lane.cursor):
            group.dirty = group.durable
        if group.leases:
            group.open.add(base + runs[0][0], base + runs[-1][1] - 1)
    elif rest and work.redelivery is not None:
        group.pending.put(work.redelivery._replace(first=base + rest[0][0]))
        group.close(base + runs[-1][1], base + rest[0][0] - 1)  # what lies between is nobody's
    return send_delivery(group, member, work, runs, now, turn)


def send_delivery(
    group: Group,
    member: Subscription,
    work: Work,
    runs: Runs,
    now: float,
    turn: Turn,
    keys: Sequence[bytes] | None = None,
) -> Lease | None:
    """The DELIVER of some messages of a block, and the lease on them."""
    block, base = work.block, work.block.base_seq
    seqs = [(base + a, base + b - 1) for a, b in runs]
    raw = payload_for(block, runs)
    first_ordinal, count = member.sent + 1, sum(b - a for a, b in runs)
    member.sent += count
    member.bytes_sent += len(raw)
    group.shared.rounds.spent += len(raw) + LEASE_WORK + (block.n_topics - 1) * TOPIC_WORK
    turn.send(member.session.peer, Deliver(member.chan, first_ordinal, work.attempt, flat(seqs), raw))
    if turn.recorder.is_on:
        record_event(turn, group, Happening.DELIVER, member, work.attempt, seqs)
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


def payload_for(block: Block, runs: Runs) -> bytes:
    """The block that a consumer gets; what was put back for a group gets the topic back that it had."""
    raw = pick(block, runs)
    return revived(raw) if block.topics[0].startswith(REDRIVE) else raw


def put_back(group: Group, work: Work) -> None:
    if work.redelivery is not None:
        group.pending.put(work.redelivery)


def send_again(group: Group, lease: Lease) -> list[Deliver | Gap]:
    """The same delivery once more, for a client that came back without having seen it; what retention has removed of it
    is a gap."""
    runs, frames = lease.runs, list[Deliver | Gap]()
    block, chan = group.shared.block_store.at(runs[-1][1]), lease.sub.chan
    first_seq = group.shared.removed_below if isinstance(block, Block) else runs[-1][1] + 1
    if runs[0][0] < first_seq:
        frames.append(Gap(chan, runs[0][0], min(first_seq - 1, runs[-1][1]), REMOVED))
        runs = [(max(a, first_seq), b) for a, b in runs if b >= first_seq]
    if isinstance(block, Block):
        places = [(a - block.base_seq, b - block.base_seq + 1) for a, b in runs]
        first = lease.ordinal_of(runs[0][0])
        frames.append(Deliver(chan, first, lease.attempt, flat(runs), payload_for(block, places)))
    return frames


def record_event(
    turn: Turn, group: Group, kind: Happening, sub: Subscription, attempt: int, seqs: Sequence[tuple[int, int]]
) -> None:
    """Record what happened to deliveries, if events are switched on."""
    if turn.recorder.is_on:
        for a, b in seqs:
            turn.event(kind, group.name, sub.session.client, attempt, a, b)


def flat(runs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Runs as DELIVER writes them: nothing when there is one, since the block's base_seq says it."""
    return () if len(runs) == 1 else tuple(n for a, b in runs for n in (a, b - a + 1))
