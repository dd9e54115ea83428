"""The observer stands at the hub's door. It hears all that is said there, sees what is on the disk, and knows what was
promised; it knows nothing of how the router works. Names like D4 are those of the invariants below.

    J1  seqs are 1, 2, 3, …: no gap, no reuse, also across restarts     J3  what was confirmed can be read as it was
    J4  a publish is stored wholly or not at all                        J5  a resend is answered with its first seq
    D1  every group has each wanted message settled or among its dead letters, in the end
    D2  never two leases of one message in one group                    D3  a stale verdict changes nothing, and is told
    D4  what was confirmed as settled never comes again                 D5  the floor of a group never goes down
    D6  failures are counted, and at the limit there is one dead letter, in the transaction that settles the message
    D7  never more in flight than the credit                            D8  nothing before its time
    C1  nobody is told that something is stored before it is on disk    C2  nothing is delivered before it is on disk

All checks are incremental: each costs what happened, not what there is. What a crash takes back is kept as a log of
undo entries for each turn that is not on disk yet.
"""

from collections import Counter
from heapq import heappop
from typing import Any, Final

from fabric import messages as m
from fabric.block import verify_stamp
from fabric.errors import Code
from fabric.messages import Level
from fabric.router.core import Turn
from tests.simulation.blocks import IDENTS, idents_of
from tests.simulation.disk import Disk, stamp_of
from tests.simulation.judge import Judge, Undo
from tests.simulation.ledgers import GroupBook, Held, Producer, Published, Session, Sub, letters_in

ANY: Final = -1  # no expectation


class Observer(Judge):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(counts)
        self.producers: dict[str, Producer] = {}
        self.sessions: dict[bytes, Session] = {}  # by peer
        self.secrets: dict[bytes, Session] = {}
        self.landed_turns = 0
        self._former: dict[bytes, Session] = {}  # by a peer that it had
        self._overdue: list[Sub] = []
        self._resumed: Session | None = None
        self.clock_was_set = False
        self._landed: list[int] = []
        self._lost = 0
        self._hoped: tuple[Session, m.Publish, Producer | None] | None = None
        self._undos: list[tuple[list[Undo], int]] = []  # of turns that were sealed, with the last seq of each

    # What the hub is told.

    def told(self, peer: bytes, message: m.ToHub, now: float, wall_us: int) -> int:
        """A command reaches the hub. Returns the error that must follow, 0 for none, ANY when it may be either."""
        self.wall_us = wall_us
        if type(message) is m.Hello:
            return self._hello(peer, message, now)
        session = self.sessions.get(peer)
        if session is None:
            return Code.NO_SESSION
        session.last_seen = now
        session.suspect = False
        match message:
            case m.Publish():
                return self._publish(session, message)
            case m.Settle():
                return self.settle(session, message, now)
            case m.Credit(chan, ordinal_max, bytes_max):
                sub = session.subs.get(chan)
                if sub is None:
                    return Code.NOT_FOUND
                sub.ordinal_max, sub.bytes_max = ordinal_max, bytes_max
            case m.Subscribe():
                return self.subscribe(session, message)
            case m.Fetch():
                return self.fetch(session, message, now)
            case m.Unsubscribe(chan):
                sub = session.subs.get(chan)
                if sub is None:
                    return Code.NOT_FOUND
                self.leave(sub, now, lost=False)
            case m.Goodbye():
                self._end(session, now, lost=False)
        return 0

    def answered(self, expected: int, peer: bytes, out: list[tuple[bytes, m.ToClient]]) -> None:
        """What the hub answered at once: an error when there must be one, none when there must not."""
        code = 0
        for whom, message in out:
            if whom == peer and type(message) is m.Err:
                code = message.code
        if expected != ANY:
            assert code == expected, f"answered with error {code}, not {expected}: {out}"
        if code:
            self.counts[f"refused {Code(code).name}"] += 1
        elif self._hoped is not None:
            self._accept(*self._hoped)
        self._hoped = None

    # Sessions.

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> int:
        fields = hello.fields
        if peer in self.sessions:
            return Code.SESSION_EXISTS
        wish = fields["producer"]
        producer = self.producers.get(wish["name"])
        if producer is None:
            producer = self.producers[wish["name"]] = Producer(wish["name"])
        epoch = wish.get("epoch")
        if epoch is not None and epoch < producer.epoch:
            return Code.FENCED
        resume = fields.get("resume")
        session = self.secrets.get(resume["session"]) if resume else None
        if session is None or resume is None:
            session = Session(peer, fields["ttl_ms"] / 1000)
            session.resumed = False
        else:
            self.counts["resumed"] += 1
            self._former[session.peer] = session
            self.sessions.pop(session.peer, None)
            session.peer, session.resumed, session.blocked = peer, True, False
            seen = dict(resume["subs"])
            for sub in list(session.subs.values()):
                if sub.chan not in seen or not sub.group.durable:
                    self.leave(sub, now, lost=True)
                else:
                    sub.resume(seen[sub.chan])
            self._resumed = session
        session.last_seen, session.suspect = now, False
        session.producer, session.epoch = producer, epoch
        self.sessions[peer] = session
        return 0

    def _welcome(self, session: Session, fields: Any) -> None:
        assert fields["resumed"] is session.resumed, "a session lives as long as was said"
        producer, told = session.producer, fields["producer"]
        assert producer is not None
        assert told["epoch"] > producer.epoch or told["epoch"] == session.epoch, "fencing: epochs go up"
        producer.epoch = session.epoch = told["epoch"]
        assert told["last_pseq"] == producer.last, "J5: how far a producer got"
        if session.resumed:
            assert fields["subs"] == sorted(session.subs)
        else:
            assert fields["session"] not in self.secrets
            session.secret = fields["session"]
            self.secrets[session.secret] = session

    def welcomed(self) -> None:
        """A resume has been answered: what did not arrive was sent again."""
        if self._resumed is not None:
            for sub in self._resumed.subs.values():
                missing = [held for held in sub.again.values() if held.seqs[0] >= self.first_seq]
                assert not missing, f"what was on its way on channel {sub.chan} is not sent again"
            self._resumed = None

    def gone(self, peer: bytes) -> None:
        if peer in self.sessions:
            self.sessions[peer].suspect = True

    def blocked(self, peer: bytes, blocked: bool) -> None:
        if peer in self.sessions:
            self.sessions[peer].blocked = blocked

    def _end(self, session: Session, now: float, *, lost: bool) -> None:
        for sub in list(session.subs.values()):
            self.leave(sub, now, lost=lost)
        self._former[session.peer] = session
        self.secrets.pop(session.secret, None)
        if self.sessions.get(session.peer) is session:
            del self.sessions[session.peer]

    # Publishing.

    def _publish(self, session: Session, message: m.Publish) -> int:
        producer = session.producer
        assert producer is not None
        if session.epoch != producer.epoch:
            return Code.FENCED
        if message.pseq > producer.last + 1:
            return Code.SEQUENCE_GAP
        self._hoped = (session, message, producer if message.pseq else None)
        return ANY if 0 < message.pseq <= producer.last else 0

    def _accept(self, session: Session, message: m.Publish, producer: Producer | None) -> None:
        """The hub took a publish: as a new one, or as one that it has."""
        idents = idents_of(message.block)
        published = Published(session, message.rid, message.level, idents, self.turn)
        if producer is not None and message.pseq <= producer.last:
            self.counts["duplicates"] += 1
            published.first, published.is_new = producer.seqs[message.pseq - 1], False
        else:
            if producer is not None:
                assert session.epoch is not None
                self.undo.append((producer.take_back, len(producer.seqs), producer.proven))
                producer.proven = session.epoch
                published.producer = producer
                published.pseq = message.pseq
                producer.seqs += [0] * len(idents)
            self.accepted.append(published)
        if message.rid:
            session.unconfirmed.setdefault(message.rid, []).append(published)

    def _confirmed(self, session: Session, message: m.PubOk) -> None:
        for rid, first, stored, dups in (row[:4] for row in message.confirms):
            waiting = session.unconfirmed.get(rid)
            assert waiting, "a publish is confirmed once"
            published = waiting.pop(0)
            if not waiting:
                del session.unconfirmed[rid]
            count = len(published.idents)
            self.counts["confirmed"] += 1
            assert message.level == published.level
            assert message.level == Level.RECEIVED or published.turn < self.landed_turns, (
                "C1: confirmed before the disk"
            )
            if published.is_new:
                assert (first, stored, dups) == (published.first, count, 0), "J3: confirmed with its seqs"
            else:
                assert (stored, dups) == (0, count), "J5: a resend is stored once"
                assert published.first in (0, first), "J5: a resend is answered with its first seq"

    # The disk.

    def sealed(self, turn: Turn) -> None:
        """A turn is closed: what it will write, if it gets to the disk."""
        accepted, self.accepted = self.accepted, []
        before = len(self.log)
        own: list[tuple[str, int]] = []
        new: list[int] = []  # places in the log of what clients published
        for record in turn.records:
            if type(record) is m.Append:
                first, last, _ = stamp_of(record.block)
                verify_stamp(record.block)
                assert first == len(self.log) + 1, "J1: seqs have no gap"
                idents = idents_of(record.block)
                assert last - first + 1 == len(idents)
                letters = letters_in(record.block)
                self.log += idents
                if letters is None:
                    self.topics += [IDENTS[ident].topic for ident in idents]
                    new += range(first, last + 1)
                else:
                    for seq, (topic, letter) in enumerate(letters, first):
                        self.topics.append(topic)
                        if letter is None:
                            new.append(seq)
                        else:
                            own.append(letter)
        self._number(accepted, new)
        owed, self.dead, self.owned = self.dead, Counter(), 0
        for letter in own:
            assert owed[letter] > 0 or letter[1] < self.first_seq, f"D6: a dead letter that nobody expected: {letter}"
            owed[letter] -= 1
        owed = +owed
        assert not owed, f"D6: settled without their dead letters in the same transaction: {list(owed)}"
        self.counts["dead letters"] += len(own)
        for record in turn.records:
            if type(record) is m.SaveGroup:
                self._row(record)
        self.undo.append((self._cut, before))
        self._undos.append((self.undo, len(self.log)))
        self.undo = []
        self.turn += 1

    def _number(self, accepted: list[Published], new: list[int]) -> None:
        """Each publish finds its messages in the log, all of them, one after the other."""
        at, log = 0, self.log
        for published in accepted:
            count = len(published.idents)
            seqs = new[at : at + count]
            at += count
            assert len(seqs) == count, "J4: a publish is stored wholly"
            assert seqs[-1] - seqs[0] + 1 == count, "J4: its seqs follow each other"
            assert tuple(log[seqs[0] - 1 : seqs[-1]]) == published.idents, "J3: what was published is what is stored"
            published.first = seqs[0]
            if published.producer is not None:
                published.producer.seqs[published.pseq - 1 : published.pseq - 1 + count] = seqs
        assert at == len(new), "J4: something is stored that nobody published"

    def _row(self, row: m.SaveGroup) -> None:
        """A group's position: nothing below its floor may be unsettled."""
        group = self.groups[row.name]
        floor = min(row.cursor, *[cursor for _, cursor in row.lanes], row.open[0][0] if row.open else row.cursor) - 1
        assert floor >= group.floor, f"D5: the floor of {row.name} goes down from {group.floor} to {floor}"
        if floor > group.floor:
            for seq in range(max(group.floor + 1, group.start), min(floor, len(self.log)) + 1):
                assert self.is_done(group, seq), f"D1: {row.name} counts {seq} as settled, and it is not"
            self.undo.append((group.set_floor, group.floor))
            group.floor = floor

    def is_done(self, group: GroupBook, seq: int) -> bool:
        if seq in group.settled or seq < self.first_seq or self.topics[seq - 1] not in group.wanted:
            return True
        return self.is_expired(seq)

    def landed(self) -> None:
        """The oldest sealed turn is on disk."""
        _, self.durable = self._undos.pop(0)
        self._landed.append(self.durable)
        self.landed_turns += 1

    def released(self) -> None:
        """The hub takes notice of the oldest turn that landed."""
        self.served = self._landed.pop(0)

    def crashed(self, disk: Disk) -> None:
        """The hub is gone, and with it all that was not on disk."""
        for undo in reversed(self.undo):
            undo[0](*undo[1:])
        for undos, _ in reversed(self._undos):
            for undo in reversed(undos):
                undo[0](*undo[1:])
        self.undo, self._undos, self.accepted, self._alarms = [], [], [], []
        self.dead.clear()
        self.owned = 0
        self.turn = self.landed_turns
        self._landed, self.served = [], self.durable
        self._lost = 0
        self.sessions, self.secrets, self._former, self._overdue = {}, {}, {}, []
        assert len(self.log) == self.durable == disk.last_seq
        self.groups = {name: group for name, group in self.groups.items() if group.durable}
        assert set(self.groups) == set(disk.groups), "D1: groups outlive a crash"
        for group in self.groups.values():
            group.restored()
            group.restored_to = self.durable
            if self.clock_was_set:  # what waits by the wall's clock
                group.due.clear()
        for name, producer in self.producers.items():
            row = disk.producers.get(name)
            producer.epoch = row.epoch if row else 0
            assert producer.epoch >= producer.proven, "fencing: an epoch outlives a crash"

    def _cut(self, length: int) -> None:
        del self.log[length:], self.topics[length:]

    def trimmed(self, first_seq: int) -> None:
        """Retention removes what is below: those who still needed it must be told."""
        for group in self.groups.values():
            floor = group.floor if group.durable else group.last
            gone = [
                seq
                for seq in range(max(self.first_seq, group.start, floor + 1), first_seq)
                if seq not in group.settled and self.topics[seq - 1] in group.wanted
            ]
            group.gap_owed = {(sub.session.peer, sub.chan): set(gone) for sub in group.subs} if gone else {}
            group.settled.update(gone)
            for seq in gone:
                self.undo.append((group.settled.discard, seq)) if group.durable else None
        self.first_seq = first_seq
        self.counts["trims"] += 1

    def trim_told(self) -> None:
        for group in self.groups.values():
            for missing in group.gap_owed.values():
                assert not missing, f"J6: {group.name} lost {sorted(missing)} and is not told"
            group.gap_owed = {}

    # What the hub says.

    def heard(self, peer: bytes, message: m.ToClient, now: float) -> None:
        kind = type(message)
        if kind is m.Err or kind is m.Pong or kind is m.Flow:
            return
        session = self.sessions.get(peer)
        if session is None:
            if kind is m.Notice or (kind is m.Gap and peer in self._former):
                return  # taken over, or gone meanwhile
            if kind is m.Ok or kind is m.PubOk:  # for a connection that was left meanwhile
                session = self._former.get(peer)
        assert session is not None, f"{message} is said to a peer without a session"
        if kind is m.Deliver:
            self._deliver(session, message, now)  # type: ignore[arg-type]
        elif kind is m.PubOk:
            self._confirmed(session, message)  # type: ignore[arg-type]
        elif kind is m.Ok:
            self._ok(session, message)  # type: ignore[arg-type]
        elif kind is m.Welcome:
            self._welcome(session, message.fields)  # type: ignore[union-attr]
        elif kind is m.End:
            self.fetched(session, message)  # type: ignore[arg-type]
        elif kind is m.Gap:
            self._gap(session, message)  # type: ignore[arg-type]

    def _ok(self, session: Session, message: m.Ok) -> None:
        expected = session.answers.pop(message.rid, None)
        if expected is None:
            return
        turn, fields = expected
        assert turn < self.landed_turns, "C1: something is confirmed before it is on disk"
        for name, value in fields.items():
            told = message.fields[name]
            if name == "stale":
                told = {ordinal for a, b in told for ordinal in range(a, b + 1)}
            assert told == value, f"D3: the answer has {name} {told!r}, not {value!r}"

    def _gap(self, session: Session, message: m.Gap) -> None:
        self.counts["gaps"] += 1
        if message.chan not in session.subs:
            return  # gone meanwhile
        group = session.subs[message.chan].group
        missing = group.gap_owed.get((session.peer, message.chan))
        if missing:
            missing.difference_update(range(message.first_seq, message.last_seq + 1))

    # Deliveries.

    def _deliver(self, session: Session, message: m.Deliver, now: float) -> None:
        verify_stamp(message.block)
        base, last, _ = stamp_of(message.block)
        flat = message.seqs
        if flat:
            seqs = [s for at in range(0, len(flat), 2) for s in range(flat[at], flat[at] + flat[at + 1])]
        else:
            seqs = list(range(base, last + 1))
        assert idents_of(message.block) == tuple([self.log[seq - 1] for seq in seqs]), "J3: bytes are those published"
        self.deliver(session, message, seqs, now)

    # Time.

    def ticked(self, now: float, wall_us: int, sessions_lost: int) -> None:
        """The hub has looked at the clock: leases lapse, fetches and sessions end."""
        self.wall_us = wall_us
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            what = heappop(alarms)[2]
            if type(what) is Held:
                if what.deadline > now:
                    self.alarm(what.deadline, what)
                else:
                    self.lapse(what, now)
            elif what.fetch is not None and what.fetch[2] <= now and what.session.subs.get(what.chan) is what:
                self._overdue.append(what)
        if sessions_lost != self._lost:
            silent = [s for s in self.secrets.values() if now - s.last_seen > s.ttl_s]
            assert len(silent) >= sessions_lost - self._lost, "a session lives as long as was said"
            for session in silent:
                self._end(session, now, lost=True)
            self._lost = sessions_lost

    def flushed(self) -> None:
        """All that follows from the time has been said."""
        for sub in self._overdue:
            assert sub.fetch is None, "liveness: a FETCH is closed at its deadline"
        self._overdue.clear()

    # The end.

    def durable_groups(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.durable]

    def is_finished(self) -> bool:
        return not any(self.missing(group) for group in self.groups.values() if group.durable)

    def finished(self) -> None:
        """Faults are over, willing consumers have come: nothing is left over."""
        assert self.durable == len(self.log)
        for group in self.groups.values():
            if group.durable:
                missing = self.missing(group)
                assert not missing, f"D12: {group.name} never settled {missing}"
                held = [seq for seq in group.leased if seq not in group.settled]
                assert not held, f"D12: {group.name} still holds {held}"
