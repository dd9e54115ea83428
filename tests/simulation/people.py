"""Clients and their wires, as the clients see them: they know only what has reached them."""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabric.router.access.identity import LOCAL, Identity
from fabric.router.access.role import EVERYTHING, Role
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.simulation.blocks import Template
from tests.simulation.disk import stamp_of
from tests.simulation.numbering import last_of
from tests.simulation.plan import Swarm

if TYPE_CHECKING:
    from tests.simulation.world import World

SENT_MAX: Final = 40  # publishes that a client remembers
TENANTS: Final = ("q0", "q1")  # principals of clients
TENANT: Final = EVERYTHING._replace(name="tenant", producers=(), admin=EVERYTHING.admin - {"schedules"})
SOURCES: Final = 2  # clients that are numbered sources, where there are any: those that may share a name


class Book:
    """The list of principals, which does not change."""

    def roles(self) -> dict[str, Role]:
        return dict.fromkeys(TENANTS, TENANT)


class Lie(NamedTuple):
    """What no honest client says. It passes through the decoder, which others are spared."""

    message: m.ToHub
    is_absurd: bool  # it must be refused there


class Wire:
    """One connection. It keeps the order, may hold back a direction for a while, and ends."""

    __slots__ = ("alive", "client", "drops", "held_down", "held_up", "latency", "peer")

    def __init__(self, client: "Client", peer: bytes, latency: int) -> None:
        self.client = client
        self.peer = peer
        self.latency = latency
        self.alive = True
        self.drops = False  # what was on its way to the hub when it ended is lost too
        self.held_up: list[m.ToHub | Lie] | None = None
        self.held_down: list[m.ToClient] | None = None

    def cut(self, *, drops: bool) -> None:
        self.alive = False
        self.drops = drops
        if self.client.wire is self:
            self.client.wire = None

    def heal(self, world: "World") -> None:
        """What was held back goes on."""
        from tests.simulation.world import UP

        up, down = self.held_up, self.held_down
        self.held_up = self.held_down = None
        for message in up or ():
            world.at(world.time + self.latency, UP, self, message)
        for answer in down or ():
            world.give(self, answer)


class Taken:
    """A subscription as its client sees it."""

    __slots__ = ("bytes_got", "fetching", "fields", "group", "held", "refresh", "seen")

    def __init__(self, group: str, fields: dict[str, Any]) -> None:
        self.group = group
        self.fields = fields  # of its SUB
        self.held: dict[int, int] = {}  # ordinal -> seq
        self.seen = 0
        self.bytes_got = 0
        self.fetching = False
        self.refresh = 0  # that has ended, and waits for READY


class Sent:
    """A publish that a client has made, so that it can make it again."""

    __slots__ = ("confirmed", "last", "message", "pseq")

    def __init__(self, message: m.Publish | m.Transact, template: Template) -> None:
        self.message = message
        self.pseq = message.pseq
        options = message.options if isinstance(message, m.Publish) else {}
        self.last = last_of(message.pseq, len(template.idents), options)
        self.confirmed = False


class Client:
    def __init__(self, index: int, swarm: Swarm) -> None:
        self.index = index
        self.name = f"c{index}"
        self.producer = "p0" if swarm.shared_producer and index < 2 else f"p{index}"
        self.jumps = swarm.sources and index < SOURCES
        self.identity = Identity(TENANTS[index % len(TENANTS)]) if swarm.tenants else LOCAL
        self.retries = swarm.retries
        self.latency = swarm.latency[index % len(swarm.latency)]
        self.wire: Wire | None = None
        self.session = b""
        self.welcomed = False
        self.epoch: int | None = None
        self.pseq = 0  # of the last message that was numbered; of a source, its last position
        self.subs: dict[int, Taken] = {}
        self.sent: dict[int, Sent] = {}  # by rid
        self.rid = 100
        self.to_resend: list[int] = []
        self.to_rejoin: dict[int, Taken] = {}  # what it was subscribed to when its session ended
        self.schedules: list[int] = []
        self.serves: dict[int, int] = {}  # by channel: the service for which it answers requests
        self.asked: list[tuple[int, int]] = []  # requests to answer: channel and number
        self.eager = False  # acks whatever it gets
        self.acking = False  # and is about to

    @property
    def principal(self) -> str:
        return self.identity.name

    def remember(self, message: m.Publish | m.Transact, template: Template) -> None:
        if len(self.sent) >= SENT_MAX:
            self.sent.pop(next(iter(self.sent)))
        self.sent[message.rid] = Sent(message, template)
        if message.pseq:
            self.pseq = max(self.pseq, self.sent[message.rid].last)

    def next_rid(self) -> int:
        self.rid += 1
        return self.rid

    def hears(self, wire: Wire, message: m.ToClient) -> None:
        """Something arrives."""
        if wire is not self.wire:
            return
        match message:  # what is said most often comes first
            case m.Ok(_, rid, fields):
                if rid in self.sent:
                    self.sent[rid].confirmed = True
                if fields.get("schedule"):
                    self.schedules.append(fields["schedule"])
            case m.Deliver(chan, first, _, seqs, block):
                if chan in self.subs:
                    self._take(self.subs[chan], first, seqs, block)
            case m.Welcome(_, fields):
                self._welcomed(fields)
            case m.PubOk(_, confirms):
                for row in confirms:
                    sent = self.sent.get(row[0])
                    if sent is not None:
                        sent.confirmed = True
            case m.Notice(kind, fields):
                self._noticed(kind, fields)
            case m.Err(_, rid, code, _, fields):
                self._refused(rid, code, fields)
            case m.Reset(chan, fields):
                if chan in self.subs:
                    self.subs[chan].refresh = fields["refresh"] if fields["phase"] == "end" else 0
            case m.Request(chan, number):
                self.asked.append((chan, number))
            case m.End(chan):
                if chan in self.subs:
                    self.subs[chan].fetching = False

    def _take(self, sub: Taken, first: int, seqs: tuple[int, ...], block: bytes) -> None:
        if first <= sub.seen:
            return
        runs = [(a, a + n) for a, n in zip(seqs[::2], seqs[1::2], strict=True)]
        if not runs:
            base, last, _ = stamp_of(block)
            runs = [(base, last + 1)]
        ordinal = first
        for a, b in runs:
            for seq in range(a, b):
                sub.held[ordinal] = seq
                ordinal += 1
        sub.seen = ordinal - 1
        sub.bytes_got += len(block)

    def _welcomed(self, fields: Any) -> None:
        self.welcomed = True
        self.serves, self.asked = {}, []
        if not fields["resumed"]:
            self.to_rejoin, self.subs = self.subs, {}
        else:
            self.subs = {chan: sub for chan, sub in self.subs.items() if chan in fields["subs"]}
        self.session = fields["session"]
        self.epoch = fields["producer"]["epoch"]
        last = fields["producer"]["last_pseq"]
        again = [rid for rid, sent in self.sent.items() if sent.pseq and not sent.confirmed]
        self.to_resend = again if self.retries else []
        self.pseq = max([last, *(self.sent[rid].last for rid in self.to_resend)])
        for rid, sent in list(self.sent.items()):
            if sent.pseq > last and rid not in self.to_resend:  # it was lost, and will not come again
                del self.sent[rid]

    def _noticed(self, kind: str, fields: Any) -> None:
        if kind == "taken_over":
            self.welcomed = False
        elif kind == "unsubscribed":
            self.subs.pop(fields["chan"], None)
        elif kind == "lease_lost" and fields["chan"] in self.subs:
            held = self.subs[fields["chan"]].held
            for first, last in fields["ordinals"]:
                for ordinal in range(first, last + 1):
                    held.pop(ordinal, None)

    def _refused(self, rid: int, code: int, fields: Any) -> None:
        if code == Code.SEQUENCE_GAP:
            self.pseq = fields["expected"] - 1
        elif code == Code.PSEQ_TAKEN and self.jumps:
            self.pseq = max(self.pseq, fields["cursor"])
        elif code in (Code.NO_SESSION, Code.FENCED):
            self.welcomed = False
            self.session = b""
            if code == Code.FENCED:  # the numbers are someone else's now
                self.epoch = None
                self.sent = {rid: sent for rid, sent in self.sent.items() if not sent.pseq}
        self.sent.pop(rid, None)
