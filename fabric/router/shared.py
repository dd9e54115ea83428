"""What all groups of one hub share: where blocks are, how far the disk is, what time it is, who keeps a record."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fabric.router.block_store import BlockStore
from fabric.router.change import Change
from fabric.router.clock import Clock
from fabric.router.patterns.trie import Trie
from fabric.router.rounds import Rounds
from fabric_protocol.messages import Happening

if TYPE_CHECKING:
    from fabric.router.groups.group import Group


class Events(Protocol):
    """Who writes down what happens to deliveries."""

    def note(self, kind: Happening, group: str, client: str, attempt: int, first: int, last: int) -> None: ...


class Shared:
    __slots__ = (
        "appended_seq",
        "block_store",
        "change",
        "clock",
        "committed_seq",
        "events",
        "held",
        "rounds",
        "say",
        "trie",
    )

    def __init__(self, block_store: BlockStore, clock: Clock, last_seq: int, change: Change) -> None:
        self.change = change
        self.block_store = block_store
        self.clock = clock
        self.trie: Trie[Group] = Trie()
        self.rounds = Rounds()
        self.held = 0  # deliveries of all groups that are not settled
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed, and on disk soon; what groups of level `received` may have
        self.events: Events | None = None  # None: nobody wants to know
        self.say: Callable[..., None] = _silent  # an advisory, as in `advisories`


def _silent(topic: str, /, **fields: Any) -> None:
    pass
