"""Router: what every message means. Step it with messages, tick it with the time, seal its turns, commit them.

The shell drives it so:

    clock.set(wall_us, now)           what time it is
    step(message, peer, now, out)     one command from a peer; what may leave at once goes to `out`
    tick(now, out)                    leases, heartbeats, deliveries
    seal(wall_us, now, out) -> Turn   what must be on disk, and what may be said only after that
    committed(now, out)               the oldest sealed turn is on disk

Nobody is told "stored" before it is on disk, because confirmations travel in `Turn.sends`; and nothing is delivered
before it is on disk, because groups are woken by `committed` (groups of level `received` by `seal`).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from fabric.records import Record, SaveFailure, SaveGroup, SaveProducer, SaveSetting, SaveTopic
from fabric.router import commands
from fabric.router.admin import queues
from fabric.router.admin.hub_settings import HubSettings
from fabric.router.advisories import Advisories
from fabric.router.block_store import BlockStore, Reader
from fabric.router.clock import Clock
from fabric.router.dead_letters.index import DeadLetters
from fabric.router.event_recorder import Events
from fabric.router.groups.dispatcher import PRIORITIES, Dispatcher
from fabric.router.groups.group import Group
from fabric.router.groups.refresh import Refreshes
from fabric.router.groups.rows import handed_to_the_end
from fabric.router.groups.subscription import Subscription
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.publishing import Batch, Publishing, Refusal
from fabric.router.read.get import Reading
from fabric.router.requests.requests import Requests
from fabric.router.schedules.schedules import Schedules
from fabric.router.sessions.session import GRACE_S, Session
from fabric.router.sessions.session_table import SessionTable
from fabric.router.shared import Shared
from fabric.router.timers import NEVER
from fabric.router.topics.table import TopicTable
from fabric.router.transactions import Transactions
from fabric.router.turn import Out, TurnBuffer
from fabric_protocol import messages as m
from fabric_protocol.block import PRIORITY_DEFAULT, Block
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import DEAD

SWEEP_S: Final = 0.5


class Turn(NamedTuple):
    """One transaction, and what may be sent when it is on disk."""

    records: list[Record]
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
        groups: Iterable[SaveGroup] = (),
        producers: Iterable[SaveProducer] = (),
        failures: Iterable[SaveFailure] = (),
        topics: Iterable[SaveTopic] = (),
        settings: Iterable[SaveSetting] = (),
        about: dict[str, Any] | None = None,
        counters: Counter[str] | None = None,
        clean: bool = True,  # the hub before this one was stopped in good order
        wall_us: int = 0,
        now: float = 0.0,
    ) -> None:
        self.clock = Clock()
        self.clock.set(max(wall_us or int(now * 1e6), last_ts_us), now)  # a clock that was set back delays nobody
        self.buffer = TurnBuffer()
        self.publishing = Publishing(last_seq, last_ts_us, producers)
        self.block_store = BlockStore(reader)
        self.block_store.committed = last_seq
        saved = list(settings)
        self.settings = HubSettings(saved)
        self.change = self.publishing.change  # where the command at hand begins to change state
        self.shared = Shared(self.block_store, self.clock, last_seq, self.change)
        self.dispatcher = Dispatcher(self.shared, self.publishing, self.buffer, first_seq)
        if counters is not None:  # of the router before
            self.dispatcher.counters = counters
        priorities = next((setting.value for setting in saved if setting.name == PRIORITIES), ())
        self.dispatcher.restore(groups if clean else map(handed_to_the_end, groups), failures, priorities, now)
        self.session_table = SessionTable(token, self.publishing, about or {})
        self.transactions = Transactions(self.publishing, self.dispatcher, self.buffer)
        self.requests = Requests(self.counters, self.change)
        self.events: Events | None = None  # None: they were never switched on
        self.advisories = Advisories(self.shared.trie, self.counters)
        self.shared.say = say = self.advisories.say
        self.schedules = Schedules(reader.schedules, self.publishing, self.buffer, self.clock, self.counters, say)
        self.dead_letters = DeadLetters(saved, first_seq, self.advisories.say)
        self.publishing.watch = self.dead_letters.appended
        self.reading = Reading(self.block_store, self.dead_letters)
        self.refreshes = Refreshes(self.dispatcher, self.buffer, saved, self.advisories.say)
        self.settings.watch("advisories", self.advisories.enable)
        self.settings.watch("events", self.set_events)
        self.topics = TopicTable(topics, self.shared, self.publishing, self.buffer, self.counters, first_seq)
        self.topics.queues = partial(queues.admin, self)
        self.publishing.tracked, self.publishing.require_room = self.topics.tracked, self.topics.require_room
        self.publishing.count = self.topics.take
        self.topics.retention.told, self.topics.retention.changed = self._removed, self.dispatcher.rows.note
        for topic, floor in self.block_store.removed.items():
            self._removed(topic, floor, 0)
        self.ids = self.publishing.ids = Ids(reader, self.clock, self.topics.settings_of, self._is_over, saved)
        self.topics.retention.emptied = self.ids.forget
        self.place: dict[str, Any] = {}  # which journal this is and where: INFO tells, for those on the same machine
        self._sealed: deque[_Sealed] = deque()
        self._sweep_at = 0.0

    @property
    def counters(self) -> Counter[str]:
        """What was done and what was refused, by name."""
        return self.dispatcher.counters

    @property
    def groups(self) -> dict[str, Group]:
        return self.dispatcher.groups

    # What the shell calls.

    def step(self, message: m.ToHub | m.ToClient, peer: m.PeerId, now: float, out: Out) -> None:
        """Take one command. A wrong one is answered with an error and changes nothing.

        Any other exception is a fault of the router: see `fail` for what is left of it.
        """
        self.clock.now = now
        self.change.begun = False
        chan, rid = getattr(message, "chan", 0), getattr(message, "rid", 0)
        try:
            if isinstance(message, m.Hello):
                commands.hello(self, message, peer, now, out)
                return
            session = self.session_table.session_of(peer)
            session.last_seen = now
            if session.suspect:
                self.change.begin()
                self._is_back(session)
            commands.handle(self, message, session, now, out)
        except ProtocolError as error:
            self.refuse(error, peer, chan, rid, out)

    def refuse(self, error: ProtocolError, peer: m.PeerId, chan: int, rid: int, out: Out) -> None:
        """Answer a command that cannot be accepted."""
        self.counters[f"refused_{error.code.name.lower()}"] += 1
        session = self.session_table.find(peer)
        self.advisories.say("$sys.refused", code=error.code.name, why=str(error), **(session.who if session else {}))
        answer = m.Err(chan, rid, error.code, str(error), error.fields)
        if error.code == Code.FENCED:  # true only when the claim that fences is on disk
            self.buffer.answer(peer, answer)
        else:
            out.append((peer, answer))

    def fail(self, peer: m.PeerId, chan: int, rid: int, out: Out) -> bool:
        """Answer a command that has raised an unexpected exception. False: state may be half changed, and this router
        must not be used any more."""
        self.counters["internal_errors"] += 1
        out.append((peer, m.Err(chan, rid, Code.INTERNAL, "the hub failed at this command; its log says how", {})))
        return not self.change.begun

    def tick(self, now: float, out: Out) -> None:
        """Let time pass: leases lapse, silent sessions end, groups hand out."""
        self.clock.now = now
        if now >= self._sweep_at:  # first, so that nothing is said to those who are gone
            self._sweep(now, out)
            self._sweep_at = min([now + SWEEP_S, *(session.grace_until for session in self.dispatcher.away)])
        self.dispatcher.tick(now, out)
        self.requests.tick(now, out)
        if now >= self.schedules.look_at or self.clock.jumps != self.schedules.jumps:
            self.schedules.tick(now)
        self.topics.tick(now, out)
        self.dispatcher.serve(now, out)
        self.refreshes.tick(now, out)
        self.dispatcher.rows.settle_down(now, answers=bool(self.buffer) or bool(self.topics))
        if self.events is not None:
            self.events.settle_down(now)
        if self.advisories:
            self.advisories.flush(self.clock.wall_us(now), out)
        self.reading.spent = 0

    def next_deadline(self) -> float:
        """When `tick` has something to do next, if nothing arrives."""
        if self.dispatcher.busy:
            return 0.0
        return min(
            self._sweep_at,
            self.dispatcher.timers.next(),
            self.requests.next_deadline(),
            self.refreshes.next_deadline(),
            self.schedules.deadline,
            self.topics.next_deadline(),
        )

    def commit_deadline(self) -> float:
        """When settled deliveries have waited long enough for a commit; never, when there are none."""
        deadline = self.dispatcher.rows.commit_deadline()
        return deadline if self.events is None else min(deadline, self.events.commit_deadline())

    def wants_commit(self, now: float) -> bool:
        return bool(self.publishing) or now >= self.commit_deadline()

    def wants_seal(self) -> bool:
        """True when something waits that level `received` promised to pass on at once."""
        return self.publishing.hasty or (bool(self.publishing) and self.dispatcher.hasty_groups > 0)

    def seal(self, wall_us: int, now: float, out: Out) -> Turn:
        """Close the turn: what was taken so far becomes one transaction."""
        self.clock.set(wall_us, now)
        batch = self.publishing.seal(wall_us)
        for block in batch.blocks:
            self.block_store.add(block)
            if block.priority != PRIORITY_DEFAULT and block.priority not in self.dispatcher.priorities:
                self.dispatcher.use_priority(block.priority, block.base_seq)
            self.counters["messages_in"] += block.count
        if self.dispatcher.hasty_groups:
            self.dispatcher.wake(batch.blocks, received=True)
        self.schedules.seal()
        rows, sends = self.buffer.take()
        groups = self.dispatcher.rows.take(self.publishing.next_seq, active=not self.dispatcher.draining)
        # Rows before groups: a group may have been deleted and made again in one turn.
        records = batch.records + rows + groups + self.topics.seal(groups) + self.ids.rows()
        if self.events is not None:
            records += self.events.take()
        if self.dead_letters:
            records += self.dead_letters.take_rows()
        sends += [(session.peer, message) for session, message in batch.confirms]
        out += [(session.peer, message) for session, message in batch.prompt]
        self.shared.appended_seq = self.publishing.next_seq - 1
        self._sealed.append(_Sealed(self.shared.appended_seq, batch))
        self.dispatcher.serve(now, out)
        return Turn(records, sends)

    def committed(self, now: float, out: Out) -> None:
        """The oldest sealed turn is on disk: groups may have its messages."""
        last_seq, batch = self._sealed.popleft()
        self.schedules.committed()
        self.ids.committed()
        self.dispatcher.committed()
        self.shared.committed_seq = self.block_store.committed = last_seq
        self.publishing.pending_bytes -= batch.size
        for session, blocks, size in batch.taken:
            session.inflight_blocks -= blocks
            session.inflight_bytes -= size
        self.topics.committed()
        self.dispatcher.wake(batch.blocks, received=False)
        self.dispatcher.serve(now, out)

    def begins_at(self, first_seq: int) -> None:
        """The journal has less of what was removed before; nobody misses anything."""
        self.dispatcher.begins_at(first_seq)
        self.topics.trimmed(first_seq)

    def trimmed(self, first_seq: int, out: Out) -> None:
        """Retention moved the start of the journal."""
        behind = sum(group.durable and group.floor + 1 < first_seq for group in self.groups.values())
        self.counters["groups_overtaken"] += behind
        self.dispatcher.trimmed(first_seq, out)
        self.dead_letters.trimmed(first_seq)
        self.topics.trimmed(first_seq)

    def block_peer(self, peer: m.PeerId, blocked: bool) -> None:
        """The connection cannot take more now, or can again."""
        session = self.session_table.find(peer)
        if session is not None and session.blocked != blocked:
            session.blocked = blocked
            if not blocked:
                self.dispatcher.mark_all_runnable(session)
                self.requests.mark_runnable(session)

    def peer_gone(self, peer: m.PeerId) -> None:
        """The connection is gone. The session stays for its time to live, so that the client can resume it; its
        subscriptions stay for a short grace, with what they can have begun. The rest is for others at once."""
        session = self.session_table.find(peer)
        if session is not None and (session not in self.dispatcher.away or session.grace_until == NEVER):
            session.suspect = True
            session.grace_until = self.clock.now + min(GRACE_S, session.ttl_s)
            self._sweep_at = min(self._sweep_at, session.grace_until)
            self.requests.disconnect(session)
            self.dispatcher.detach(session)

    def set_events(self, enabled: bool) -> None:
        """Note what happens to deliveries from now on, or no more."""
        if enabled and self.events is None:
            self.events = Events(self.clock, self.block_store.reader.next_event())
        self.shared.events = self.events if enabled else None

    def refuse_publishes(self, refusal: Refusal | None) -> None:
        self.publishing.refusal = refusal

    def drain(self, refusal: Refusal, out: Out) -> None:
        """Take no more publishes, deliver nothing new, tell every client, and write down where all groups are."""
        self.dispatcher.draining = self.requests.draining = True
        self.publishing.refusal = refusal
        for session in self.session_table.sessions.values():
            out.append((session.peer, m.Notice("drain", {"reason": refusal.text})))
        self.dispatcher.write_all_dead_letters()
        self.dispatcher.rows.note_all(self.groups.values())

    def outstanding(self) -> int:
        """Deliveries that were sent and not settled, and requests without an answer."""
        held = sum(member.outstanding for group in self.groups.values() for member in group.members)
        return held + len(self.requests)

    # Parts of the above, and what commands need.

    def leave(self, sub: Subscription, *, lost: bool) -> None:
        """End a subscription."""
        del sub.session.channels[sub.chan]
        self.dispatcher.leave(sub, lost=lost)

    def end(self, session: Session, *, lost: bool) -> None:
        """End a session and all its subscriptions."""
        for sub in list(session.channels.values()):
            self.leave(sub, lost=lost)
        self.requests.end(session, "was lost" if lost else "said goodbye")
        self.session_table.dismiss(session)
        self.dispatcher.away.pop(session, None)
        self.counters["sessions_lost" if lost else "sessions_closed"] += 1
        self.advisories.say("$sys.session.lost" if lost else "$sys.session.closed", **session.who)

    def _is_back(self, session: Session) -> None:
        """A session is heard of again."""
        session.suspect = False
        self.dispatcher.reattach(session)
        self.requests.mark_runnable(session)

    def _removed(self, topic: str, floor: int, unsettled: int) -> None:
        """Retention has removed messages of a topic; so many were not settled by all groups."""
        if topic.startswith(DEAD) and (box := self.dead_letters.boxes.get(topic.removeprefix(DEAD))) is not None:
            self.dead_letters.lowered(box, floor)
        if unsettled:
            self.advisories.say("$sys.topic.trimmed", topic=topic, floor=floor, unsettled=unsettled)

    def _is_over(self, topic: str, seq: int) -> bool:
        """Whether no group will get a message any more: all have settled it, it is removed, or it has expired."""
        first_seq = max(self.block_store.first_seq, self.block_store.removed.get(topic, 0))
        return seq < first_seq or self.dispatcher.is_settled(topic, seq) or self._is_too_old(topic, seq)

    def _is_too_old(self, topic: str, seq: int) -> bool:
        """Whether a message has expired before it was delivered to any group."""
        block = self.block_store.at(seq)
        if not isinstance(block, Block) or not 0 < block.expires_us <= self.clock.wall_us(self.clock.now):
            return False
        return not any(group.open.holds(seq) for group in self.shared.trie.match(topic) if group.durable)

    def _sweep(self, now: float, out: Out) -> None:
        over, suspect = self.session_table.silent(now)
        for session in over:
            self.end(session, lost=True)
        for session in suspect:  # it may be frozen, or cut off: what it cannot have begun is for others
            session.grace_until = NEVER
            self.counters["sessions_silent"] += 1
            self.dispatcher.detach(session)
        for session in [session for session in self.dispatcher.away if now >= session.grace_until]:
            for sub in list(session.channels.values()):
                self.leave(sub, lost=True)
            del self.dispatcher.away[session]
        self.session_table.forget_producers()
        self.ids.sweep()
        self.dispatcher.sweep(now, out)
        self.topics.sweep(out)
        flows: Out = []
        self.session_table.adjust_window(flows)
        for peer, flow in flows:
            self.buffer.answer(peer, flow)  # behind a WELCOME that waits for the disk
