"""Random schedules: accepted, replaced, cancelled, fired, with crashes and changes of the clock.

The comparison is a dictionary of what a client knows: it changes when an answer arrives, or when a message is stored.
The router's turns reach the disk late, in order, or never, and the two are compared whenever they can be.
"""

import random
from collections import Counter, deque
from typing import Any, Final

import pytest

from fabric.records import SaveSchedule
from fabric.router.router import Transaction
from fabric.router.schedules import due_queue
from fabric.router.schedules import schedules as schedule
from fabric.router.schedules.options import next_due
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from tests.router.world import World
from tests.seeds import seeded

LIVES: Final = 120
STEPS: Final = 120
PEER: Final = b"p"
HELLO: Final = m.Hello(1, {"proto": 1, "ttl_ms": 600_000})
NAMES: Final = ("", "", "", "red", "blue")
TOPICS: Final = ("t", "u", "v.w")


class Life(World):
    """A router whose turns wait for the disk, and a twin that knows what must come of them.

    `rows` is what the router must believe now; `stages` are the same after each turn that is sealed, so that a crash
    takes the twin back to where the disk is.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.ahead_us = 1_700_000_000_000_000
        super().__init__()
        self.tell_time()
        self.rows: dict[int, SaveSchedule] = {}  # by id
        self.fired: list[str] = []  # bodies, in the order in which they were appended
        self.turns: deque[tuple[Transaction, dict[int, SaveSchedule], list[str], int]] = deque()
        self.disk: tuple[dict[int, SaveSchedule], list[str], int] = ({}, [], 0)
        self.last_id = 0
        self.rid = 0
        self.wanted: dict[int, m.ToClient | None] = {}  # answers to come, by rid
        self.do(HELLO)
        self.commit_all()

    # The clock.

    def wall_us(self) -> int:
        return int(self.now * 1e6) + self.ahead_us

    def tell_time(self) -> None:
        self.router.begin(self.wall_us(), self.now)

    # Doing.

    def do(self, message: m.ToHub) -> None:
        self.tell_time()
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.step(message, PEER, self.now)
        out += self.router.take_frames()
        assert not [said for _, said in out if isinstance(said, m.Err)], out
        self.tick()

    def tick(self) -> None:
        self.tell_time()
        for _ in range(100):
            before = self.router.shared.next_seq
            self.router.tick(self.now)
            self.router.take_frames()
            if self.router.shared.next_seq == before:
                break
        self.fire_twin(self.router.shared.next_seq - 1)

    def fire_twin(self, last_seq: int) -> None:
        """The router has appended some: they must be the earliest that are due."""
        wall_us = self.wall_us()
        while len(self.fired) < last_seq:
            row = min(self.rows.values(), key=lambda row: (row.due_us, row.id))
            assert row.due_us <= wall_us, "fired before it was due"
            self.fired.append(body_of(row))
            del self.rows[row.id]
            following = next_due(row, wall_us)
            if following is not None:
                self.rows[row.id] = row._replace(due_us=following)

    def take(self) -> None:
        rng = self.rng
        self.rid += 1
        options: dict[str, Any] = {}
        match rng.randint(0, 5):
            case 0:
                options["at_us"] = max(0, self.wall_us() + rng.randint(-3_000_000, 200_000_000))
            case 1:
                options["every_ms"] = rng.choice([100, 700, 5000, 100_000])
            case 2:
                options["cron"] = rng.choice(["* * * * *", "*/7 * * * *", "0 0 1 1 *"])
            case _:
                options["delay_ms"] = rng.choice([0, 1, 30, 30, 1000, 10_000, 45_000, 90_000, 10_000_000])
        if rng.random() < 0.3:
            options["ttl_ms"] = 1000
        name = options["name"] = rng.choice(NAMES)
        if not name:
            del options["name"]
        topic, body = rng.choice(TOPICS), f"{self.rid}"
        block = encode(topic, [body.encode()])
        replaced = next((row.id for row in self.rows.values() if name and row.name == name), None)
        self.tell_time()
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.step(m.Publish(self.rid, 0, m.Level.JOURNALED, block, options), PEER, self.now)
        out += self.router.take_frames()
        assert out == []
        if replaced is not None:
            del self.rows[replaced]
        self.last_id += 1
        found = self.router.schedules._overlay.find(self.last_id)
        assert isinstance(found, SaveSchedule)
        assert found.block == block
        self.rows[self.last_id] = found
        fields = {"schedule": self.last_id, "due_us": found.due_us}
        self.wanted[self.rid] = m.Ok(0, self.rid, fields | ({"replaced": replaced} if replaced else {}))
        self.tick()

    def cancel(self) -> None:
        rng = self.rng
        self.rid += 1
        if rng.random() < 0.3:
            name = rng.choice(NAMES[3:])
            row = next((row for row in self.rows.values() if row.name == name), None)
            fields: dict[str, Any] = {"name": name}
        else:
            number = rng.randint(1, self.last_id + 1)
            row, fields = self.rows.get(number), {"id": number}
        if row is not None:
            del self.rows[row.id]
            answer = {"cancelled": True, "schedule": row.id, "due_us": row.due_us}
            self.wanted[self.rid] = m.Ok(0, self.rid, answer)
        else:
            self.wanted[self.rid] = None
        self.do(m.Cancel(self.rid, fields))

    # The disk.

    def seal(self) -> None:
        out: list[tuple[bytes, m.ToClient]] = []
        turn = self.router.seal(self.wall_us(), self.now)
        out += self.router.take_frames()
        self.turns.append((turn, dict(self.rows), list(self.fired), self.last_id))

    def commit_one(self, *, told: bool = True) -> None:
        """A turn reaches the disk; the router hears of it, or crashes before."""
        turn, rows, fired, last_id = self.turns.popleft()
        self.disk = rows, fired, last_id
        self.write(turn.records)
        if not told:
            return
        for _, message in turn.sends:
            self.heard(message)
        self.router.committed(self.now)
        self.router.take_frames()

    def heard(self, message: m.ToClient) -> None:
        assert isinstance(message, m.Ok | m.Err), message
        wanted = self.wanted.pop(message.rid)
        if wanted is None:
            assert isinstance(message, m.Err)
            assert message.code == Code.NOT_FOUND
        else:
            assert message == wanted

    def commit_all(self) -> None:
        self.seal()
        while self.turns:
            self.commit_one()

    def crash(self) -> None:
        """Some sealed turns reach the disk, the rest never was."""
        self.seal()
        for _ in range(self.rng.randint(0, len(self.turns))):
            self.commit_one(told=False)
        self.turns.clear()
        self.wanted.clear()
        rows, fired, self.last_id = self.disk
        self.rows, self.fired = dict(rows), list(fired)
        self.restart()
        self.tell_time()
        self.do(HELLO)

    # Comparing.

    def compare(self) -> None:
        """What is on disk is what the twin had then."""
        rows, fired, last_id = self.disk
        stored = self.reader.schedules
        assert {row.id: row for row in stored.rows.values()} == rows
        bodies = [body.decode() for block in self.reader.blocks for body in block.payloads()]
        assert bodies == fired
        assert stored.last_id == last_id
        topics = Counter(Block(row.block).topics[0] for row in rows.values())
        assert +stored.topics == topics

    def step(self) -> None:
        rng = self.rng
        match rng.choices(range(7), weights=[30, 15, 20, 20, 12, 4, 5])[0]:
            case 0:
                self.take()
            case 1:
                self.cancel()
            case 2:
                self.now += rng.choice([0.01, 0.1, 1.0, 20.0, 70.0])
                self.do(m.Ping(0))
            case 3:
                self.seal()
            case 4:
                if self.turns:
                    self.commit_one()
                    self.tick()
            case 5:
                self.ahead_us += int(rng.choice([-3600, -40, -1, 1, 40, 3600]) * 1e6)
                self.tick()
            case 6:
                self.crash()
        self.compare()

    def finish(self) -> None:
        """What repeats is cancelled; then time passes until nothing is left."""
        for row in list(self.rows.values()):
            if row.id in self.rows and (row.every_ms or row.cron):
                row = self.rows.pop(row.id)
                self.rid += 1
                answer = {"cancelled": True, "schedule": row.id, "due_us": row.due_us}
                self.wanted[self.rid] = m.Ok(0, self.rid, answer)
                self.do(m.Cancel(self.rid, {"id": row.id}))
        self.ahead_us += 86_400_000_000
        for _ in range(100):
            self.tick()
            self.commit_all()
        self.compare()
        assert not self.rows, "all have fired"
        assert not self.wanted, "all were answered"


def body_of(row: SaveSchedule) -> str:
    return Block(row.block).payloads()[0].decode()


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("bounds", ["wide", "narrow"])
def test_random_lives_of_schedules(part: int, bounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded(f"schedules {part} {bounds}")
    if bounds == "narrow":  # so that lists are shed and loaded all the time
        for module, name, value in (
            (due_queue, "KEYS_MAX", 2), (due_queue, "LOAD_MAX", 3), (due_queue, "LOAD_BELOW", 2),
            (schedule, "FIRE_MAX", 2), (schedule, "FIRE_BYTES_MAX", 300),
        ):  # fmt: skip
            monkeypatch.setattr(module, name, value)
    for _ in range(LIVES // 6):
        life = Life(rng)
        for _ in range(STEPS):
            life.step()
        life.finish()
