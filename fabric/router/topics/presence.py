"""Presence: whether a topic without settings has messages, as far as a short search can tell."""

from typing import TYPE_CHECKING, Final

from fabric.router.topics.topic import places_of
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.shared import Shared

SEARCHES_MAX: Final = 8  # calls of the block store, a millisecond or two each


def require_messages(name: str, shared: "Shared") -> None:
    """Raise NOT_FOUND when no message of a topic is stored. A longer search than one command may do raises nothing."""
    if not _may_have_messages(name, shared):
        raise ProtocolError(
            Code.NOT_FOUND, f"there is no topic {name!r}: it has no settings, and no message is stored on it"
        )


def _may_have_messages(name: str, shared: "Shared") -> bool:
    store, wanted = shared.block_store, name.__eq__
    at = max(shared.first_seq, shared.removed.get(name, 0))
    for _ in range(SEARCHES_MAX):
        if at > shared.appended_seq:
            break
        block, cursor, more = store.find(at, shared.appended_seq, wanted)
        if block is None:
            at = max(cursor, at)
            if not more:
                break
        elif not isinstance(block, Block) or places_of(block, name, max(at - block.base_seq, 0)):
            return True
        else:
            at = block.last_seq + 1
    else:
        return True
    return store.find_open(max(at, shared.appended_seq + 1), wanted) is not None
