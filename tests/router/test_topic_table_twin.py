"""TopicTable against a plain list of messages: counts, readable messages, and messages left on disk.

Publishes, acks, purges, time, changes of settings and crashes come in any order. After each of them the table may do
its work to the end, and then both must agree.
"""

from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

import pytest

from fabric.router.topics import retention as retention_module
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from tests.router.world import BIG, World
from tests.seeds import seeded

P, C, D = b"producer", b"one", b"two"
SETTINGS: dict[str, dict[str, Any]] = {
    "few": {"max_msgs": 7, "on_full": "drop_old"},
    "small": {"max_bytes": 40},
    "young": {"max_age_ms": 20_000, "max_msgs": 30},
    "work": {"keep": "until_acked", "max_msgs": 25},
    "state": {"keep": "last_per_key"},
    "top": {"keep": "last_per_key", "max_msgs": 3, "on_full": "drop_old"},
}
TOPICS = (*SETTINGS, "free")
GROUPS = {"one": ("work",), "two": ("#",)}


class Message(NamedTuple):
    seq: int
    topic: str
    key: bytes
    body: bytes
    ts_us: int  # of its turn; 0: not sealed yet


class Twin:
    """What should be there, message by message."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.floors: dict[str, int] = {}

    def live(self, topic: str) -> list[Message]:
        found = [row for row in self.messages if row.topic == topic and row.seq >= self.floors.get(topic, 0)]
        if self.settings.get(topic, {}).get("keep") == "last_per_key":
            latest = {row.key: row.seq for row in found if row.key}
            found = [row for row in found if not row.key or latest[row.key] == row.seq]
        return found

    def settle(self, now_us: int, acked: int | None) -> None:
        """Remove what the settings say; `acked` is what all groups of topic `work` have settled."""
        for topic, settings in self.settings.items():
            if age := settings.get("max_age_ms"):
                for row in self.live(topic):
                    if row.ts_us + age * 1000 <= now_us:
                        self.floors[topic] = row.seq + 1
            if settings.get("keep") == "until_acked" and acked is not None:
                self.floors[topic] = max(self.floors.get(topic, 0), acked + 1)
            if settings.get("on_full") == "drop_old":
                while (most := settings.get("max_msgs")) and len(self.live(topic)) > most:
                    self.floors[topic] = self.live(topic)[0].seq + 1


def size(rows: list[Message]) -> int:
    return sum(len(row.body) for row in rows)


class Life(World):
    """A world and its twin, and things that happen to both."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng
        self.twin = Twin()
        self.acked: dict[bytes, int] = {}
        self.trail: list[str] = []
        self.greet()
        for topic in rng.sample(list(SETTINGS), 4):
            self.configure(topic)

    def greet(self) -> None:
        self.acked = {}
        for peer in (P, C, D):
            self.hello(peer)
        for peer, chan, name in ((C, 1, "one"), (D, 2, "two")):
            fields = {"credit": [BIG, BIG], "group": name, "lease_ms": 43_200_000, "lease_max_ms": 43_200_000}
            if name not in self.router.groups:
                fields |= {"patterns": list(GROUPS[name]), "start": "first"}
            (answer, *_) = self.say(peer, m.Subscribe(chan, 5, fields))
            assert isinstance(answer, m.Ok), answer

    def do(self, op: str, **fields: Any) -> None:
        answers = [said for said in self.say(P, m.Admin(3, {"op": op, **fields})) if getattr(said, "rid", 0) == 3]
        assert [type(answer) for answer in answers] == [m.Ok], (op, fields, answers)

    # Things that happen.

    def configure(self, topic: str) -> None:
        self.do("topic.create", topic=topic, **SETTINGS[topic])
        self.twin.settings[topic] = SETTINGS[topic]

    def create(self) -> None:
        missing = [topic for topic in SETTINGS if topic not in self.twin.settings]
        if missing:
            self.configure(self.rng.choice(missing))

    def publish(self) -> None:
        rng, first = self.rng, self.router.shared.next_seq
        count = rng.randint(1, 6)
        topics = rng.choices(TOPICS, k=count) if rng.random() < 0.6 else [rng.choice(TOPICS)] * count
        keys = [rng.choice((b"", b"a", b"b", b"c", b"d", b"e")) for _ in range(count)]
        bodies = [b"x" * rng.randrange(9) for _ in range(count)]
        rows = [Message(first + i, topics[i], keys[i], bodies[i], 0) for i in range(count)]
        fits = all(self.fits(topic, rows) for topic in self.twin.settings)
        block = encode(topics if len(set(topics)) > 1 else topics[0], bodies, keys=keys)
        self.say(P, m.Publish(9, 0, m.Level.JOURNALED, block), commit=rng.random() < 0.7)
        assert (self.router.shared.next_seq > first) == fits, f"{rows} should {'fit' if fits else 'not fit'}"
        if fits:
            self.twin.messages += rows

    def fits(self, topic: str, rows: list[Message]) -> bool:
        """Whether the limits allow some more, by the table's own counts: those are compared elsewhere."""
        settings, table = self.twin.settings[topic], self.router.topics.find(topic)
        mine = [row for row in rows if row.topic == topic]
        if not mine or settings.get("on_full", "refuse") != "refuse":
            return True
        most_msgs, most_bytes = settings.get("max_msgs", BIG), settings.get("max_bytes", BIG)
        return table.msgs + len(mine) <= most_msgs and (table.size + size(mine) <= most_bytes or size(mine) == 0)

    def ack(self) -> None:
        peer, chan = self.rng.choice(((C, 1), (D, 2)))
        ordinals = [row[0] for row in self.delivered(peer)]
        done = self.acked.get(peer, 0)
        if ordinals and ordinals[-1] > done:
            last = self.rng.randint(done + 1, ordinals[-1])
            self.settle(peer, chan, m.Verdict.ACK, done + 1, last)
            self.acked[peer] = last

    def purge(self) -> None:
        topic = self.rng.choice(TOPICS)
        self.do("topic.purge", topic=topic)
        self.twin.floors[topic] = self.router.shared.next_seq

    def purge_part(self) -> None:
        topic, last = self.rng.choice(TOPICS), self.router.shared.next_seq - 1
        up_to = self.rng.randint(max(last - 20, 0), last + 2)
        self.do("topic.purge", topic=topic, up_to=up_to)
        self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), min(up_to, last) + 1)

    def purge_old(self) -> None:
        if self.reader.blocks:
            topic, block = self.rng.choice(TOPICS), self.rng.choice(self.reader.blocks)
            self.do("topic.purge", topic=topic, before_us=block.ts_us)
            first = next(b.base_seq for b in self.reader.blocks if b.ts_us >= block.ts_us)
            self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), first)

    def delete(self) -> None:
        if self.twin.settings and self.rng.random() < 0.5:
            topic = self.rng.choice(list(self.twin.settings))
            self.do("topic.delete", topic=topic)
            self.twin.floors[topic] = self.router.shared.next_seq
            del self.twin.settings[topic]
        elif self.twin.live("free"):
            self.do("topic.delete", topic="free")
            self.twin.floors["free"] = self.router.shared.next_seq

    def update(self) -> None:
        if "few" in self.twin.settings:
            self.check()  # what was dropped before does not come back
            most = self.rng.randint(2, 9)
            self.do("topic.update", topic="few", max_msgs=most)
            self.twin.settings["few"] = {**self.twin.settings["few"], "max_msgs": most}

    def wait(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.pass_time(self.rng.choice((0.1, 2.0, 4.0)))
            for peer in (P, C, D):
                self.say(peer, m.Ping(1))

    def request_trim(self) -> None:
        """The retention of the whole journal removes the first blocks."""
        if len(self.reader.blocks) < 4:
            return
        seq = self.reader.blocks[self.rng.randint(1, 3)].base_seq
        self.router.topics.request_trim(seq)
        self.finish()
        if self.router.topics.tracked:
            assert self.router.trim_limit >= seq
        self.reader.blocks = [block for block in self.reader.blocks if block.base_seq >= seq]
        self.router.trimmed(seq)
        self.router.take_frames()
        for topic in TOPICS:
            self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), seq)

    def crash(self) -> None:
        last = self.reader.blocks[-1].last_seq if self.reader.blocks else 0
        self.twin.messages = [row for row in self.twin.messages if row.seq <= last]
        self.restart()
        self.router.begins_at(self.reader.blocks[0].base_seq if self.reader.blocks else 1)
        self.greet()

    # Comparing.

    def finish(self) -> None:
        for _ in range(8):
            self.pass_time(0.0)

    def check(self) -> None:
        self.finish()
        stamps: dict[int, int] = {}
        for block in self.reader.blocks:
            stamps |= dict.fromkeys(range(block.base_seq, block.last_seq + 1), block.ts_us)
        self.twin.messages = [row._replace(ts_us=stamps.get(row.seq, row.ts_us)) for row in self.twin.messages]
        owners = [group for group in self.router.groups.values() if group.durable]
        self.twin.settle(self.wall_us(), min(group.floor for group in owners))
        table, removed, superseded = (
            self.router.topics,
            self.router.shared.removed,
            self.router.shared.superseded,
        )
        for topic in self.twin.settings:
            row, live = table.find(topic), self.twin.live(topic)
            assert row.counting is None
            assert (row.msgs, row.size) == (len(live), size(live)), topic
            saved = self.topic_rows[topic]
            assert saved.msgs in (-1, row.msgs), topic
        readable = [
            block.base_seq + at
            for block in self.reader.blocks
            for at, topic in enumerate(block.topic_names())
            if block.base_seq + at >= max(removed.get(topic, 0), self.router.shared.first_seq)
            and not (superseded is not None and superseded(block, at))
        ]
        assert readable == sorted(row.seq for topic in TOPICS for row in self.twin.live(topic))
        if all(group.position() > self.reader.blocks[-1].last_seq for group in owners if self.reader.blocks):
            self.check_disk(set(readable))

    def check_disk(self, readable: set[int]) -> None:
        """Blocks without any message left are gone, except the last; those of topics with keys may take longer, and
        so may one that begins before the journal does: messages of topics without settings are not known as gone."""
        for block in self.reader.blocks[:-1]:
            if block.base_seq >= self.router.shared.first_seq and not {"state", "top"}.intersection(block.topics):
                assert any(seq in readable for seq in range(block.base_seq, block.last_seq + 1)), _shown(block)


def _shown(block: Block) -> str:
    return f"block {block.base_seq}..{block.last_seq} of {block.topics}"


EVENTS = {
    Life.publish: 40,
    Life.ack: 20,
    Life.wait: 8,
    Life.purge: 3,
    Life.purge_part: 4,
    Life.purge_old: 2,
    Life.delete: 3,
    Life.create: 4,
    Life.update: 2,
    Life.request_trim: 3,
    Life.crash: 4,
}


def live(life: Any, events: Mapping[Any, int], seed: int, *, steps: int, checks: float) -> None:
    """Let random events happen, and check often; a failing life prints its seed and its events."""
    try:
        for _ in range(steps):
            event = life.rng.choices(list(events), list(events.values()))[0]
            life.trail.append(event.__name__)
            event(life)
            if life.rng.random() < checks:
                life.check()
        life.check()
    except AssertionError:
        print(f"life {seed}: {' '.join(life.trail)}")
        raise


@pytest.mark.parametrize("part", range(4))
def test_the_book_and_its_twin_agree_whatever_happens(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "COMPACT_MIN", 3)
    rng = seeded(f"topics {part}")
    for _ in range(12):
        seed = rng.getrandbits(48)
        live(Life(Random(seed)), EVENTS, seed, steps=60, checks=0.5)
