"""Listing: INFO of one topic, or of all topics with settings or messages.

The counts of a topic with settings are those of the table, which are exact; those of other topics are tallies.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.principal import Principal
from fabric.router.paging import page
from fabric.router.topics.settings import any_topic_name, as_map
from fabric.router.topics.topic import Topic, places_of
from fabric_protocol.block import Block

if TYPE_CHECKING:
    from fabric.router.shared import Shared
    from fabric.router.topics.table import TopicTable
    from fabric.router.topics.walk import Tally

NAMES_MAX: Final = 1_000  # names of topics without settings in one INFO
FIRSTS_MAX: Final = 32  # searches for the first message of a topic in one INFO, a millisecond or two each
_BEHIND_A_DOT: Final = "/"  # in the order of characters
NOTHING: Final = {"first_seq": 0, "last_seq": 0, "first_us": 0, "last_us": 0}

Fields = Mapping[str, Any]
Row = dict[str, Any]


class Listing:
    """One answer to INFO."""

    def __init__(self, table: "TopicTable", shared: "Shared", principal: Principal) -> None:
        self._principal = principal
        self._table = table
        self._shared = shared
        self._tallies = table.tallies
        self._walk = table.tallies.ask()
        self._firsts = FIRSTS_MAX

    def topic(self, fields: Fields) -> Row:
        name, sees = any_topic_name(fields), self._principal.sees_group
        if not self._principal.sees_topic(name):
            self._principal.require_subscribe([name], "see the topic {!r:.120}")
        groups = [group.name for group in self._table.retention.owners(name) if sees(group.name)]
        return {**self._row(name), "groups": groups}

    def topics(self, fields: Fields) -> Row:
        after, table, sees = fields.get("after") or "", self._table, self._principal.sees_topic
        names = self._walk.sorted_names()
        others = _beginning_with(self._principal.first_words(), names, bisect_right(names, str(after)))
        untracked = (name for name in others if name not in table.tracked and sees(name))
        stored = (name for name in untracked if self._tallies.find(name) is not None)
        configured = sorted(name for name in table.tracked if name > str(after) and sees(name))
        answer = page("topics", fields, merge(configured, stored), self._row)
        answer |= {"counting": self._tallies.is_counting, "overflowed": self._walk.overflowed}
        if not after:
            latest, complete = self._shared.reader.topic_names(NAMES_MAX)
            answer |= {
                "others": [name for name in latest if name not in table.tracked and sees(name)],
                "complete": complete,
            }
        return answer

    def _row(self, name: str) -> Row:
        topic, tally = self._table.get(name), self._tallies.find(name)
        if topic is not None:
            return {**self._table.describe(topic), **self._ends(topic, tally), "configured": True}
        return {
            "topic": name,
            "settings": as_map(self._table.settings_of(name)),
            "msgs": tally.msgs if tally is not None else 0,
            "bytes": tally.bytes if tally is not None else 0,
            "floor": max(self._shared.first_seq, self._shared.removed.get(name, 0)),
            "counting": self._tallies.is_counting or (tally is not None and tally.is_stale),
            "overflowed": False,
            **(_ends_of(tally) if tally is not None else NOTHING),
            "configured": False,
        }

    def _ends(self, topic: Topic, tally: "Tally | None") -> Row:
        """The first and the last message of a topic with settings, as far as they are on disk."""
        if tally is None or tally.last_seq < topic.floor or not topic.msgs:
            return NOTHING
        if tally.first_seq < topic.floor and self._firsts:
            self._firsts -= 1
            self._find_first(topic, tally)
        if tally.first_seq < topic.floor:  # not found yet: it is not below the floor
            return {**_ends_of(tally), "first_seq": topic.floor, "first_us": 0}
        return _ends_of(tally)

    def _find_first(self, topic: Topic, tally: "Tally") -> None:
        block, _, _ = self._shared.block_store.find(topic.floor, self._shared.committed_seq, topic.wanted)
        if isinstance(block, Block) and (places := places_of(block, topic.name, max(topic.floor - block.base_seq, 0))):
            tally.first_seq, tally.first_us = block.base_seq + places[0], block.ts_us


def _beginning_with(words: Collection[str] | None, names: list[str], start: int) -> Iterator[str]:
    """The names from a place on, of sorted ones, that may have one of these first words; None: all."""
    spans = [(start, len(names))]
    if words is not None:
        spans = sorted((bisect_left(names, word), bisect_left(names, word + _BEHIND_A_DOT)) for word in words)
    for first, end in spans:
        for at in range(max(first, start), end):
            yield names[at]
        start = max(start, end)


def _ends_of(tally: "Tally") -> Row:
    return {
        "first_seq": tally.first_seq,
        "last_seq": tally.last_seq,
        "first_us": tally.first_us,
        "last_us": tally.last_us,
    }
