"""A deterministic simulator over the real router: one seed is one life of a hub, its disk, its network and clients.

The router is pure, so everything around it can be a number: time, the disk, the wires, what people do and what fails.
`plan` draws a life from a seed, as data; here it is lived, with a real router inside; `observer` stands at the hub's
door, hears what is said and sees what is on the disk, and knows what was promised; `shrink` makes a failing life short.

This file is the physics: a heap of events, the hub's loop as the real shell turns it, connections that delay, hold back
and break, a disk that commits in order, slowly or not at all. What the clients do is in `acts`.
"""

from collections import defaultdict
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, Final

from fabric.router.publish.publishing import Refusal
from fabric.router.router import Router, Transaction
from fabric.router.sessions.session import SILENT_BEATS
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.simulation.blocks import TEMPLATES
from tests.simulation.disk import Disk
from tests.simulation.facts import Counts
from tests.simulation.faults import falters, understands
from tests.simulation.observer import INSTANT_S, Observer
from tests.simulation.people import Book, Client, Lie, Taken, Wire
from tests.simulation.plan import TICKS_S, Act, Plan
from tests.simulation.recount import check
from tests.simulation.viewing import Views

START: Final = 1000 * TICKS_S
WALL_US: Final = 1_700_000_056_000_000  # at START it is four seconds before a full minute
STOPPING: Final = Refusal(Code.SHUTTING_DOWN, "the hub is stopping", 500)
CHECK_EVERY: Final = 8  # turns of the hub between two counts of all messages
COMPARE_EVERY: Final = 32  # the same for counters: an error of theirs stays, so they are compared less often
GOES_MAX: Final = 100  # ticks in a row that a busy router may ask for
QUIET_MIN: Final = 1  # sweeps without any effect after which the hub sweeps less often

# What can be due. At one moment the hub's own timers come first, then whatever was put there first.
WAKE: Final = 0
UP: Final = 1
DOWN: Final = 2
LAND: Final = 3
HEAL: Final = 4
ACK: Final = 5
ON_ITS_WAY: Final = frozenset({UP, DOWN, ACK})


class World:
    def __init__(self, plan: Plan, trace: list[str] | None = None) -> None:
        self.plan = plan
        self.swarm = plan.swarm
        self.trace = trace
        self.time = START  # in ticks
        self.now = START / TICKS_S  # the same in seconds
        self.steps = 0
        self.counts: Counts = defaultdict(int)
        self.acts = [0] * len(Act)
        self.disk = Disk(self.swarm.topics)
        self.observer = Observer(self.counts, self.swarm.topics)
        self.views = Views(self.counts)
        self.wall_offset_us = WALL_US
        self.set_back_s = 0  # by how much in all
        self.wires: dict[bytes, Wire] = {}
        self.templates = TEMPLATES[self.swarm.templates]
        self.clients = [Client(i, self.swarm) for i in range(self.swarm.clients)]
        self.peers = 0
        self.slow = 0  # commits that will take long
        self.failing = False  # the next commit fails
        self.narrower = 0  # how much retention removes when the hub is started again
        self.faulty = False  # the router fails at the next command that changes something
        self._heap: list[tuple[int, int, int, int, Any, Any]] = []  # (when, urgency, number, what, about, about)
        self._count = 0
        self._tokens = 0
        self._wake_at = 0  # when the hub wakes by itself
        self._turns: list[Transaction] = []  # sealed, not handed to the disk
        self._committing: list[Transaction] = []
        self.turn_max = self.swarm.turn_max
        self._taken = 0  # commands in this turn of the hub
        self.out: list[tuple[bytes, m.ToClient]] = []
        self._looked_at = -1  # when the clock was looked at
        self._quiet = 0  # sweeps in a row without any effect
        self._sweep_at = 0.0  # when the next sweep is due, while a quiet hub leaves some out
        self._silence_s = min(SILENT_BEATS, self.swarm.ttl_ms / 1000) + INSTANT_S  # of a client, until the hub acts
        self._sweeps_much = bool(self.swarm.topics) or self.swarm.templates[2]  # sweeps look after topics and ids
        self._turn_number = 0
        self._was_clean = True
        self.observer.watches = any(group.settings.expires_ms for group in self.swarm.groups)
        self.router = self._start()

    # Time.

    def until(self, when: int) -> None:
        """Let everything happen that is due up to then."""
        heap = self._heap
        while heap and heap[0][0] <= when:
            time, _, _, what, about, frame = heappop(heap)
            if time != self.time:
                self.time = time
                self.now = time / TICKS_S
            if what == UP:
                self.steps += 1
                self._arrive(about, frame)
            elif what == DOWN:
                self._reach(about, frame)
            elif what == WAKE:
                if time == self._wake_at:
                    self._wake_at = 0
                    self.hub_turn(woken=True)
            elif what == LAND:
                if about is self._committing:
                    self.steps += 1
                    self._land()
            elif what == HEAL:
                about.heal(self)
            elif what == ACK:
                self._ack_all(about)
        assert not self._taken, "the hub ends each turn in the moment in which it begins"
        self.time = when
        self.now = when / TICKS_S

    def at(self, when: int, what: int, about: Any, frame: Any = None) -> None:
        self._count += 1
        heappush(self._heap, (when, what != WAKE, self._count, what, about, frame))

    def wall_us(self) -> int:
        return self.wall_offset_us + int(self.now * 1e6)

    def note(self, make: Callable[[], str]) -> None:
        """A line of the trace; made only when someone wants it."""
        if self.trace is not None:
            self.trace.append(f"{self.now - START / TICKS_S:9.3f}  {make()}")

    def _note_said(self, wire: Wire, way: str, message: Any) -> None:
        self.note(lambda: f"{wire.client.name}@{wire.peer[-1]} {way} {_brief(message)}")

    # Wires.

    def send(self, wire: Wire, message: m.ToHub | Lie) -> None:
        """A client says something."""
        if wire.held_up is not None:
            wire.held_up.append(message)
        else:
            self.at(self.time + wire.latency, UP, wire, message)

    def _reach(self, wire: Wire, message: m.ToClient) -> None:
        """Something reaches a client."""
        self.steps += 1
        if wire.alive:
            client = wire.client
            client.hears(wire, message)
            if client.to_rejoin:
                self._rejoin(client)
            if client.to_resend:
                self._resend(client)
            elif client.eager and not client.acking and type(message) is m.Deliver:
                client.acking = True
                self.at(self.time + 1, ACK, client)  # together with what comes now

    def _rejoin(self, client: Client) -> None:
        """A consumer has a new session, and subscribes again to what it had."""
        subs, client.to_rejoin = client.to_rejoin, {}
        for chan, sub in subs.items():
            if client.wire is not None:
                client.subs[chan] = Taken(sub.group, sub.fields)
                self.send(client.wire, m.Subscribe(chan, client.next_rid(), sub.fields))

    def _resend(self, client: Client) -> None:
        """A producer is back, and sends what was not confirmed."""
        rids, client.to_resend = client.to_resend, []
        for rid in rids:
            if client.wire is not None:
                self.send(client.wire, client.sent[rid].message)

    def _ack_all(self, client: Client) -> None:
        """A willing consumer is done with what it has."""
        client.acking = False
        for chan, sub in client.subs.items():
            if sub.held and client.wire is not None:
                row = (Verdict.ACK, min(sub.held), sub.seen, None)
                self.send(client.wire, m.Settle(chan, client.next_rid(), (row,)))
                sub.held.clear()

    def _arrive(self, wire: Wire, message: m.ToHub | Lie) -> None:
        """Something reaches the hub."""
        if not wire.alive and wire.drops:
            if self._taken and not self._finds_more():
                self.hub_turn()  # the turn ends now, as without what was lost
            return
        if self.trace is not None:
            self._note_said(wire, "->", message)
        out, observer, now = self.out, self.observer, self.now
        if self.time != self._looked_at:
            self._look_at_the_clock()
        if isinstance(message, Lie):
            if not understands(self, wire, message):
                return
            message = message.message
        if self.faulty and falters(self, wire, message):
            return
        expected = observer.told(wire.peer, message, now)
        if not self.faulty:
            self.router.step(message, wire.peer, now, wire.client.identity)
            out += self.router.take_frames()
        self.faulty = False
        observer.answered(expected, wire.peer, out, now)
        if type(message) is m.Info:
            self._viewed(message, out)
        if out:
            self.flush()
        if observer.resumed is not None:
            observer.welcomed()
        if self.router._sweep_at > now + self._silence_s:  # this session may be silent before any other
            self.router._sweep_at = now + self._silence_s
        self._taken += 1
        if not self._finds_more():
            self.hub_turn()

    def _finds_more(self) -> bool:
        """Whether the hub takes something else in this turn."""
        head = self._heap
        return self._taken < self.turn_max and bool(head) and head[0][0] == self.time and head[0][3] == UP

    def _viewed(self, asked: m.Info, out: list[tuple[bytes, m.ToClient]]) -> None:
        """A viewer is answered, before anything else happens."""
        ended = self.router.counters["sessions_closed"] + self.router.counters["sessions_lost"]
        for _, answer in out:
            if type(answer) is m.Ok and answer.rid == asked.rid:
                ended += self.observer.ended_groups()
                self.views.answered(self.router, asked, answer.fields, ended, self.now)

    def _leave(self, out: list[tuple[bytes, m.ToClient]]) -> None:
        """What the hub says leaves it."""
        observer, now = self.observer, self.now
        for peer, message in out:
            wire = self.wires[peer]
            if self.trace is not None:
                self._note_said(wire, "<-", message)
            observer.heard(peer, message, now)
            if wire.alive:
                if wire.held_down is not None:
                    wire.held_down.append(message)
                else:
                    self.give(wire, message)

    def give(self, wire: Wire, message: m.ToClient) -> None:
        """Something goes to a client, and is there at once where the wire is short."""
        if wire.latency:
            self.at(self.time + wire.latency, DOWN, wire, message)
        else:
            self._reach(wire, message)

    # The hub's shell.

    def _start(self) -> Router:
        restored = self.disk.restored()._replace(was_clean=self._was_clean)
        book: Any = Book() if self.swarm.tenants else None
        return Router(restored, self.disk, self._token, book=book, wall_us=self.wall_us(), now=self.now)

    def _token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")

    def _look_at_the_clock(self) -> None:
        """Once in a moment is enough."""
        if self.time != self._looked_at:
            self._looked_at = self.time
            wall_us = self.wall_offset_us + int(self.now * 1e6)
            self.router.begin(wall_us, self.now)
            self.observer.look(wall_us)

    def set_clock(self, jump_s: int) -> None:
        """A person sets the wall's clock."""
        self.wall_offset_us += jump_s * 1_000_000
        self.observer.clock_was_set = True
        self.set_back_s -= min(jump_s, 0)
        self._looked_at = -1

    def hub_turn(self, *, woken: bool = False) -> None:
        """What the real hub does after it has taken what arrived."""
        self._taken = 0
        router, observer, now = self.router, self.observer, self.now
        if self._quiet and not woken:
            self._stir()
        before = observer.turn if woken and now >= router._sweep_at else -1
        if self.time != self._looked_at:
            self._look_at_the_clock()
        router.tick(now)
        self.out += router.take_frames()
        observer.ticked(now, router.counters)
        if observer.watches:
            observer.look_at_ended([name for name in observer.groups if self._is_gone(name)], now)
        if self.out:
            before = -1
            self.flush()
        if observer.overdue or observer.services:
            observer.flushed(now)
        self._hand_over()
        if router.dispatcher.busy:
            self._go_on()
        if self.out:
            self.flush()
        if before == observer.turn:
            self._doze()
        self._set_alarm()
        self._turn_number += 1
        if self._turn_number % CHECK_EVERY == 0:
            self.check_counts()

    def check_counts(self) -> None:
        """The numbers of INFO are those of a naive count."""
        if self._turn_number % COMPARE_EVERY == 0:
            self.observer.check_tallies(self.router)
        if self.disk.first_seq > self.router.shared.first_seq:  # the router is told soon
            return
        first = min([group.position() for group in self.router.groups.values()], default=self.disk.last_seq)
        blocks = self.disk.blocks(first) + [block for _, sealed in self.router._sealed for block in sealed]
        self.counts["exact counts"] += check(self.router, blocks)

    def _is_gone(self, name: str) -> bool:
        return self.observer.groups[name].durable and name not in self.router.groups

    def _go_on(self) -> None:
        """Some group has more to hand out than one tick allows."""
        for _ in range(GOES_MAX):
            if not self.router.dispatcher.busy:
                return
            self.router.tick(self.now)
            self.out += self.router.take_frames()
            self.flush()
        raise AssertionError("liveness: the router is busy forever")

    def _doze(self) -> None:
        """A sweep has found nothing to do: the next ones are left out until a session has been silent for long enough,
        if they look after nothing else; otherwise more and more of them, until something happens."""
        router = self.router
        if not self._sweeps_much and not router.dispatcher._idle:
            router._sweep_at = max(router._sweep_at, self.observer.next_silence(self.now))
            return
        self._quiet += 1
        if self._quiet >= QUIET_MIN:
            later = self.now + (1 << min(self._quiet, 8)) / 2
            self._sweep_at = router._sweep_at
            router._sweep_at = max(router._sweep_at, min(later, self.observer.next_silence(self.now)))

    def _stir(self) -> None:
        """Something happens: the sweeps that were left out are made up for."""
        if self._quiet >= QUIET_MIN:
            self.router._sweep_at = min(self.router._sweep_at, self._sweep_at)
        self._quiet = 0

    def flush(self) -> None:
        if self.out:
            out, self.out = self.out, []
            self._leave(out)

    def _hand_over(self) -> None:
        router = self.router
        busy = bool(self._committing)
        if (not busy and router.wants_commit(self.now)) or router.wants_seal():
            self.seal()
        if self._turns and not busy:
            self._committing, self._turns = self._turns, []
            duration = self.swarm.commit
            if self.slow:
                self.slow -= 1
                duration = 700
            self.at(self.time + duration, LAND, self._committing)

    def seal(self) -> None:
        turn = self.router.seal(self.wall_us(), self.now)
        self.out += self.router.take_frames()
        self.observer.sealed(turn)
        self._turns.append(turn)
        self.flush()

    def _land(self) -> None:
        """A commit is done, one way or the other."""
        if self.failing:
            self.failing = False
            self.note(lambda: "the commit fails: the hub stops")
            self.counts["commits failed"] += 1
            self.crash(0)
            return
        self._look_at_the_clock()
        done, self._committing = self._committing, []
        self.counts["commits"] += 1
        for turn in done:
            self.disk.write(turn.records)
            self.observer.landed()
        self._hand_over()
        for turn in done:
            self.router.release(turn)
            self._leave(self.router.take_frames())
            self.observer.released()
            self.router.committed(self.now)
            self._leave(self.router.take_frames())
        self.hub_turn()

    def _set_alarm(self) -> None:
        due = self.router.next_deadline()
        if not self._committing:
            due = min(due, self.router.commit_deadline())
        if due != inf:
            when = max(ceil(due * TICKS_S), self.time + 1)
            if not self._wake_at or when < self._wake_at:
                self._wake_at = when
                self.at(when, WAKE, None)

    def crash(self, landed: int) -> None:
        """The hub dies and comes back with what is on disk; the first turns in flight may have got there unheard of, or
        all that were sealed."""
        self.counts["crashes"] += 1
        for turn in (self._committing if landed else []) + (self._turns if landed > 1 else []):
            self.disk.write(turn.records)
            self.observer.landed()
        self._restart(clean=False)

    def stop(self) -> None:
        """The hub is stopped in good order, and started again."""
        self._look_at_the_clock()
        self.router.drain(STOPPING)
        self.out += self.router.take_frames()
        self.router.tick(self.now)
        self.out += self.router.take_frames()
        self.observer.ticked(self.now, self.router.counters)
        self.flush()
        self.seal()
        for turn in self._committing + self._turns:
            self.disk.write(turn.records)
            self.observer.landed()
        self._restart(clean=True)

    def _restart(self, *, clean: bool) -> None:
        self.observer.check_tallies(self.router)
        self._committing, self._turns, self.out, self._taken = [], [], [], 0
        self._wake_at = self._quiet = 0
        self._looked_at = -1
        self.observer.crashed(self.disk, clean=clean)
        self._was_clean = clean
        for wire in self.wires.values():
            wire.cut(drops=True)
        self.wires = {}
        self.router = self._start()
        before = self.disk.first_seq
        if self.narrower and len(self.disk.bases) > 1:  # the journal begins later before the hub's first turn
            self.disk.trim(self.disk.bases[1 + self.narrower % (len(self.disk.bases) - 1)])
        self.narrower = 0
        self.hub_turn()
        if self.disk.first_seq > before:
            self.trimmed(self.disk.first_seq)

    def trimmed(self, first_seq: int) -> None:
        self._look_at_the_clock()
        self.observer.trimmed(first_seq, self.now)
        self.router.trimmed(first_seq)
        self.out += self.router.take_frames()
        self.flush()
        self.observer.trim_told()
        self.hub_turn()

    def quiesce(self) -> None:
        """Until nothing is on its way any more, to the hub, from it, or to the disk."""
        for _ in range(100):
            self.until(self.time + 64)
            if not self._committing and not self._turns and not any(e[3] in ON_ITS_WAY for e in self._heap):
                return


def _brief(message: Any) -> str:
    """A message in a line, without its bytes."""
    fields = []
    for name, value in zip(message._fields, message, strict=True):
        if name == "block":
            value = f"<{len(value)} bytes>"
        elif name == "fields" and "patterns" in value:
            value = {name: value[name] for name in ("group", "credit", "start", "concurrency") if name in value}
        elif name == "fields" and "limits" in value:
            value = {name: value[name] for name in ("session", "resumed", "subs", "producer")}
        fields.append(f"{name}={value!r}" if not isinstance(value, bytes) else f"{name}={value.hex()}")
    return f"{type(message).__name__}({', '.join(fields)})"
