"""Recount: counts how many messages wait in each group that has lost its count. One pass over the journal serves all.

A group waits for a count after a seek, a change of its patterns, or a crash. One pass reads what blocks have, from the
lowest position of these groups on; a tick reads a few hundred blocks, and a pass over blocks of many topics pauses, so
a count does not delay the hub. Groups that begin to wait meanwhile are counted by the next pass.
"""

from typing import TYPE_CHECKING, Final

from fabric.router.groups.backlog import Count, waiting_in
from fabric.router.groups.lanes import wanted_runs
from fabric.router.part import Part
from fabric.router.ranges import Ranges
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric_protocol.block import Block
from fabric_protocol.block_contents import Contents

if TYPE_CHECKING:
    from fabric.router.groups.group import Group
    from fabric.router.groups.rows import GroupRows
    from fabric.router.turn import Turn

READS_PER_TICK: Final = 2  # calls of the reader, about a millisecond each
# Groups that retention of the journal overtakes are counted again this often at most, and then for a small share of
# the time: a pass over a long journal takes seconds.
DOUBT_S: Final = 60.0
DOUBT_SHARE: Final = 50  # a pass of one second is followed by so many seconds without a pass
SORTED_PER_TICK: Final = 64  # restored redeliveries whose blocks are read, about a millisecond
TAKERS_MAX: Final = 65_536  # topics of one pass with remembered groups


class Recounts(Part):
    def __init__(self, shared: Shared, rows: "GroupRows") -> None:
        self._shared = shared
        self._rows = rows
        self._waiting: dict[Group, None] = {}  # a count must begin soon
        self._doubtful: dict[Group, None] = {}  # a count may begin at `_doubt_at`
        self._doubt_at = 0.0
        self._unsampled: set[Group] = set()  # groups that have changed since the last sweep
        self._unsorted: dict[Group, None] = {}  # with restored redeliveries
        self._pass: Count | None = None
        self._groups: dict[Group, None] = {}  # of the pass
        self._began = 0.0
        self._takers: dict[str, list[Group]] = {}  # topic -> groups of the pass that match

    def wait(self, group: "Group", *, start: int | None = None) -> None:
        """A group waits for a count: of all messages at or beyond its position, or of blocks from `start` on."""
        self.drop(group)
        stop = group.horizon + 1
        group.backlog.wait(start, stop)
        if (group.position() if start is None else start) < stop:
            self._waiting[group] = None
        else:
            group.backlog.count = None
            group.backlog.is_doubtful = False

    def restore(self, group: "Group", ahead: tuple[int, int] | None) -> None:
        """A group was restored from its row: only blocks after its row must be counted."""
        if ahead is None:
            self.wait(group)
        else:
            group.backlog.ahead, counted_to = ahead
            self.wait(group, start=counted_to + 1)
        if group.unsorted:
            self._unsorted[group] = None

    def restored(self, *, was_clean: bool) -> None:
        """All groups were restored. After a crash, a floor on disk may be newer than the row of a group."""
        shared = self._shared
        for topic, floor in shared.removed.items() if not was_clean else ():
            for group in shared.trie.match(topic):
                if group.position() < floor:
                    self.wait(group)
        for topic in shared.keyed:
            for group in shared.trie.match(topic):
                group.backlog.has_keys = True

    def _sort(self, group: "Group") -> None:
        """Settle seqs of restored redeliveries that do not match: a row has them between messages of one delivery."""
        others = Ranges()
        for first, last in list(group.unsorted)[:SORTED_PER_TICK]:
            block = self._shared.block_store.at(first)
            end = min(last, block.last_seq) if isinstance(block, Block) else last
            group.unsorted.remove(first, end)
            if isinstance(block, Block):
                rest = Ranges([(first, end)])
                for a, b in wanted_runs(group, block, first, end):
                    rest.remove(block.base_seq + a, block.base_seq + b - 1)
                for a, b in rest:
                    others.add(a, b)
                    group.close(a, b)
        if others:
            group.pending.drop(others)
            self._shared.changed.add(group)

    def take_changed(self) -> "set[Group]":
        """The groups whose numbers have changed since the last call."""
        changed = self._shared.changed
        self._unsampled |= changed
        self._shared.changed = set()
        return changed

    def sweep(self, now: float) -> None:
        """Take samples of the groups whose numbers have changed."""
        self.take_changed()
        for group in self._unsampled:
            if not group.backlog.is_exact and all(lane.live for lane in group.lanes):
                self.empty(group)
            group.rate.note(now, group.backlog.ready(group.position()))
        self._unsampled.clear()

    def doubt(self, group: "Group") -> None:
        """Messages of a group were removed, and their number is not known."""
        group.backlog.is_doubtful = True
        if group in self._waiting:
            group.backlog.anew = True
        else:
            self._doubtful[group] = None

    def empty(self, group: "Group") -> None:
        """No message is ahead of the lanes of a group: there is nothing to count."""
        self.drop(group)
        backlog = group.backlog
        backlog.ahead, backlog.count, backlog.is_doubtful, backlog.has_keys = 0, None, False, False

    def drop(self, group: "Group") -> None:
        """Forget a group that was deleted, or that waits for another count."""
        self._waiting.pop(group, None)
        self._doubtful.pop(group, None)
        if group in self._groups:
            del self._groups[group]
            self._takers.clear()

    def next_deadline(self) -> float:
        if self._unsorted:
            return 0.0
        if self._pass is not None:
            is_blocked = self._pass.at > self._shared.committed_seq  # the next commit goes on
            return NEVER if is_blocked else self._shared.pace.due
        if self._waiting:
            return self._shared.pace.due
        return self._doubt_at if self._doubtful else NEVER

    def tick(self, now: float, turn: "Turn") -> None:
        if self._unsorted:
            group = next(iter(self._unsorted))
            self._sort(group)
            if not group.unsorted:
                del self._unsorted[group]
                self._shared.changed.add(group)
        if not self._shared.pace.begin(now):
            return
        if self._pass is None:
            if self._doubtful and now >= self._doubt_at:
                for group in list(self._doubtful):
                    self.wait(group)
            if not self._waiting:
                return
            self._begin(now)
        for _ in range(READS_PER_TICK):
            if not self._step(now):
                return

    def _begin(self, now: float) -> None:
        """Begin a pass for all groups that wait."""
        self._groups, self._waiting, self._takers, self._began = self._waiting, {}, {}, now
        for group in self._groups:
            backlog = group.backlog
            backlog.is_doubtful = False
            if backlog.anew:
                backlog.wait(None, group.horizon + 1)
        first = min(group.backlog.start or group.position() for group in self._groups)
        block = self._shared.block_store.at(first)  # it is not counted yet, also if the pass begins in its middle
        self._pass = Count(min(block.base_seq, first) if isinstance(block, Block) else first)
        for group in self._groups:
            group.backlog.count = self._pass
        self._shared.changed.update(self._groups)

    def _step(self, now: float) -> bool:
        """Read some blocks; False when there is nothing to read for now, or the pass pauses."""
        count, committed, goes_on = self._pass, self._shared.committed_seq, True
        assert count is not None
        if count.at <= committed:
            found, cursor = self._shared.block_store.contents(count.at, committed)
            for contents in found:
                self._add(contents)
            count.at, goes_on = cursor, self._shared.pace.goes_on(found, now)
            self._shared.changed.update(self._groups)
        if count.at >= max((group.backlog.stop for group in self._groups), default=0):
            self._end(now)
            return False
        return goes_on and count.at <= committed

    def _end(self, now: float) -> None:
        for group in self._groups:
            group.backlog.count = None
            group.dirty = group.durable  # with the count in its row, only later blocks are counted after a crash
            self._rows.note(group)
        self._shared.changed.update(self._groups)
        self._groups, self._pass, self._takers = {}, None, {}
        self._doubt_at = now + max(DOUBT_S, DOUBT_SHARE * (now - self._began))

    def _add(self, contents: Contents) -> None:
        """Count a block for all groups of the pass that match."""
        base, last, shared = contents.base_seq, contents.last_seq, self._shared
        removed = shared.removed
        has_removed = bool(removed) and any(removed.get(counted.topic, 0) > base for counted in contents.topics)
        parts: dict[Group, int] = {}  # groups for which a part of the block counts, and where it begins
        for topic, messages, *_ in contents.topics:
            takers = self._takers.get(topic)
            for group in self._takers_of(topic) if takers is None else takers:
                backlog = group.backlog
                reached = group.reached(contents.priority)
                if reached > last or not backlog.start <= base < backlog.stop:
                    continue
                backlog.has_keys |= topic in shared.keyed
                if reached > base or has_removed:
                    parts[group] = reached
                else:
                    backlog.ahead += messages
        block = shared.block_store.at(last) if parts else None
        if isinstance(block, Block):
            for group, reached in parts.items():
                group.backlog.ahead += waiting_in(group, block, reached, last)

    def _takers_of(self, topic: str) -> "list[Group]":
        if len(self._takers) >= TAKERS_MAX:
            self._takers.clear()
        takers = self._takers[topic] = [group for group in self._shared.trie.match(topic) if group in self._groups]
        return takers
