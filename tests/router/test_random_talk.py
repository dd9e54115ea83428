"""Random requests, transactions, refreshes and events, with a check of their invariants after each step."""

import random
from collections import Counter
from typing import Any, Final

import pytest

from fabric import event_block as events
from fabric.router.groups.refresh import Phase
from fabric.router.requests import requests as requests_module
from fabric.router.requests import services as services_module
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Happening
from tests.router.world import World
from tests.seeds import seeded

STEPS: Final = 1_500
ACK, RETRY, RELEASE, REJECT, TOUCH = m.Verdict


# Requests.


class Bazaar(World):
    """Askers and responders that come, go, ask, answer, stall and vanish."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.peers: list[bytes] = []
        self.rids = 0
        self.numbers = 0
        self.heard_until: Counter[bytes] = Counter()
        self.waiting: dict[tuple[bytes, int], int] = {}  # open requests of live askers -> replies still allowed
        self.held: dict[bytes, list[m.Request]] = {}  # what responders have not answered
        self.concurrency: dict[tuple[bytes, int], int] = {}

    def come(self) -> None:
        self.numbers += 1
        peer = b"peer%d" % self.numbers
        self.hello(peer, client=peer.decode(), ttl_ms=600_000)
        self.peers.append(peer)

    def go(self, peer: bytes) -> None:
        if self.chance.random() < 0.5:
            self.say(peer, m.Goodbye(0))
        else:
            self.router.peer_gone(peer)  # it may linger; what it asked goes on, what it answers is over
            self.pass_time(0)
            self.say(peer, m.Goodbye(0))
        self.peers.remove(peer)
        self.held.pop(peer, None)
        self.waiting = {key: left for key, left in self.waiting.items() if key[0] != peer}
        self.concurrency = {key: n for key, n in self.concurrency.items() if key[0] != peer}

    def serve(self, peer: bytes) -> None:
        chan = self.chance.randrange(1, 4)
        fields: dict[str, Any] = {"respond": True, "patterns": ["t.#"], "concurrency": self.chance.randrange(1, 4)}
        if self.chance.random() < 0.7:
            fields["group"] = self.chance.choice(["g", "h"])
        if self.say(peer, m.Subscribe(chan, 1, fields)) and (peer, chan) not in self.concurrency:
            answer = next(s for s in reversed(self.said[peer]) if isinstance(s, m.Ok | m.Err) and s.chan == chan)
            if isinstance(answer, m.Ok):
                self.concurrency[peer, chan] = fields["concurrency"]

    def stop_serving(self, peer: bytes) -> None:
        for key in [key for key in self.concurrency if key[0] == peer][:1]:
            del self.concurrency[key]
            self.held[peer] = [request for request in self.held.get(peer, []) if request.chan != key[1]]
            self.say(peer, m.Unsubscribe(key[1], 0))

    def ask(self, peer: bytes) -> None:
        self.rids += 1
        wanted = self.chance.choice([1, 1, 3])
        timeout_ms = self.chance.choice([50, 500, 5_000])
        self.waiting[peer, self.rids] = wanted
        fields = {"timeout_ms": timeout_ms, "replies_max": wanted}
        self.say(peer, m.Request(0, self.rids, fields, encode("t.x", [b"?"])))

    def answer(self, peer: bytes) -> None:
        held = self.held.get(peer)
        if held:
            request = self.chance.choice(held)
            final = self.chance.random() < 0.6
            if final:
                held.remove(request)
            self.say(peer, m.Reply(request.chan, request.rid, {"final": final}, encode("r", [b"!"])))

    def block(self, peer: bytes) -> None:
        self.router.peer_blocked(peer, self.chance.random() < 0.5)
        self.pass_time(0)

    def listen(self) -> None:
        """Check the frames to all peers since the last call."""
        for peer in self.peers:
            said = self.said[peer]
            for message in said[self.heard_until[peer] :]:
                if isinstance(message, m.Request):
                    self.held.setdefault(peer, []).append(message)
                elif isinstance(message, m.Reply):
                    assert self.waiting[peer, message.rid] > 0, "a reply to a request that is over"
                    self.waiting[peer, message.rid] -= 1
                    assert message.fields["final"] or self.waiting[peer, message.rid]
                    if message.fields["final"]:
                        del self.waiting[peer, message.rid]
                elif isinstance(message, m.Err) and not message.chan:
                    assert message.code in (Code.NO_RESPONDERS, Code.BUSY, Code.TIMED_OUT), message
                    assert message.fields.get("sent") in (None, True, False)
                    del self.waiting[peer, message.rid]
            self.heard_until[peer] = len(said)

    def check(self) -> None:
        hub = self.router.requests
        open_ = {(peer_of(request), request.rid) for request in hub._open.values() if request.session is not None}
        assert open_ == set(self.waiting), "who waits is waited for, and is told exactly once"
        for service in hub.services:
            assert service.members
            for member in service.members:
                assert len(member.open) <= member.concurrency
                assert self.concurrency[member.session.peer, member.chan] == member.concurrency
            if service.waiting:
                assert not any(member.is_free for member in service.members), "nobody waits while someone is free"
        held = sum(len(member.open) for service in hub.services for member in service.members)
        assert held + sum(len(service.waiting) for service in hub.services) == len(hub)
        assert hub._waiting_bytes == sum(len(i.block) for s in hub.services for i in s.waiting.values())


def peer_of(request: requests_module.OpenRequest) -> bytes:
    assert request.session is not None
    return request.session.peer


def test_every_request_ends_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "QUEUE_PER_HANDLER", 3)
    monkeypatch.setattr(requests_module, "OPEN_PER_SESSION_MAX", 12)
    bazaar = Bazaar(seeded("requests"))
    acts = [
        bazaar.serve,
        bazaar.ask,
        bazaar.ask,
        bazaar.ask,
        bazaar.answer,
        bazaar.answer,
        bazaar.answer,
        bazaar.answer,
    ]
    for _ in range(STEPS):
        roll = bazaar.chance.random()
        if roll < 0.04 or len(bazaar.peers) < 2:
            bazaar.come()
        elif roll < 0.06:
            bazaar.go(bazaar.chance.choice(bazaar.peers))
        elif roll < 0.08:
            bazaar.stop_serving(bazaar.chance.choice(bazaar.peers))
        elif roll < 0.12:
            bazaar.block(bazaar.chance.choice(bazaar.peers))
        elif roll < 0.2:
            bazaar.pass_time(bazaar.chance.choice([0.01, 0.1, 1.0]))
        else:
            bazaar.chance.choice(acts)(bazaar.chance.choice(bazaar.peers))
        bazaar.listen()
        bazaar.check()
    bazaar.pass_time(10)
    bazaar.listen()
    assert not bazaar.waiting
    assert len(bazaar.router.requests) == 0


# Transactions and events.


class Mill(World):
    """A group whose consumers settle by ACK frames and by TXNs; some are right and some are wrong."""

    def __init__(self, chance: random.Random, order: str) -> None:
        super().__init__()
        self.chance = chance
        self.router.events.switch(True)
        self.pseq = {b"c": 0, b"d": 0}
        self.hello(b"boss", ttl_ms=600_000)
        for peer in self.pseq:
            self.hello(peer, client=peer.decode(), ttl_ms=600_000, producer={"name": peer.decode()})
            fields = {"group": "g", "order": order, "attempts_max": 3, "backoff_ms": 100, "lease_ms": 10_000}
            self.sub(peer, 1, "raw", credit=1 << 30, **fields)

    def publish(self) -> None:
        n = self.chance.randrange(1, 6)
        keys = [b"k%d" % self.chance.randrange(3) for _ in range(n)]
        self.say(b"boss", m.Publish(1, 0, 0, encode("raw", [b"x"] * n, keys=keys)))

    def rows(self, peer: bytes) -> tuple[tuple[int, int, int, Any], ...]:
        """Verdicts on some of the ordinals that the peer was ever given, without overlap."""
        sub = self.router.session_table.session_of(peer).channels[1]
        rows: list[tuple[int, int, int, Any]] = []
        at = max(sub.sent - 12, 0)
        while at < sub.sent and len(rows) < 4:
            first = at + self.chance.randrange(1, 4)
            last = first + self.chance.randrange(3)
            if last > sub.sent:
                break
            verdict = self.chance.choice([ACK, ACK, ACK, RETRY, RELEASE, REJECT, TOUCH])
            rows.append((int(verdict), first, last, None))
            at = last
        return tuple(rows)

    def transact(self, peer: bytes) -> None:
        rows = self.rows(peer)
        sub = self.router.session_table.session_of(peer).channels[1]
        spans = [span for lease in sub.leases for span in lease.open]
        ordinals = [ordinal for _, first, last, _ in rows for ordinal in range(first, last + 1)]
        is_open = all(any(a <= ordinal <= b for a, b in spans) for ordinal in ordinals)
        before = self.state()
        settles = ((1, rows),) if rows else ()
        out: list[tuple[bytes, m.ToClient]] = []
        message = m.Transact(9, self.pseq[peer] + 1, settles, encode("done", [b"y"]))
        self.router.step(message, peer, self.now)
        out += self.router.take_frames()
        if is_open:
            assert not out, "said when it is on disk"
            self.commit()
            answer = [a for a in self.said[peer] if isinstance(a, m.Ok | m.Err) and a.rid == 9][-1]
            assert isinstance(answer, m.Ok), answer
            assert answer.fields["applied"] == sum(last - first + 1 for _, first, last, _ in rows)
            self.pseq[peer] += 1
        else:
            ((_, error),) = out
            assert isinstance(error, m.Err)
            assert error.code == Code.STALE
            assert self.state() == before, "nothing was done"
            self.commit()

    def state(self) -> object:
        """All that a transaction could change."""
        group = self.router.groups["g"]
        held = [[(p.first, list(p.open)) for p in sub.leases] for sub in group.members]
        return list(group.open), held, self.router.shared.next_seq, self.router.publishing.producers["c"].last_pseq


@pytest.mark.parametrize("order", ["none", "key", "strict"])
def test_a_transaction_is_whole_and_events_tell_all(order: str) -> None:
    mill = Mill(seeded(f"mill {order}"), order)
    for _ in range(STEPS // 3):
        peer = mill.chance.choice([b"c", b"d"])
        match mill.chance.randrange(10):
            case 0 | 1:
                mill.publish()
            case 2 | 3 | 4:
                mill.transact(peer)
            case 5:
                rows = mill.rows(peer)
                if rows:
                    mill.say(peer, m.Settle(1, 8, rows))
            case 6:
                mill.pass_time(mill.chance.choice([0.05, 1.0, 11.0]))
                for other in (b"boss", b"c", b"d"):
                    mill.say(other, m.Ping(0))
            case _:
                mill.say(peer, m.Ping(0))
    mill.pass_time(2)
    mill.pass_time(2)
    told: dict[int, Counter[str]] = {}
    for record in mill.reader.events:
        for event in events.rows(record.value):
            for seq in range(event.first_seq, event.last_seq + 1):
                told.setdefault(seq, Counter())[Happening(event.kind).name] += 1
    group = mill.router.groups["g"]
    raw = [
        block.base_seq + i
        for block in mill.reader.blocks
        for i, topic in enumerate(block.topic_names())
        if topic == "raw"
    ]
    for seq in raw:
        if seq >= group.position():
            continue
        counts, settled = told.get(seq, Counter()), not group.open.holds(seq)
        assert counts["ACK"] + counts["DEAD"] == settled, f"seq {seq}: {counts}"
        assert counts["DELIVER"] >= settled
        if order == "none":  # otherwise later ones of a key are taken back without a word
            came_back = counts["RETRY"] + counts["RELEASE"] + counts["LAPSE"]
            assert counts["DELIVER"] in (came_back, came_back + 1), f"seq {seq}: {counts}"


# Refreshes.


def messages_in(message: m.Deliver) -> dict[int, str]:
    block = Block(message.block)
    runs = zip(message.seqs[::2], message.seqs[1::2], strict=True)
    seqs = [seq for first, n in runs for seq in range(first, first + n)]
    seqs = seqs or list(range(block.base_seq, block.base_seq + block.count))
    return {seq: body.decode() for seq, body in zip(seqs, block.payloads(), strict=True)}


class Library(World):
    """One consumer with a local copy of topic `a`, in memory, which it drops at begin and proves at end."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance
        self.published: dict[int, str] = {}
        self.copy: dict[int, str] = {}
        self.heard = self.ends = 0
        self.enter()

    def enter(self) -> None:
        self.heard = 0
        if self.chance.random() < 0.5:
            self.copy.clear()  # it was restarted, too
        self.hello(b"op", ttl_ms=600_000)
        self.hello(b"c", ttl_ms=600_000)
        self.sub(b"c", 1, "a", group="g", backoff_ms=0, credit=1 << 30)

    def publish(self, body: str) -> None:
        topic = "a" if self.chance.random() < 0.7 else "b"
        self.pub(b"op", topic, body)
        if topic == "a":
            self.published[self.reader.blocks[-1].last_seq] = body

    def refresh(self) -> None:
        self.say(b"op", m.Admin(9, {"op": "group.refresh", "group": "g"}))

    def judge(self, *verdicts: m.Verdict) -> bool:
        """A verdict on some of what is held; false when nothing is."""
        sub = self.router.session_table.session_of(b"c").channels[1]
        spans = [span for lease in sub.leases for span in lease.open]
        if spans:
            first, last = self.chance.choice(spans)
            last = min(last, first + self.chance.randrange(20))
            self.settle(b"c", 1, self.chance.choice(verdicts), first, last)
        return bool(spans)

    def listen(self) -> None:
        for message in self.said[b"c"][self.heard :]:
            if isinstance(message, m.Deliver):
                self.copy |= messages_in(message)
            elif isinstance(message, m.Reset):
                self.reset(message.fields["refresh"], message.fields["phase"], message.fields["target"])
        self.heard = len(self.said[b"c"])

    def reset(self, number: int, phase: str, target: int) -> None:
        if phase == "end":
            self.ends += 1
            have, want = [{s: b for s, b in d.items() if s <= target} for d in (self.copy, self.published)]
            assert have == want
            self.say(b"c", m.Ready(1, 0, number))
        else:
            self.copy.clear()


def test_a_copy_is_whole_when_the_refresh_ends() -> None:
    library = Library(seeded("refresh"))
    for step in range(STEPS // 2):
        roll = library.chance.random()
        if roll < 0.1:
            library.publish(str(step))
        elif roll < 0.12:
            library.refresh()
        elif roll < 0.13:
            library.restart()
            library.enter()
        elif roll < 0.2:
            library.pass_time(library.chance.choice([0.0, 1.0]))
        else:
            library.judge(ACK, ACK, RETRY, RELEASE)
        library.listen()
    library.refresh()
    while library.judge(ACK):
        library.listen()
    library.pass_time(1)
    library.listen()
    assert library.ends > 0
    assert library.router.groups["g"].refresh[2] == Phase.READY


# Junk.

JUNK: Final[list[Any]] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    1 << 62,
    1.5,
    "",
    "x",
    "x" * 2_000,
    "a..b",
    b"x",
    [],
    ["t"],
    [1],
    [[]],
    {},
    {"a": 1},
]


def test_junk_is_refused_and_leaves_nothing() -> None:
    chance = seeded("junk")
    world = World()
    for peer in (b"a", b"b"):
        world.hello(peer, ttl_ms=600_000)
        world.sub(peer, 9, "t", group="g")
    names = ("respond", "patterns", "group", "concurrency", "timeout_ms", "replies_max", "final", "error", "from")
    blocks = [
        b"",
        b"junk",
        encode("t", [b"1"]),
        encode("t", [b"1", b"2"]),
        encode("$x", [b"1"]),
        encode(["t", "u"], [b"1"] * 2),
    ]
    for _ in range(STEPS):
        fields = {name: chance.choice(JUNK) for name in chance.sample(names, chance.randrange(len(names)))}
        if chance.random() < 0.5:
            fields |= {"respond": True, "patterns": ["t"]}
        rid, block = chance.randrange(4), chance.choice(blocks)
        rows = ((chance.randrange(5), chance.randrange(1, 4), chance.randrange(4, 6), None),)
        words: list[m.ToHub] = [
            m.Subscribe(chance.randrange(4), rid, fields),
            m.Unsubscribe(chance.randrange(4), rid),
            m.Request(0, rid, fields, block),
            m.Reply(chance.randrange(4), chance.randrange(20), fields, block),
            m.Transact(rid, chance.choice([0, 1, 9]), ((chance.choice([1, 9]), rows),), block),
            m.Ready(chance.choice([1, 9]), rid, chance.randrange(3)),
            m.Admin(rid, {"op": "group.refresh", "group": "g", **fields}),
        ]
        world.say(chance.choice([b"a", b"b"]), chance.choice(words))
        if chance.random() < 0.05:
            world.pass_time(5)
            for peer in (b"a", b"b"):
                world.say(peer, m.Ping(0))
    for peer in (b"a", b"b"):
        world.say(peer, m.Goodbye(0))
    world.pass_time(600)
    assert len(world.router.requests) == 0
    assert not list(world.router.requests.services)
