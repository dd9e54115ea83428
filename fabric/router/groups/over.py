"""Whether a message is over: no group will deliver it any more, so its id may be published again."""

from fabric.router.shared import Shared
from fabric_protocol.block import Block


def is_over(shared: Shared, topic: str, seq: int) -> bool:
    """Whether a message is settled in all groups, removed, or expired."""
    if seq < max(shared.removed_below, shared.removed.get(topic, 0)):
        return True
    owners = [group for group in shared.trie.match(topic) if group.durable]
    if all(group.has_settled(seq) for group in owners):
        return True
    block = shared.block_store.at(seq)
    if not isinstance(block, Block) or not 0 < block.expires_us <= shared.clock.wall_us(shared.clock.now):
        return False
    return not any(group.open.holds(seq) for group in owners)  # expired without an open delivery
