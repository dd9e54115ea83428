"""What becomes of a group's place in the journal when its patterns change.

One rule: new patterns hold from the oldest message on that waits for the group, for each priority apart; where none
waits, from the next one that is published. So a group has to know what waits for it before it gets other patterns,
however far it has searched by then; and nothing that it has passed may come back to it because a pattern was added.
"""

from heapq import heapify
from typing import Final

from fabric.router.groups.group import Group
from fabric.router.groups.lanes import search, wanted_runs
from fabric.router.groups.lease import Redelivery
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

SEARCHES_MAX: Final = 16  # for one command; each takes a few milliseconds at most
RETRY_MS: Final = 20


def before_change(group: Group, wall_us: int, turn: Turn) -> None:
    """Bring a group to the messages that wait for it. Raises BUSY when that takes longer than one command may."""
    left, last_seq = SEARCHES_MAX, group.shared.appended_seq
    for lane in group.lanes:
        lane.move(lane.position(group.horizon))  # also what waited there: it may have expired since
        while left > 0 and not (lane.live or lane.waits):
            search(group, lane, last_seq, wall_us, turn)
            left -= 1
    if group.is_searching():
        raise ProtocolError(
            Code.BUSY, f"group {group.name!r} is still looking for its next message; ask again", retry_ms=RETRY_MS
        )
    for lane in group.lanes:
        lane.move(lane.position(last_seq))
    _close_unmatched(group)


def _close_unmatched(group: Group) -> None:
    """Seqs between the messages of a delivery count as open with it. They were never the group's, and shall not be."""
    for sub in group.members:
        for lease in sub.leases:
            for first, last in lease.gaps:
                group.close(first, last)
            lease.gaps = []
    pending = group.pending
    pending.ready = [exact for redelivery in pending.ready for exact in _exact(group, redelivery)]
    heapify(pending.ready)


def _exact(group: Group, redelivery: Redelivery) -> list[Redelivery]:
    """What is restored is known by its ends only: the messages in it that the group wants. The others are settled."""
    found, first = list[Redelivery](), redelivery.first
    while first <= redelivery.last:
        block = group.shared.block_store.at(first)
        if not isinstance(block, Block):  # to be told as a gap when its turn comes
            return [*found, redelivery._replace(first=first)]
        end = min(block.last_seq, redelivery.last)
        for a, b in wanted_runs(group, block, first, end):
            group.close(first, block.base_seq + a - 1)
            first = block.base_seq + b
            found.append(redelivery._replace(first=block.base_seq + a, last=first - 1))
        group.close(first, end)
        first = end + 1
    return found
