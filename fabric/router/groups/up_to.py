"""Settles all messages of a group up to a seq, whatever their states are, and leaves all later messages as they are."""

from typing import Final

from fabric.router.groups import verdicts
from fabric.router.groups.group import Group
from fabric.router.ranges import Ranges
from fabric.router.turn import Turn

SETTLED_UP_TO: Final = "the group was settled up to seq {}"


def unsettled(group: Group, up_to: int) -> Ranges:
    """Seqs up to a seq that are not settled, of all topics."""
    found = Ranges(group.open.within(1, up_to))
    if group.position() <= up_to:
        found.add(group.position(), up_to)
    return found


def leased(group: Group, up_to: int) -> int:
    """The number of leased messages up to a seq."""
    return sum(b - a + 1 for sub in group.members for lease in sub.leases for a, b in lease.open_up_to(up_to))


def settle_up_to(group: Group, up_to: int, turn: Turn) -> None:
    """Settle all messages up to a seq. Verdicts on those that are leased are stale from now on, and their consumers are
    told."""
    verdicts.take_back_up_to(group, up_to, SETTLED_UP_TO.format(up_to), turn)
    horizon, gone = group.horizon, Ranges([(1, up_to)] if up_to else [])
    for lane in group.lanes:
        if lane.position(horizon) <= up_to:
            lane.move(up_to + 1)
    group.close(1, up_to)
    if group.expiring:
        group.expiring.take(1, up_to)
    group.pending.drop(gone)
    if group.keys is not None:
        group.keys.drop(gone)
    group.dirty = group.durable
    group.shared.recounts.wait(group)
