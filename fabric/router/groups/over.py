"""Whether a message is over: no group will get it any more, so its idempotency key may stop to count."""

from fabric.router.shared import Shared
from fabric_protocol.block import Block


def is_over(shared: Shared, topic: str, seq: int) -> bool:
    """Whether all groups have settled a message, it is removed, or it has expired."""
    if seq < max(shared.removed_below, shared.removed.get(topic, 0)):
        return True
    owners = [group for group in shared.trie.match(topic) if group.durable]
    if all(group.has_settled(seq) for group in owners):
        return True
    block = shared.block_store.at(seq)
    if not isinstance(block, Block) or not 0 < block.expires_us <= shared.clock.wall_us(shared.clock.now):
        return False
    return not any(group.open.holds(seq) for group in owners)  # it has expired before it was delivered
