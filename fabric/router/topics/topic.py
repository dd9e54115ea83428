"""A topic with settings: its floor, the counts of its messages, and the progress of retention.

The counts are exact: a message is counted in the turn that stores it and uncounted in the turn that removes it. A topic
that has messages when it gets its settings is counted by reading it once; until then `counting` has the progress, and
nothing is removed.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from fabric.records import SaveTopic, TopicSettings
from fabric.router.timers import NEVER
from fabric.router.topics.compaction import Latest
from fabric_protocol.block import COUNT_MAX, Block


class Counting:
    """The progress of a count: messages below `at` are counted; messages from `stop` on are counted as they arrive."""

    __slots__ = ("at", "stop")

    def __init__(self, at: int, stop: int) -> None:
        self.at = at
        self.stop = stop


class Topic:
    __slots__ = (
        "check_at",
        "clear_all",
        "cleared",
        "counting",
        "deleted",
        "floor",
        "kept",
        "last_taken",
        "latest",
        "msgs",
        "name",
        "overflowed",
        "settings",
        "size",
        "trim_target",
        "wanted",
    )

    def __init__(self, name: str, settings: TopicSettings, floor: int, first_seq: int) -> None:
        self.name = name
        self.wanted = name.__eq__  # always the same object, because readers remember its answers
        self.settings = settings
        self.deleted = False  # without settings: the floor is kept while messages below it are on disk
        self.floor = floor  # messages below it are removed
        self.msgs = 0  # messages at or above the floor that are not superseded
        self.size = 0  # bytes of the payloads of these messages
        self.last_taken = 0
        self.counting: Counting | None = None
        self.latest: Latest | None = None
        self.overflowed = False  # it has too many keys, so no message counts as superseded
        self.trim_target = 0  # retention of the journal asks to remove messages below this seq
        self.check_at = NEVER  # when its oldest message is too old, or must be checked again
        self.cleared = first_seq  # blocks below it were checked, and discarded if they were empty
        self.kept = 0  # checked blocks that stay because of other topics
        self.clear_all = False  # check blocks above the floor, too: all messages of a block may be superseded

    @classmethod
    def restore(cls, row: SaveTopic, first_seq: int, next_seq: int) -> "Topic":
        topic = cls(row.name, row.settings, max(row.floor, first_seq), first_seq)
        topic.msgs, topic.size, topic.deleted = row.msgs, row.bytes, row.deleted
        topic.cleared = first_seq if row.deleted else max(row.cleared, first_seq)
        if not row.deleted and (row.msgs < 0 or row.floor < first_seq or row.settings.keep == "last_per_key"):
            topic.recount(next_seq)
        return topic

    def record(self, waiting: int) -> SaveTopic:
        """The row. Blocks from `waiting` on are checked again after a restart."""
        msgs = -1 if self.counting is not None else self.msgs
        cleared = min(self.cleared, waiting)
        return SaveTopic(self.name, self.settings, self.floor, msgs, self.size, self.deleted, cleared)

    def recount(self, next_seq: int) -> None:
        """Begin to count the messages from the floor on."""
        self.msgs = self.size = 0
        self.latest = Latest() if self.settings.keep == "last_per_key" and not self.overflowed else None
        self.counting = Counting(self.floor, next_seq) if self.floor < next_seq else None

    def remove_below(self, seq: int, next_seq: int) -> None:
        """Remove all messages below a seq, and begin to count the others."""
        self.floor, self.overflowed = max(self.floor, seq), False
        self.last_taken = max(self.last_taken, next_seq - 1)
        self.recount(next_seq)
        if self.deleted:
            self.counting = None

    @property
    def is_over(self) -> bool:
        settings = self.settings
        return bool(
            (settings.max_msgs and self.msgs > settings.max_msgs)
            or (settings.max_bytes and self.size > settings.max_bytes)
        )

    def count(self, block: Block, base_seq: int, start: int = 0, stop: int = COUNT_MAX) -> None:
        """Count the messages of this topic in a block, at places start..stop - 1."""
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
        """By how many messages and bytes the topic would grow with a block."""
        if self.latest is None and block.n_topics == 1:
            return block.count, block.payload_bytes()
        payloads, places = block.payloads(), places_of(block, self.name)
        if self.latest is None:
            return len(places), sum(len(payloads[at]) for at in places)
        keys = block.keys()
        return self.latest.growth((keys[at], len(payloads[at])) for at in places)

    def uncount(self, block: Block, places: Sequence[int], below: int, *, drop: bool) -> tuple[int, int]:
        """Remove messages of a block at places below `below`; with `drop`, more while the topic is over a limit.

        Returns the number of removed messages, and how many of them were counted.
        """
        latest = self.latest
        if latest is None and (below >= block.count or not self.settings.max_bytes):  # no need to read each message
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
    """Places of the messages of a topic in a block, from a place on; none when the block has no such message."""
    if block.n_topics == 1:
        return range(start, block.count) if block.topics[0] == topic else ()
    if topic not in block.topics:
        return ()
    number = block.topics.index(topic)
    return [at for at, its in enumerate(block.topic_idx()[start:], start) if its == number]


class Superseded:
    """Whether a later message has the key of a message, for all topics with `keep: last_per_key`.

    Callers ask for the places of a block one after the other, so the answers for the latest block are remembered.
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
        """Forget the remembered answers: a message was published, or settings have changed."""
        self._block = None

    def _look(self, block: Block) -> list[bool]:
        """The answer for each message of a block; empty when no message can be superseded."""
        indexes = []
        for name in block.topics:
            topic = self._topics.get(name)
            if topic is not None and topic.counting is not None:  # the answer may be another when the count is complete
                self._block, topic = None, None
            indexes.append(topic.latest if topic is not None else None)
        if not any(index is not None for index in indexes):
            return []
        base, keys, flags = block.base_seq, block.keys(), []
        for at, number in enumerate(block.topic_idx()):
            index = indexes[number]
            flags.append(index is not None and index.is_superseded(keys[at], base + at))
        return flags
