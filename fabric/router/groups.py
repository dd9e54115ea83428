"""A group: those who share the work of one stream of messages. Whose turn it is, and how much they get.

A group is a cursor into the journal plus the seqs below it that are still open. Everything below the cursor and not
open is settled. That is all that must survive a crash; leases, queues and members are rebuilt or end with the process.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

from fabric.block import Block, pick
from fabric.messages import Deliver, Gap, GroupSettings, Level, SaveGroup, Verdict
from fabric.router.delivery import Backlog, Parcel
from fabric.router.ledger import Out
from fabric.router.members import Subscription
from fabric.router.ranges import Ranges
from fabric.router.shelf import Shelf
from fabric.router.timers import NEVER
from fabric.router.topics import Trie

# Parcels handed out by one group in one go; then others get their turn.
PARCELS_PER_GO: Final = 64
# Ranges of open seqs that one group may have. They are one row on disk, rewritten with each commit that settles
# something; beyond this, a group serves what it has failed so far before it takes anything new.
OPEN_RANGES_MAX: Final = 4_096


class DeadLetter(NamedTuple):
    """Messages first..last that a group gives up."""

    first: int
    last: int
    attempts: int
    reason: str


class _Work(NamedTuple):
    """What can be handed out next: runs of places (start..stop-1) in one block."""

    block: Block
    runs: list[tuple[int, int]]
    attempt: int
    failures: int
    backlog: Backlog | None  # where it came from; None: from the cursor


class Group:
    def __init__(self, name: str, settings: GroupSettings, cursor: int, *, durable: bool) -> None:
        self.name = name
        self.settings = settings
        self.durable = durable  # durable groups lease and persist; others are settled when sent
        self.cursor = cursor  # all seqs below were considered
        self.live = False  # nothing wanted lies between the cursor and the horizon
        self.open = Ranges()  # delivered or waiting for redelivery, below the cursor
        self.ready: list[Backlog] = []  # a heap, by seq
        self.waiting: list[tuple[float, Backlog]] = []  # a heap, by due time
        self.alarm = NEVER  # when the router looks at `waiting` next
        self.members: list[Subscription] = []
        self.dirty = False
        self.trie: Trie[Group] = Trie()  # the router's, once it has enrolled the group
        self._turn = 0

    @classmethod
    def restore(cls, saved: SaveGroup) -> "Group":
        group = cls(saved.name, saved.settings, saved.cursor, durable=True)
        for first, last in saved.open:
            group.open.add(first, last)
            heappush(group.ready, Backlog(first, last, attempt=2, failures=0))
        return group

    def position(self, horizon: int) -> int:
        """The first seq that was not considered yet. A live group has considered all there is."""
        return max(self.cursor, horizon + 1) if self.live else self.cursor

    def record(self, horizon: int) -> SaveGroup:
        self.dirty = False
        return SaveGroup(self.name, self.settings, self.position(horizon), tuple(self.open))

    @property
    def floor(self) -> int:
        """All seqs up to here are settled."""
        return (self.open.first if self.open else self.cursor) - 1

    @property
    def received(self) -> bool:
        return self.settings.level == Level.RECEIVED

    def wants(self, topic: str) -> bool:
        return self in self.trie.match(topic)

    # Handing out.

    def wake(self, seq: int) -> None:
        """A wanted block that starts at seq can be delivered now."""
        if self.live:
            self.live = False
            self.cursor = max(self.cursor, seq)

    def dispatch(self, shelf: Shelf, horizon: int, deadline: float, out: Out) -> tuple[list[Parcel], bool]:
        """Hand out what there is to whoever has room. Returns new leases, and whether there is more to do."""
        leased: list[Parcel] = []
        for _ in range(PARCELS_PER_GO):
            member, eligible = self._choose()
            if member is None:
                return leased, False
            work, searching = self._next_work(shelf, horizon, out)
            if work is None:
                return leased, searching
            count = sum(b - a for a, b in work.runs)
            ahead = max(horizon - work.block.last_seq, 0) if work.backlog is None else len(self.ready)
            share = -(-(count + ahead) // eligible)
            bytes_each = len(work.block.raw) // work.block.count
            if not member.fitting(bytes_each):  # someone who holds more may have more bytes left
                member, eligible = self._choose(bytes_each)
                if member is None:  # they will fit when something is acked
                    self._put_back(work)
                    return leased, False
                share = -(-(count + ahead) // eligible)
            take = min(share, member.room(), member.fitting(bytes_each), count)
            parcel = self._send(member, work, take, deadline, out)
            if parcel is not None:
                leased.append(parcel)
        return leased, True

    def _choose(self, bytes_each: int = 0) -> tuple[Subscription | None, int]:
        """The member with the fewest outstanding, the next in turn among equals; and how many have room."""
        best, eligible, n = -1, 0, len(self.members)
        for i in range(self._turn, self._turn + n):
            member = self.members[i % n]
            if member.room() > 0 and (not bytes_each or member.fitting(bytes_each)):
                eligible += 1
                if best < 0 or member.outstanding < self.members[best].outstanding:
                    best = i % n
        if best < 0:
            return None, 0
        self._turn = (best + 1) % n
        return self.members[best], eligible

    def _next_work(self, shelf: Shelf, horizon: int, out: Out) -> tuple[_Work | None, bool]:
        while self.ready:
            work = self._redelivery(shelf, heappop(self.ready), out)
            if work is not None:
                return work, False
        if len(self.open) > OPEN_RANGES_MAX:
            return None, False
        while self.cursor <= horizon:
            block, cursor, more = shelf.find(self.cursor, horizon, self.wants)
            self.cursor = max(self.cursor, cursor)
            if block is None:
                self.live = self.cursor > horizon
                return None, more
            if not isinstance(block, Block):
                self._lost(max(block.first_seq, self.cursor), block.last_seq, block.why, out)
                self.cursor = block.last_seq + 1
                continue
            if block.base_seq > horizon:
                break
            runs = self._wanted_runs(block, self.cursor, block.last_seq)
            if runs:
                return _Work(block, runs, 1, 0, None), False
            self.cursor = block.last_seq + 1
        self.live = True
        return None, False

    def _redelivery(self, shelf: Shelf, backlog: Backlog, out: Out) -> _Work | None:
        first, last, attempt, failures = backlog
        block = shelf.at(first)
        if not isinstance(block, Block):
            end = min(last, _end_of_gap(shelf, first, last) if block is None else block.last_seq)
            self._lost(first, end, "removed by retention" if block is None else block.why, out)
            if end < last:
                heappush(self.ready, backlog._replace(first=end + 1))
            return None
        if last > block.last_seq:
            heappush(self.ready, backlog._replace(first=block.last_seq + 1))
            last = block.last_seq
        runs = self._wanted_runs(block, first, last)
        if not runs:  # a restored range may hold messages that were never this group's
            self.close(first, last)
            return None
        start, end = block.base_seq + runs[0][0], block.base_seq + runs[-1][1] - 1
        self.close(first, start - 1)  # nor are these
        self.close(end + 1, last)
        return _Work(block, runs, attempt, failures, Backlog(start, end, attempt, failures))

    def _wanted_runs(self, block: Block, first: int, last: int) -> list[tuple[int, int]]:
        """Places in the block, within seqs first..last, of messages that the group wants."""
        start, stop = max(first - block.base_seq, 0), min(last - block.base_seq + 1, block.count)
        assert start < stop
        takers = self.trie.match_all(block.topics)
        if all(self in owners for owners in takers):
            return [(start, stop)]
        if not any(self in owners for owners in takers):
            return []
        wanted = [self.wants(topic) for topic in block.topics]
        runs: list[tuple[int, int]] = []
        at = -1
        for i, topic in enumerate(block.topic_idx()[start:stop], start):
            if wanted[topic]:
                if at < 0:
                    at = i
            elif at >= 0:
                runs.append((at, i))
                at = -1
        if at >= 0:
            runs.append((at, stop))
        return runs

    def _send(self, member: Subscription, work: _Work, take: int, deadline: float, out: Out) -> Parcel | None:
        block, base = work.block, work.block.base_seq
        runs, rest = _split(work.runs, take)
        seqs = [(base + a, base + b - 1) for a, b in runs]
        if work.backlog is None:
            self.cursor = base + rest[0][0] if rest else block.last_seq + 1
            if self.durable:
                self.open.add(seqs[0][0], seqs[-1][1])
        elif rest:
            heappush(self.ready, work.backlog._replace(first=base + rest[0][0]))
            self.close(base + runs[-1][1], base + rest[0][0] - 1)  # what lies between is nobody's
        raw = pick(block, runs)
        first_ordinal = member.sent + 1
        member.sent += take
        member.bytes_sent += len(raw)
        out.append((member.session.peer, Deliver(member.chan, first_ordinal, work.attempt, _flat(seqs), raw)))
        if not self.durable:
            return None
        parcel = Parcel(member, first_ordinal, seqs, (work.attempt, work.failures), deadline)
        member.parcels.append(parcel)
        member.outstanding += take
        return parcel

    def _put_back(self, work: _Work) -> None:
        if work.backlog is not None:
            heappush(self.ready, work.backlog)

    def _lost(self, first: int, last: int, why: str, out: Out) -> None:
        """Say loudly that messages cannot be delivered."""
        self.close(first, last)
        for member in self.members:
            out.append((member.session.peer, Gap(member.chan, first, last, why)))

    def again(self, parcel: Parcel, shelf: Shelf) -> Out:
        """The same delivery once more, for a client that came back without having seen it."""
        block = shelf.at(parcel.runs[0][0])
        peer, chan = parcel.sub.session.peer, parcel.sub.chan
        if not isinstance(block, Block):
            return [(peer, Gap(chan, parcel.runs[0][0], parcel.runs[-1][1], "removed by retention"))]
        places = [(a - block.base_seq, b - block.base_seq + 1) for a, b in parcel.runs]
        return [(peer, Deliver(chan, parcel.first, parcel.attempt, _flat(parcel.runs), pick(block, places)))]

    def describe(self, last_seq: int) -> dict[str, Any]:
        """For INFO."""
        outstanding = sum(member.outstanding for member in self.members)
        return {
            "group": self.name,
            "patterns": list(self.settings.patterns),
            "durable": self.durable,
            "members": len(self.members),
            "cursor": self.cursor,
            "floor": self.floor,
            "behind": 0 if self.live else max(last_seq + 1 - self.cursor, 0),
            "outstanding": outstanding,
            "redelivering": len(self.ready) + len(self.waiting),
            "lease_ms": self.settings.lease_ms,
            "attempts_max": self.settings.attempts_max,
        }

    # Settling.

    def settle(
        self, sub: Subscription, verdict: int, first: int, last: int, arg: Any, now: float
    ) -> tuple[Ranges, list[DeadLetter]]:
        """Apply a verdict to ordinals. Returns the stale ones, and what must become dead letters with this turn."""
        stale, dead = Ranges([(first, last)]), []
        for parcel in sub.parcels_in(first, last):
            if verdict == Verdict.TOUCH:
                lease_s = (arg if type(arg) is int else self.settings.lease_ms) / 1000
                parcel.deadline = max(parcel.deadline, now + lease_s)
                taken = [(max(a, first), min(b, last)) for a, b in parcel.open if a <= last and b >= first]
            else:
                taken = parcel.open.remove(first, last)
            for a, b in taken:
                stale.remove(a, b)
                if verdict != Verdict.TOUCH:
                    sub.outstanding -= b - a + 1
                    dead += self._judge(parcel, parcel.seqs(a, b), verdict, arg, now)
            self._finish(parcel)
        return stale, dead

    def _judge(
        self, parcel: Parcel, seqs: list[tuple[int, int]], verdict: int, arg: Any, now: float
    ) -> list[DeadLetter]:
        if verdict == Verdict.ACK:
            for a, b in seqs:
                self.close(a, b)
            return []
        if verdict == Verdict.REJECT:
            reason = arg if isinstance(arg, str) else "rejected"
            return [DeadLetter(a, b, parcel.attempt, reason) for a, b in seqs]
        if verdict == Verdict.RELEASE:
            for a, b in seqs:
                heappush(self.ready, Backlog(a, b, parcel.attempt, parcel.failures))
            return []
        delay_s = arg / 1000 if type(arg) is int and arg > 0 else 0.0
        return self._failed(parcel, seqs, "retries spent", now + delay_s if delay_s else 0.0)

    def _failed(self, parcel: Parcel, seqs: list[tuple[int, int]], reason: str, due: float) -> list[DeadLetter]:
        failures = parcel.failures + 1
        if failures >= self.settings.attempts_max:
            return [DeadLetter(a, b, parcel.attempt, reason) for a, b in seqs]
        for a, b in seqs:
            backlog = Backlog(a, b, parcel.attempt + 1, failures)
            if due:
                heappush(self.waiting, (due, backlog))
            else:
                heappush(self.ready, backlog)
        return []

    def lapse(self, parcel: Parcel) -> list[DeadLetter]:
        """The lease ran out: the deliveries failed, and their ordinals are stale from now on."""
        seqs = self._revoke(parcel)
        return self._failed(parcel, seqs, "lease lapsed", 0.0)

    def leave(self, sub: Subscription, *, lost: bool) -> None:
        """A member goes, and what it holds is ready again; delivered once more if it was lost, as if never if not."""
        for parcel in list(sub.parcels):
            for a, b in self._revoke(parcel):
                heappush(self.ready, Backlog(a, b, parcel.attempt + lost, parcel.failures))
        self.members.remove(sub)
        self._turn = 0

    def _revoke(self, parcel: Parcel) -> list[tuple[int, int]]:
        seqs = parcel.open_seqs()
        parcel.sub.outstanding -= parcel.open.size()
        parcel.open = Ranges()
        self._finish(parcel)
        return seqs

    def _finish(self, parcel: Parcel) -> None:
        if not parcel.open:
            parcel.sub.forget(parcel)
            for a, b in parcel.gaps:
                self.close(a, b)

    def close(self, first: int, last: int) -> None:
        """Seqs first..last, if there are any, are settled."""
        if first <= last and self.open.remove(first, last):
            self.dirty = self.durable

    def due(self, now: float) -> bool:
        """Move what has waited long enough to the ready queue; True when there was something."""
        moved = False
        while self.waiting and self.waiting[0][0] <= now:
            heappush(self.ready, heappop(self.waiting)[1])
            moved = True
        return moved

    def trimmed(self, first_seq: int, out: Out) -> None:
        """The journal now starts at first_seq."""
        lost = self.open.first if self.open and self.open.first < first_seq else None
        if not self.live and self.cursor < first_seq:
            lost = self.cursor if lost is None else lost
            self.cursor = first_seq
        if lost is not None:
            self.dirty = self.durable
            self._lost(lost, first_seq - 1, "removed by retention", out)


def _end_of_gap(shelf: Shelf, first: int, last: int) -> int:
    """Where the messages end that retention removed from `first` on; `last` if there is nothing after them."""
    block, _ = shelf.reader.next_block(first, _any_topic)
    if block is None:
        return last
    return (block.base_seq if isinstance(block, Block) else block.first_seq) - 1


def _any_topic(topic: str) -> bool:
    return True


def _flat(runs: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Runs as DELIVER writes them: nothing when there is one, since the block's base_seq says it."""
    return () if len(runs) == 1 else tuple(n for a, b in runs for n in (a, b - a + 1))


def _split(runs: Sequence[tuple[int, int]], take: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The first `take` places of the runs, and the rest."""
    taken: list[tuple[int, int]] = []
    for i, (a, b) in enumerate(runs):
        if b - a > take:
            if take:
                taken.append((a, a + take))
            return taken, [(a + take, b), *runs[i + 1 :]]
        taken.append((a, b))
        take -= b - a
    return taken, []
