"""Random lives of a router: whatever is said, lost, delayed or forgotten, each message is in exactly one place.

A schedule is a stream of publishes, subscriptions, credit, verdicts, silence, lost connections, resumes and crashes,
drawn from a seed. The router lives it together with a dumb twin, and the two are compared after every step; at the end
willing consumers come and everything must be settled.
"""

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from fabric import messages as m
from fabric.block import Block, encode
from fabric.errors import Code
from fabric.messages import GroupSettings, Level, Verdict
from fabric.router.core import SWEEP_S, Turn
from tests.router.twin import Sub, Twin
from tests.router.world import BIG, World
from tests.seeds import seeded

SCHEDULES: Final = 600  # for each of the parts below, which xdist may run side by side
PARTS: Final = 4
STEPS: Final = 45
TOPICS: Final = ("a", "a.b", "a.c", "b", "b.c", "b.c.d")
GROUPS: Final = {
    "wide": GroupSettings(("#",), lease_ms=5_000, attempts_max=3),
    "narrow": GroupSettings(("a.*",), lease_ms=2_000, attempts_max=2),
    "mixed": GroupSettings(("b.#", "a.c", "*.c"), lease_ms=8_000, attempts_max=5),
    "hasty": GroupSettings(("#.c", "b"), lease_ms=3_000, attempts_max=4, level=Level.RECEIVED),
}
TTL_S: Final = 10.0


@dataclass
class Client:
    name: str
    peer: bytes = b""
    session: bytes = b""  # empty: none
    connected: bool = False
    last_said: float = 0.0
    subs: dict[int, Sub] = field(default_factory=dict)
    epoch: int | None = None
    pseq: int = 0  # of the last message that was numbered
    sent: list[tuple[int, bytes, int]] = field(default_factory=list)  # (pseq, block, seq that the hub gave or 0)


class Life(World):
    """One schedule."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.clients = [Client(f"c{i}") for i in range(4)]
        self.twins: dict[str, Twin] = {}
        self.topics: list[str] = []  # of every message that was sealed, by seq
        self.turns: deque[tuple[Turn, Any]] = deque()  # sealed, not on disk
        self.durable: Any = self.state()
        self.peers = 0

    # Doing.

    def do(self, message: m.ToHub, client: Client) -> list[m.ToClient]:
        """Say something; returns what the client hears at once."""
        out: list[tuple[bytes, m.ToClient]] = []
        client.last_said = self.now
        self.router.step(message, client.peer, self.now, out)
        self.after(out)
        return [said for peer, said in out if peer == client.peer]

    def after(self, out: list[tuple[bytes, m.ToClient]]) -> None:
        """Time has its turn, and the twins hear what was said."""
        for twin in self.twins.values():
            twin.lapse(self.now)
        self.router.tick(self.now, out)
        self.end_silent()
        for _ in range(50):
            if self.router.next_deadline():
                break
            self.router.tick(self.now, out)
        self.heard(out)

    def heard(self, out: list[tuple[bytes, m.ToClient]]) -> None:
        for peer, message in out:
            client = next((c for c in self.clients if c.peer == peer), None)
            if client is None:
                continue
            match message:
                case m.Deliver(chan):
                    sub = client.subs[chan]
                    level = sub.group.settings.level
                    horizon = len(self.topics) if level == Level.RECEIVED else self.on_disk()
                    sub.group.delivered(sub, message, horizon, self.topics, self.now)
                    self.check_bodies(message)
                case m.PubOk(level, confirms):
                    for rid, seq, stored, dups in confirms:
                        self.confirmed(client, level, rid, seq, stored + dups)

    def check_bodies(self, message: m.Deliver) -> None:
        block = Block(message.block)
        block.verify()
        block.verify_stamp()
        for topic, body in zip(block.topic_names(), block.payloads(), strict=True):
            assert body.startswith(topic.encode()), "a message keeps its topic and body together"

    def confirmed(self, client: Client, level: int, rid: int, seq: int, count: int) -> None:
        assert level == Level.RECEIVED or seq + count - 1 <= self.on_disk(), "confirmed before it was on disk"
        pseq, block, first = client.sent[rid - 1]
        assert first in (0, seq) or level == Level.RECEIVED, "a resend is answered with its first seq"
        assert Block(block).count == count
        client.sent[rid - 1] = (pseq, block, seq)

    def on_disk(self) -> int:
        return self.reader.blocks[-1].last_seq if self.reader.blocks else 0

    def state(self) -> Any:
        """What must survive if the next turn reaches the disk."""
        return {name: (twin.start, set(twin.settled), set(twin.dead)) for name, twin in self.twins.items()}

    def seal(self) -> None:
        out: list[tuple[bytes, m.ToClient]] = []
        state = self.state()
        turn = self.router.seal(int(self.now * 1e6), self.now, out)
        for record in turn.records:
            if isinstance(record, m.Append):
                self.topics += Block(record.block).topic_names()
        self.turns.append((turn, state))
        self.after(out)

    def land(self) -> None:
        if not self.turns:
            return
        turn, state = self.turns.popleft()
        self.write(turn.records)
        self.durable = state
        out = list(turn.sends)
        self.router.committed(self.now, out)
        self.after(out)

    def settle_down(self) -> None:
        """Everything that was taken reaches the disk."""
        self.seal()
        while self.turns:
            self.land()

    def end_silent(self) -> None:
        """Sessions that the router gave up: rightly?"""
        for client in self.clients:
            if client.session and client.session not in self.router.reception.sessions:
                assert self.now - client.last_said > TTL_S
                self.forget(client, lost=True)
            elif client.session and self.now >= self.router._sweep_at - SWEEP_S:
                assert self.now - client.last_said <= TTL_S + SWEEP_S

    def forget(self, client: Client, *, lost: bool) -> None:
        for sub in client.subs.values():
            sub.group.leave(sub, lost=lost)
        client.subs.clear()
        client.session, client.connected = b"", False

    # What can happen. Each takes what it needs from the generator and does nothing when it does not apply.

    def hello(self, client: Client) -> None:  # type: ignore[override]
        """Connect: for the first time, or again, with or without a session to resume."""
        if client.connected:
            return
        self.peers += 1
        old, client.peer = client.peer, b"\0" + self.peers.to_bytes(4, "big")
        fields: dict[str, Any] = {"proto": 1, "hb_ms": 1000, "ttl_ms": int(TTL_S * 1000)}
        fields["producer"] = {"name": client.name, "epoch": client.epoch} if client.epoch else {"name": client.name}
        if client.session:
            for sub in client.subs.values():  # some of what was on its way did not arrive
                firsts = [held.first - 1 for held in sub.held] or [sub.sent]
                sub.seen = self.rng.choice([sub.sent, *firsts])
            subs = [[chan, sub.seen] for chan, sub in client.subs.items() if self.rng.random() < 0.9]
            fields["resume"] = {"session": client.session, "subs": subs}
            kept = {row[0] for row in subs}
            for chan in [chan for chan in client.subs if chan not in kept]:
                sub = client.subs.pop(chan)
                sub.group.leave(sub, lost=True)
        lost_on_the_way = {chan: [h for h in sub.held if h.first > sub.seen] for chan, sub in client.subs.items()}
        client.connected = True
        answers = self.do(m.Hello(1, fields), client)
        welcome = next(a for a in answers if isinstance(a, m.Welcome))
        assert welcome.fields["resumed"] is bool(client.session), "a session lives as long as the twin says"
        assert welcome.fields["subs"] == sorted(client.subs)
        assert old != client.peer
        again = [(a.chan, a.first_ordinal) for a in answers if isinstance(a, m.Deliver)]
        for chan, held in lost_on_the_way.items():
            for one in held:
                assert one.deadline <= self.now or (chan, one.first) in again, "what did not arrive is sent again"
        client.session, client.epoch = welcome.fields["session"], welcome.fields["producer"]["epoch"]
        client.pseq = welcome.fields["producer"]["last_pseq"]

    def publish(self, client: Client) -> None:
        if not client.connected:
            return
        names = [self.rng.choice(TOPICS) for _ in range(self.rng.randint(1, 5))]
        if self.rng.random() < 0.4:
            names = names[:1] * len(names)
        raw = encode(names, [f"{name} {i}".encode() for i, name in enumerate(names)])
        pseq = client.pseq + 1 if self.rng.random() < 0.7 else 0
        client.sent.append((pseq, raw, 0))
        client.pseq += len(names) if pseq else 0
        level = Level.RECEIVED if self.rng.random() < 0.15 else Level.JOURNALED
        assert not any(isinstance(a, m.Err) for a in self.do(m.Publish(len(client.sent), pseq, level, raw), client))

    def publish_again(self, client: Client) -> None:
        """A confirm was lost, or so the client thinks."""
        known = [i for i, (pseq, _, _) in enumerate(client.sent) if 0 < pseq <= client.pseq]
        if not client.connected or not known:
            return
        rid = self.rng.choice(known) + 1
        pseq, raw, _ = client.sent[rid - 1]
        before = self.router.intake.next_seq
        self.do(m.Publish(rid, pseq, Level.JOURNALED, raw), client)
        assert self.router.intake.next_seq == before, "stored once"

    def publish_ahead(self, client: Client) -> None:
        if client.connected:
            answer = self.do(m.Publish(1, client.pseq + 2, 0, encode("a", [b"a"])), client)
            assert [a.code for a in answer if isinstance(a, m.Err)] == [Code.SEQUENCE_GAP]

    def subscribe(self, client: Client) -> None:
        if not client.connected:
            return
        name, chan = self.rng.choice(list(GROUPS)), self.rng.randint(1, 4)
        settings = GROUPS[name]
        credit = [self.rng.choice((0, 1, 2, 5, 1000)), self.rng.choice((0, 500, BIG, BIG))]
        fields: dict[str, Any] = {"group": name, "credit": credit}
        fields |= {"patterns": list(settings.patterns), "lease_ms": settings.lease_ms}
        fields |= {"attempts_max": settings.attempts_max, "level": Level(settings.level).name.lower()}
        if self.rng.random() < 0.2:
            fields["start"] = "new"
        sub: Sub | None = None
        if chan not in client.subs:
            start = self.router.intake.next_seq if "start" in fields else 1
            twin = self.twins.setdefault(name, Twin(name, settings, start))
            sub = client.subs[chan] = Sub(twin, credit[0], credit[1])
            twin.subs.append(sub)
        answers = self.do(m.Subscribe(chan, 5, fields), client)
        assert any(isinstance(a, m.Ok) for a in answers) is (sub is not None)

    def credit(self, client: Client) -> None:
        if client.connected and client.subs:
            chan, sub = self.rng.choice(list(client.subs.items()))
            sub.ordinal_max = max(0, sub.sent + self.rng.randint(-3, 6))
            sub.bytes_max = sub.bytes_sent + self.rng.choice((0, 300, BIG, BIG))
            self.do(m.Credit(chan, sub.ordinal_max, sub.bytes_max), client)

    def verdict(self, client: Client) -> None:
        chans = [chan for chan, sub in client.subs.items() if sub.sent]
        if not client.connected or not chans:
            return
        chan = self.rng.choice(chans)
        sub, rows, applied, stale = client.subs[chan], [], 0, set[int]()
        for twin in self.twins.values():
            twin.lapse(self.now)
        for _ in range(self.rng.randint(1, 3)):
            verdict = self.rng.choice((Verdict.ACK, Verdict.ACK, *Verdict))
            first = self.rng.randint(max(1, sub.sent - 12), sub.sent)
            last = min(sub.sent, first + self.rng.choice((0, 1, 3, 20)))
            arg = self.rng.choice((None, 1500, 6000)) if verdict in (Verdict.RETRY, Verdict.TOUCH) else None
            late = sub.group.verdict(sub, verdict, first, last, arg, self.now)
            rows.append((verdict, first, last, arg))
            applied += last - first + 1 - len(late)
            stale |= late
        self.do(m.Settle(chan, 7, tuple(rows)), client)
        answer = self.router.ledger._sends[-1][1]  # it waits for the commit
        assert isinstance(answer, m.Ok)
        assert answer.fields["applied"] == applied
        assert {o for a, b in answer.fields["stale"] for o in range(a, b + 1)} == stale

    def verdict_never_sent(self, client: Client) -> None:
        if client.connected and client.subs:
            chan, sub = self.rng.choice(list(client.subs.items()))
            answers = self.do(m.Settle(chan, 7, ((Verdict.ACK, 1, sub.sent + 1, None),)), client)
            assert [a.code for a in answers if isinstance(a, m.Err)] == [Code.BAD_ORDINAL]

    def unsubscribe(self, client: Client) -> None:
        if client.connected and client.subs:
            chan = self.rng.choice(list(client.subs))
            sub = client.subs.pop(chan)
            sub.group.leave(sub, lost=False)
            self.do(m.Unsubscribe(chan, 6), client)

    def goodbye(self, client: Client) -> None:
        if client.connected:
            self.forget(client, lost=False)
            self.do(m.Goodbye(8), client)

    def disconnect(self, client: Client) -> None:
        """The connection breaks; the hub may notice or not."""
        if client.connected:
            client.connected = False
            if self.rng.random() < 0.5:
                self.router.peer_gone(client.peer)

    def congest(self, client: Client) -> None:
        if client.connected:
            self.router.block_peer(client.peer, self.rng.random() < 0.5)
            self.after([])

    def pass_some_time(self, client: Client) -> None:
        self.now += self.rng.choice((0.01, 0.2, 1.0, 2.0, 3.0, 6.0))
        self.after([])
        for one in self.clients:
            if one.connected and self.rng.random() < 0.9:
                self.do(m.Ping(0), one)

    def commit_one(self, client: Client) -> None:
        self.rng.choice((self.seal, self.land, self.settle_down))()

    def crash(self, client: Client) -> None:
        """The hub dies; a turn that was on its way may have reached the disk without anyone hearing of it."""
        if self.turns and self.rng.random() < 0.5:
            turn, self.durable = self.turns.popleft()
            self.write(turn.records)
        self.turns.clear()
        self.restart()
        del self.topics[self.on_disk() :]
        for client in self.clients:
            client.session, client.connected, client.subs = b"", False, {}
            client.sent = [(p, raw, seq if seq <= self.on_disk() else 0) for p, raw, seq in client.sent]
        self.twins = {}
        for name, (start, settled, dead) in self.durable.items():
            twin = self.twins[name] = Twin(name, GROUPS[name], start)
            twin.settled, twin.dead = set(settled), set(dead)
            twin.restored(self.router.groups[name], self.topics, self.on_disk())
        assert set(self.router.groups) == set(self.twins)

    # Judging.

    def check(self) -> None:
        on_disk = self.on_disk()
        for name, twin in self.twins.items():
            group = self.router.groups[name]
            twin.check(group, self.topics, len(self.topics) if group.received else on_disk, self.now)
        letters = [letter for block in self.reader.blocks for letter in letters_in(block)]
        assert len(set(letters)) == len(letters), "a dead letter is written once"
        expected = {(name, seq) for name, (_, _, dead) in self.durable.items() for seq in dead}
        assert set(letters) == expected, "dead letters are written with what settles them"

    def finish(self) -> None:
        """Faults are over and willing consumers come: everything must be settled."""
        self.settle_down()
        for client in self.clients:
            if client.session:
                self.router.block_peer(client.peer, False)
                self.forget(client, lost=False)
                self.router.step(m.Goodbye(0), client.peer, self.now, [])
        self.after([])
        worker = self.clients[0]
        self.hello(worker)
        for chan, (name, twin) in enumerate(self.twins.items(), 1):
            sub = worker.subs[chan] = Sub(twin, BIG, BIG)
            twin.subs.append(sub)
            self.do(m.Subscribe(chan, 5, {"group": name, "credit": [BIG, BIG]}), worker)
        for _ in range(12):
            for chan, sub in worker.subs.items():
                if sub.outstanding:
                    sub.group.verdict(sub, Verdict.ACK, 1, sub.sent, None, self.now)
                    self.do(m.Settle(chan, 0, ((Verdict.ACK, 1, sub.sent, None),)), worker)
            self.settle_down()
            self.now += 1.0
            self.do(m.Ping(0), worker)
            self.check()
        for name, twin in self.twins.items():
            twin.check_finished(self.router.groups[name], self.topics, self.on_disk())


def letters_in(block: Block) -> list[tuple[str, int]]:
    """(group, seq) of the dead letters in a block."""
    if not any(topic.startswith("$dlq.") for topic in block.topics):
        return []
    rows = zip(block.topic_names(), block.headers(), strict=True)
    return [(topic[5:], int(headers["fabric-seq"])) for topic, headers in rows if topic.startswith("$dlq.")]


EVENTS: Final = {
    Life.hello: 8,
    Life.publish: 10,
    Life.publish_again: 2,
    Life.publish_ahead: 1,
    Life.subscribe: 6,
    Life.credit: 6,
    Life.verdict: 12,
    Life.verdict_never_sent: 1,
    Life.unsubscribe: 2,
    Life.goodbye: 1,
    Life.disconnect: 3,
    Life.congest: 2,
    Life.pass_some_time: 6,
    Life.commit_one: 14,
    Life.crash: 2,
}


def live(seed: int) -> None:
    rng = random.Random(seed)
    life = Life(rng)
    # Each life has its own character: some things happen often in it, some never.
    events = {event: weight * rng.choice((0, 1, 1, 4)) for event, weight in EVENTS.items()}
    events |= {Life.hello: 8, Life.publish: 10, Life.subscribe: 6, Life.commit_one: 14}
    trace: list[str] = []
    try:
        for event in rng.choices(list(events), list(events.values()), k=STEPS):
            client = rng.choice(life.clients)
            trace.append(f"{life.now:.2f} {event.__name__} {client.name}")
            event(life, client)
            life.check()
        trace.append("finish")
        life.finish()
    except BaseException:
        print(f"schedule seed {seed}", *trace[-STEPS:], sep="\n  ")
        raise


@pytest.mark.parametrize("part", range(PARTS))
def test_each_message_is_in_one_place_whatever_happens(part: int) -> None:
    rng = seeded(f"schedules {part}")
    for _ in range(SCHEDULES):
        live(rng.getrandbits(48))
