"""Lanes: one cursor into the journal for each priority that is in use.

A group reads the journal once for each priority, and delivers from the lane of the highest priority that has a
message. Most hubs use one priority, and their groups have one lane, the base lane. The base lane delivers messages of
all priorities that have no lane.

A lane moves past messages that do not match also when no consumer has credit (`advance`). So the position of a group,
and what depends on it (settled messages, retention), depends on messages alone.
"""

from itertools import chain, compress
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric.router.block_store import SCAN_BLOCKS_MAX
from fabric.router.groups.backlog import pass_by
from fabric.router.groups.handed_out import HandedOut
from fabric.router.groups.lease import DeadLetter, Redelivery
from fabric.router.shared import Shared
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.messages import Happening
from fabric_protocol.runs import runs_of

if TYPE_CHECKING:
    from fabric.router.groups.group import Group

# After so many messages of higher priorities in a row, one message of the lowest waiting priority is delivered.
STREAK_MAX: Final = 64
REMOVED: Final = "removed by retention"

Runs = list[tuple[int, int]]


class Lane:
    __slots__ = ("cursor", "expires_us", "handed", "live", "priority", "waits")

    def __init__(self, priority: int, cursor: int, handed: HandedOut) -> None:
        self.priority = priority
        self.cursor = cursor  # the lane has looked at all seqs below
        self.handed = handed
        self.live = False  # no message from the cursor to the horizon matches
        self.waits = False  # the message at the cursor matches, and waits for credit
        self.expires_us = 0  # while `waits`: when the message at the cursor expires; 0: never

    def move(self, cursor: int, waits: Block | None = None) -> None:
        """Set the cursor. The lane searches its next message from there, unless `waits` is the block that has it."""
        self.cursor, self.live, self.waits = cursor, False, waits is not None
        self.expires_us = waits.expires_us if waits is not None else 0

    def expire(self, wall_us: int) -> bool:
        """True if the message at the cursor has expired; the lane then searches its next message."""
        if not (self.waits and 0 < self.expires_us <= wall_us):
            return False
        self.waits = False
        return True

    def position(self, horizon: int) -> int:
        """The first seq that the lane has not looked at. A live lane has looked at all seqs up to the horizon."""
        return max(self.cursor, horizon + 1) if self.live else self.cursor


class Work(NamedTuple):
    """Messages to deliver next: runs of places (start..stop-1) in one block."""

    block: Block
    runs: Runs
    attempt: int
    failures: int
    lane: Lane | None  # the lane of new messages, or
    redelivery: Redelivery | None  # the redelivery of earlier messages
    rest: int | None = None  # the lane searches on from this place of the block; None: the block has no more messages


def next_work(group: "Group", horizon: int, wall_us: int, turn: Turn) -> tuple[Work | None, bool]:
    """The next work of a group, and whether a search for it goes on if there is none yet."""
    pending = group.pending
    if len(group.lanes) == 1:
        while pending.ready:
            redelivery = pending.take(pending.ready[0].rank)
            work = redelivery and redelivery_work(group, redelivery, wall_us, turn)
            if work or group.ordered:  # a suspect may be next if this redelivery is gone
                return work, work is None
        return _new_work(group, group.base, horizon, wall_us, turn) if group.has_room_for_new else (None, False)
    starving = group.streak >= STREAK_MAX
    for lane in reversed(group.lanes) if starving else group.lanes:
        rank = -lane.priority
        while pending.ready and (starving or pending.ready[0].rank == rank) and (redelivery := pending.take(rank)):
            if (work := redelivery_work(group, redelivery, wall_us, turn)) is not None:
                return work, False
        if not lane.live and group.has_room_for_new:
            work, searching = _new_work(group, lane, horizon, wall_us, turn)
            if work is not None or searching or lane.handed.is_held:
                return work, searching
    return None, False


def _new_work(group: "Group", lane: Lane, horizon: int, wall_us: int, turn: Turn) -> tuple[Work | None, bool]:
    """The next work of a lane up to its mark. Above the mark, the lane waits for a commit."""
    work, searching = search(group, lane, horizon, wall_us, turn)
    if work is None:
        return None, searching
    block, runs, handed = work.block, work.runs, lane.handed
    if lane.cursor > handed.limit and not handed.allows(lane.cursor):
        group.shared.block_store.keep(lane.cursor, block)
        group.dirty = True
        return None, False
    last_seq = handed.before if lane.cursor <= handed.before else handed.limit
    if block.base_seq + runs[-1][1] - 1 <= last_seq:
        return work, False
    end = last_seq - block.base_seq + 1
    later = next(max(a, end) for a, b in runs if b > end)
    return work._replace(runs=[(a, min(b, end)) for a, b in runs if a < end], rest=later), False


def advance(group: "Group", wall_us: int, turn: Turn) -> bool:
    """Move all lanes to their next message, as far as one search allows; True if a search goes on."""
    searching, horizon = False, group.horizon
    group.shared.changed.add(group)
    for lane in group.lanes:
        if not (lane.live or lane.waits):
            work, more = search(group, lane, horizon, wall_us, turn)
            searching |= more
            if work is not None:
                group.shared.block_store.keep(lane.cursor, work.block)
    return searching


def search(group: "Group", lane: Lane, horizon: int, wall_us: int, turn: Turn) -> tuple[Work | None, bool]:
    """The next work of a lane, and whether the search goes on if there is none yet."""
    lane.waits = False
    block_store = group.shared.block_store
    for _ in range(SCAN_BLOCKS_MAX):
        if lane.cursor > horizon:
            break
        block, cursor, more = block_store.find(lane.cursor, horizon, group.wants)
        is_next = isinstance(block, Block) and block.base_seq <= lane.cursor
        if not is_next and block_store.awaits_news(lane.cursor):  # seqs before the block may be a gap
            return None, False
        lane.cursor = max(lane.cursor, cursor)
        if block is None:
            lane.live = lane.cursor > horizon
            return None, more
        if not isinstance(block, Block):
            group.shared.recounts.doubt(group)
            if lane is group.base:
                group.lost(max(block.first_seq, lane.cursor), block.last_seq, block.why, turn)
            lane.cursor = block.last_seq + 1
            continue
        if block.base_seq > horizon:
            break
        if len(group.lanes) == 1 or group.takes(lane, block.priority):
            runs, rest = deliverable_runs(group, block, lane.cursor, block.last_seq, wall_us, turn)
            place = runs[0][0] if runs else block.count if rest is None else rest
            if block.expires_us or group.shared.superseded is not None:  # other messages that it passes do not count
                pass_by(group, block, lane.cursor, block.base_seq + place - 1)
            if runs:
                lane.cursor, lane.waits, lane.expires_us = block.base_seq + place, True, block.expires_us
                return Work(block, runs, 1 if lane.cursor > lane.handed.before else 2, 0, lane, None, rest), False
            if rest is not None:
                lane.cursor = block.base_seq + rest
                continue
        lane.cursor = block.last_seq + 1
    else:
        return None, True
    lane.live = True
    return None, False


def redelivery_work(group: "Group", redelivery: Redelivery, wall_us: int, turn: Turn) -> Work | None:
    """The work of a redelivery; None if none of its messages can be delivered."""
    rank, first, last, attempt, failures = redelivery
    block = group.shared.block_store.at(first)
    if not isinstance(block, Block):
        end = min(last, _end_of_gap(group.shared, first, last) if block is None else block.last_seq)
        if not group.leases or group.open.holds(first):  # otherwise the gap was reported before
            group.lost(first, end, REMOVED if block is None else block.why, turn)
        group.close(first, end)
        if end < last:
            group.pending.put(redelivery._replace(first=end + 1))
        return None
    if last > block.last_seq:
        group.pending.put(redelivery._replace(first=block.last_seq + 1))
        last = block.last_seq
    if len(group.lanes) > 1 and rank != -block.priority:  # a restored redelivery has the rank of the default priority
        group.pending.put(Redelivery(-block.priority, first, last, attempt, failures))
        return None
    runs, rest = deliverable_runs(group, block, first, last, wall_us, turn)
    if rest is not None:
        group.pending.put(redelivery._replace(first=block.base_seq + rest, last=last))
        last = block.base_seq + rest - 1
    if not runs:  # a restored range may have messages that do not match
        group.close(first, last)
        return None
    start, end = block.base_seq + runs[0][0], block.base_seq + runs[-1][1] - 1
    group.close(first, start - 1)  # the seqs at both ends do not match either
    group.close(end + 1, last)
    return Work(block, runs, attempt, failures, None, redelivery._replace(first=start, last=end))


def deliverable_runs(
    group: "Group", block: Block, first: int, last: int, wall_us: int, turn: Turn
) -> tuple[Runs, int | None]:
    """Places in the block, within seqs first..last, of messages that match and can be delivered. They end before a gap
    that follows them; the second value is its place. The group reports this gap when it comes to it, so only once."""
    runs = wanted_runs(group, block, first, last)
    if not runs:
        return runs, None
    if block.expires_us and block.expires_us <= wall_us:
        expire(group, [(block.base_seq + a, block.base_seq + b - 1) for a, b in runs], turn)
        return [], None
    shared = group.shared
    if not shared.removed and shared.superseded is None:
        return runs, None
    rest: int | None = None
    if shared.removed and not shared.removed.keys().isdisjoint(block.topics):
        runs, rest = _without_removed(group, block, runs, turn)
    if shared.superseded is not None and not shared.keyed.isdisjoint(block.topics):
        superseded = shared.superseded
        runs = _kept(runs, [not superseded(block, place) for a, b in runs for place in range(a, b)])
    return runs, rest


def wanted_runs(group: "Group", block: Block, first: int, last: int) -> Runs:
    """Places in the block, within seqs first..last, of messages that match the patterns of the group."""
    start, stop = max(first - block.base_seq, 0), min(last - block.base_seq + 1, block.count)
    assert start < stop
    takers = group.shared.trie.match_all(block.topics)
    if all(group in owners for owners in takers):
        return [(start, stop)]
    if not any(group in owners for owners in takers):
        return []
    wanted = [group.wants(topic) for topic in block.topics]
    return _kept([(start, stop)], [wanted[topic] for topic in block.topic_idx()[start:stop]])


def _kept(runs: Runs, keep: list[bool]) -> Runs:
    """The runs of the places to keep; `keep` has one value for each place of the runs."""
    if all(keep):
        return runs
    places = chain.from_iterable(range(a, b) for a, b in runs)
    return runs_of(compress(places, keep))


def _without_removed(group: "Group", block: Block, runs: Runs, turn: Turn) -> tuple[Runs, int | None]:
    """The runs without messages that retention of their topic has removed, up to the first removed message after a kept
    message, and the place of this removed message. Removed messages before the kept messages are reported as gaps."""
    removed, base = group.shared.removed, block.base_seq
    floors = [removed.get(topic, 0) for topic in block.topics]
    if max(floors) <= base + runs[0][0]:
        return runs, None
    topics = block.topic_idx()
    keep = [base + place >= floors[topics[place]] for a, b in runs for place in range(a, b)]
    if all(keep):
        return runs, None
    kept = _kept(runs, keep)
    first = kept[0][0] if kept else block.count
    for a, b in _kept(runs, [not wanted for wanted in keep]):
        if a > first:
            return [(start, min(stop, a)) for start, stop in kept if start < a], a
        group.lost(base + a, base + b - 1, REMOVED, turn)
    return kept, None


def expire(group: "Group", seqs: Runs, turn: Turn) -> None:
    """Settle expired messages: seqs first..last, each range of one block."""
    for first, last in seqs:
        group.tally.expired += last - first + 1
        group.shared.counters["expired"] += last - first + 1
        if turn.recorder.is_on:
            turn.recorder.note(Happening.EXPIRED, group.name, "", 0, [(first, last)])
        if group.durable and group.settings.on_expire == "dead":
            group.dead.append(DeadLetter(first, last, 0, "expired"))
            if group.leases:
                group.open.add(first, last)  # until the dead letter is written
                continue
        group.close(first, last)
    group.dirty = group.durable


def _end_of_gap(shared: Shared, first: int, last: int) -> int:
    """The last seq of the gap that begins at `first`; `last` if the journal has no message after it."""
    block, _ = shared.reader.next_block(first, _any_topic)
    if block is None:
        return last
    return max(block.base_seq if isinstance(block, Block) else block.first_seq, shared.removed_below) - 1


def _any_topic(topic: str) -> bool:
    return True
