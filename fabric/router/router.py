"""Router: decides what each command means. It has no clock, no socket and no disk; the hub's loop calls it so:

    begin(wall_us, now)                 a turn begins at this time
    step(message, peer, now, identity)  one command from a peer; HELLO opens a session of its identity
    refuse(error, peer, chan, rid)      a command that cannot be decoded, or for which there is no room
    fail(peer, chan, rid)               `step` has raised an unexpected exception
    peer_gone(peer)                     a connection is closed
    apply_access()                      the book of principals has changed
    disown(peer, reason)                the key of a connection is not valid any more
    release(transaction)                a sealed transaction is on disk: its answers leave
    committed(now)                      the oldest sealed transaction is on disk: groups may deliver its messages
    trim_request(seq)                   retention of the journal asks to remove all messages below a seq
    begins_at(seq), trimmed(seq)        the first seq on disk is higher; no group, or some group, loses messages
    tick(now)                           leases, heartbeats, deliveries
    wants_commit(now), wants_seal()     whether to seal
    seal(wall_us, now)                  the rows that must be on disk, and the frames that leave after that
    take_frames()                       the frames that leave now
    peer_blocked(peer, blocked)         the send queue of a connection is full, or is not full any more
    next_deadline(), commit_deadline()  when to call again

and, apart from the loop: `examine`, `refuse_publishes`, `drain` and `outstanding` (when the hub stops), `peers`,
`last_heard`, `window`, `pending_bytes`, `topics_taken`, `trim_limit`, `is_refusing`, `counters` and `gauges` (for the
limits of the hub, for its log and for the journal).

A confirmation leaves after the commit, because it is in `Transaction.sends`. A message is delivered after the commit,
because `committed` wakes the groups (`seal` wakes groups of level `received`). `turn` describes the order of frames and
rows, and `orders` the order of parts.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from fabric.records import Record, Restored
from fabric.router import audit, commands, enforcement
from fabric.router.access.book import Book
from fabric.router.access.identity import LOCAL, Identity
from fabric.router.access.principal import Principals
from fabric.router.access.sources import AUDIT
from fabric.router.admin.groups import expire as end_group
from fabric.router.admin.hub_settings import HubSettings
from fabric.router.advisories import Advisories
from fabric.router.block_store import Reader
from fabric.router.clock import Clock
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.event_recorder import Events
from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.idle_groups import IdleGroups
from fabric.router.groups.members import Members
from fabric.router.groups.over import is_over
from fabric.router.groups.refresh import Refreshes
from fabric.router.groups.rows import GroupRows
from fabric.router.groups.subscription import Subscription
from fabric.router.health import Health, Thresholds, Vitals
from fabric.router.orders import Orders
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.publishing import Publishing, Refusal
from fabric.router.read.get import Reading
from fabric.router.read.pulse import Pulse
from fabric.router.requests.requests import Requests
from fabric.router.schedules.schedules import Schedules
from fabric.router.sessions.session import GRACE_S, Session
from fabric.router.sessions.session_table import SessionTable
from fabric.router.shared import Shared
from fabric.router.sweep import sweep
from fabric.router.timers import NEVER
from fabric.router.topics.table import TopicTable
from fabric.router.transactions import Transactions
from fabric.router.turn import Frames, LogAdvisory, Turn
from fabric_protocol import messages as m
from fabric_protocol.block import PRIORITY_DEFAULT, Block
from fabric_protocol.errors import Code, ProtocolError

SWEEP_S: Final = 0.5


class Transaction(NamedTuple):
    """The rows of a sealed turn, and the frames that leave when these rows are on disk."""

    records: list[Record]
    sends: Frames


class Router:
    def __init__(
        self,
        restored: Restored,
        reader: Reader,
        token: Callable[[], bytes],
        about: dict[str, Any] | None = None,  # fields of each WELCOME
        *,
        place: dict[str, Any] | None = None,  # fields of INFO: which journal this is, and where
        counters: Counter[str] | None = None,  # of the router that this one replaces
        log: LogAdvisory | None = None,  # called with each advisory
        book: Book | None = None,  # of principals and keys; None: the hub has no keys
        wall_us: int = 0,
        now: float = 0.0,
    ) -> None:
        clock = Clock()
        # Not before the last commit: a clock that was set back delays nothing.
        clock.set(max(wall_us or int(now * 1e6), restored.last_ts_us), now)
        counters = Counter() if counters is None else counters
        self.shared = shared = Shared(reader, clock, restored.first_seq, restored.last_seq, counters)
        self.place = place or {}
        self.counters = counters
        self.settings = HubSettings(restored.settings)
        self.events = Events(clock, reader, restored.settings)
        self.turn = turn = Turn(shared.trie, self.events, counters, log, clock)
        self.apply_settings()
        self.dead_letters = DeadLetters(restored.settings, shared.first_seq)
        self.group_rows = GroupRows(shared)
        self.topics = TopicTable(restored.topics, shared, self.dead_letters, self.group_rows)
        self.ids = Ids(reader, clock, self.topics.settings_of, partial(is_over, shared), restored.settings)
        self.publishing = Publishing(shared, self.topics, self.dead_letters, self.ids, restored, self.place)
        self.idle_groups = IdleGroups(shared, self.group_rows, lambda group, turn: end_group(self, group, turn))
        self.dispatcher = Dispatcher(shared, self.publishing, self.group_rows, self.idle_groups)
        self.dispatcher.restore(restored, now, turn)
        self.members = Members(self.dispatcher)
        self.book = book
        self.principals = Principals(self.groups, book.roles() if book is not None else {})
        self.session_table = SessionTable(token, self.publishing, shared.change, about or {}, self.principals)
        self.transactions = Transactions(self.publishing, self.dispatcher)
        self.requests = Requests(shared)
        self.schedules = Schedules(shared, self.publishing, self.topics, self.ids, self.principals if book else None)
        self.reading = Reading(shared, self.dead_letters)
        self.refreshes = Refreshes(self.dispatcher, restored.settings, turn)
        self.health = Health(shared)
        self.advisories = Advisories(shared.trie, clock, counters)
        self._orders = Orders.of(self)
        self._mark = 0  # frames that were sent before the current command
        self._sealed: deque[tuple[int, list[Block]]] = deque()  # the last seq of each, and its blocks
        self.pulse = Pulse(self, token)
        self._sweep_at = 0.0

    @property
    def groups(self) -> dict[str, Group]:
        return self.dispatcher.groups

    # What the hub's loop calls.

    def begin(self, wall_us: int, now: float) -> None:
        """A turn begins at this time."""
        self.shared.clock.set(wall_us, now)

    def step(self, message: m.ToHub | m.ToClient, peer: m.PeerId, now: float, identity: Identity = LOCAL) -> None:
        """Handle one command. A wrong command is answered with an error and changes nothing.

        Any other exception is a bug of the router; the hub then calls `fail`.
        """
        turn, change = self.turn, self.shared.change
        change.begun = False
        self._mark = len(turn.sends)
        self.shared.clock.now = now
        self.shared.pace.heard = True
        chan, rid = getattr(message, "chan", 0), getattr(message, "rid", 0)
        try:
            if isinstance(message, m.Hello):
                commands.hello(self, message, peer, identity, now, turn)
                return
            session = self.session_table.find(peer) or commands.no_session(self, peer, identity)
            if session.principal.is_barred:
                commands.require_known(session, message)
            session.last_seen = now
            if session.suspect:
                change.begin()
                commands.is_back(self, session, turn)
            commands.handle(self, message, session, now, turn)
        except ProtocolError as error:
            if audit.concerns(error, identity):
                audit.refused(error, message, self.session_table.find(peer), identity, turn)
            self.refuse(error, peer, chan, rid)

    def refuse(self, error: ProtocolError, peer: m.PeerId, chan: int, rid: int) -> None:
        """Answer a command that cannot be accepted."""
        turn = self.turn
        self.counters[f"refused_{error.code.name.lower()}"] += 1
        session = self.session_table.find(peer)
        turn.advise("$sys.refused", code=error.code.name, why=str(error), **(session.identity if session else {}))
        answer = m.Err(chan, rid, error.code, str(error), error.fields)
        if error.code == Code.FENCED:  # true only when the claim that fences is on disk
            turn.answer(peer, answer)
        else:
            turn.send(peer, answer)

    def fail(self, peer: m.PeerId, chan: int, rid: int, *, is_decoded: bool = True) -> bool:
        """Answer a command that has raised an unexpected exception, in `step` or before it was decoded. Frames of the
        command are not sent. False: the state may be half changed, and this router must not be used any more."""
        if is_decoded:
            self.turn.cut_back(self._mark)
        self.counters["internal_errors"] += 1
        text = "the hub failed at this command; the log of the hub has the error"
        self.turn.send(peer, m.Err(chan, rid, Code.INTERNAL, text, {}))
        return not (is_decoded and self.shared.change.begun)

    def tick(self, now: float) -> None:
        """Let time pass: leases lapse, silent sessions end, groups deliver."""
        turn = self.turn
        self.shared.clock.now = now
        if now >= self._sweep_at:  # first: no frame is sent to a session that has ended
            sweep(self, now, turn)
            self._sweep_at = min([now + SWEEP_S, *(session.grace_until for session in self.members.away)])
        for part in self._orders.ticking:
            part.tick(now, turn)
        self.dispatcher.serve(now, turn)
        for part in self._orders.ticking_later:
            part.tick(now, turn)
        if self.group_rows.commit_at == NEVER:
            is_waiting = turn.has_answers_or_rows or self.topics.has_rows or self.dead_letters.has_rows
            self.group_rows.start_commit_timer(now, answers=is_waiting)

    def next_deadline(self) -> float:
        """When `tick` has work to do, if no command arrives."""
        deadline = self._sweep_at
        for part in self._orders.waiting:
            due = part.next_deadline()
            if due < deadline:
                deadline = due
        return deadline

    def commit_deadline(self) -> float:
        """When settled deliveries and events have waited long enough for a commit; NEVER when there are none."""
        return min(self.group_rows.commit_at, self.events.commit_at)

    def wants_commit(self, now: float) -> bool:
        return bool(self.publishing) or now >= self.commit_deadline()

    def wants_seal(self) -> bool:
        """True when a publish waits that level `received` confirms or delivers without a commit."""
        return self.publishing.has_received or (self.dispatcher.received_groups > 0 and bool(self.publishing))

    def seal(self, wall_us: int, now: float) -> Transaction:
        """Close the turn: its rows and answers become one transaction."""
        shared, dispatcher, turn = self.shared, self.dispatcher, self.turn
        shared.clock.set(wall_us, now)
        blocks = self.publishing.seal(wall_us, turn)
        for block in blocks:
            shared.block_store.add(block)
            if block.priority != PRIORITY_DEFAULT and block.priority not in dispatcher.priorities:
                dispatcher.use_priority(block.priority, block.base_seq, turn)
            self.counters["messages_in"] += block.count
        if dispatcher.received_groups:
            dispatcher.wake(blocks, received=True)
        records = [record for part in self._orders.writing for record in part.rows()]
        transaction = Transaction(records, turn.take_answers())
        shared.appended_seq = shared.next_seq - 1
        self._sealed.append((shared.appended_seq, blocks))
        dispatcher.serve(now, turn)
        return transaction

    def release(self, transaction: Transaction) -> None:
        """Send the answers of a transaction that is on disk."""
        self.turn.send_all(transaction.sends)

    def committed(self, now: float) -> None:
        """The oldest sealed transaction is on disk: groups may deliver its messages."""
        last_seq, blocks = self._sealed.popleft()
        for part in self._orders.committing:
            part.committed()
        self.shared.committed_seq = last_seq
        self.dispatcher.wake(blocks, received=False)
        self.dispatcher.serve(now, self.turn)

    def take_frames(self) -> Frames:
        """The frames that leave now, in this order."""
        return self.turn.take_sends()

    def trim_request(self, seq: int) -> None:
        """Retention of the journal asks to remove all messages below seq; `trim_limit` is the answer."""
        self.topics.request_trim(seq)

    def begins_at(self, first_seq: int) -> None:
        """The journal has removed blocks whose messages were removed before; no group loses a message."""
        self.dispatcher.begins_at(first_seq)
        self.topics.begins_at(first_seq)

    def trimmed(self, first_seq: int) -> None:
        """Retention has removed all messages below first_seq."""
        behind = sum(group.durable and group.floor + 1 < first_seq for group in self.groups.values())
        self.counters["groups_overtaken"] += behind
        self.dispatcher.trimmed(first_seq, self.turn)
        self.dead_letters.trimmed(first_seq)
        self.topics.trimmed(first_seq)

    def peer_blocked(self, peer: m.PeerId, blocked: bool) -> None:
        """The send queue of a connection is full, or is not full any more."""
        session = self.session_table.find(peer)
        if session is not None and session.blocked != blocked:
            session.blocked = blocked
            if not blocked:
                self.dispatcher.mark_all_runnable(session)
                self.requests.mark_runnable(session)

    def peer_gone(self, peer: m.PeerId) -> None:
        """A connection is closed. The session stays for its time to live, so that the client can resume it. Its
        subscriptions keep begun deliveries for the grace; other consumers get the rest at once."""
        session = self.session_table.find(peer)
        if session is not None and (session not in self.members.away or session.grace_until == NEVER):
            session.suspect = True
            session.grace_until = self.shared.clock.now + min(GRACE_S, session.ttl_s)
            self._sweep_at = min(self._sweep_at, session.grace_until)
            self.requests.disconnect(session)
            self.members.detach([session], self.turn)

    def apply_access(self) -> None:
        """The book has changed: all principals have the roles of the book from now on."""
        enforcement.apply(self, self.turn)

    def disown(self, peer: m.PeerId, reason: str) -> None:
        """The key of a connection is not valid any more: its session ends."""
        if (session := self.session_table.find(peer)) is not None:
            enforcement.end(self, session, reason, self.turn)

    def audit(self, kind: str, **fields: Any) -> None:
        """Something happened before a connection had a session, such as a refused key."""
        self.turn.advise(AUDIT, kind=kind, **fields)

    # What the hub calls apart from its loop.

    def refuse_publishes(self, refusal: Refusal | None) -> None:
        """Refuse publishes from now on; None: accept them again."""
        self.publishing.refusal = refusal

    def drain(self, refusal: Refusal) -> None:
        """Refuse publishes, deliver nothing new, notify every client, and write the positions of all groups."""
        self.shared.draining = True
        self.publishing.refusal = refusal
        for session in self.session_table.sessions.values():
            self.turn.send(session.peer, m.Notice("drain", {"reason": refusal.text}))
        self.dispatcher.write_all_dead_letters(self.turn)
        self.group_rows.note_all(self.groups.values())

    def outstanding(self) -> int:
        """Deliveries that were sent and not settled, and requests without an answer."""
        return len(self.requests) + sum(sub.outstanding for group in self.groups.values() for sub in group.members)

    def peers(self) -> Iterable[m.PeerId]:
        """The peers of all sessions."""
        return [session.peer for session in self.session_table.sessions.values()]

    def last_heard(self, peer: m.PeerId) -> float | None:
        """When a peer sent its latest command; None when it has no session."""
        return session.last_seen if (session := self.session_table.find(peer)) is not None else None

    @property
    def window(self) -> tuple[int, int]:
        """Blocks and bytes that a session may have unconfirmed."""
        return self.session_table.window

    @property
    def pending_bytes(self) -> int:
        """Bytes of publishes that are not on disk yet."""
        return self.publishing.pending_bytes

    @property
    def topics_taken(self) -> int:
        """Topics of all blocks of publishes so far."""
        return self.publishing.topics_taken

    @property
    def trim_limit(self) -> int:
        """Retention of the journal must keep messages at or above this seq."""
        return self.topics.trim_limit

    @property
    def is_refusing(self) -> bool:
        return self.publishing.refusal is not None

    def examine(self, vitals: Vitals, thresholds: Thresholds, now: float) -> str:
        """Judge the health of the hub by what the hub has measured; returns HEALTHY, DEGRADED or UNHEALTHY."""
        self.health.examine(vitals, thresholds, list(self.groups.values()), now, self.turn)
        return self.health.word.name

    def gauges(self) -> dict[str, int]:
        """Counts of what takes memory, for the log."""
        sessions = len(self.session_table.sessions)
        return {"sessions": sessions, "pending_bytes": self.pending_bytes, "ids": self.ids.count}

    # What commands call, and parts of the methods above.

    def apply_settings(self) -> None:
        """Apply the settings of the hub."""
        self.turn.switch_advisories(self.settings.values["advisories"])
        self.events.switch(self.settings.values["events"])

    def leave(self, sub: Subscription, turn: Turn, *, lost: bool) -> None:
        """End a subscription."""
        del sub.session.channels[sub.chan]
        self.members.leave(sub, turn, lost=lost)

    def end(self, session: Session, turn: Turn, *, lost: bool) -> None:
        """End a session and all its subscriptions."""
        for sub in list(session.channels.values()):
            self.leave(sub, turn, lost=lost)
        self.requests.end(session, "was lost" if lost else "said goodbye", turn)
        self.session_table.dismiss(session)
        self.members.away.pop(session, None)
        self.counters["sessions_lost" if lost else "sessions_closed"] += 1
        turn.advise("$sys.session.lost" if lost else "$sys.session.closed", **session.identity)
