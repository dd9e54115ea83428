"""Retention by topic, in small steps: count messages, raise floors, discard blocks.

The floor of a topic removes its messages: no group delivers a message below it. The floor is written first; a block is
discarded from disk later, when all its messages are removed or superseded. A step reads one block at most, and a tick
does a few steps, so retention does not delay the hub.

Floors rise over committed blocks only, which are read from the floor on, so retention has no memory for each message. A
block with messages of several topics stays until the last of them is removed.
"""

from itertools import islice
from typing import TYPE_CHECKING, Final

from fabric.records import Discard, DropTopic
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.groups.backlog import floor_is_set, floor_rises
from fabric.router.groups.lanes import wanted_runs
from fabric.router.groups.rows import GroupRows
from fabric.router.shared import Shared
from fabric.router.timers import NEVER, Timers
from fabric.router.topics.topic import Counting, Topic, places_of
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric.router.groups.group import Group

STEPS_PER_TICK: Final = 32  # blocks read, so that a tick takes a few milliseconds
BLOCKS_PER_SWEEP: Final = 256
LOOK_AGAIN_S: Final = 60.0  # a topic with an age limit is checked this often at least, because the clock may be set
_FAR: Final = 1 << 64
COMPACT_MIN: Final = 256  # superseded messages before the blocks of a topic are read again


class TopicRetention:
    """Runs the steps. Topics in `due` have work to do now; topics in `later` wait for the next commit."""

    def __init__(self, shared: Shared, dead_letters: DeadLetters, group_rows: GroupRows) -> None:
        self.due: dict[Topic, None] = {}
        self.later: dict[Topic, None] = {}
        self.moved: dict[Topic, None] = {}  # topics with a row on disk that is out of date
        self.gone: list[Topic] = []  # deleted topics without a block on disk
        self._shared = shared
        self._dead_letters = dead_letters
        self._group_rows = group_rows
        self._counters = shared.counters
        self._timers: Timers[Topic] = Timers(_has_check)
        self._bases: list[int] = []  # blocks to discard with this turn
        # Empty blocks in memory that a group has not passed yet, by base_seq. Each topic of a block finds it empty.
        self._waiting: dict[int, Block] = {}

    def next_deadline(self) -> float:
        return 0.0 if self.due else self._timers.next()

    def tick(self, now: float, turn: Turn) -> None:
        while (topic := self._timers.pop_due(now)) is not None:
            if topic.check_at <= now:
                topic.check_at = NEVER
                self.due[topic] = None
        for _ in range(STEPS_PER_TICK):
            if not self.due:
                break
            topic = next(iter(self.due))
            del self.due[topic]
            if self._step(topic, now, turn):
                self.due[topic] = None  # behind the others, so that a large topic does not delay them
        self._write_discards(turn)
        for topic in self.gone:
            turn.write(DropTopic(topic.name))

    @property
    def waiting_from(self) -> int:
        """Blocks from this seq on are not discarded yet, though they were checked."""
        return min(self._waiting, default=_FAR)

    def committed(self) -> None:
        """A turn is on disk: topics that waited for it have work to do."""
        self.due.update(self.later)
        self.later = {}

    def _step(self, topic: Topic, now: float, turn: Turn) -> bool:
        """One step for a topic; False when there is no more work, or none before the next commit."""
        if topic.counting is not None:
            return self._count(topic)
        if not topic.deleted and self._remove_due(topic, now, turn):
            return True
        latest = topic.latest
        if latest is not None and latest.superseded >= max(COMPACT_MIN, len(latest)):
            latest.superseded, topic.clear_all, topic.cleared = 0, True, self._shared.first_seq
        return self._clear(topic, turn)

    # Counting.

    def _count(self, topic: Topic) -> bool:
        counting = topic.counting
        assert counting is not None
        if counting.at < counting.stop:
            if counting.at <= self._shared.appended_seq:
                cursor = self._count_sealed(topic, counting)
            else:
                cursor = self._count_open(topic, counting)
            counting.at = max(counting.at, cursor)
            if topic.latest is not None and topic.latest.is_full:
                self.overflow(topic)
        if topic.counting is not None and topic.counting.at >= topic.counting.stop:
            topic.counting = None
            self.moved[topic] = None
        return True

    def _count_sealed(self, topic: Topic, counting: Counting) -> int:
        """Count one block, on disk or on its way there; returns the seq at which to go on."""
        horizon = min(self._shared.appended_seq, counting.stop - 1)
        block, cursor, more = self._shared.block_store.find(counting.at, horizon, topic.wanted)
        if block is None:
            return cursor if more else max(cursor, horizon + 1)
        if isinstance(block, Block):  # the messages of a damaged block are not counted
            base = block.base_seq
            topic.count(block, base, max(counting.at - base, 0), counting.stop - base)
        return block.last_seq + 1

    def _count_open(self, topic: Topic, counting: Counting) -> int:
        """Count one block of the open turn; returns the seq at which to go on."""
        found = self._shared.block_store.find_open(counting.at, topic.wanted)
        if found is None:
            return counting.stop
        block, base = found
        topic.count(block, base, max(counting.at - base, 0), counting.stop - base)
        return base + block.count

    def count_now(self, topic: Topic, steps: int) -> int:
        """Go on with the count of a topic, for at most so many steps; returns how many are left."""
        while steps and topic.counting is not None:
            self._count(topic)
            steps -= 1
        return steps

    def overflow(self, topic: Topic) -> None:
        """A topic has too many keys: from now on no message counts as superseded."""
        topic.overflowed = True
        topic.recount(topic.last_taken + 1)
        self._counters["keys_overflowed"] += 1
        self.due[topic] = None

    # Floors.

    def _remove_due(self, topic: Topic, now: float, turn: Turn) -> bool:
        """Remove messages of the topic's first block that are over a limit; True when there may be more."""
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
        if not isinstance(block, Block):  # the number of its messages of the topic is not known
            topic.floor = block.last_seq + 1
            topic.recount(topic.last_taken + 1)
            self.moved[topic] = None
            return True
        if settings.max_age_ms:
            dies_us = block.ts_us + settings.max_age_ms * 1000
            dies = clock.when(dies_us)
            if dies_us <= clock.wall_us(now):
                target = max(target, block.last_seq + 1)
            elif topic.check_at == NEVER or topic.check_at > dies:
                topic.check_at = min(dies, now + LOOK_AGAIN_S)
                self._timers.set(topic.check_at, topic)
        return self._remove(topic, block, target, turn, drop=settings.on_full == "drop_old")

    def _remove(self, topic: Topic, block: Block, target: int, turn: Turn, *, drop: bool) -> bool:
        """Remove the messages of a topic in a block that are below the target; with `drop`, more while it is over a
        limit."""
        places = places_of(block, topic.name, max(topic.floor - block.base_seq, 0))
        went, gone = topic.uncount(block, places, target - block.base_seq, drop=drop)
        if not went and places:  # the first message stays
            topic.floor = max(topic.floor, block.base_seq + places[0])
            return False
        topic.floor = block.base_seq + places[went] if went < len(places) else block.last_seq + 1
        if went:
            floor_rises(topic.name, block, places[:went], self._shared)
            self._raise_floor(topic, gone, turn)
        return True

    def _raise_floor(self, topic: Topic, gone: int, turn: Turn) -> None:
        """Write a floor that has risen; advise when a group loses messages."""
        floor = self._shared.removed[topic.name] = topic.floor
        self.moved[topic] = None
        self._counters["retention_removed"] += gone
        owners = self.owners(topic.name)
        behind = bool(owners) and min(group.floor for group in owners) + 1 < floor
        if behind:
            self._counters["retention_unsettled"] += gone
        self._dead_letters.floor_raised(topic.name, floor)
        if behind and gone:
            turn.advise("$sys.topic.trimmed", topic=topic.name, floor=floor, unsettled=gone)

    def owners(self, topic: str) -> "list[Group]":
        """The durable groups with a pattern that matches a topic."""
        return [group for group in self._shared.trie.match(topic) if group.durable]

    def _settled_below(self, topic: Topic) -> int:
        """The seq below which every group that matches has settled all messages; 0 when no group matches."""
        owners = self.owners(topic.name)
        return min(group.floor for group in owners) + 1 if owners else 0

    def remove_below(self, topic: Topic, seq: int, turn: Turn) -> int | None:
        """Remove the messages of a topic below a seq at once; returns how many they were, None when that is not known.

        The messages that stay are counted anew: a few blocks now, more of them by the next ticks.
        """
        before = None if topic.deleted or topic.counting is not None else topic.msgs
        topic.remove_below(seq, self._shared.next_seq)
        self.count_now(topic, STEPS_PER_TICK)
        gone = None if before is None or topic.counting is not None else before - topic.msgs
        topic.cleared, topic.kept = self._shared.first_seq, 0
        self._raise_floor(topic, gone or 0, turn)
        floor_is_set(topic.name, self._shared)
        self.due[topic] = None
        return gone

    # Blocks.

    def _clear(self, topic: Topic, turn: Turn) -> bool:
        """Check the next block that may be empty; False when there is none for now."""
        committed = self._shared.committed_seq
        stop = committed if topic.clear_all else min(topic.floor, committed)
        if topic.cleared >= stop:
            return self._end_clearing(topic)
        block, cursor, more = self._shared.block_store.find(topic.cleared, stop - 1, topic.wanted)
        if block is None:
            topic.cleared = max(topic.cleared, cursor if more else stop)
            return True
        if isinstance(block, Block):
            if block.last_seq >= committed:  # the last block stays until another block follows
                self.later[topic] = None
                return False
            if self.is_empty(block):
                self._discard(block, turn)
            elif block.last_seq >= topic.floor and not topic.clear_all:
                return False
            else:
                topic.kept += block.base_seq < topic.floor
        topic.cleared = block.last_seq + 1
        return True

    def _end_clearing(self, topic: Topic) -> bool:
        """All blocks of a topic were checked."""
        topic.clear_all = False
        topic.cleared = min(topic.cleared, topic.floor)
        if topic.floor > self._shared.committed_seq and topic.cleared <= topic.last_taken:
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
        """Discard an empty block. Groups that have not passed it lose its messages now, because they cannot find it
        later."""
        if self._shared.block_store.is_discarded(block.base_seq):  # another topic of the block has found it empty
            return
        takers = [group for owners in self._shared.trie.match_all(block.topics) for group in owners if group.durable]
        behind = [group for group in takers if group.reached(block.priority) <= block.last_seq]
        if behind and self._shared.block_store.holds(block.base_seq):
            self._waiting[block.base_seq] = block  # these groups pass it in memory
            return
        for group in dict.fromkeys(behind):
            group.leave(block, self._removed_runs(group, block), turn)
        for group in dict.fromkeys(takers):
            group.record_beyond(block.last_seq)
            self._group_rows.note(group)  # in the transaction of the Discard, because the block is not found afterwards
        self._shared.block_store.discard(block)
        self._bases.append(block.base_seq)

    def _removed_runs(self, group: "Group", block: Block) -> list[tuple[int, int]]:
        """Places of removed messages that match a group and that the group has not reached."""
        removed, names = self._shared.removed, block.topic_names()
        first = max(group.reached(block.priority), block.base_seq)
        places = (at for run in wanted_runs(group, block, first, block.last_seq) for at in range(*run))
        return runs_of(at for at in places if block.base_seq + at < removed.get(names[at], 0))

    def sweep(self, turn: Turn) -> None:
        """Discard empty blocks that have left the memory."""
        for base_seq in list(islice(self._waiting, BLOCKS_PER_SWEEP)):
            self._discard(self._waiting.pop(base_seq), turn)
        self._write_discards(turn)

    def _write_discards(self, turn: Turn) -> None:
        """Write which blocks are discarded, with the rows of the groups that have lost their messages."""
        if self._bases:
            self._counters["blocks_discarded"] += len(self._bases)
            turn.write(Discard(tuple(self._bases)))
            self._bases = []


def _has_check(topic: Topic) -> bool:
    return topic.check_at != NEVER
