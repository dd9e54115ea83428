"""Router: what every message means. Step it with messages, tick it with the time, seal its turns, commit them.

The shell drives it so:

    step(message, peer, now, out)     one command from a peer; what may leave at once goes to `out`
    tick(now, out)                    leases, heartbeats, deliveries
    seal(wall_us, now, out) -> Turn   what must be on disk, and what may be said only after that
    committed(now, out)               the oldest sealed turn is on disk

Nobody is told "stored" before it is on disk, because confirmations travel in `Turn.sends`; and nothing is delivered
before it is on disk, because groups are woken by `committed` (groups of level `received` by `seal`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from fabric import messages as m
from fabric.block import Block
from fabric.errors import Code, ProtocolError
from fabric.router.delivery import Parcel
from fabric.router.groups import NEVER, DeadLetter, Group, Out
from fabric.router.intake import Batch, Intake, Refusal
from fabric.router.letters import letters
from fabric.router.members import UNLIMITED, FetchOrder, Subscription
from fabric.router.options import group_settings, start_position
from fabric.router.reception import Reception
from fabric.router.sessions import CHANNELS_MAX, Session
from fabric.router.shelf import Reader, Shelf
from fabric.router.topics import Trie

# Settled deliveries may wait this long for a commit of their own; a publish takes them along sooner.
LAZY_S: Final = 0.005
SWEEP_S: Final = 0.5
GROUPS_MAX: Final = 10_000
CHANNEL_MAX: Final = 65_535
# Timers of deliveries that were settled long before stay until there are this many, or twice as many as are needed.
TIMERS_MIN: Final = 4_096


class Turn(NamedTuple):
    """One transaction, and what may be sent when it is on disk."""

    records: list[m.Record]
    sends: Out


class _Sealed(NamedTuple):
    last_seq: int
    batch: Batch


class Router:
    def __init__(
        self,
        reader: Reader,
        token: Callable[[], bytes],
        *,
        first_seq: int = 1,
        last_seq: int = 0,
        last_ts_us: int = 0,
        groups: Iterable[m.SaveGroup] = (),
        producers: Iterable[m.SaveProducer] = (),
        about: dict[str, Any] | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.first_seq = first_seq
        self.committed_seq = last_seq  # on disk
        self.appended_seq = last_seq  # sealed, and on disk soon
        self.intake = Intake(last_seq, last_ts_us, producers)
        self.shelf = Shelf(reader)
        self.shelf.committed = last_seq
        self.reception = Reception(token, self.intake, about or {})
        self.groups: dict[str, Group] = {}
        self._trie: Trie[Group] = Trie()
        self._hasty_groups = 0  # how many are of level `received`
        self._held: Out = []  # answers that wait for this turn's commit
        self._dirty: dict[Group, None] = {}
        self._dirty_since = 0.0  # 0: nothing is dirty, or `tick` has not seen it yet
        self._stirred: dict[Group, None] = {}
        self._sealed: deque[_Sealed] = deque()
        self._timers: list[tuple[float, int, Parcel | Group | Subscription]] = []
        self._timers_max = TIMERS_MIN
        self._ids = count(1)
        self._sweep_at = 0.0
        self.draining = False
        for saved in groups:
            self._enrol(Group.restore(saved))

    # What the shell calls.

    def step(self, message: m.ToHub | m.ToClient, peer: m.PeerId, now: float, out: Out) -> None:
        """Take one command. A wrong one is answered with an error and changes nothing."""
        chan, rid = getattr(message, "chan", 0), getattr(message, "rid", 0)
        try:
            if isinstance(message, m.Hello):
                self._hello(message, peer, now, out)
                return
            session = self.reception.session_of(peer)
            session.last_seen = now
            if session.suspect:
                session.suspect = False
                self._stir_all(session)
            self._handle(message, session, now, out)
        except ProtocolError as error:
            self.refuse(error, peer, chan, rid, out)

    def refuse(self, error: ProtocolError, peer: m.PeerId, chan: int, rid: int, out: Out) -> None:
        """Answer a command that cannot be accepted."""
        self.counters[f"refused_{error.code.name.lower()}"] += 1
        out.append((peer, m.Err(chan, rid, error.code, str(error), error.fields)))

    def tick(self, now: float, out: Out) -> None:
        """Let time pass: leases lapse, silent sessions end, groups hand out."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            self._ring(heappop(timers)[2], now, out)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep(now, out)
        self._serve(now, out)
        if (self._dirty or self._held) and not self._dirty_since:
            self._dirty_since = now

    def next_deadline(self) -> float:
        """When `tick` has something to do next, if nothing arrives."""
        if self._stirred:
            return 0.0
        return min(self._sweep_at, self._timers[0][0]) if self._timers else self._sweep_at

    def commit_deadline(self) -> float:
        """When settled deliveries have waited long enough for a commit; never, when there are none."""
        return self._dirty_since + LAZY_S if self._dirty_since else NEVER

    def wants_commit(self, now: float) -> bool:
        return bool(self.intake) or (self._dirty_since > 0 and now >= self._dirty_since + LAZY_S)

    def wants_seal(self) -> bool:
        """True when something waits that level `received` promised to pass on at once."""
        return self.intake.hasty or (bool(self.intake) and self._hasty_groups > 0)

    def seal(self, wall_us: int, now: float, out: Out) -> Turn:
        """Close the turn: what was taken so far becomes one transaction."""
        batch = self.intake.seal(wall_us)
        for block in batch.blocks:
            self.shelf.add(block)
            self.counters["messages_in"] += block.count
        if self._hasty_groups:
            self._wake(batch.blocks, received=True)
        records = batch.records
        records += [group.record(self.committed_seq) for group in self._dirty if group.name in self.groups]
        sends = self._held + [(session.peer, message) for session, message in batch.confirms]
        out += [(session.peer, message) for session, message in batch.prompt]
        self._held, self._dirty, self._dirty_since = [], {}, 0.0
        self.appended_seq = self.intake.next_seq - 1
        self._sealed.append(_Sealed(self.appended_seq, batch))
        self._serve(now, out)
        return Turn(records, sends)

    def committed(self, now: float, out: Out) -> None:
        """The oldest sealed turn is on disk: groups may have its messages."""
        last_seq, batch = self._sealed.popleft()
        self.committed_seq = self.shelf.committed = last_seq
        self.intake.pending_bytes -= batch.size
        for session, blocks, size in batch.taken:
            session.inflight_blocks -= blocks
            session.inflight_bytes -= size
        self._wake(batch.blocks, received=False)
        self._serve(now, out)

    def trimmed(self, first_seq: int, out: Out) -> None:
        """Retention moved the start of the journal."""
        self.first_seq = first_seq
        for group in self.groups.values():
            group.trimmed(first_seq, out)
            self._note(group)

    def block_peer(self, peer: m.PeerId, blocked: bool) -> None:
        """The connection cannot take more now, or can again."""
        session = self.reception.find(peer)
        if session is not None and session.blocked != blocked:
            session.blocked = blocked
            if not blocked:
                self._stir_all(session)

    def peer_gone(self, peer: m.PeerId) -> None:
        """The connection is gone. The session stays for its time to live, so that the client can resume it."""
        session = self.reception.find(peer)
        if session is not None:
            session.suspect = True

    def refuse_publishes(self, refusal: Refusal | None) -> None:
        self.intake.refusal = refusal

    def drain(self, refusal: Refusal, out: Out) -> None:
        """Take no more publishes, deliver nothing new, tell every client, and write down where all groups are."""
        self.draining = True
        self.intake.refusal = refusal
        for session in self.reception.sessions.values():
            out.append((session.peer, m.Notice("drain", {"reason": refusal.text})))
        for group in self.groups.values():
            if group.durable:
                self._dirty[group] = None

    def outstanding(self) -> int:
        """Deliveries that were sent and not settled."""
        return sum(member.outstanding for group in self.groups.values() for member in group.members)

    # Commands.

    def _handle(self, message: m.ToHub | m.ToClient, session: Session, now: float, out: Out) -> None:
        match message:
            case m.Publish():
                self.counters["publishes"] += 1
                if self.intake.accept(session, message, self.reception.window) is None:
                    self.counters["duplicates"] += 1
            case m.Settle():
                self._settle(message, session, now, out)
            case m.Credit(chan, ordinal_max, bytes_max):
                sub = self._channel(session, chan)
                sub.ordinal_max, sub.bytes_max = ordinal_max, bytes_max
                self._stirred[sub.group] = None
            case m.Ping(rid):
                out.append((session.peer, m.Pong(rid)))
            case m.Fetch():
                self._fetch(message, session, now)
            case m.Subscribe():
                self._subscribe(message, session, out)
            case m.Unsubscribe(chan, rid):
                self._leave(self._channel(session, chan), lost=False)
                out.append((session.peer, m.Ok(chan, rid, {})))
            case m.Goodbye(rid):
                self._end(session, lost=False)
                out.append((session.peer, m.Ok(0, rid, {})))
            case m.Info(rid, fields):
                out.append((session.peer, m.Ok(0, rid, self.info(str(fields.get("what", "hub"))))))
            case _:
                raise ProtocolError(Code.UNKNOWN_VERB, f"{type(message).__name__} is not for the hub")

    def _hello(self, hello: m.Hello, peer: m.PeerId, now: float, out: Out) -> None:
        welcome, session, resumed = self.reception.greet(hello, peer, now, out)
        if resumed is None:
            self.counters["sessions_opened"] += 1
            out.append((peer, welcome))
            return
        self.counters["sessions_resumed"] += 1
        seen = {chan: ordinal for chan, ordinal in resumed if chan in session.channels}
        for sub in list(session.channels.values()):
            if sub.chan not in seen or not sub.group.durable:
                self._leave(sub, lost=True)
        fields = {**welcome.fields, "subs": sorted(session.channels)}
        out.append((peer, m.Welcome(welcome.rid, fields)))
        for sub in session.channels.values():
            self._resend(sub, seen[sub.chan], out)
        self._stir_all(session)

    def _resend(self, sub: Subscription, seen: int, out: Out) -> None:
        """Deliver again, under the same ordinals, what a lost connection swallowed."""
        for parcel in sub.parcels:
            if parcel.first > seen:
                out += sub.group.again(parcel, self.shelf)

    def _subscribe(self, message: m.Subscribe, session: Session, out: Out) -> None:
        chan, fields = message.chan, message.fields
        if not 1 <= chan <= CHANNEL_MAX or chan in session.channels or len(session.channels) >= CHANNELS_MAX:
            raise ProtocolError(
                Code.BAD_OPTION, f"channel {chan}: use a free one in 1..{CHANNEL_MAX}, at most {CHANNELS_MAX} at once"
            )
        name = fields.get("group")
        existing = self.groups.get(name) if isinstance(name, str) else None
        settings = group_settings(fields, existing.settings if existing else None, durable=name is not None)
        credit = fields.get("credit", [0, 0])
        if not (isinstance(credit, list) and len(credit) == 2 and all(type(c) is int and c >= 0 for c in credit)):
            raise ProtocolError(Code.BAD_OPTION, f"credit is [messages, bytes], not {credit!r}")
        group = existing or self._create(name, settings, fields)
        sub = Subscription(session, chan, group, credit[0], credit[1])
        session.channels[chan] = sub
        group.members.append(sub)
        self._stirred[group] = None
        answer = {
            "group": group.name,
            "cursor": max(group.cursor, self.committed_seq + 1) if group.live else group.cursor,
            "floor": group.floor,
            "created": existing is None,
            "lease_ms": group.settings.lease_ms,
        }
        out.append((session.peer, m.Ok(chan, message.rid, answer)))

    def _create(self, name: str | None, settings: m.GroupSettings, fields: Any) -> Group:
        if len(self.groups) >= GROUPS_MAX:
            raise ProtocolError(Code.BUSY, f"a hub has at most {GROUPS_MAX} groups", retry_ms=1000)
        durable = name is not None
        group = Group(name or f"$sub.{next(self._ids)}", settings, self.intake.next_seq, durable=durable)
        self._enrol(group)
        try:
            start = fields.get("start", "first" if durable else "new")
            group.cursor = start_position(start, self.first_seq, self.intake.next_seq, group.wants, self.shelf.reader)
        except ProtocolError:
            self._strike(group)
            raise
        group.dirty = durable
        self._note(group)
        return group

    def _fetch(self, message: m.Fetch, session: Session, now: float) -> None:
        sub = self._channel(session, message.chan)
        if sub.fetch is not None or message.count < 1:
            raise ProtocolError(Code.BAD_OPTION, "one FETCH at a time, of one message or more")
        deadline = now + message.expires_ms / 1000
        sub.ordinal_max = sub.sent + message.count
        sub.bytes_max = UNLIMITED
        sub.fetch = FetchOrder(message.rid, sub.sent, sub.ordinal_max, deadline)
        self._stirred[sub.group] = None
        self._after(deadline, sub)

    def _settle(self, message: m.Settle, session: Session, now: float, out: Out) -> None:
        sub = self._channel(session, message.chan)
        highest = max(last for _, _, last, _ in message.verdicts)
        if highest > sub.sent:
            raise ProtocolError(Code.BAD_ORDINAL, f"ordinal {highest} was never sent; the last one was {sub.sent}")
        group, stale, applied = sub.group, [], 0
        for verdict, first, last, arg in message.verdicts:
            late, dead = group.settle(sub, verdict, first, last, arg, now)
            stale += [list(pair) for pair in late]
            applied += last - first + 1 - late.size()
            self._bury(group, dead, out)
        self.counters["settled"] += applied
        if stale:
            self.counters["stale_verdicts"] += 1
        self._note(group)
        self._stirred[group] = None
        self._set_alarm(group)
        if message.rid:
            self._held.append((session.peer, m.Ok(message.chan, message.rid, {"applied": applied, "stale": stale})))

    def _bury(self, group: Group, dead: list[DeadLetter], out: Out) -> None:
        """Dead letters are appended in the turn that settles them: on disk, it is one or the other."""
        for letter in dead:
            block = self.shelf.at(letter.first)  # a letter comes from one delivery, and so from one block
            if isinstance(block, Block):
                for raw in letters(group.name, letter, block, letter.first, letter.last):
                    self.intake.append(Block(raw))
                self.counters["dead_letters"] += letter.last - letter.first + 1
            group.close(letter.first, letter.last)

    # Groups and members.

    def _enrol(self, group: Group) -> None:
        self.groups[group.name] = group
        group.trie = self._trie
        self._hasty_groups += group.received
        for pattern in group.settings.patterns:
            self._trie.add(pattern, group)

    def _strike(self, group: Group) -> None:
        del self.groups[group.name]
        self._stirred.pop(group, None)
        self._hasty_groups -= group.received
        for pattern in group.settings.patterns:
            self._trie.remove(pattern, group)

    def _leave(self, sub: Subscription, *, lost: bool) -> None:
        del sub.session.channels[sub.chan]
        sub.fetch = None
        sub.group.leave(sub, lost=lost)
        if sub.group.durable:
            self._stirred[sub.group] = None
        else:
            self._strike(sub.group)

    def _end(self, session: Session, *, lost: bool) -> None:
        for sub in list(session.channels.values()):
            self._leave(sub, lost=lost)
        self.reception.dismiss(session)
        self.counters["sessions_lost" if lost else "sessions_closed"] += 1

    def _channel(self, session: Session, chan: int) -> Subscription:
        try:
            return session.channels[chan]
        except KeyError:
            raise ProtocolError(Code.NOT_FOUND, f"no subscription on channel {chan}") from None

    # Time and deliveries.

    def _ring(self, what: Parcel | Group | Subscription, now: float, out: Out) -> None:
        if isinstance(what, Parcel):
            if what.open and what.deadline > now:
                self._after(what.deadline, what)
            elif what.open:
                group = what.sub.group
                self.counters["lapsed"] += what.open.size()
                self._bury(group, group.lapse(what), out)
                self._note(group)
                self._stirred[group] = None
        elif isinstance(what, Group):
            what.alarm = NEVER
            if what.due(now):
                self._stirred[what] = None
            self._set_alarm(what)
        elif what.fetch is not None and what.fetch.deadline <= now:
            self._serve(now, out)  # what is there at the deadline still counts
            self._end_fetch(what, out)

    def _after(self, when: float, what: Parcel | Group | Subscription) -> None:
        timers = self._timers
        if len(timers) >= self._timers_max:
            timers[:] = [timer for timer in timers if _is_pending(timer[2])]
            heapify(timers)
            self._timers_max = max(2 * len(timers), TIMERS_MIN)
        heappush(timers, (when, next(self._ids), what))

    def _set_alarm(self, group: Group) -> None:
        """See to it that what waits in a group is looked at when it is due; a timer that is set already will do."""
        if group.waiting and group.waiting[0][0] < group.alarm:
            group.alarm = group.waiting[0][0]
            self._after(group.alarm, group)

    def _sweep(self, now: float, out: Out) -> None:
        for session in self.reception.silent(now):
            self._end(session, lost=True)
        self.reception.forget_producers()
        self.reception.adjust_window(out)

    def _wake(self, blocks: list[Block], *, received: bool) -> None:
        """Tell the groups of a level that there are blocks for them."""
        for block in blocks:
            for owners in self._trie.match_all(block.topics):
                for group in owners:
                    if group.received == received:
                        group.wake(block.base_seq)
                        if group.members:
                            self._stirred[group] = None

    def _serve(self, now: float, out: Out) -> None:
        """Let every group that something happened to hand out what it can."""
        if self.draining:
            self._stirred.clear()
        stirred, self._stirred = self._stirred, {}
        for group in stirred:
            horizon = self.appended_seq if group.received else self.committed_seq
            sent = len(out)
            leased, more = group.dispatch(self.shelf, horizon, now + group.settings.lease_ms / 1000, out)
            for parcel in leased:
                self._after(parcel.deadline, parcel)
            if more:
                self._stirred[group] = None
            if len(out) > sent:
                self.counters["deliveries"] += len(out) - sent
                for sub in group.members:
                    if sub.fetch is not None and sub.sent >= sub.fetch.target:
                        self._end_fetch(sub, out)

    def _end_fetch(self, sub: Subscription, out: Out) -> None:
        if sub.fetch is not None:
            sub.ordinal_max = sub.sent
            out.append((sub.session.peer, m.End(sub.chan, sub.fetch.rid, sub.sent - sub.fetch.first)))
            sub.fetch = None

    def _stir_all(self, session: Session) -> None:
        for sub in session.channels.values():
            self._stirred[sub.group] = None

    def _note(self, group: Group) -> None:
        """Remember a group whose row on disk is out of date. Its commit can wait a little for company."""
        if group.dirty:
            self._dirty[group] = None

    def info(self, what: str) -> dict[str, Any]:
        """Answers for INFO."""
        match what:
            case "hub":
                return {
                    "first_seq": self.first_seq,
                    "last_seq": self.committed_seq,
                    "groups": len(self.groups),
                    "sessions": len(self.reception.sessions),
                    "pending_bytes": self.intake.pending_bytes,
                    "refusing": self.intake.refusal.text if self.intake.refusal else "",
                }
            case "counters":
                return dict(self.counters)
            case "groups":
                return {"groups": [g.describe(self.committed_seq) for g in self.groups.values()]}
            case "sessions":
                return {"sessions": [s.describe() for s in self.reception.sessions.values()]}
        raise ProtocolError(Code.NOT_FOUND, f"INFO knows hub, groups, sessions and counters, not {what!r}")


def _is_pending(what: Parcel | Group | Subscription) -> bool:
    """Whether a timer still has something to do."""
    if isinstance(what, Parcel):
        return bool(what.open)
    return bool(what.waiting) if isinstance(what, Group) else what.fetch is not None
