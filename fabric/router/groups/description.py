"""What INFO says of a group: its settings, and the messages that wait, are in flight, come again or are dead."""

from typing import Any

from fabric.router.groups.group import Group
from fabric_protocol.messages import Level


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
    """When the oldest message was accepted that matches and is not settled; 0 when there is none."""
    has_new = group.backlog.ahead > 0 or not group.backlog.is_exact
    seqs = [lane.cursor for lane in group.lanes if has_new and not lane.live]
    if group.open:
        seqs.append(group.open.first)
    elif group.pending:  # of a group without leases
        seqs.append(min(redelivery.first for redelivery in group.pending))
    seq = min(seqs, default=0)
    if not seq or seq > group.horizon:
        return 0
    return group.shared.block_store.time_of(seq)
