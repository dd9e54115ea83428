"""What one message waits for in one group: its state of `lifecycle`, and the consumer, time or message it waits for.

A group has the state of a message in several structures, so this looks at one after the other. It only reads.
"""

from typing import Any, Final

from fabric.router.groups.group import Group
from fabric.router.groups.lifecycle import State
from fabric.router.groups.subscription import Subscription
from fabric_protocol.block import Block

LOOKED_MAX: Final = 200_000  # leases and redeliveries looked at for one message in one group: some ten milliseconds

Row = dict[str, Any]


def message_state(group: Group, seq: int, block: Block, key: bytes) -> Row:
    """The state of a message that matches the patterns of a group."""
    if group.has_settled(seq):
        return {"state": State.SETTLED.value}
    if not group.open.holds(seq):
        reached = group.reached(block.priority)
        return {"state": State.READY.value, "reached": False, "ahead": max(seq - reached, 0), **_held_up(group)}
    if any(letter.first <= seq <= letter.last for letter in group.dead):
        return {"state": State.DEAD.value}
    failure = group.failures.of(seq)
    failed: Row = {"failures": failure.failures, "reason": failure.reason} if failure is not None else {}
    state = _leased(group, seq) or _parked(group, seq, key) or _pending(group, seq)
    return {**(state or {"state": State.READY.value}), **failed, "reached": True}


def _held_up(group: Group) -> Row:
    """Why a group delivers nothing, if it does not."""
    return {"paused": group.paused, "consumers": len(group.members)}


def _leased(group: Group, seq: int) -> Row | None:
    looked = 0
    for sub in group.members:
        looked += len(sub.leases)
        if looked > LOOKED_MAX:
            return None
        for lease in sub.leases:
            if lease.runs[0][0] <= seq <= lease.runs[-1][1] and any(a <= seq <= b for a, b in lease.open_seqs()):
                until_us = group.shared.clock.wall_us(lease.deadline)
                return {"state": State.LEASED.value, **_identity(sub), "attempt": lease.attempt, "until_us": until_us}
    return None


def _identity(sub: Subscription) -> Row:
    return {"client": sub.session.client, "session": sub.session.number}


def _parked(group: Group, seq: int, key: bytes) -> Row | None:
    """A message behind the lock of its key: behind an earlier message, or until it is due."""
    lock = group.keys.locks.get(key) if group.keys is not None and key else None
    if lock is None:
        return None
    for held in lock.parked:
        if held.seq == seq:
            first = lock.parked[0].seq
            if first < seq or lock.inflight:
                owner = _identity(lock.owner) if lock.owner is not None else {}
                behind = first if first < seq else 0
                return {"state": State.READY.value, "attempt": held.attempt, "parked": True, "behind": behind, **owner}
            if held.due:
                due_us = group.shared.clock.wall_us(held.due)
                return {"state": State.RETRYING.value, "attempt": held.attempt, "due_us": due_us}
            state = State.SUSPECT if held.failures >= group.pending.suspect_failures else State.READY
            return {"state": state.value, "attempt": held.attempt, **_held_up(group)}
    return None


def _pending(group: Group, seq: int) -> Row | None:
    pending = group.pending
    if len(pending) > LOOKED_MAX:
        return None
    for due, again in pending.waiting:
        if again.first <= seq <= again.last:
            due_us = group.shared.clock.wall_us(due)
            return {"state": State.RETRYING.value, "attempt": again.attempt, "due_us": due_us}
    for state, queue in ((State.SUSPECT, pending.suspects), (State.READY, pending.ready)):
        for again in queue:
            if again.first <= seq <= again.last:
                return {"state": state.value, "attempt": again.attempt, **_held_up(group)}
    return None
