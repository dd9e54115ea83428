"""A dumb twin of the groups: one entry for each message and group, no ranges, no cursors, no heaps.

It is told what is said to the router and what the router answers; it knows what must follow, and says so. Who gets a
message is the router's choice; the twin only checks that the choice was allowed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fabric import messages as m
from fabric.block import Block
from fabric.messages import Verdict
from fabric.router.groups import Group
from tests.router.brute import matches


@dataclass
class Queued:
    """Waits for its next delivery, which has the number `attempt`, not before `due`."""

    attempt: int = 1
    failures: int = 0
    due: float = 0.0


@dataclass(eq=False)
class Held:
    """One DELIVER, on its way or at the consumer."""

    first: int
    seqs: list[int]
    work: Queued
    deadline: float
    open: set[int]  # ordinals

    def seq(self, ordinal: int) -> int:
        return self.seqs[ordinal - self.first]


@dataclass(eq=False)
class Sub:
    """A subscription as its consumer sees it."""

    group: "Twin"
    ordinal_max: int
    bytes_max: int
    sent: int = 0
    bytes_sent: int = 0
    seen: int = 0  # at the last resume: what had arrived before the connection was lost
    held: list[Held] = field(default_factory=list)

    @property
    def outstanding(self) -> int:
        return sum(len(held.open) for held in self.held)


class Twin:
    """What must become of each message in one group."""

    def __init__(self, name: str, settings: m.GroupSettings, start: int) -> None:
        self.name = name
        self.settings = settings
        self.start = start
        self.settled: set[int] = set()
        self.dead: set[int] = set()  # those of the settled that are dead letters
        self.queued: dict[int, Queued] = {}  # delivered before; what is in none of these was never delivered
        self.subs: list[Sub] = []
        self.floor = 0

    def wants(self, topic: str) -> bool:
        return any(matches(pattern, topic) for pattern in self.settings.patterns)

    # What is said, and what follows.

    def delivered(self, sub: Sub, message: m.Deliver, horizon: int, topics: Sequence[str], now: float) -> None:
        """A DELIVER left for a consumer: was that allowed?"""
        block = Block(message.block)
        seqs = seqs_of(message, block)
        first = message.first_ordinal
        if first <= sub.sent:
            self._sent_again(sub, message, seqs)
            return
        assert first == sub.sent + 1, "ordinals have no gaps"
        assert first + len(seqs) - 1 <= sub.ordinal_max, "never more than the credit"
        assert sub.bytes_sent < sub.bytes_max or not sub.outstanding, "byte credit"
        assert seqs == sorted(set(seqs))
        work = self.queued.get(seqs[0], Queued())
        for seq in seqs:
            assert self.start <= seq <= horizon, "only what is on disk"
            assert seq not in self.settled, f"{seq} is settled"
            assert not any(seq in held.seqs and _open(held, seq) for s in self.subs for held in s.held), "leased twice"
            assert self.wants(topics[seq - 1]), f"{topics[seq - 1]} is not wanted"
            mine = self.queued.pop(seq, Queued())
            assert (mine.attempt, mine.failures) == (work.attempt, work.failures)
            assert mine.due <= now, "not before its time"
        assert message.attempt == work.attempt
        ordinals = set(range(first, first + len(seqs)))
        sub.sent += len(seqs)
        sub.bytes_sent += len(message.block)
        sub.held.append(Held(first, seqs, work, now + self.settings.lease_ms / 1000, ordinals))

    def _sent_again(self, sub: Sub, message: m.Deliver, seqs: list[int]) -> None:
        """By a resume: the same messages under the same ordinals."""
        held = next(held for held in sub.held if held.first == message.first_ordinal)
        assert (held.seqs, held.work.attempt) == (seqs, message.attempt)
        assert held.first > sub.seen, "what was seen is not sent again"

    def verdict(self, sub: Sub, verdict: Verdict, first: int, last: int, arg: int | None, now: float) -> set[int]:
        """Apply a verdict; returns the ordinals that are stale."""
        stale = set(range(first, last + 1))
        for held in list(sub.held):
            taken = held.open & stale
            stale -= taken
            if taken and verdict is Verdict.TOUCH:
                held.deadline = max(held.deadline, now + (arg or self.settings.lease_ms) / 1000)
                continue
            held.open -= taken
            for ordinal in sorted(taken):
                self._judge(held.seq(ordinal), held.work, verdict, arg, now)
            if not held.open:
                sub.held.remove(held)
        return stale

    def _judge(self, seq: int, work: Queued, verdict: Verdict, arg: int | None, now: float) -> None:
        if verdict is Verdict.ACK:
            self.settled.add(seq)
        elif verdict is Verdict.REJECT:
            self._bury(seq)
        elif verdict is Verdict.RELEASE:
            self.queued[seq] = Queued(work.attempt, work.failures)
        else:
            self._failed(seq, work, now + (arg or 0) / 1000)

    def _failed(self, seq: int, work: Queued, due: float) -> None:
        if work.failures + 1 >= self.settings.attempts_max:
            self._bury(seq)
        else:
            self.queued[seq] = Queued(work.attempt + 1, work.failures + 1, due)

    def _bury(self, seq: int) -> None:
        assert seq not in self.dead, "a dead letter once"
        self.settled.add(seq)
        self.dead.add(seq)

    def lapse(self, now: float) -> None:
        for sub in self.subs:
            for held in [held for held in sub.held if held.deadline <= now]:
                sub.held.remove(held)
                for ordinal in held.open:
                    self._failed(held.seq(ordinal), held.work, 0.0)

    def leave(self, sub: Sub, *, lost: bool) -> None:
        for held in sub.held:
            for ordinal in held.open:
                self.queued[held.seq(ordinal)] = Queued(held.work.attempt + lost, held.work.failures)
        self.subs.remove(sub)

    # What must be true after every step.

    def check(self, group: Group, topics: Sequence[str], horizon: int, now: float) -> None:
        leased = {held.seq(o) for sub in self.subs for held in sub.held for o in held.open}
        ready = _list((b.first, b.last) for b in group.ready)
        waiting = _list((b.first, b.last) for _, b in group.waiting)
        parcels = [seqs for sub in group.members for parcel in sub.parcels for seqs in parcel.open_seqs()]
        assert sorted(_list(parcels)) == sorted(leased)
        is_open = _list(group.open)
        for seq in range(self.start, horizon + 1):
            if not self.wants(topics[seq - 1]):
                assert seq not in leased
                continue
            ahead = seq >= group.cursor
            places = [seq in leased, ready.count(seq), waiting.count(seq), ahead, not ahead and seq not in is_open]
            assert sum(places) == 1, f"{self.name}: seq {seq} is in {places}"
            assert (seq in self.settled) == places[4]
            if seq in self.queued:
                assert ready.count(seq) + waiting.count(seq) == 1
                assert seq in ready or self.queued[seq].due > now, "it is time"
            if ahead:
                assert not group.live, f"{self.name} has overlooked {seq}"
        assert group.floor >= self.floor, "a floor never goes down"
        self.floor = group.floor

    def check_finished(self, group: Group, topics: Sequence[str], horizon: int) -> None:
        """All that the group wants is settled, and it holds nothing any more."""
        wanted = {seq for seq in range(self.start, horizon + 1) if self.wants(topics[seq - 1])}
        assert wanted <= self.settled, f"{self.name}: never settled: {sorted(wanted - self.settled)}"
        assert not group.open, f"{self.name}: still open: {group.open}"
        assert not group.ready
        assert not group.waiting
        assert group.live
        assert sum(member.outstanding for member in group.members) == 0

    def restored(self, group: Group, topics: Sequence[str], horizon: int) -> None:
        """After a crash: what was not settled comes again, or for the first time."""
        self.subs, self.queued = [], {}
        self.floor = group.floor
        for seq in range(self.start, horizon + 1):
            if seq not in self.settled and seq < group.cursor and self.wants(topics[seq - 1]):
                self.queued[seq] = Queued(attempt=2)


def seqs_of(message: m.Deliver, block: Block) -> list[int]:
    if not message.seqs:
        return list(range(block.base_seq, block.base_seq + block.count))
    return _list((a, a + n - 1) for a, n in zip(message.seqs[::2], message.seqs[1::2], strict=True))


def _open(held: Held, seq: int) -> bool:
    return held.first + held.seqs.index(seq) in held.open


def _list(ranges: Iterable[tuple[int, int]]) -> list[int]:
    return [seq for first, last in ranges for seq in range(first, last + 1)]
