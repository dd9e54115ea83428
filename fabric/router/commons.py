"""What all groups of one hub share: where blocks are, how far the disk is, what time it is, who keeps a record."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from fabric.messages import Happening
from fabric.router.change import Change
from fabric.router.clock import Clock
from fabric.router.rounds import Rounds
from fabric.router.shelf import Shelf
from fabric.router.topics import Trie

if TYPE_CHECKING:
    from fabric.router.groups import Group


class Events(Protocol):
    """Who writes down what happens to deliveries."""

    def note(self, kind: Happening, group: str, client: str, attempt: int, first: int, last: int) -> None: ...


class Commons:
    __slots__ = ("appended_seq", "change", "clock", "committed_seq", "events", "held", "rounds", "say", "shelf", "trie")

    def __init__(self, shelf: Shelf, clock: Clock, last_seq: int, change: Change) -> None:
        self.change = change
        self.shelf = shelf
        self.clock = clock
        self.trie: Trie[Group] = Trie()
        self.rounds = Rounds()
        self.held = 0  # deliveries of all groups that are not settled
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed, and on disk soon; what groups of level `received` may have
        self.events: Events | None = None  # None: nobody wants to know
        self.say: Callable[..., None] = _silent  # an advisory, as in `advice`


def _silent(topic: str, /, **fields: Any) -> None:
    pass
