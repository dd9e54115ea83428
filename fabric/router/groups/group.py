"""Group: the state of one group.

A group is a cursor into the journal and the seqs below it that are still open. All seqs below the cursor that are not
open are settled. Cursor, open seqs and counts of failures survive a crash; leases, queues and members are rebuilt or
end with the process.

`deliver` and `deliver_by_key` deliver the messages of a group, and `verdicts` settles them.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from fabric.records import GroupSettings, SaveFailure, SaveGroup
from fabric.router.groups.backlog import Backlog, pass_by, rising
from fabric.router.groups.expiring import Expiring
from fabric.router.groups.failures import Failures
from fabric.router.groups.gaps import UntoldGap, gaps_before, with_gap
from fabric.router.groups.handed_out import ANYTHING, HandedOut
from fabric.router.groups.key_locks import Keys
from fabric.router.groups.lanes import REMOVED, Lane, Runs, expire, matching_in
from fabric.router.groups.lease import DeadLetter, Redelivery
from fabric.router.groups.positions import Position
from fabric.router.groups.rate import Rate
from fabric.router.groups.redelivery import Pending
from fabric.router.groups.subscription import Subscription
from fabric.router.groups.tally import Tally
from fabric.router.groups.throttle import Throttle, throttle_of
from fabric.router.ranges import Ranges
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric.router.turn import Frames, Turn
from fabric_protocol.block import PRIORITY_DEFAULT, Block
from fabric_protocol.messages import Gap, Level
from fabric_protocol.names import REDRIVE

# Ranges of open seqs of one group. They are one row on disk, which is rewritten with each commit that settles a
# message. Above this number, a group delivers open messages again before it delivers new messages.
OPEN_RANGES_MAX: Final = 4_096
EXPIRY_S: Final = 0.01  # an expired message is settled after this time, which is above the rounding of the clocks
RETURNED_EXPIRY_S: Final = 0.25  # the same for redeliveries; longer, because each time all of them are searched


class Group:
    def __init__(self, name: str, settings: GroupSettings, cursor: int, shared: Shared, *, durable: bool) -> None:
        self.name = name
        self.durable = durable  # in the journal; a group that is not durable ends with its consumer
        self.pending = Pending()
        self.keys = Keys(self.pending) if settings.order == "key" else None
        self.throttle: Throttle | None = None  # None: without `max_in_flight` and `rate`
        self.use_settings(settings)
        self.shared = shared
        self.base = Lane(PRIORITY_DEFAULT, cursor, HandedOut(0 if durable else ANYTHING))
        self.lanes = [self.base]  # highest priority first
        self.streak = 0  # messages delivered in a row while lower priorities wait
        self.open = Ranges()  # seqs below the cursor that are not settled
        self.failures = Failures(name)
        self.expiring = Expiring()
        self.timer_at = NEVER  # when the dispatcher calls `due`
        self.members: list[Subscription] = []
        self.reserved: Subscription | None = None  # gets nothing new, so that a suspect can be delivered to it alone
        self.next_member = 0  # index of the member that is first among equals
        self.paused = False
        self.idle_us = 0  # see `SaveGroup`
        self.refresh = (0, 0, 0)  # number of the latest refresh, its target seq, its phase
        self.dirty = False  # the row on disk is out of date
        self._recorded = cursor  # the position in that row
        self.backlog = Backlog()
        self.tally = Tally(shared.clock.wall_us(shared.clock.now))
        self.rate = Rate()
        self.unsorted = Ranges()  # restored seqs: messages that do not match may be among them
        self.dead: list[DeadLetter] = []  # not written yet
        self.answers: Frames = []  # sent when these dead letters are on disk
        self.untold: list[UntoldGap] = []  # gaps that no consumer was told of
        # Retention has removed messages up to this seq that were not settled: a consumer may still hold them.
        self.removed_to = 0

    def use_settings(self, settings: GroupSettings) -> None:
        """Use these settings from now on."""
        self.settings = settings
        self.leases = self.durable and settings.ack == "explicit"  # whether deliveries are leased until a verdict
        self.strict = settings.order == "strict"
        self.ordered = settings.order != "none"
        self.received = settings.level == Level.RECEIVED
        self.throttle = throttle_of(settings, self.throttle)
        (self.keys or self.pending).use_attempts_max(settings.attempts_max)

    def wants(self, topic: str) -> bool:
        return self in self.shared.trie.match(topic)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns of the settings, and the topic of messages that are redriven for this group."""
        return (*self.settings.patterns, REDRIVE + self.name) if self.durable else self.settings.patterns

    # Position.

    @property
    def cursor(self) -> int:
        return self.base.cursor

    @property
    def horizon(self) -> int:
        """The last seq that may be delivered."""
        return self.shared.appended_seq if self.received else self.shared.committed_seq

    def position(self) -> int:
        """The first seq that a lane has not looked at."""
        horizon = self.horizon
        if len(self.lanes) == 1:
            return self.base.position(horizon)
        return min(lane.position(horizon) for lane in self.lanes)

    def reached(self, priority: int) -> int:
        """The first seq that the lane of a priority has not looked at."""
        return self.lane_of(priority).position(self.horizon)

    @property
    def floor(self) -> int:
        """All seqs up to here are settled."""
        position = self.position()
        return (min(self.open.first, position) if self.open else position) - 1

    def has_settled(self, seq: int) -> bool:
        """Whether a message that matches the patterns is settled."""
        if self.open.holds(seq):
            return False
        if seq < self.position():
            return True
        if len(self.lanes) == 1 or seq > self.horizon:
            return False
        block = self.shared.block_store.at(seq)  # a lane of another priority may be further back
        return not isinstance(block, Block) or seq < self.reached(block.priority)

    @property
    def has_room_for_new(self) -> bool:
        return len(self.open) <= OPEN_RANGES_MAX

    def takes(self, lane: Lane, priority: int) -> bool:
        """Whether a lane delivers messages of a priority."""
        return priority == lane.priority or (lane is self.base and self.lane_of(priority) is lane)

    def lane_of(self, priority: int) -> Lane:
        if len(self.lanes) > 1:
            for lane in self.lanes:
                if lane.priority == priority:
                    return lane
        return self.base

    def is_held(self) -> bool:
        """Whether a message that could be delivered waits for a commit."""
        return any(lane.handed.is_held for lane in self.lanes)

    def is_searching(self) -> bool:
        """Whether a lane has not found its next message yet."""
        if len(self.lanes) == 1:
            return not (self.base.live or self.base.waits)
        return any(not (lane.live or lane.waits) for lane in self.lanes)

    def add_lane(self, priority: int, cursor: int, *, first: bool = False) -> None:
        """Add a lane for a priority; `first`: no message of the priority was stored before. A group that keeps an
        order ignores priorities."""
        if not self.ordered and self.lane_of(priority).priority != priority:
            handed = HandedOut(self.base.handed.limit, self.base.handed.before)
            lane = Lane(priority, max(cursor, self.base.cursor), handed)  # the group may begin after that seq
            lane.live = first
            self.lanes.append(lane)
            self.lanes.sort(key=lambda lane: -lane.priority)

    def by_rank(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Messages first..last as (rank, first, last), each of one priority."""
        while len(self.lanes) > 1 and first <= last:
            block = self.shared.block_store.at(first)
            if not isinstance(block, Block):
                break
            end = min(last, block.last_seq)
            yield -block.priority, first, end
            first = end + 1
        if first <= last:
            yield -PRIORITY_DEFAULT, first, last

    def rank_of(self, block: Block) -> int:
        """The rank of a redelivery: by its priority, unless the group keeps an order."""
        return -PRIORITY_DEFAULT if self.ordered else -block.priority

    def wake(self, block: Block, matching: int) -> bool:
        """A block with messages that match can be delivered now; True if a lane has to search its first message."""
        lane, shared = self.lane_of(block.priority), self.shared
        if lane.cursor > block.base_seq or shared.removed or shared.keyed:
            matching = rising(self, block, lane.cursor, matching)
        self.backlog.ahead += matching
        shared.changed.add(self)
        if lane.live and block.last_seq >= lane.cursor:
            lane.move(max(lane.cursor, block.base_seq), block if block.base_seq >= lane.cursor else None)
            return not lane.waits
        return False

    # Rows on disk.

    @classmethod
    def restore(cls, saved: SaveGroup, failures: Iterable[SaveFailure], shared: Shared, now: float) -> "Group":
        """Restore a group from its row."""
        group = cls(saved.name, saved.settings, saved.cursor, shared, durable=True)
        group.paused, group.refresh, group.untold = saved.paused, saved.refresh, list(saved.untold)
        group.idle_us = saved.idle_us
        if group.throttle is not None and group.throttle.pace is not None:
            group.throttle.pace.restore(saved.paced_us - shared.clock.wall_us(0.0), int(now * 1e6))
        marks = dict(saved.handed or ())
        group.base.handed = _restored(next(iter(marks.values()), 0), shared.committed_seq)
        for priority, cursor in saved.lanes:
            group.add_lane(priority, 0)
            group.lane_of(priority).cursor = cursor
            group._recorded = min(group._recorded, cursor)
            if priority in marks:
                group.lane_of(priority).handed = _restored(marks[priority], shared.committed_seq)
        fresh = Ranges(saved.open)
        for first, last in saved.open:
            group.open.add(first, last)
            group.expiring.put(first, last)
        for row in failures:
            group.failures.restore(row)
            fresh.remove(row.first, row.last)
            due = shared.clock.when(row.due_us) if row.due_us else 0.0
            due = due if due > now else 0.0
            if group.keys is not None:
                group.keys.restore(row, due, shared)
            else:
                for rank, start, end in group.by_rank(row.first, row.last):
                    group.pending.put(Redelivery(rank, start, end, row.failures + 1, row.failures), due)
        if group.keys is None:
            group.unsorted = Ranges(fresh)
        for first, last in fresh:
            for rank, start, end in group.by_rank(first, last):
                group.pending.put(Redelivery(rank, start, end, attempt=2, failures=0))
        return group

    def record(self, next_seq: int, written: "list[tuple[Group, HandedOut, int]]", *, active: bool) -> SaveGroup:
        """The row to write with a turn that ends before next_seq; `active`: the group may deliver after this turn.
        Marks that the row moves forward are added to `written`; they hold when the row is on disk."""
        self.dirty = False
        horizon = self.horizon
        cursor = self.base.position(horizon)
        lanes: tuple[tuple[int, int], ...] = ()
        if len(self.lanes) > 1:
            lanes = tuple((lane.priority, lane.position(horizon)) for lane in self.lanes if lane is not self.base)
        self._recorded = min(cursor, *(cursor for _, cursor in lanes)) if lanes else cursor
        active = active and not self.paused and bool(self.members)
        for lane in self.lanes:
            position = lane.position(horizon)
            number = lane.handed.write(position, next_seq if lane.live else position, active=active)
            if number is not None:
                written.append((self, lane.handed, number))
        handed = [(lane.priority, lane.handed.mark) for lane in self.lanes]
        if lanes:
            handed.sort(key=lambda mark: mark[0] != PRIORITY_DEFAULT)
        pace = self.throttle.pace if self.throttle is not None else None
        paced_us = pace.full_us + self.shared.clock.wall_us(0.0) if pace is not None else 0
        counted = self.backlog.ahead, next_seq - 1 if self.received else horizon
        ahead = counted if self.backlog.is_counted else None
        rest = tuple(self.untold), tuple(handed), self.idle_us, paced_us, ahead
        return SaveGroup(self.name, self.settings, cursor, tuple(self.open), lanes, self.paused, self.refresh, *rest)

    def record_beyond(self, seq: int) -> None:
        """Write the row if its position is not above a seq. Messages up to the seq leave the journal, and after a
        restart only the row tells which of them were delivered."""
        if self._recorded <= seq:
            self.dirty = self.durable
        if self.open and self.open.first <= seq:
            self.removed_to = max(self.removed_to, seq)

    # Messages.

    def close(self, first: int, last: int) -> None:
        """Settle seqs first..last; an empty range is allowed."""
        if first <= last and self.open.remove(first, last):
            self.dirty = self.durable
            if self.failures:
                self.failures.forget(first, last)

    def lost(self, first: int, last: int, why: str, turn: Turn) -> None:
        """Settle messages that cannot be delivered and send GAP to the consumers. Without a reachable consumer, the gap
        is kept for the next, and is sent once."""
        self.close(first, last)
        if self.durable:
            turn.advise("$sys.gap", group=self.name, first_seq=first, last_seq=last, why=why)
        if any(member.session.reachable for member in self.members):
            for member in self.members:
                turn.send(member.session.peer, Gap(member.chan, first, last, why))
        else:
            self.untold, self.dirty = with_gap(self.untold, (first, last, why)), self.durable

    def leave(self, block: Block, removed: Runs, turn: Turn) -> None:
        """Settle the messages of a block that is discarded: report those at the places in `removed`, and move past
        the block."""
        for a, b in removed:
            self.lost(block.base_seq + a, block.base_seq + b - 1, REMOVED, turn)
        self.shared.changed.add(self)
        lane = self.lane_of(block.priority)
        pass_by(self, block, lane.position(self.horizon), block.last_seq)
        if block.base_seq <= lane.cursor <= block.last_seq:
            lane.move(block.last_seq + 1)

    def tell_gaps(self, turn: Turn) -> None:
        """Send the kept gaps to a consumer. The row has them until the next commit, so a crash can send them twice."""
        for member in self.members:
            if member.session.reachable:
                for gap in self.untold:
                    turn.send(member.session.peer, Gap(member.chan, *gap))
                self.untold, self.dirty = [], self.durable
                return

    def trimmed(self, first_seq: int, turn: Turn) -> None:
        """Retention has removed all messages below first_seq."""
        lost = self.open.first if self.open and self.open.first < first_seq else None
        for lane in self.lanes:
            if not lane.live and lane.cursor < first_seq:
                lost = lane.cursor if lost is None else min(lost, lane.cursor)
                lane.move(first_seq)
                self.shared.recounts.doubt(self)
        self.shared.changed.add(self)
        if self._recorded < first_seq:  # a restart would report a gap for an older position
            self.dirty = self.durable
        if lost is not None:
            self.dirty, self.removed_to = self.durable, max(self.removed_to, first_seq - 1)
            self.lost(lost, first_seq - 1, REMOVED, turn)

    def move(self, to: Position) -> None:
        """Move to a position, without leases, redeliveries and failures."""
        self.open, self.streak, self.unsorted = Ranges(to.open if self.durable else ()), 0, Ranges()
        self.pending.clear()
        self.failures.clear()
        self.expiring = Expiring()
        self.reserved = None  # its suspect is forgotten
        self.untold = gaps_before(self.untold, to.cursor)
        if self.keys is not None:
            self.keys = Keys(self.pending)
        for lane in self.lanes:
            lane.move(to.cursor)
            lane.handed.forget()
        for first, last in to.open:
            self.pending.put(Redelivery(-PRIORITY_DEFAULT, first, last, attempt=1, failures=0))
            self.expiring.put(first, last)
        self.dirty = self.durable
        self.shared.recounts.wait(self)

    def expires_us(self) -> int:
        """When the first message at the cursor of a lane expires; 0: never."""
        if len(self.lanes) == 1:
            return self.base.expires_us if self.base.waits else 0
        return min((lane.expires_us for lane in self.lanes if lane.waits and lane.expires_us), default=0)

    def next_due(self) -> float:
        """When the next message is due or expires."""
        due = self.pending.next_due()
        if expires_us := self.expires_us():
            due = min(due, self.shared.clock.when(expires_us) + EXPIRY_S)
        if came_back_us := self.expiring.next_us():
            due = min(due, self.shared.clock.when(came_back_us) + RETURNED_EXPIRY_S)
        if self.throttle is not None:
            due = min(due, self.throttle.due)
        return due if self.keys is None else min(due, self.keys.next_due())

    def due(self, now: float, turn: Turn) -> bool:
        """Make due messages ready and settle expired messages; True if there were any."""
        moved = bool(self.pending.due(now))
        if self.throttle is not None:
            moved |= self.throttle.is_due(now)
        if self.expires_us():
            wall_us = self.shared.clock.wall_us(now)
            for lane in self.lanes:
                moved |= lane.expire(wall_us)
        if self.expiring and self._expire(self.shared.clock.wall_us(now), turn):
            moved = True
        return (self.keys is not None and self.keys.due(now)) or moved

    def _expire(self, wall_us: int, turn: Turn) -> bool:
        """Settle expired redeliveries; True if there were any."""
        spans = self.expiring.due(wall_us, self.shared.block_store)
        seqs = [open for span in spans for open in self.open.within(*span)]
        if self.unsorted:
            seqs = matching_in(self, seqs)  # the others are settled when they are sorted
        if seqs:
            expire(self, seqs, turn)
            gone = Ranges(seqs)
            self.pending.drop(gone)
            if self.keys is not None:
                self.keys.drop(gone)
        return bool(seqs)


def _restored(mark: int, last_seq: int) -> HandedOut:
    """The mark of a restored row. It may be above last_seq, but messages above last_seq were never delivered."""
    return HandedOut(mark, min(mark, last_seq))
