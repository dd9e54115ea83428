"""All topics with settings: limits, counts and floors.

A topic needs no settings; a topic without settings costs one lookup in a set for each block. The table counts published
messages, refuses publishes that do not fit, and answers ADMIN and INFO of topics; `retention` removes messages.

Retention of the journal removes blocks, too, and would make the counts wrong. So it stops at `trim_limit` until the
floors of the topics are raised and on disk.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from fabric.records import Record, SaveTopic, TopicSettings
from fabric.router.access.principal import Principal
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.groups.backlog import floor_is_set
from fabric.router.groups.group import Group
from fabric.router.groups.rows import GroupRows
from fabric.router.part import Part
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric.router.topics.listing import Listing
from fabric.router.topics.presence import require_messages
from fabric.router.topics.retention import STEPS_PER_TICK, TopicRetention
from fabric.router.topics.settings import (
    SETTINGS,
    as_map,
    asked_settings,
    require_same,
)
from fabric.router.topics.tallies import Tallies
from fabric.router.topics.topic import Superseded, Topic
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, ProtocolError

TOPICS_MAX: Final = 10_000  # with settings; each has some 500 bytes in memory, and a row
QUEUES_PER_SWEEP: Final = 64
UNHELD: Final = (1 << 64) - 1
DEFAULTS: Final = TopicSettings()

Fields = Mapping[str, Any]
Answer = dict[str, Any]


class TopicTable(Part):
    def __init__(
        self,
        saved: Iterable[SaveTopic],
        shared: Shared,
        dead_letters: DeadLetters,
        group_rows: GroupRows,
    ) -> None:
        self.tracked: set[str] = set()  # names of topics with settings
        self.retention = TopicRetention(shared, dead_letters, group_rows)
        self.tallies = Tallies(shared)
        self.trim_limit = UNHELD  # retention of the journal must keep messages at or above this seq
        self._shared = shared
        self._dead_letters = dead_letters
        self._group_rows = group_rows
        self._counters = shared.counters
        self._topics: dict[str, Topic] = {}  # also deleted topics with blocks on disk
        self._dirty: dict[Topic, None] = {}  # topics with counts that this turn has changed
        self._acked: dict[Topic, None] = {}  # topics with `keep: until_acked`, in the order of checks
        self._acked_by: dict[
            str, tuple[tuple[str, ...], list[Topic]]
        ] = {}  # group -> its patterns, and the topics of `_acked` that match
        self._trimming: dict[Topic, None] = {}  # topics with a floor that is still below `_wanted`
        self._wanted = 0  # retention of the journal asks to remove messages below this seq; 0: it does not
        self._grants: deque[int] = deque()  # for each sealed turn, the `trim_limit` when it is on disk; 0: unchanged
        self._forgotten: dict[str, int] = {}  # floors of removed topics with blocks in memory
        self._superseded = Superseded(self._topics)
        for row in saved:
            self._enter(Topic.restore(row, shared.first_seq, shared.next_seq))

    def _enter(self, topic: Topic) -> None:
        """Add a topic, and let retention check it."""
        self._topics[topic.name] = topic
        topic.last_taken = max(topic.last_taken, self._shared.next_seq - 1)
        if topic.floor > self._shared.first_seq:
            self._shared.removed[topic.name] = topic.floor
            self._dead_letters.floor_raised(topic.name, topic.floor)
            floor_is_set(topic.name, self._shared)
        if not topic.deleted:
            self.tracked.add(topic.name)
            if self.trim_limit == UNHELD:
                self.trim_limit = self._shared.first_seq
        self._sort(topic)
        self.retention.due[topic] = None

    def _sort(self, topic: Topic) -> None:
        """Update what depends on the settings of a topic."""
        self._acked.pop(topic, None)
        if topic.settings.keep == "until_acked" and not topic.deleted:
            self._acked[topic] = None
        self._acked_by.clear()
        shared = self._shared
        shared.keyed.discard(topic.name)
        if topic.settings.keep == "last_per_key" and not topic.deleted:
            shared.keyed.add(topic.name)
        shared.superseded = self._superseded if shared.keyed else None
        self._superseded.forget()

    def settings_of(self, name: str) -> TopicSettings:
        topic = self._topics.get(name)
        return topic.settings if topic is not None and not topic.deleted else DEFAULTS

    # What is published.

    def require_room(self, block: Block, turn: Turn) -> None:
        """Raise unless the whole block fits into each of its topics."""
        steps = STEPS_PER_TICK
        for name in self.tracked.intersection(block.topics):
            topic = self._topics[name]
            settings = topic.settings
            if settings.on_full != "refuse" or not (settings.max_msgs or settings.max_bytes):
                continue
            if topic.counting is not None:  # the limit needs the count now, not with the next tick
                self._shared.change.begin()
                steps = self.retention.count_now(topic, steps)
            msgs, size = topic.growth(block)
            if settings.max_msgs and topic.msgs + msgs > settings.max_msgs and msgs > 0:
                full = f"{topic.msgs} of max_msgs {settings.max_msgs} messages, and {msgs} more do not fit"
            elif settings.max_bytes and topic.size + size > settings.max_bytes and size > 0:
                full = f"{topic.size} of max_bytes {settings.max_bytes} bytes, and {size} more do not fit"
            else:
                continue
            self._counters["topic_full"] += 1
            turn.advise("$sys.topic.full", topic=name, msgs=topic.msgs, bytes=topic.size)
            raise ProtocolError(Code.TOPIC_FULL, f"topic {name!r} is full: it has {full}", topic=name)

    def take(self, block: Block, base_seq: int) -> None:
        """Count a block that is stored with this turn."""
        names = self.tracked.intersection(block.topics)
        if names:
            self._superseded.forget()
        for name in names:
            topic = self._topics[name]
            topic.count(block, base_seq)
            topic.last_taken = base_seq + block.count - 1
            self._dirty[topic] = None
            settings, latest = topic.settings, topic.latest
            if latest is not None and latest.is_full:
                self.retention.overflow(topic)
            if (
                (settings.max_age_ms and topic.check_at == NEVER)
                or (settings.on_full == "drop_old" and topic.is_over)
                or latest is not None
            ):
                self.retention.later[topic] = None

    # The turns of the router.

    @property
    def has_rows(self) -> bool:
        """Whether a floor or a new `trim_limit` waits for a commit."""
        return bool(self.retention.moved) or (self._wanted > 0 and not self._trimming)

    def next_deadline(self) -> float:
        return self.retention.next_deadline()

    def tick(self, now: float, turn: Turn) -> None:
        retention = self.retention
        if retention.due or retention.next_deadline() <= now:
            retention.tick(now, turn)
            for topic in retention.gone:
                self._forget(topic)
            retention.gone = []
            if self._trimming:
                self._trimming = {topic: None for topic in self._trimming if self._holds_back(topic)}

    def sweep(self, turn: Turn) -> None:
        """Check topics that had to wait, a bounded number at a time."""
        retention = self.retention
        retention.sweep(turn)
        for topic in list(self._acked)[:QUEUES_PER_SWEEP]:
            del self._acked[topic]
            self._acked[topic] = None
            if topic.msgs:
                retention.due[topic] = None
        for name in list(self._forgotten)[:QUEUES_PER_SWEEP]:
            floor = self._forgotten.pop(name)
            if name not in self._topics and self._shared.block_store.holds(floor - 1):
                self._forgotten[name] = floor
            elif name not in self._topics:
                self._shared.removed.pop(name, None)
        if len(self._topics) > len(self.tracked):
            for topic in self._topics.values():
                if topic.deleted and (self._shared.first_seq >= topic.floor or not topic.kept):
                    retention.due[topic] = None

    def _waiting_for(self, group: Group) -> list[Topic]:
        """The topics with `keep: until_acked` and with messages that match a group."""
        patterns = group.settings.patterns
        known = self._acked_by.get(group.name)
        if known is None or known[0] != patterns:
            wants = [t for t in self._acked if any(g.name == group.name for g in self.retention.owners(t.name))]
            known = self._acked_by[group.name] = patterns, wants
        return [topic for topic in known[1] if topic.msgs]

    def groups_changed(self) -> None:
        """A group was created or deleted, or its patterns have changed."""
        self._acked_by.clear()

    def rows(self) -> list[Record]:
        """The rows to write with this turn, behind the rows of groups: topics in which a group has settled are
        checked."""
        if self._acked:
            for group in self._group_rows.written:
                self.retention.due.update(dict.fromkeys(self._waiting_for(group)))
        ready = self._wanted > 0 and not self._trimming
        self._grants.append(self._wanted if ready else 0)
        if ready:
            self._wanted = 0
        if not self._dirty and not self.retention.moved:
            return []
        waiting, dirty = self.retention.waiting_from, self._dirty | self.retention.moved
        self._dirty, self.retention.moved = {}, {}
        return [topic.record(waiting) for topic in dirty]

    def committed(self) -> None:
        """The oldest sealed turn is on disk."""
        grant = self._grants.popleft()
        if grant and self.trim_limit != UNHELD:
            self.trim_limit = max(self.trim_limit, grant)
        if self.retention.later:
            self.retention.committed()

    # Retention of the journal.

    def request_trim(self, seq: int) -> None:
        """Retention of the journal asks to remove all messages below seq: raise the floors; `trim_limit` follows when
        they
        are on disk."""
        if seq <= max(self.trim_limit if self.trim_limit != UNHELD else 0, self._wanted):
            return
        self._wanted = seq
        for name in self.tracked:
            topic = self._topics[name]
            topic.trim_target = seq
            if self._holds_back(topic):
                self._trimming[topic] = None
                self.retention.due[topic] = None

    def _holds_back(self, topic: Topic) -> bool:
        return topic.floor < topic.trim_target and (topic.msgs > 0 or topic.counting is not None) and not topic.deleted

    def trimmed(self, first_seq: int) -> None:
        """Retention of the journal has removed all messages below first_seq. A topic whose floor was lower is counted
        anew."""
        for topic in self._topics.values():
            is_counted = topic.msgs > 0 or topic.counting is not None
            if is_counted and not topic.deleted and max(topic.floor, topic.trim_target) < first_seq:
                topic.floor = first_seq
                topic.recount(self._shared.next_seq)
                self.retention.due[topic] = None
        self.begins_at(first_seq)

    def begins_at(self, first_seq: int) -> None:
        """The journal begins at first_seq. Messages below it were removed before, so no count changes."""
        for topic in self._topics.values():
            topic.floor, topic.cleared = max(topic.floor, first_seq), max(topic.cleared, first_seq)

    # ADMIN and INFO.

    def create(self, name: str, fields: Fields, base: TopicSettings = DEFAULTS) -> Answer:
        """Give settings to a topic. If it has the same settings, this succeeds."""
        existing = self._topics.get(name)
        if existing is not None and not existing.deleted:
            asked = asked_settings(name, fields, existing.settings._replace(queue=base.queue))
            require_same(f"topic {name!r}", existing.settings, asked)
            return {**self.describe(existing), "created": False}
        asked = asked_settings(name, fields, base)
        self.require_place()
        floor = max(self._start, self._shared.removed.get(name, 0))
        self._shared.change.begin()
        topic = existing or Topic(name, asked, floor, self._shared.first_seq)
        topic.settings, topic.floor, topic.deleted, topic.kept = asked, max(topic.floor, floor), False, 0
        topic.recount(self._shared.next_seq)
        self._enter(topic)
        self.retention.moved[topic] = None
        return {**self.describe(topic), "created": True}

    @property
    def _start(self) -> int:
        """The floor of a topic that gets its settings now."""
        return max(self._shared.first_seq, self.trim_limit if self.trim_limit != UNHELD else 0, self._wanted)

    def require_place(self) -> None:
        if len(self._topics) >= TOPICS_MAX:
            raise ProtocolError(
                Code.BUSY, f"a hub has at most {TOPICS_MAX} topics with settings: delete one first", retry_ms=1000
            )

    def update(self, name: str, fields: Fields) -> Answer:
        topic = self.find(name)
        changes = set(fields) - {"topic"}
        if not changes:
            raise ProtocolError(Code.BAD_OPTION, f"topic.update names no setting to change: {', '.join(SETTINGS)}")
        asked, before = asked_settings(name, fields, topic.settings), topic.settings
        if before.queue and asked.keep != before.keep:
            raise ProtocolError(Code.CONFLICT, f"topic {name!r} is a queue, so keep is until_acked, not {asked.keep}")
        self._shared.change.begin()
        topic.settings = asked
        if asked.keep != before.keep and "last_per_key" in (asked.keep, before.keep):
            topic.overflowed = False
            topic.recount(self._shared.next_seq)
        self._sort(topic)
        self.retention.due[topic] = self.retention.moved[topic] = None
        return self.describe(topic)

    def delete(self, name: str, turn: Turn, *, queue: bool = False) -> Answer:
        """Remove the settings and the messages of a topic. The floor stays while blocks below it are on disk."""
        topic = self._topics.get(name)
        if topic is None or topic.deleted:
            require_messages(name, self._shared)
            self.purge(name, turn)
            return {"topic": name, "deleted": True}
        if topic.settings.queue and not queue:
            raise ProtocolError(Code.CONFLICT, f"topic {name!r} is a queue: delete it with queue.delete")
        self._shared.change.begin()
        removed = topic.msgs
        self.retention.remove_below(topic, self._shared.next_seq, turn)
        topic.deleted, topic.settings, topic.counting, topic.latest = True, DEFAULTS, None, None
        topic.check_at = NEVER
        self.tracked.discard(name)
        self._trimming.pop(topic, None)
        self._sort(topic)
        if not self.tracked:
            self.trim_limit = UNHELD
        return {"topic": name, "deleted": True, "removed": removed}

    def purge(self, name: str, turn: Turn, below: int = UNHELD) -> Answer:
        """Remove the messages of a topic below a seq, or all of them, whether it has settings or not."""
        shared, topic = self._shared, self._topics.get(name)
        below = min(below, shared.next_seq)
        floor = max(shared.first_seq, shared.removed.get(name, 0), topic.floor if topic is not None else 0)
        if below <= floor:
            shared.change.begin()
            return {"topic": name, "purged": True, "floor": floor, "removed": 0}
        if topic is None:
            self.require_place()
        shared.change.begin()
        if topic is None:
            topic = Topic(name, DEFAULTS, below, shared.first_seq)
            topic.deleted = True
            self._enter(topic)
        removed = self.retention.remove_below(topic, below, turn)
        answer: Answer = {"topic": name, "purged": True, "floor": topic.floor}
        return answer if removed is None else {**answer, "removed": removed}

    def _forget(self, topic: Topic) -> None:
        """Forget a deleted topic without a block on disk. Its floor stays while blocks in memory may have its
        messages."""
        for topics in (self._dirty, self.retention.moved, self.retention.due, self.retention.later):
            topics.pop(topic, None)
        del self._topics[topic.name]
        self._forgotten[topic.name] = topic.floor

    def get(self, name: str) -> Topic | None:
        """A topic with settings."""
        return self._topics[name] if name in self.tracked else None

    def find(self, name: str) -> Topic:
        topic = self.get(name)
        if topic is None:
            raise ProtocolError(Code.NOT_FOUND, f"topic {name!r} has no settings: create it first")
        return topic

    def with_settings(self) -> Mapping[str, Topic]:
        """The topics with settings, by name."""
        if len(self._topics) == len(self.tracked):
            return self._topics
        return {name: topic for name, topic in self._topics.items() if not topic.deleted}

    def describe(self, topic: Topic) -> Answer:
        return {
            "topic": topic.name,
            "settings": as_map(topic.settings),
            "msgs": topic.msgs,
            "bytes": topic.size,
            "floor": topic.floor,
            "counting": topic.counting is not None,
            "overflowed": topic.overflowed,
        }

    def info(self, fields: Fields, principal: Principal) -> Answer:
        """INFO of one topic, or of all topics that a principal may see."""
        listing = Listing(self, self._shared, principal)
        return listing.topic(fields) if fields.get("what") == "topic" else listing.topics(fields)
