"""One topic that has settings: where its messages begin, how many there are, and what is left to do about it.

The counts are exact: a message is counted in the turn that stores it and uncounted in the turn that removes it. A
topic that gets its settings when it has messages already is counted by reading it once; until then `counting` says how
far that is, and nothing is removed.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from fabric.records import SaveTopic, TopicSettings
from fabric.router.timers import NEVER
from fabric.router.topics.compaction import Latest
from fabric_protocol.block import COUNT_MAX, Block


class Counting:
    """A count that is under way: messages below `at` are counted, and so are those from `stop` on, as they come."""

    __slots__ = ("at", "stop")

    def __init__(self, at: int, stop: int) -> None:
        self.at = at
        self.stop = stop


class Topic:
    __slots__ = (
        "alarm",
        "counting",
        "deleted",
        "floor",
        "kept",
        "last_taken",
        "latest",
        "msgs",
        "name",
        "overflowed",
        "reap_all",
        "reaped",
        "settings",
        "size",
        "trim_target",
        "wanted",
    )

    def __init__(self, name: str, settings: TopicSettings, floor: int, first_seq: int) -> None:
        self.name = name
        self.wanted = name.__eq__  # one object for good: readers remember what it answered
        self.settings = settings
        self.deleted = False  # the floor alone is kept, for as long as something lies below it
        self.floor = floor  # messages below are removed
        self.msgs = 0  # at or above the floor, without those that a later one of their key supersedes
        self.size = 0  # bytes of their payloads
        self.last_taken = 0
        self.counting: Counting | None = None
        self.latest: Latest | None = None
        self.overflowed = False  # it has too many keys, so nothing counts as superseded
        self.trim_target = 0  # the retention of the whole journal wants all below
        self.alarm = NEVER  # when its oldest message is too old, or to look again
        self.reaped = first_seq  # blocks below were looked at: what could go from disk has gone
        self.kept = 0  # blocks among them that had to stay, because of other topics
        self.reap_all = False  # look at blocks above the floor too: there may be some with superseded messages alone

    @classmethod
    def restore(cls, row: SaveTopic, first_seq: int, next_seq: int) -> "Topic":
        topic = cls(row.name, row.settings, max(row.floor, first_seq), first_seq)
        topic.msgs, topic.size, topic.deleted = row.msgs, row.bytes, row.deleted
        topic.reaped = first_seq if row.deleted else max(row.reaped, first_seq)
        if not row.deleted and (row.msgs < 0 or row.floor < first_seq or row.settings.keep == "last_per_key"):
            topic.recount(next_seq)
        return topic

    def record(self, waiting: int) -> SaveTopic:
        """The row; blocks from `waiting` on are looked at again after a restart."""
        msgs = -1 if self.counting is not None else self.msgs
        reaped = min(self.reaped, waiting)
        return SaveTopic(self.name, self.settings, self.floor, msgs, self.size, self.deleted, reaped)

    def recount(self, next_seq: int) -> None:
        """Begin to count anew what there is from the floor on."""
        self.msgs = self.size = 0
        self.latest = Latest() if self.settings.keep == "last_per_key" and not self.overflowed else None
        self.counting = Counting(self.floor, next_seq) if self.floor < next_seq else None

    def empty(self, next_seq: int) -> None:
        """All that was published so far is removed."""
        self.floor, self.overflowed = max(self.floor, next_seq), False
        self.last_taken = max(self.last_taken, next_seq - 1)
        self.recount(next_seq)

    @property
    def is_over(self) -> bool:
        settings = self.settings
        return bool(
            (settings.max_msgs and self.msgs > settings.max_msgs)
            or (settings.max_bytes and self.size > settings.max_bytes)
        )

    def count(self, block: Block, base_seq: int, start: int = 0, stop: int = COUNT_MAX) -> None:
        """Count this topic's messages of a block, from a place on and up to another."""
        latest = self.latest
        if latest is None and block.n_topics == 1 and start == 0 and stop >= block.count:
            self.msgs += block.count
            self.size += block.payload_bytes()
            return
        payloads, keys = block.payloads(), block.keys() if latest is not None else []
        for at in places_of(block, self.name, start):
            if at >= stop:
                break
            if latest is None:
                self.msgs += 1
                self.size += len(payloads[at])
            else:
                msgs, size = latest.put(keys[at], base_seq + at, len(payloads[at]))
                self.msgs += msgs
                self.size += size

    def growth(self, block: Block) -> tuple[int, int]:
        """How many messages and bytes there would be more with a block."""
        if self.latest is None and block.n_topics == 1:
            return block.count, block.payload_bytes()
        payloads, places = block.payloads(), places_of(block, self.name)
        if self.latest is None:
            return len(places), sum(len(payloads[at]) for at in places)
        keys = block.keys()
        return self.latest.growth((keys[at], len(payloads[at])) for at in places)

    def uncount(self, block: Block, places: Sequence[int], below: int, *, drop: bool) -> tuple[int, int]:
        """Messages of a block go that have a place below, and more while there are too many and that is to be done.

        Returns how many went and how many of them were still counted.
        """
        latest = self.latest
        if latest is None and (below >= block.count or not self.settings.max_bytes):  # no need to look at each
            excess = self.msgs - self.settings.max_msgs if drop and self.settings.max_msgs else 0
            went = min(max(bisect_left(places, below), excess), len(places))
            self.msgs -= went
            self.size -= block.payload_bytes() if went == block.count else _size_of(block, places[:went])
            return went, went
        payloads, keys = block.payloads(), block.keys() if latest is not None else []
        went = counted = 0
        for at in places:
            if at >= below and not (drop and self.is_over):
                break
            went += 1
            if latest is None or latest.remove(keys[at], block.base_seq + at):
                self.msgs -= 1
                self.size -= len(payloads[at])
                counted += 1
        return went, counted


def _size_of(block: Block, places: Sequence[int]) -> int:
    payloads = block.payloads() if places else []
    return sum(len(payloads[at]) for at in places)


def places_of(block: Block, topic: str, start: int = 0) -> Sequence[int]:
    """Places of a topic's messages in a block that has it or not, from a place on."""
    if block.n_topics == 1:
        return range(start, block.count) if block.topics[0] == topic else ()
    if topic not in block.topics:
        return ()
    number = block.topics.index(topic)
    return [at for at, its in enumerate(block.topic_idx()[start:], start) if its == number]


class Superseded:
    """Whether a later message has the key of a message; for all topics that keep the latest of each key.

    Asked for one place of a block after the other, so the answers for the latest block are remembered.
    """

    __slots__ = ("_block", "_flags", "_topics")

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self._topics = topics
        self._block: Block | None = None
        self._flags: list[bool] = []

    def __call__(self, block: Block, place: int) -> bool:
        if self._block is not block:
            self._block = block
            self._flags = self._look(block)
        return bool(self._flags) and self._flags[place]

    def forget(self) -> None:
        """Something was published, or the settings of a topic have changed."""
        self._block = None

    def _look(self, block: Block) -> list[bool]:
        """For each message of a block; empty when there is none that could have a successor."""
        indexes = []
        for name in block.topics:
            topic = self._topics.get(name)
            if topic is not None and topic.counting is not None:  # soon there will be another answer
                self._block, topic = None, None
            indexes.append(topic.latest if topic is not None else None)
        if not any(index is not None for index in indexes):
            return []
        base, keys, flags = block.base_seq, block.keys(), []
        for at, number in enumerate(block.topic_idx()):
            index = indexes[number]
            flags.append(index is not None and index.is_superseded(keys[at], base + at))
        return flags
