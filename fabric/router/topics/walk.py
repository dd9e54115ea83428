"""Walk: counts the messages of each topic, by reading once what the blocks of the journal have.

Bodies are not read, but for blocks of which a part is removed. A walk reads committed blocks only. When messages that
it has counted are removed, their number is not known; the tally of such a topic is stale, and another walk counts it
anew.
"""

from typing import TYPE_CHECKING, Final

from fabric.router.pace import Pace
from fabric.router.topics.topic import places_of
from fabric_protocol.block import Block
from fabric_protocol.block_contents import Contents

if TYPE_CHECKING:
    from fabric.router.shared import Shared

TALLIES_MAX: Final = 200_000  # topics; each has some 400 bytes in memory


class Tally:
    """The stored messages of one topic."""

    __slots__ = ("bytes", "first_seq", "first_us", "is_stale", "last_seq", "last_us", "msgs")

    def __init__(self, first_seq: int, first_us: int) -> None:
        self.msgs = self.bytes = 0
        self.first_seq, self.first_us = first_seq, first_us
        self.last_seq, self.last_us = first_seq, first_us
        self.is_stale = False  # some of its messages were removed, and their number is not known


class Walk:
    def __init__(self, shared: "Shared") -> None:
        self.by_topic: dict[str, Tally] = {}
        self.at = shared.first_seq  # blocks below it are counted
        self.overflowed = False  # there are more topics than it can count
        self._names: list[str] = []  # sorted
        self._new_names: list[str] = []  # topics that are not in `_names` yet
        self._has_stale_names = False  # a topic in `_names` was forgotten
        self._begins_at = shared.first_seq  # topics that end below it are forgotten
        self._shared = shared

    def step(self, target: int, pace: Pace, now: float) -> bool:
        """Count some blocks up to a committed seq; False when all of them are counted, or the walk pauses."""
        if self.at > target:
            return False
        found, cursor = self._shared.block_store.contents(self.at, target, sizes=True)
        for contents in found:
            self._add(contents)
        self.at = cursor
        return pace.goes_on(found, now) and self.at <= target

    def find(self, name: str) -> Tally | None:
        """The tally of a topic with stored messages."""
        tally, floor = self.by_topic.get(name), self._floor(name)
        if tally is None or tally.last_seq < floor:
            return None
        if tally.first_seq < self._shared.first_seq:
            tally.is_stale = True
        return tally

    def remove(self, name: str, floor: int) -> None:
        """An administrator has removed the messages of a topic below a seq."""
        tally = self.by_topic.get(name)
        if tally is not None and tally.last_seq < floor:
            del self.by_topic[name]
            self._has_stale_names = True
        elif tally is not None and tally.first_seq < floor:
            tally.is_stale = True

    def sorted_names(self) -> list[str]:
        """All topics. A list that is sorted but for its end is sorted quickly."""
        if self._has_stale_names:
            self._names, self._new_names, self._has_stale_names = sorted(self.by_topic), [], False
        elif self._new_names:
            self._names += self._new_names
            self._names.sort()
            self._new_names = []
        return self._names

    def forget_removed(self) -> None:
        """Forget topics without stored messages: retention of the journal has removed the last ones."""
        first_seq = self._shared.first_seq
        if first_seq == self._begins_at:
            return
        self._begins_at = first_seq
        for name in [name for name, tally in self.by_topic.items() if tally.last_seq < first_seq]:
            del self.by_topic[name]
            self._has_stale_names = True

    def _floor(self, name: str) -> int:
        return max(self._shared.first_seq, self._shared.removed.get(name, 0))

    def _add(self, contents: Contents) -> None:
        base, last = contents.base_seq, contents.last_seq
        for topic, msgs, size, first_place, last_place in contents.topics:
            floor = self._floor(topic)
            if floor <= base:
                self._put(topic, msgs, size, base + first_place, base + last_place, contents.ts_us)
            elif floor <= last:
                self._add_part(topic, floor, last)

    def _add_part(self, topic: str, floor: int, last: int) -> None:
        """Count the messages of a topic in a block, from its floor on."""
        block = self._shared.block_store.at(last)
        if not isinstance(block, Block):
            return
        places, base = places_of(block, topic, floor - block.base_seq), block.base_seq
        if places:
            payloads = block.payloads()
            size = sum(len(payloads[at]) for at in places)
            self._put(topic, len(places), size, base + places[0], base + places[-1], block.ts_us)

    def _put(self, topic: str, msgs: int, size: int, first: int, last: int, ts_us: int) -> None:
        tally = self.by_topic.get(topic)
        if tally is None and len(self.by_topic) >= TALLIES_MAX:
            self.overflowed = True
            return
        if tally is None:
            self._new_names.append(topic)
        if tally is None or tally.last_seq < self._floor(topic):  # all messages before were removed
            tally = self.by_topic[topic] = Tally(first, ts_us)
        tally.msgs += msgs
        tally.bytes += size
        tally.last_seq, tally.last_us = last, ts_us
