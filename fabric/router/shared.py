"""What all parts of one router share: the ends of the journal, what was removed from it, blocks, clock and counters.

Each of these facts has its only home here. Seqs only ever rise:

    first_seq <= … <= committed_seq <= appended_seq < next_seq
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from fabric.router.block_store import BlockStore, Reader
from fabric.router.change import Change
from fabric.router.clock import Clock
from fabric.router.patterns.trie import Trie
from fabric.router.rounds import Rounds
from fabric_protocol.block import Block

if TYPE_CHECKING:
    from fabric.router.groups.group import Group


class Shared:
    __slots__ = (
        "appended_seq",
        "block_store",
        "change",
        "clock",
        "committed_seq",
        "counters",
        "draining",
        "first_seq",
        "held",
        "keyed",
        "next_seq",
        "reader",
        "removed",
        "removed_below",
        "rounds",
        "superseded",
        "trie",
    )

    def __init__(self, reader: Reader, clock: Clock, first_seq: int, last_seq: int, counters: Counter[str]) -> None:
        self.first_seq = first_seq  # where the journal begins, as the router was told
        self.removed_below = first_seq  # messages below were removed with the start of the journal, also from memory
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed, and on disk soon; what groups of level `received` may have
        self.next_seq = last_seq + 1  # what the next message gets
        self.removed: dict[str, int] = {}  # topic -> its messages with a seq below were removed
        self.keyed: set[str] = set()  # topics that keep the latest of each key; of these,
        self.superseded: Callable[[Block, int], bool] | None = None  # whether a later message has the key of a place
        self.draining = False  # the hub is stopping: nothing new is delivered
        self.counters = counters  # what was done and what was refused, by name
        self.change = Change()  # where the command at hand begins to change state
        self.clock = clock
        self.reader = reader
        self.block_store = BlockStore(reader, self)
        self.trie: Trie[Group] = Trie()
        self.rounds = Rounds()
        self.held = 0  # deliveries of all groups that are not settled
