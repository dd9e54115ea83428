"""Prepares a group for new patterns.

New patterns hold from the oldest message on that waits for the group, for each priority; if none waits, from the next
published message on. So the group searches its next message before the patterns change, and a new pattern does not
bring back a message that the group has passed.
"""

from typing import Final

from fabric.router.groups.group import Group
from fabric.router.groups.lanes import search, wanted_runs
from fabric.router.groups.lease import Redelivery
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

SEARCHES_MAX: Final = 16  # in one command; each takes a few milliseconds at most
RETRY_MS: Final = 20


def before_change(group: Group, wall_us: int, turn: Turn) -> None:
    """Move all lanes to their next messages. Raises BUSY if this needs more searches than one command may make."""
    left, last_seq = SEARCHES_MAX, group.shared.appended_seq
    for lane in group.lanes:
        lane.move(lane.position(group.horizon))  # search again: the message at the cursor may have expired
        while left > 0 and not (lane.live or lane.waits):
            search(group, lane, last_seq, wall_us, turn)
            left -= 1
    if group.is_searching():
        raise ProtocolError(
            Code.BUSY,
            f"group {group.name!r} searches its next message, and its patterns can change after that: send again",
            retry_ms=RETRY_MS,
        )
    for lane in group.lanes:
        lane.move(lane.position(last_seq))
    _close_unmatched(group)


def _close_unmatched(group: Group) -> None:
    """Settle the seqs between messages of one delivery: they are open and do not match, but may match new patterns."""
    for sub in group.members:
        for lease in sub.leases:
            for first, last in lease.gaps:
                group.close(first, last)
            lease.gaps = []
    pending = group.pending
    pending.use_ready([exact for redelivery in pending.ready for exact in _exact(group, redelivery)])


def _exact(group: Group, redelivery: Redelivery) -> list[Redelivery]:
    """The messages of a restored redelivery that match. The other messages in its range are settled."""
    found, first = list[Redelivery](), redelivery.first
    while first <= redelivery.last:
        block = group.shared.block_store.at(first)
        if not isinstance(block, Block):  # reported as a gap when it is delivered
            return [*found, redelivery._replace(first=first)]
        end = min(block.last_seq, redelivery.last)
        for a, b in wanted_runs(group, block, first, end):
            group.close(first, block.base_seq + a - 1)
            first = block.base_seq + b
            found.append(redelivery._replace(first=block.base_seq + a, last=first - 1))
        group.close(first, end)
        first = end + 1
    return found
