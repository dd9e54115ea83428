"""What INFO says of a group: its settings, and the messages that wait, are in flight, come again or are dead."""

from itertools import islice
from typing import Any, Final

from fabric.router.groups.group import Group
from fabric_protocol.messages import Level

RANGES_MAX: Final = 64  # ranges of open messages; INFO looks for the time of a stored message in these


def describe(group: Group) -> dict[str, Any]:
    """The fields of INFO, without dead letters."""
    position, pending, keys = group.position(), group.pending, group.keys
    first, again = first_and_again(group)
    numbers = counts(group, group.shared.clock.now)
    return {
        "group": group.name,
        **group.settings._asdict(),
        "patterns": list(group.settings.patterns),
        "level": Level(group.settings.level).name.lower(),
        "durable": group.durable,
        "paused": group.paused,
        "members": len(group.members),
        "cursor": position,
        "floor": group.floor,
        "behind": max(group.shared.committed_seq + 1 - position, 0) + first,
        "outstanding": numbers["in_flight"],
        "redelivering": again,
        "waiting": pending.waiting_messages + (keys.waiting if keys is not None else 0),
        "suspects": pending.suspect_messages,
        "failed": len(group.failures),
        "parked": keys.parked if keys is not None else 0,
        "expired": group.tally.expired,
        "refresh": list(group.refresh),
        **numbers,
        "drain_s": group.rate.drain_s(group.shared.clock.now, group.backlog.ready(position)),
        "counters": group.tally.as_map(),
    }


def counts(group: Group, now: float) -> dict[str, Any]:
    """How many messages of a group are in each state, and since when the oldest waits."""
    backlog, clock = group.backlog, group.shared.clock
    is_live = all(lane.live for lane in group.lanes)  # no message is ahead, also while a count goes on
    first, again = first_and_again(group)
    oldest_us = oldest(group)
    return {
        "ready": (0 if is_live else backlog.ready(group.position())) + first,
        "ready_exact": (is_live or backlog.is_exact) and not group.unsorted,
        "in_flight": sum(member.outstanding for member in group.members),
        "retrying": again,
        "oldest_us": oldest_us,
        "oldest_age_ms": max(clock.wall_us(now) - oldest_us, 0) // 1000 if oldest_us else 0,
    }


def first_and_again(group: Group) -> tuple[int, int]:
    """Messages behind the cursors that wait for their first delivery, and messages that come again."""
    pending, keys = group.pending, group.keys
    first = pending.fresh + (keys.fresh if keys is not None else 0)
    parked = keys.parked - keys.suspected if keys is not None else 0
    return first, pending.messages + parked - first


def oldest(group: Group) -> int:
    """When the oldest message was accepted that matches and is not settled, or that a consumer holds; 0 when there is
    none. Messages that retention has removed count with their time while a consumer holds them, and else not."""
    has_new = group.backlog.ahead > 0 or not group.backlog.is_exact
    seqs = [lane.cursor for lane in group.lanes if has_new and not lane.live]
    if group.open:
        seqs.append(group.open.first)
    elif group.pending:  # of a group without leases
        seqs.append(min(redelivery.first for redelivery in group.pending))
    seq = min(seqs, default=0)
    time_us = group.shared.block_store.time_of(seq) if 0 < seq <= group.horizon else 0
    if group.removed_to or (seqs and not time_us):
        return _oldest_beside_removed(group, seqs)
    return time_us


def _oldest_beside_removed(group: Group, seqs: list[int]) -> int:
    """The same for a group with open messages that retention has removed."""
    leases = [lease for sub in group.members for lease in sub.leases]
    removed_to, first_seq = group.removed_to, group.shared.first_seq
    is_held = any(lease.runs[0][0] <= removed_to for lease in leases)
    if not is_held and (not group.open or group.open.first > removed_to):
        group.removed_to = 0  # all of them are settled
    stored = (
        group.open.within(first_seq, removed_to)[:RANGES_MAX] + group.open.within(removed_to + 1, group.horizon)[:1]
    )
    known = sorted(seq for seq in {*seqs, *(first for first, _ in stored)} if seq <= group.horizon)
    times = map(group.shared.block_store.time_of, known)
    return min((*(lease.accepted_us for lease in leases), *islice(filter(None, times), 1)), default=0)
