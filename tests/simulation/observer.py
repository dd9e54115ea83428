"""The observer stands at the hub's door. It hears all that is said there, sees what is on the disk, and knows what was
promised; it knows nothing of how the router works. Names like D4 are those of the invariants below.

    J1  seqs are 1, 2, 3, …: no gap, no reuse, also across restarts     J3  what was confirmed can be read as it was
    J4  a publish is stored wholly or not at all                        J5  a resend is answered with its first seq
    J9  each position of a numbered source is stored at most once, and its cursor is the last one that was stored
    D1  every group has each wanted message settled or among its dead letters, in the end
    D2  never two leases of one message in one group                    D3  a stale verdict changes nothing, and is told
    D4  what was confirmed as settled never comes again                 D5  the floor of a group never goes down
    D6  failures are counted, and at the limit there is one dead letter, in the transaction that settles the message
    D7  never more in flight than the credit                            D8  nothing before its time
    D9  never more in flight than the ceiling of the group              D10 never more in a time than the rate allows
    G1  a group with consumers never ends                               G2  one without ends when its time is over
    C1  nobody is told that something is stored before it is on disk    C2  nothing is delivered before it is on disk
    T1  counters of groups, sessions and the hub are those of a naive count; where the door tells less, they are within
        its bounds (T2); they never fall (T3): see `tallying`
    O1  a session, the name of a producer and a schedule belong to a principal: for others they do not exist
    P1  a viewer that merges what pulses tell has the rows of the lists of INFO: see `viewing`

All checks are incremental: each costs what happened, not what there is. What a crash takes back is kept as a log of
undo entries for each turn that is not on disk yet.
"""

from collections.abc import Iterable
from heapq import heappop
from math import inf
from typing import Any, Final

from fabric.records import TopicSettings
from fabric.router.access.identity import LOCAL_NAME
from fabric.router.groups.lanes import REMOVED
from fabric.router.sessions.session import GRACE_S, SILENT_BEATS
from fabric_protocol import messages as m
from fabric_protocol.block import verify_stamp
from fabric_protocol.errors import Code
from tests.simulation.blocks import idents_of
from tests.simulation.disk import Disk, stamp_of
from tests.simulation.facts import Counts
from tests.simulation.ledgers import GroupBook, Held, Published, Scheduled, Session, Sub
from tests.simulation.numbering import Producer, Source
from tests.simulation.publisher import ANY
from tests.simulation.tallying import Tallying

# Refusals of a publish that is sent again under the same rid; the answer to an earlier one may still be on its way.
AT_ONCE: Final = (Code.FENCED, Code.SEQUENCE_GAP, Code.NO_SESSION, Code.BUSY, Code.OVERRUN, Code.INTERNAL)
REFUSALS: Final = {code.value: f"refused {code.name}" for code in Code}
INSTANT_S: Final = 1 / 1024
ASIDE: Final = frozenset((m.Err, m.Pong, m.Flow, m.Notice))  # said to anyone, also without a session


class Observer(Tallying):
    def __init__(self, counts: Counts, settings: Iterable[tuple[str, TopicSettings]] = ()) -> None:
        super().__init__(counts, settings)
        self.secrets: dict[bytes, Session] = {}
        self.principals: dict[bytes, str] = {}  # by peer
        self._former: dict[bytes, Session] = {}  # by a peer that it had
        self.overdue: list[Sub] = []
        self.resumed: Session | None = None  # has resumed in this command
        self._lost = self._silent = 0
        self._has_gone = False  # a connection was seen to close, at some time

    # What the hub is told.

    def look(self, wall_us: int) -> None:
        """What the wall shows."""
        if wall_us < self.wall_us:
            self.doubt_ids()
        self.wall_us = wall_us
        self.wall_max_us = max(self.wall_max_us, wall_us)
        self.turn_wall_us = max(self.turn_wall_us, wall_us)

    def told(self, peer: bytes, message: m.ToHub, now: float) -> int:
        """A command reaches the hub. Returns the error that must follow, 0 for none, ANY when it may be either."""
        if type(message) is m.Hello:
            return self._hello(peer, message, now)
        session = self.sessions.get(peer)
        if session is None:
            return Code.NO_SESSION
        session.last_seen = now
        self._is_back(session)
        match message:  # what is said most often comes first
            case m.Subscribe() if "respond" not in message.fields:
                return self.subscribe(session, message)
            case m.Publish():
                return self.publish(session, message)
            case m.Settle():
                return self.settle(session, message, now)
            case m.Ping():
                return 0
            case m.Transact():
                return self.transact(session, message)
            case m.Cancel():
                return self.cancel(session, message)
            case m.Get():
                return self.get(session, message)
            case m.Ready():
                return self.say_ready(session, message)
            case m.Admin():
                return self.admin(session, message)
            case m.Credit(chan, ordinal_max, bytes_max, unsure):
                sub = session.subs.get(chan)
                if sub is None:
                    return Code.NOT_FOUND
                sub.ordinal_max, sub.bytes_max, sub.unsure = ordinal_max, bytes_max, unsure
            case m.Subscribe():
                return self.serve(session, message)
            case m.Request():
                return self.ask(session, message, now)
            case m.Reply():
                return self.reply(session, message)
            case m.Unsubscribe(chan) if chan in session.serving:
                self.stop_serving(session.serving[chan])
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

    def answered(self, expected: int, peer: bytes, out: list[tuple[bytes, m.ToClient]], now: float) -> None:
        """What the hub answered at once: an error when there must be one, none when there must not."""
        code = 0
        for whom, message in out:
            if whom == peer and type(message) is m.Err:
                code = message.code
        if expected == Code.FENCED:
            assert not code, "fencing: it is told when the claim is on disk, not before"
            code = expected
        if expected != ANY:
            assert code == expected, f"answered with error {code}, not {expected}: {out}"
        if code == Code.TOPIC_FULL and self._hoped is not None:
            topic = next(message.fields["topic"] for _, message in out if type(message) is m.Err)
            self.check_full(topic, idents_of(self._hoped[1].block))
        if self._update is not None:
            self.updated(code)
        if self._moving is not None:
            self.moved(code)
        if code:
            self.counts[REFUSALS[code]] += 1
            self._hoped = None
        else:
            self.accepted_hoped(now)

    # Sessions.

    def _hello(self, peer: bytes, hello: m.Hello, now: float) -> int:
        fields = hello.fields
        if peer in self.sessions:
            return Code.SESSION_EXISTS
        wish, principal = fields["producer"], self.principals.get(peer, LOCAL_NAME)
        name = wish["name"] if principal == LOCAL_NAME else f"{principal}/{wish['name']}"
        producer = self.producers.get(name)
        if producer is None:
            producer = Source(name) if wish.get("jumps") else Producer(name)
            self.producers[name] = producer
        epoch = wish.get("epoch")
        if epoch is not None and (epoch < producer.epoch or producer.claimant is not None):
            return Code.FENCED
        resume = fields.get("resume")
        session = self.secrets.get(resume["session"]) if resume else None
        if session is not None and session.principal != principal:
            self.counts["intruders"] += 1
            session = None
        if session is None or resume is None:
            session = Session(peer, fields["ttl_ms"] / 1000, fields["hb_ms"] / 1000, principal)
            session.resumed = False
        else:
            self.counts["resumed"] += 1
            self._former[session.peer] = session
            self.sessions.pop(session.peer, None)
            for serving in list(session.serving.values()):
                self.stop_serving(serving)
            session.peer, session.resumed, session.blocked = peer, True, False
            seen = dict(resume["subs"])
            for sub in list(session.subs.values()):
                if sub.chan not in seen or not sub.group.durable:
                    self.leave(sub, now, lost=True)
                else:
                    sub.resume(seen[sub.chan])
                    sub.resumed_in = self.turn
            self.resumed = session
            self._is_back(session)
        session.last_seen = now
        session.producer, session.epoch = producer, epoch
        if epoch is None:
            producer.claimant = session
            session.claimed_turn = self.turn
        self.sessions[peer] = session
        return 0

    def _welcome(self, session: Session, fields: Any) -> None:
        assert fields["resumed"] is session.resumed, "a session lives as long as was said"
        producer, told = session.producer, fields["producer"]
        assert producer is not None
        assert told["epoch"] > producer.epoch or told["epoch"] == session.epoch, "fencing: epochs go up"
        if session.epoch is None:
            assert session.claimed_turn < self.landed_turns, "C1: a claim is told before it is on disk"
            producer.proven = told["epoch"]
            if producer.claimant is session:
                producer.claimant = None
        producer.epoch = session.epoch = told["epoch"]
        assert told["last_pseq"] == producer.last, "J5: how far a producer got"
        assert told.get("jumps", False) == producer.jumps, "J9: a source is told that it is one"
        if isinstance(producer, Source) and producer.last_seq():
            assert told["last_seq"] == producer.last_seq(), "J9: the last message of a source"
        if session.resumed:
            assert fields["subs"] == sorted(session.subs)
        elif self.sessions.get(session.peer) is session:
            assert fields["session"] not in self.secrets
            session.secret = fields["session"]
            self.secrets[session.secret] = session

    def welcomed(self) -> None:
        """A resume has been answered: what did not arrive was sent again."""
        assert self.resumed is not None
        for sub in self.resumed.subs.values():
            missing = [held for held in sub.again.values() if not any(map(self._may_be_gone, held.seqs))]
            assert not missing, f"what was on its way on channel {sub.chan} is not sent again"
        self.resumed = None

    def _may_be_gone(self, seq: int) -> bool:
        return seq < self.first_seq or self.may_be_dropped(seq)

    def failed(self, peer: bytes, now: float) -> None:
        """A command failed in the hub, and changed nothing."""
        if peer in self.sessions:
            self.sessions[peer].last_seen = now  # and when it was away, it still is

    def gone(self, peer: bytes, now: float) -> None:
        """The hub has seen that a connection was closed."""
        session = self.sessions.get(peer)
        if session is not None and session.grace_until in (0.0, inf):
            session.suspect = self._has_gone = True
            session.grace_until = now + min(GRACE_S, session.ttl_s)
            self.disconnected(session)
            for sub in session.subs.values():
                self.pass_on(sub.group)

    def _is_back(self, session: Session) -> None:
        session.suspect = False
        if session.grace_until:
            session.grace_until = 0.0
            for sub in session.subs.values():
                self.pass_on(sub.group)

    def blocked(self, peer: bytes, blocked: bool) -> None:
        if peer in self.sessions:
            self.sessions[peer].blocked = blocked

    def _end(self, session: Session, now: float, *, lost: bool) -> None:
        for sub in list(session.subs.values()):
            self.leave(sub, now, lost=lost)
        self.stop_asking(session)
        self._former[session.peer] = session
        self.secrets.pop(session.secret, None)
        if self.sessions.get(session.peer) is session:
            del self.sessions[session.peer]

    def crashed(self, disk: Disk, *, clean: bool) -> None:
        super().crashed(disk, clean=clean)
        self.forget_requests()
        self._lost = self._silent = 0
        self.sessions, self.secrets, self._former, self.overdue = {}, {}, {}, []

    # What the hub says.

    def heard(self, peer: bytes, message: m.ToClient, now: float) -> None:
        kind = type(message)
        session = self.sessions.get(peer)
        if kind in ASIDE:
            if kind is m.Err and message.rid and session is not None:  # type: ignore[union-attr]
                self._refused(session, message)  # type: ignore[arg-type]
            return
        if session is None:
            if (kind is m.Gap or kind is m.Reset) and peer in self._former:
                return  # gone meanwhile
            if kind is m.Ok or kind is m.PubOk or kind is m.Welcome:  # for a connection that was left meanwhile
                session = self._former.get(peer)
        assert session is not None, f"{message} is said to a peer without a session"
        if kind is m.Ok:  # what is said most often comes first
            self._ok(session, message)  # type: ignore[arg-type]
        elif kind is m.Deliver:
            self._deliver(session, message, now)  # type: ignore[arg-type]
        elif kind is m.Welcome:
            self._welcome(session, message.fields)  # type: ignore[union-attr]
        elif kind is m.PubOk:
            self.confirmed(session, message)  # type: ignore[arg-type]
        elif kind is m.Got:
            self.got(session, message)  # type: ignore[arg-type]
        elif kind is m.Reset:
            self.reset(session, message)  # type: ignore[arg-type]
        elif kind is m.End:
            self.fetched(session, message)  # type: ignore[arg-type]
        elif kind is m.Request:
            self.passed_on(session, message, now)  # type: ignore[arg-type]
        elif kind is m.Reply:
            self.passed_back(session, message)  # type: ignore[arg-type]
        elif kind is m.Gap:
            self._gap(session, message, now)  # type: ignore[arg-type]

    def _refused(self, session: Session, message: m.Err) -> None:
        if not self.is_told_end(session, message) and message.code not in AT_ONCE:
            session.expected(message.rid)

    def _ok(self, session: Session, message: m.Ok) -> None:
        read = session.gets.pop(message.rid, None)
        if read is not None:
            self.all_got(read, message)
            return
        expected = session.expected(message.rid)
        if expected is None:
            return
        turn, fields = expected
        assert turn < self.landed_turns, "C1: something is confirmed before it is on disk"
        for name, value in fields.items():
            told: Any = message.fields.get(name)
            if isinstance(value, Scheduled):
                value.id, value = told or value.id, told
            elif isinstance(value, Published):
                value = value.first or told
            elif isinstance(value, GroupBook):
                value.begin(told)
                continue
            if name == "stale":
                told = {ordinal for a, b in told for ordinal in range(a, b + 1)}
            assert told == value, f"D3: the answer has {name} {told!r}, not {value!r}"

    def _gap(self, session: Session, message: m.Gap, now: float) -> None:
        self.counts["gaps"] += 1
        if message.chan not in session.subs:
            return  # gone meanwhile
        sub = session.subs[message.chan]
        group, told = sub.group, range(message.first_seq, message.last_seq + 1)
        if message.reason == REMOVED and max(group.moved_in, sub.resumed_in) < self.turn:  # else it is told once more
            twice = sub.told.intersection(told)
            assert not twice, f"J6: {group.name} is told twice that {twice} is gone"
            sub.told.update(told)
        for seq in range(max(message.first_seq, self.first_seq, group.start), min(message.last_seq, len(self.log)) + 1):
            assert self.is_done(group, seq), f"J6: {seq} is removed, and {group.name} has not settled it"
        if self.settings and self.first_seq == 1 and group.durable:
            for seq in told:
                is_over = seq in group.settled and seq not in group.given_up and not self.may_be_dropped(seq)
                assert not is_over, f"J6: {group.name} is told that {seq} is gone, and it has settled it"
        if group.untold and session.is_reachable(now):
            group.untold.difference_update(told)
        group.told.update(told)
        missing = group.gap_owed.get((session.peer, message.chan))
        if missing:
            missing.difference_update(told)

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

    def ticked(self, now: float, counters: dict[str, int]) -> None:
        """The hub has looked at the clock: leases lapse, fetches and sessions end."""
        sessions_lost, sessions_silent = counters.get("sessions_lost", 0), counters.get("sessions_silent", 0)
        if sessions_lost != self._lost:
            everyone = dict.fromkeys((*self.secrets.values(), *self.sessions.values()))  # some wait for a WELCOME
            silent = [s for s in everyone if now - s.last_seen > s.ttl_s]
            assert len(silent) >= sessions_lost - self._lost, "a session lives as long as was said"
            for session in silent:
                self._end(session, now, lost=True)
            self._lost = sessions_lost
        if sessions_silent != self._silent:
            self._go_silent(now, sessions_silent - self._silent)
            self._silent = sessions_silent
        for session in self.secrets.values() if self._has_gone else ():
            if session.grace_until and now >= session.grace_until:
                session.grace_until = 0.0
                for sub in list(session.subs.values()):
                    self.leave(sub, now, lost=True)
        if self.refreshing:
            self.look_at_refreshes()
        if self.services:
            self.look_at_requests(now)
        alarms = self._alarms
        while alarms and alarms[0][0] <= now:
            what = heappop(alarms)[2]
            if type(what) is Held:
                if what.deadline > now:
                    self.alarm(what.deadline, what)
                else:
                    self.lapse(what, now)
            elif what.fetch is not None and what.fetch[2] <= now and what.session.subs.get(what.chan) is what:
                self.overdue.append(what)

    def _go_silent(self, now: float, count: int) -> None:
        """So many sessions have missed their heartbeats: what they cannot have begun is for others."""
        everyone = dict.fromkeys((*self.secrets.values(), *self.sessions.values()))
        silent = [s for s in everyone if now - s.last_seen > SILENT_BEATS * s.hb_s]
        silent = [s for s in silent if not (s.suspect or s.grace_until)]
        assert len(silent) == count, "a session is silent when it has missed its heartbeats"
        self.counts["silent"] += count
        for session in silent:
            session.grace_until = inf
        for session in silent:
            for sub in session.subs.values():
                self.pass_on(sub.group)

    def next_silence(self, now: float) -> float:
        """When a session will have been silent for long enough to be marked, or to be ended."""
        found = inf
        for session in self.sessions.values():
            if session.grace_until:
                found = min(found, session.grace_until)
            silent = session.last_seen + SILENT_BEATS * session.hb_s
            found = min(found, silent + INSTANT_S if silent >= now else session.last_seen + session.ttl_s + INSTANT_S)
        return found

    def flushed(self, now: float) -> None:
        """All that follows from the time has been said."""
        self.check_requests(now)
        for sub in self.overdue:
            assert sub.fetch is None, "liveness: a FETCH is closed at its deadline"
        self.overdue.clear()

    # The end.

    def durable_groups(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.durable]

    def paused_groups(self) -> list[str]:
        return [name for name, group in self.groups.items() if group.durable and group.paused]

    def named_schedules(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((one.name, one.owner) for one in self.schedules if one.name))

    def is_finished(self) -> bool:
        if self.schedules:
            return False
        if not all(map(self.is_refreshed, self.groups.values())):
            return False
        return not any(self.missing(group) or self.lost(group) for group in self.groups.values() if group.durable)

    def finished(self) -> None:
        """Faults are over, willing consumers have come: nothing is left over."""
        assert self.durable == len(self.log)
        overdue = [one for one in self.schedules if one.due_us < self.wall_us - 1_000_000]
        assert not overdue, f"D12: {len(overdue)} schedules never fired"
        for group in self.groups.values():
            if group.durable:
                missing = self.missing(group)
                assert not missing, f"D12: {group.name} never settled {missing}"
                held = [seq for seq in group.leased if not self.is_done(group, seq)]
                assert not group.untold, f"J6: {group.name} lost {sorted(group.untold)} and was never told"
                assert self.is_refreshed(group), f"R3: the refresh of {group.name} never ends"
                assert not (lost := self.lost(group)), f"J6: {group.name} lost {lost} and was never told"
                assert not held, f"D12: {group.name} still holds {held}"
