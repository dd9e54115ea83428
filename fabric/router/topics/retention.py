"""The work of retention by topic, in small steps: count, raise floors, clear blocks from disk.

A message is removed by the floor of its topic: no group is given what lies below. That is decided and written down
first; blocks go from disk later, when all their messages are removed or superseded, by Discard. A step reads one block
at most, and a tick takes a few steps, so retention never holds up the hub.

Floors are raised over committed blocks only, and one reads them from the floor on, so there is no memory for each
message. Where messages of several topics share a block, the block stays until the last of them is removed.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from fabric.records import Discard, DropTopic
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.groups.lanes import REMOVED, wanted_runs
from fabric.router.groups.rows import GroupRows
from fabric.router.shared import Shared
from fabric.router.timers import NEVER, Timers
from fabric.router.topics.topic import Topic, places_of
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric.router.groups.group import Group

STEPS_PER_TICK: Final = 32  # blocks looked at, so that a tick stays within a few milliseconds
BLOCKS_PER_SWEEP: Final = 256
LOOK_AGAIN_S: Final = 60.0  # a topic with an age limit is looked at so often at least, in case someone sets the clock
_FAR: Final = 1 << 64
COMPACT_MIN: Final = 256  # superseded messages that are worth a walk over a topic's blocks


class TopicRetention:
    """Who does the steps. `due` are the topics with something to do now; those in `later` wait for the next commit."""

    def __init__(self, shared: Shared, dead_letters: DeadLetters, group_rows: GroupRows) -> None:
        self.due: dict[Topic, None] = {}
        self.later: dict[Topic, None] = {}
        self.moved: dict[Topic, None] = {}  # rows on disk are out of date
        self.gone: list[Topic] = []  # deleted, and nothing is left of them
        self._shared = shared
        self._dead_letters = dead_letters
        self._group_rows = group_rows
        self._counters = shared.counters
        self._timers: Timers[Topic] = Timers(_has_alarm)
        self._bases: list[int] = []  # blocks to discard with this tick
        self._waiting: deque[Block] = deque()  # empty ones that some group may still come by in memory

    def next_deadline(self) -> float:
        return 0.0 if self.due else self._timers.next()

    def tick(self, now: float, turn: Turn) -> None:
        while (topic := self._timers.ring(now)) is not None:
            if topic.alarm <= now:
                topic.alarm = NEVER
                self.due[topic] = None
        for _ in range(STEPS_PER_TICK):
            if not self.due:
                break
            topic = next(iter(self.due))
            del self.due[topic]
            if self._step(topic, now, turn):
                self.due[topic] = None  # behind the others, so that a large topic does not keep them waiting
        if self._bases:
            self._counters["blocks_discarded"] += len(self._bases)
            turn.write(Discard(tuple(self._bases)))
            self._bases = []
        for topic in self.gone:
            turn.write(DropTopic(topic.name))

    @property
    def waiting_from(self) -> int:
        """Blocks from here on are not cleared away for good yet, though they were looked at."""
        return min((block.base_seq for block in self._waiting), default=_FAR)

    def committed(self) -> None:
        """There is more on disk than before."""
        self.due.update(self.later)
        self.later = {}

    def _step(self, topic: Topic, now: float, turn: Turn) -> bool:
        """One thing that is due for a topic; false when there is nothing more, or nothing before the next commit."""
        if topic.counting is not None:
            return self._count(topic)
        if not topic.deleted and self._lower(topic, now, turn):
            return True
        latest = topic.latest
        if latest is not None and latest.superseded >= max(COMPACT_MIN, len(latest)):
            latest.superseded, topic.reap_all, topic.reaped = 0, True, self._shared.first_seq
        return self._reap(topic, turn)

    # Counting.

    def _count(self, topic: Topic) -> bool:
        counting = topic.counting
        assert counting is not None
        horizon = self._shared.committed_seq
        if counting.at < counting.stop and counting.at > horizon:
            self.later[topic] = None
            return False
        if counting.at < counting.stop:
            block, cursor, more = self._shared.block_store.find(
                counting.at, min(horizon, counting.stop - 1), topic.wanted
            )
            if isinstance(block, Block) and block.base_seq <= horizon:
                base = block.base_seq
                topic.count(block, base, max(counting.at - base, 0), counting.stop - base)
                cursor = block.last_seq + 1
            elif block is not None:
                cursor = block.last_seq + 1  # what is damaged is not there
            elif not more:
                cursor = max(cursor, min(horizon, counting.stop - 1) + 1)
            counting.at = max(counting.at, cursor)
            if topic.latest is not None and topic.latest.is_full:
                self.overflow(topic)
        if topic.counting is not None and topic.counting.at >= topic.counting.stop:
            topic.counting = None
            self.moved[topic] = None
        return True

    def overflow(self, topic: Topic) -> None:
        """Too many keys: from now on nothing counts as superseded, and all there is counts."""
        topic.overflowed = True
        topic.recount(topic.last_taken + 1)
        self._counters["keys_overflowed"] += 1
        self.due[topic] = None

    # Floors.

    def _lower(self, topic: Topic, now: float, turn: Turn) -> bool:
        """Remove what must go of the topic's first block; true when there may be more."""
        settings, clock = topic.settings, self._shared.clock
        target = max(topic.trim_target, self._settled_below(topic) if settings.keep == "until_acked" else 0)
        over = settings.on_full == "drop_old" and topic.is_over
        if topic.msgs == 0:
            topic.floor = max(topic.floor, min(topic.trim_target, self._shared.committed_seq + 1))
            return False
        if not (target > topic.floor or over or settings.max_age_ms):
            return False
        horizon = self._shared.committed_seq
        block, cursor, more = self._shared.block_store.find(topic.floor, horizon, topic.wanted)
        if block is None or (isinstance(block, Block) and block.base_seq > horizon):
            topic.floor = max(topic.floor, min(cursor, horizon + 1))
            if topic.last_taken > horizon:
                self.later[topic] = None
            return more
        if not isinstance(block, Block):  # how many of the topic were in there, nobody knows any more
            topic.floor = block.last_seq + 1
            topic.recount(topic.last_taken + 1)
            self.moved[topic] = None
            return True
        if settings.max_age_ms:
            dies_us = block.ts_us + settings.max_age_ms * 1000
            dies = clock.when(dies_us)
            if dies_us <= clock.wall_us(now):
                target = max(target, block.last_seq + 1)
            elif topic.alarm == NEVER or topic.alarm > dies:
                topic.alarm = min(dies, now + LOOK_AGAIN_S)
                self._timers.set(topic.alarm, topic)
        return self._remove(topic, block, target, turn, drop=settings.on_full == "drop_old")

    def _remove(self, topic: Topic, block: Block, target: int, turn: Turn, *, drop: bool) -> bool:
        """Remove a block's messages of a topic that lie below the target, and more while there are too many."""
        places = places_of(block, topic.name, max(topic.floor - block.base_seq, 0))
        went, gone = topic.uncount(block, places, target - block.base_seq, drop=drop)
        if not went and places:  # the first one stays, and there is none before it
            topic.floor = max(topic.floor, block.base_seq + places[0])
            return False
        topic.floor = block.base_seq + places[went] if went < len(places) else block.last_seq + 1
        if went:
            self._lift(topic, gone, turn)
        return True

    def _lift(self, topic: Topic, gone: int, turn: Turn) -> None:
        """Write down that a floor has risen, and let those know who might miss something."""
        floor = self._shared.removed[topic.name] = topic.floor
        self.moved[topic] = None
        self._counters["retention_removed"] += gone
        owners = self.owners(topic.name)
        behind = bool(owners) and min(group.floor for group in owners) + 1 < floor
        if behind:
            self._counters["retention_unsettled"] += gone
        self._dead_letters.lowered(topic.name, floor)
        if behind and gone:
            turn.advise("$sys.topic.trimmed", topic=topic.name, floor=floor, unsettled=gone)

    def owners(self, topic: str) -> "list[Group]":
        """The durable groups that want a topic."""
        return [group for group in self._shared.trie.match(topic) if group.durable]

    def _settled_below(self, topic: Topic) -> int:
        """All messages below are settled by every group that wants them; 0 when there is no such group."""
        owners = self.owners(topic.name)
        return min(group.floor for group in owners) + 1 if owners else 0

    def empty(self, topic: Topic, turn: Turn) -> int:
        """Remove all messages of a topic at once; how many there were, as far as they were counted."""
        gone = topic.msgs
        topic.empty(self._shared.next_seq)
        self._lift(topic, gone, turn)
        self.due[topic] = None
        return gone

    # Blocks.

    def _reap(self, topic: Topic, turn: Turn) -> bool:
        """Look at the next block that may be empty; false when there is none for now."""
        committed = self._shared.committed_seq
        stop = committed if topic.reap_all else min(topic.floor, committed)
        if topic.reaped >= stop:
            return self._reaped(topic)
        block, cursor, more = self._shared.block_store.find(topic.reaped, stop - 1, topic.wanted)
        if block is None:
            topic.reaped = max(topic.reaped, cursor if more else stop)
            return True
        if isinstance(block, Block):
            if block.last_seq >= committed:  # the last block stays until there is another one
                self.later[topic] = None
                return False
            if self.is_empty(block):
                self._discard(block, turn)
            elif block.last_seq >= topic.floor and not topic.reap_all:
                return False
            else:
                topic.kept += block.base_seq < topic.floor
        topic.reaped = block.last_seq + 1
        return True

    def _reaped(self, topic: Topic) -> bool:
        """The end of a walk over a topic's blocks."""
        topic.reap_all = False
        topic.reaped = min(topic.reaped, topic.floor)
        if topic.floor > self._shared.committed_seq and topic.reaped <= topic.last_taken:
            self.later[topic] = None
        elif topic.deleted and not topic.kept and not self._waiting:
            self.gone.append(topic)
        return False

    def is_empty(self, block: Block) -> bool:
        """Whether all messages of a block are removed or superseded."""
        removed, superseded = self._shared.removed, self._shared.superseded
        floors = [removed.get(topic, 0) for topic in block.topics]
        if min(floors) > block.last_seq:
            return True
        if superseded is None and block.n_topics == 1:
            return False
        base = block.base_seq
        return all(
            base + at < floors[number] or (superseded is not None and superseded(block, at))
            for at, number in enumerate(block.topic_idx())
        )

    def _discard(self, block: Block, turn: Turn) -> None:
        """An empty block goes from disk. Groups that would have come by are told now, as they cannot see it then."""
        takers = [group for owners in self._shared.trie.match_all(block.topics) for group in owners if group.durable]
        behind = [group for group in takers if group.reached(block.priority) <= block.last_seq]
        if behind and self._shared.block_store.holds(block.base_seq):
            self._waiting.append(block)  # they will meet it in memory
            return
        for group in dict.fromkeys(behind):
            for a, b in self._removed_runs(group, block):
                group.lost(block.base_seq + a, block.base_seq + b - 1, REMOVED, turn)
        for group in dict.fromkeys(takers):
            group.record_beyond(block.last_seq)
            self._group_rows.note(group)  # on disk with the discarded block, or nobody would ever hear of it
        self._shared.block_store.discard(block)
        self._bases.append(block.base_seq)

    def _removed_runs(self, group: "Group", block: Block) -> list[tuple[int, int]]:
        """Places of messages that a group wanted, has not come to yet, and that retention has removed."""
        removed, names = self._shared.removed, block.topic_names()
        first = max(group.reached(block.priority), block.base_seq)
        places = (at for run in wanted_runs(group, block, first, block.last_seq) for at in range(*run))
        return runs_of(at for at in places if block.base_seq + at < removed.get(names[at], 0))

    def sweep(self, turn: Turn) -> None:
        """What waited until no group could meet it in memory any more."""
        for _ in range(min(len(self._waiting), BLOCKS_PER_SWEEP)):
            self._discard(self._waiting.popleft(), turn)


def _has_alarm(topic: Topic) -> bool:
    return topic.alarm != NEVER
