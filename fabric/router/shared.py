"""State that all parts of one router share: seqs of the journal, removed messages, blocks, clock and counters.

Each fact is kept here only. Seqs only rise:

    first_seq <= … <= committed_seq <= appended_seq < next_seq
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from fabric.router.block_store import BlockStore, Reader
from fabric.router.change import Change
from fabric.router.clock import Clock
from fabric.router.pace import Pace
from fabric.router.patterns.trie import Trie
from fabric.router.rounds import Rounds
from fabric_protocol.block import Block

if TYPE_CHECKING:
    from fabric.router.groups.group import Group
    from fabric.router.groups.recount import Recounts


class Shared:
    __slots__ = (
        "appended_seq",
        "block_store",
        "change",
        "changed",
        "clock",
        "committed_seq",
        "counters",
        "draining",
        "first_seq",
        "held",
        "keyed",
        "next_seq",
        "pace",
        "reader",
        "recounts",
        "removed",
        "removed_below",
        "rounds",
        "superseded",
        "trie",
    )

    def __init__(self, reader: Reader, clock: Clock, first_seq: int, last_seq: int, counters: Counter[str]) -> None:
        self.first_seq = first_seq  # of the journal, as the hub has told the router
        self.removed_below = first_seq  # messages below were removed by retention of the journal, also from memory
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed and not yet on disk; groups of level `received` may deliver it
        self.next_seq = last_seq + 1  # the seq of the next message
        self.removed: dict[str, int] = {}  # topic -> its floor: messages below are removed
        self.keyed: set[str] = set()  # topics with `keep: last_per_key`
        self.superseded: Callable[[Block, int], bool] | None = None  # whether a later message has the key of a place
        self.draining = False  # the hub stops: it delivers nothing new
        self.counters = counters  # by name
        self.change = Change()  # whether the current command has begun to change state
        self.clock = clock
        self.reader = reader
        self.block_store = BlockStore(reader, self)
        self.trie: Trie[Group] = Trie()
        self.rounds = Rounds()
        self.pace = Pace()  # of all passes over the journal together
        self.recounts: Recounts  # set by the dispatcher
        self.changed: set[Group] = set()  # groups with numbers that have changed; `recounts` takes them
        self.held = 0  # deliveries of all groups that are not settled
