"""The observer's knowledge of topics that keep only some of their messages."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from fabric.records import TopicSettings
from tests.simulation.blocks import IDENTS
from tests.simulation.facts import Counts, Facts
from tests.simulation.ledgers import GroupBook

DEFAULTS = TopicSettings()
SETTLE_US = 1_500_000  # after so long, what all groups have settled is removed


class Limits(Facts):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]]) -> None:
        super().__init__(counts)
        self.settings = dict(settings)
        self.until_acked = frozenset(name for name, one in self.settings.items() if one.keep == "until_acked")
        self._seqs: dict[str, list[int]] = {name: [] for name in self.settings}  # of each topic that has settings
        self._stamps: list[int] = []  # by seq - 1
        self._latest: dict[tuple[str, bytes], int] = {}  # the last seq of a key
        self._coming: Counter[str] = Counter()  # messages taken and not sealed, by topic,
        self._successors: set[tuple[str, bytes]] = set()  # and their keys
        self._changed_us = 0  # when something was settled last, or a group changed
        self._released: set[int] = set()  # what all groups had settled when one of them was deleted

    def settings_of(self, topic: str) -> TopicSettings:
        return self.settings.get(topic, DEFAULTS)

    def coming(self, idents: Iterable[int]) -> None:
        """Messages were taken."""
        for ident in idents:
            topic, key = IDENTS[ident][:2]
            if topic in self.settings:
                self._coming[topic] += 1
                self._successors.add((topic, key))

    def stored(self, first: int, ts_us: int) -> None:
        """The log has grown from a seq on."""
        for seq in range(first, len(self.log) + 1):
            self._stamps.append(ts_us)
            topic = self.topics[seq - 1]
            if topic in self.settings:
                settings, key = self.settings[topic], IDENTS[self.log[seq - 1]].key
                self.counts[f"stored {settings.keep}"] += 1
                self.counts["stored with a limit"] += bool(settings.max_msgs or settings.max_age_ms)
                if settings.keep == "last_per_key":
                    self.counts["superseded"] += bool(key and (topic, key) in self._latest)
                self._seqs[topic].append(seq)
                self._latest[topic, key] = seq

    def all_stored(self) -> None:
        """What was taken in a turn is in the log, or lost."""
        self._coming.clear()
        self._successors.clear()

    def cut_limits(self, length: int) -> None:
        """What a crash has taken is not in the log any more."""
        self._released = {seq for seq in self._released if seq <= length}
        del self._stamps[length:]
        for seqs in self._seqs.values():
            del seqs[bisect_left(seqs, length + 1) :]
        self._latest = {}
        for topic, seqs in self._seqs.items():
            for seq in seqs:
                self._latest[topic, IDENTS[self.log[seq - 1]].key] = seq

    def may_be_dropped(self, seq: int) -> bool:
        return super().may_be_dropped(seq) or (bool(self.settings) and self.may_be_removed(seq))

    def may_be_removed(self, seq: int) -> bool:
        """Whether the limits of its topic allow that a message is removed."""
        topic = self.topics[seq - 1]
        settings = self.settings.get(topic)
        if settings is None:
            return False
        if settings.max_age_ms and self._stamps[seq - 1] + settings.max_age_ms * 1000 <= self.wall_max_us:
            return True
        if settings.keep == "last_per_key" and self._is_superseded(topic, seq):
            return True
        if settings.max_msgs and settings.on_full == "drop_old":
            seqs = self._seqs[topic]
            later = len(seqs) - bisect_left(seqs, seq) + self._coming[topic]
            return later > settings.max_msgs or later + len(self._fired(topic)) > settings.max_msgs
        return False

    def _is_superseded(self, topic: str, seq: int) -> bool:
        key = IDENTS[self.log[seq - 1]].key
        if not key or (topic, key) in self._successors or self._latest[topic, key] > seq:
            return bool(key)
        return key in self._fired(topic)

    def _fired(self, topic: str) -> list[bytes]:
        """The keys of what schedules may have published to a topic in this turn; only the seal will tell."""
        keys: list[bytes] = []
        for one in self.schedules:
            if one.due_us <= self.turn_wall_us:
                rounds = 1 + ((self.turn_wall_us - one.due_us) // (one.every_ms * 1000) if one.every_ms else 0)
                keys += [IDENTS[ident].key for ident in one.idents if IDENTS[ident].topic == topic] * rounds
        return keys

    def changed(self) -> None:
        """Something was settled, or a group has begun, was moved or is gone."""
        self._changed_us = self.wall_us

    def deleted(self, group: GroupBook) -> None:
        """A group is about to be gone: what it has settled may have been removed before."""
        for topic in self.until_acked & group.wanted:
            owners = self._owners(topic)
            self._released.update(
                seq for seq in self._seqs[topic] if all(self._is_done(owner, seq) for owner in owners)
            )

    def _owners(self, topic: str) -> list[GroupBook]:
        return [group for group in self.groups.values() if group.durable and topic in group.wanted]

    # Topics that are full.

    def is_refusing(self, idents: Iterable[int]) -> bool:
        """Whether one of the topics may be full."""
        if not self.settings:
            return False
        topics = {IDENTS[ident].topic for ident in idents}
        return any(self.settings_of(topic).on_full == "refuse" and self.settings_of(topic).max_msgs for topic in topics)

    def check_full(self, topic: str, idents: Iterable[int]) -> None:
        """A publish was refused because of a topic: there must be too much in it, or have been a moment ago."""
        self.counts["full"] += 1
        limit = self.settings[topic].max_msgs
        more = sum(IDENTS[ident].topic == topic for ident in idents)
        if self.wall_us - self._changed_us > SETTLE_US:
            present = self._present(topic)
            assert present + more > limit, f"J7: {topic} is full with {present} of {limit} messages; {more} more fit"

    def check_room(self, idents: Iterable[int]) -> None:
        """A publish was taken: there must be room in its topics."""
        for topic, more in Counter(IDENTS[ident].topic for ident in idents).items():
            settings = self.settings_of(topic)
            if settings.on_full == "refuse" and settings.max_msgs:
                needed = self._needed(topic)
                assert needed + more <= settings.max_msgs, f"J7: {topic} has {needed} messages, and {more} more"

    def _needed(self, topic: str) -> int:
        """How many messages a topic must have at least."""
        seqs = [seq for seq in self._seqs[topic] if seq >= self.first_seq and seq not in self._released]
        if topic in self.until_acked and (owners := self._owners(topic)):
            seqs = [seq for seq in seqs if not all(self._is_done(group, seq) for group in owners)]
        return len(seqs) + self._coming[topic]

    def _present(self, topic: str) -> int:
        """How many messages a topic can have at most: what no group has settled holds what comes after it."""
        owners = self._owners(topic)
        first = self.first_seq
        if topic in self.until_acked and owners:
            first = min(self._first_open(group) for group in owners)
        return sum(seq >= first for seq in self._seqs[topic]) + self._coming[topic] + len(self._fired(topic))

    def _first_open(self, group: GroupBook) -> int:
        """The first message that a group has not settled for sure."""
        seqs = range(max(group.start, group.floor + 1), len(self.log) + 1)
        open_seqs = (seq for seq in seqs if self.topics[seq - 1] in group.wanted and seq not in group.settled)
        return next(open_seqs, len(self.log) + 1)

    def _is_done(self, group: GroupBook, seq: int) -> bool:
        return is_over(group, seq) or self.is_optional(group, seq)


def is_over(group: GroupBook, seq: int) -> bool:
    """Whether a group is done with a message that it wants."""
    return seq in group.settled or seq < group.start
