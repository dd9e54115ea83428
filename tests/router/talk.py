"""Random commands to a hub: consumers, administrators, time, retention and restarts change messages in groups."""

import random
from typing import Any, Final

from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.state_observer import Observer
from tests.router.world import World

BOSS, PEERS = b"boss", (b"ann", b"bob")
GROUPS: Final[dict[str, dict[str, Any]]] = {
    "none": {"on_expire": "dead"},
    "key": {"order": "key"},
    "strict": {"order": "strict", "backoff_ms": 0, "on_expire": "dead"},
    "auto": {"ack": "auto"},
}
PATTERNS: Final = (["a", "latest"], ["a", "b", "latest"])


class Talk(World):
    """Two consumers of four groups that do all that consumers, administrators, time and retention do to messages."""

    def __init__(self, chance: random.Random, observer: Observer) -> None:
        super().__init__()
        self.chance = chance
        self.observer = observer
        self.first_seq = 1
        self.numbers = 0
        self.peers: dict[bytes, bytes] = {}  # name -> the connection of now
        self.sessions: dict[bytes, bytes] = {}
        self.come(BOSS)
        self.admin("topic.create", topic="latest", keep="last_per_key")
        for name in PEERS:
            self.come(name)

    def come(self, name: bytes) -> None:
        """A new session with all its subscriptions."""
        self.numbers += 1
        peer = self.peers[name] = b"%s%d" % (name, self.numbers)
        welcome = self.hello(peer, client=name.decode(), ttl_ms=4_000)
        assert isinstance(welcome, m.Welcome)
        self.sessions[name] = welcome.fields["session"]
        if name != BOSS:
            for chan, (group, fields) in enumerate(GROUPS.items(), 1):
                credit, concurrency = self.chance.choice([1, 8, 1 << 30]), self.chance.choice([1, 1, 3])
                known = {} if group in self.router.groups else {"backoff_ms": 100, "lease_ms": 5_000, **fields}
                patterns = () if group in self.router.groups else PATTERNS[1]
                self.sub(peer, chan, *patterns, group=group, credit=credit, concurrency=concurrency, **known)

    def admin(self, op: str, **fields: Any) -> None:
        self.say(self.peers[BOSS], m.Admin(3, {"op": op, **fields}))

    def publish(self) -> None:
        n, topic = self.chance.randrange(1, 4), self.chance.choice(["a", "a", "b", "latest"])
        keys = [self.chance.choice([b"", b"k", b"l"]) for _ in range(n)]
        expires_us = self.chance.choice([0, 0, self.wall_us() + self.chance.choice([300_000, 3_000_000])])
        block = encode(topic, [b"x"] * n, keys=keys, expires_us=expires_us)
        self.say(self.peers[BOSS], m.Publish(1, 0, m.Level.JOURNALED, block))

    def held(self, peer: bytes, chan: int) -> list[tuple[int, int]]:
        """Ordinals that a consumer holds."""
        session = self.router.session_table.find(peer)
        sub = session.channels.get(chan) if session is not None else None
        return [span for lease in sub.leases for span in lease.open] if sub is not None else []

    def judge(self) -> None:
        """A verdict on some of what a consumer holds."""
        peer, chan = self.peers[self.chance.choice(PEERS)], self.chance.randrange(1, len(GROUPS) + 1)
        if spans := self.held(peer, chan):
            first, last = self.chance.choice(spans)
            last = min(last, first + self.chance.randrange(3))
            verdict = self.chance.choice([*Verdict, *[Verdict.RETRY] * 4])
            arg = self.chance.choice([None, 0, 0, 1_000]) if verdict is Verdict.RETRY else None
            self.settle(peer, chan, verdict, first, last, arg)

    def fail(self) -> None:
        """All that is held of a group fails twice, and the group is paused."""
        chan = self.chance.randrange(1, len(GROUPS) + 1)
        for name in PEERS * 2:
            for first, last in self.held(self.peers[name], chan):
                self.settle(self.peers[name], chan, Verdict.RETRY, first, last, 0)
        self.admin("group.pause", group=list(GROUPS)[chan - 1])

    def credit(self) -> None:
        peer = self.peers[self.chance.choice(PEERS)]
        self.say(peer, m.Credit(self.chance.randrange(1, len(GROUPS) + 1), 1 << 30, 1 << 40))

    def part(self) -> None:
        """A consumer leaves, is lost, or comes back over another connection."""
        name = self.chance.choice(PEERS)
        peer = self.peers[name]
        match self.chance.randrange(4):
            case 0:
                self.say(peer, m.Goodbye(0))
            case 1:
                self.router.peer_gone(peer)
                self.pass_time(2)
                self.ping(BOSS)
            case 2:
                for _ in range(3):
                    self.pass_time(1.5)
                    self.ping(BOSS, *(other for other in PEERS if other != name))
            case _:
                self.router.peer_gone(peer)
                self.pass_time(self.chance.choice([0, 1]))
                self.numbers += 1
                again = b"%s%d" % (name, self.numbers)
                seen = [[chan, self.chance.choice([0, 1 << 20])] for chan in range(1, len(GROUPS) + 1)]
                if isinstance(self.hello(again, resume={"session": self.sessions[name], "subs": seen}), m.Welcome):
                    self.peers[name] = again
                    return
        self.come(name)

    def administrate(self) -> None:
        group = self.chance.choice(list(GROUPS))
        match self.chance.randrange(8):
            case 7:
                place = self.router.groups[group]
                self.admin("group.settle", group=group, up_to=self.chance.randrange(place.floor, place.horizon + 2))
            case 0:
                self.admin("group.seek", group=group, to=self.chance.choice(["new", "last_per_key"]))
            case 1:
                last = self.router.groups[group].horizon
                seqs = [self.router.groups[group].floor + 1, self.chance.randrange(max(last - 12, 1), last + 2)]
                self.admin("group.seek", group=group, to={"seq": self.chance.choice(seqs)})
            case 2 | 3:
                for attempts_max in self.chance.choice([(1,), (5,), (1, 5)]):
                    self.admin("group.update", group=group, attempts_max=attempts_max)
            case 4:
                for patterns in self.chance.choice([PATTERNS, PATTERNS[:1], PATTERNS[1:]]):
                    self.admin("group.update", group=group, patterns=patterns)
            case _:
                self.admin("group.pause" if self.chance.random() < 0.5 else "group.resume", group=group)

    def wait(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.pass_time(self.chance.choice([0.05, 0.3, 2.0]))
            self.ping(BOSS, *PEERS)

    def ping(self, *names: bytes) -> None:
        for name in names:
            self.say(self.peers[name], m.Ping(0))

    def remove(self) -> None:
        """Retention, of a topic or of the journal."""
        if self.chance.random() < 0.5:
            self.admin("topic.purge", topic=self.chance.choice(["a", "b"]))
        elif self.reader.blocks:
            first_seq = self.chance.choice(self.reader.blocks[-8:]).base_seq
            out: list[tuple[bytes, m.ToClient]] = []
            self.router.trimmed(first_seq)
            out += self.router.take_frames()
            self._hear(out)
            self.reader.blocks = [block for block in self.reader.blocks if block.last_seq >= first_seq]
            self.first_seq = first_seq

    def die(self) -> None:
        """The hub ends when the rows of all groups are on disk, and comes back."""
        for name in GROUPS:
            self.admin("group.pause", group=name)
        for group in self.router.groups.values():
            self.observer.check(group)
        self.now += self.chance.choice([0, 0.2])
        self.observer.is_restarting = True
        self.restart_at(self.first_seq)
        self.observer.is_restarting = False
        self.observer.restarted(self.router.groups.values())
        for peer in (BOSS, *PEERS):
            self.come(peer)
        for name in GROUPS:
            self.admin("group.resume", group=name)

    def act(self) -> None:
        acts = {
            self.publish: 25,
            self.judge: 40,
            self.fail: 2,
            self.credit: 4,
            self.wait: 14,
            self.part: 6,
            self.administrate: 12,
            self.remove: 1,
            self.die: 2,
        }
        self.chance.choices(list(acts), list(acts.values()))[0]()
        for group in self.router.groups.values():
            self.observer.check(group)
