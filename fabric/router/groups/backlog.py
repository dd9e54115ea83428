"""Backlog: how many messages wait for their first delivery in a group.

`ahead` is the number of messages at or beyond the cursors of the lanes that match the patterns and are not removed. It
rises by a whole block when the block can be delivered, and falls when a lane moves on, when a floor rises and when a
block is discarded; so it costs nothing for each message. Where these changes are not known, as after a seek, `recount`
reads the journal once. Blocks from `start` to `stop` - 1 are then counted when the count comes to them, each with the
messages that the lanes have not passed at that moment; a change in a block that is not counted yet changes nothing.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final

from fabric_protocol.block import Block

if TYPE_CHECKING:
    from fabric.router.groups.group import Group
    from fabric.router.shared import Shared


class Count:
    """The progress of a count: blocks below `at` are counted."""

    __slots__ = ("at",)

    def __init__(self, at: int = 0) -> None:
        self.at = at


WAITING: Final = Count()  # of groups for which no count has begun


class Backlog:
    __slots__ = ("ahead", "anew", "count", "has_keys", "is_doubtful", "start", "stop")

    def __init__(self) -> None:
        self.ahead = 0
        self.count: Count | None = None  # of the blocks from `start` to `stop` - 1; None: all blocks are counted
        self.start = self.stop = 0
        self.anew = False  # the count begins at the lanes, and not at a `start`
        self.is_doubtful = False  # messages were removed, and `ahead` may have them still
        self.has_keys = False  # later messages of the same key may supersede messages of `ahead`

    @property
    def is_counted(self) -> bool:
        """Whether `ahead` is right, apart from messages that were superseded."""
        return (self.count is None or self.count.at >= self.stop) and not self.is_doubtful

    @property
    def is_exact(self) -> bool:
        return self.is_counted and not (self.has_keys and self.ahead)

    def has(self, base_seq: int) -> bool:
        """Whether a block is counted."""
        count = self.count
        return count is None or base_seq < count.at or base_seq < self.start or base_seq >= self.stop

    def wait(self, start: int | None, stop: int) -> None:
        """Wait for a count of the blocks from `start` to `stop` - 1; None: of all blocks from the lanes on."""
        self.start, self.stop, self.anew, self.count = start or 0, stop, start is None, WAITING
        if self.anew:
            self.ahead = 0

    def ready(self, position: int) -> int:
        """The number of messages that wait; while a count goes on, at most so many."""
        ahead = max(self.ahead, 0)
        if self.count is not None:
            ahead += max(self.stop - max(self.start, self.count.at, position), 0)
        return ahead


def rising(group: "Group", block: Block, cursor: int, matching: int) -> int:
    """How many of the messages that match a group wait for it from now on, in a block that can be delivered now."""
    shared = group.shared
    if shared.keyed and not shared.keyed.isdisjoint(block.topics):
        group.backlog.has_keys = True
    if cursor > block.base_seq or (shared.removed and has_removed(group, block)):
        return waiting_in(group, block, cursor, block.last_seq)
    return matching


def pass_by(group: "Group", block: Block, first: int, last: int) -> None:
    """A lane moves past the messages first..last of a block, which it may have delivered or not."""
    if group.backlog.has(block.base_seq):
        group.backlog.ahead -= waiting_in(group, block, first, last)


def has_removed(group: "Group", block: Block) -> bool:
    """Whether the floor of a topic of the block is above its first seq."""
    removed, base = group.shared.removed, block.base_seq
    return any(removed.get(topic, 0) > base for topic in block.topics)


def waiting_in(group: "Group", block: Block, first: int, last: int) -> int:
    """The number of messages of a block, in seqs first..last, that match the patterns and are not removed."""
    shared, base = group.shared, block.base_seq
    start, stop = max(first - base, 0), min(last - base + 1, block.count)
    if start >= stop:
        return 0
    takers = shared.trie.match_all(block.topics)
    if not any(group in owners for owners in takers):
        return 0
    if block.n_topics == 1:
        return max(stop - max(start, shared.removed.get(block.topics[0], 0) - base), 0)
    is_all = all(group in owners for owners in takers)
    if shared.removed and has_removed(group, block):
        floors = [shared.removed.get(topic, 0) if group.wants(topic) else block.last_seq + 1 for topic in block.topics]
        return sum(base + start + at >= floors[topic] for at, topic in enumerate(block.topic_idx()[start:stop]))
    if is_all:
        return stop - start
    return sum(n for topic, n in Counter(block.topic_idx()[start:stop]).items() if group.wants(block.topics[topic]))


def takers_of(shared: "Shared", block: Block) -> Iterable[tuple["Group", int]]:
    """The groups that match a block, each with the number of messages that match."""
    found = shared.trie.match_all(block.topics)
    if len(found) == 1:
        return zip(found[0], repeat(block.count), strict=False)
    counted: dict[Group, int] = {}
    if any(found):
        messages = Counter(block.topic_idx())
        for number, topic in enumerate(block.topics):
            for group in shared.trie.match(topic):
                counted[group] = counted.get(group, 0) + messages[number]
    return counted.items()


def floor_rises(topic: str, block: Block, places: Sequence[int], shared: "Shared") -> None:
    """Retention removes the messages at these places of a block, all of one topic: they wait for no group any more."""
    base = block.base_seq
    for group in shared.trie.match(topic):
        reached = group.reached(block.priority)
        if reached <= base + places[-1] and group.backlog.has(base):
            group.backlog.ahead -= len(places) - bisect_left(places, reached - base)
            shared.changed.add(group)


def floor_is_set(topic: str, shared: "Shared") -> None:
    """Messages of a topic below its new floor are removed, and their number is not known for each group."""
    floor = shared.removed[topic]
    for group in shared.trie.match(topic):
        if group.position() < min(floor, group.horizon + 1):
            shared.recounts.wait(group)
            shared.changed.add(group)
