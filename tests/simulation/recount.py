"""The naive twin of the numbers of groups: it counts every stored message, and every lease."""

from collections.abc import Iterable

from fabric.router.groups.description import counts
from fabric.router.groups.group import Group
from fabric.router.groups.lease import Lease
from fabric.router.router import Router
from fabric_protocol.block import Block


def waiting(group: Group, blocks: Iterable[Block]) -> int:
    """The messages at or beyond the lanes of a group that match and are not removed."""
    shared, horizon = group.shared, group.horizon
    floor = shared.removed_below
    count = 0
    for block in blocks:
        if block.base_seq > horizon:
            break
        reached = max(group.reached(block.priority), floor)
        if block.last_seq < reached or shared.block_store.is_discarded(block.base_seq):
            continue
        for seq, topic in enumerate(block.topic_names(), block.base_seq):
            count += seq >= reached and seq >= shared.removed.get(topic, 0) and group.wants(topic)
    return count


def _holds(block: Block, leases: list[Lease]) -> bool:
    """Whether a block has messages of a lease."""
    return any(block.base_seq <= lease.runs[0][0] <= block.last_seq for lease in leases)


def check(router: Router, blocks: list[Block]) -> int:
    """Compare the numbers of all groups with a naive count; returns how many groups had an exact number."""
    exact, now = 0, router.shared.clock.now
    for group in router.groups.values():
        backlog, pending, keys = group.backlog, group.pending, group.keys
        naive = waiting(group, blocks)
        if backlog.is_exact:
            assert backlog.ahead == naive, f"ready: {group.name} has {naive} messages ahead, not {backlog.ahead}"
            exact += 1
        elif not backlog.is_doubtful:
            ready = backlog.ready(group.position())
            assert ready >= naive, f"ready: {group.name} has {naive} messages ahead, and an estimate of {ready}"
        assert pending.messages == sum(again.size for again in pending), f"retrying: {group.name}"
        assert pending.fresh == sum(again.size for again in pending if again.attempt == 1), f"ready: {group.name}"
        parked = [held for lock in keys.locks.values() for held in lock.parked] if keys is not None else []
        later = sum(held.due > 0 for held in parked)
        if keys is not None:
            assert keys.fresh == sum(held.attempt == 1 for held in parked), f"ready: parked of {group.name}"
            assert keys.parked == len(parked), f"parked: {group.name} has {len(parked)} parked messages"
            assert keys.waiting == later, f"waiting: {group.name} has {later} parked messages that are not due"
        later = sum(again.size for _, again in pending.waiting)
        assert pending.waiting_messages == later, f"waiting: {group.name} has {later} messages that are not due"
        suspects = sum(again.size for again in pending.suspects)
        assert pending.suspect_messages == suspects, f"suspects: {group.name} has {suspects} suspects"
        row = counts(group, now)
        leases = [lease for sub in group.members for lease in sub.leases]
        leased = sum(lease.open.size() for lease in leases)
        assert row["in_flight"] == leased, f"in_flight: {group.name} has {leased} messages leased"
        if leased:  # also if retention has removed them
            latest = min((block.ts_us for block in blocks if _holds(block, leases)), default=row["oldest_us"])
            assert 0 < row["oldest_us"] <= latest, f"oldest: {group.name} has an older message in flight"
        if row["ready"] + row["retrying"] + row["in_flight"] == 0:
            assert not row["oldest_us"] or not row["ready_exact"] or group.dead, f"oldest: {group.name} has no message"
    return exact
