"""A router with its disk in memory and its clock in a number, and short calls for each command."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fabric.records import (
    Append,
    CountSchedules,
    Discard,
    DropFailure,
    DropGroup,
    DropIds,
    DropProducer,
    DropSchedule,
    DropTopic,
    Record,
    Restored,
    SaveEvents,
    SaveFailure,
    SaveGroup,
    SaveIds,
    SaveOrigin,
    SaveProducer,
    SaveSchedule,
    SaveSetting,
    SaveTopic,
)
from fabric.router.router import Router
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.block_contents import Contents, contents_of
from tests.router.schedules import MemorySchedules

BIG = 1 << 40
CONTENTS_MAX = 3  # blocks of one call, so that a count takes several


class MemoryReader:
    """Committed blocks in a list: the dumb twin of the journal's reader."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.begins_at = 1  # set by tests in which the router hears of retention later
        self.events: list[SaveEvents] = []
        self.schedules = MemorySchedules()
        self.ids: dict[int, bytes] = {}

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        found = min((row for row in self.ids if row >= number), default=None)
        return (found, self.ids[found]) if found is not None else None

    def next_event(self) -> int:
        return self.events[-1].first + self.events[-1].count if self.events else 1

    def first_event(self) -> int:
        return self.events[0].first if self.events else 1

    def event_blocks(self, number: int, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        rows = [row for row in self.events if row.first + row.count > number]
        return [(row.first + row.count - 1, row.value) for row in rows[:count]]

    def block_at(self, seq: int) -> Block | None:
        return next((b for b in self.blocks if b.base_seq <= seq <= b.last_seq), None)

    def next_block(self, seq: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        for block in self.blocks:
            if block.last_seq >= seq and any(map(wanted, block.topics)):
                return block, block.last_seq + 1
        return None, max(seq, self.blocks[-1].last_seq + 1 if self.blocks else 1)

    def forget(self, wanted: Callable[[str], bool]) -> None:
        pass

    def contents(self, seq: int, *, sizes: bool = False) -> tuple[list[Contents], int]:
        found = [contents_of(memoryview(b.raw), sizes=sizes) for b in self.blocks if b.last_seq >= seq][:CONTENTS_MAX]
        return found, found[-1].last_seq + 1 if found else seq

    def time_of(self, seq: int) -> int:
        block = self.block_at(seq)
        return block.ts_us if block is not None else 0

    def seek_time(self, ts_us: int) -> int:
        found = next((b.base_seq for b in self.blocks if b.ts_us >= ts_us), None)
        return found if found is not None else (self.blocks[-1].last_seq + 1 if self.blocks else 1)

    def latest_per_key(self, wanted: Callable[[str], bool]) -> Iterator[list[int]]:
        seen = set()
        for block in reversed(self.blocks):
            found = []
            rows = list(zip(range(block.count), block.topic_names(), block.keys(), strict=True))
            for at, topic, key in reversed(rows):
                if wanted(topic) and (topic, key) not in seen:
                    seen.add((topic, key))
                    found.append(block.base_seq + at)
            yield found

    def topic_names(self, limit: int) -> tuple[list[str], bool]:
        names = list(dict.fromkeys(topic for block in reversed(self.blocks) for topic in block.topics))
        return names[:limit], len(names) <= limit

    def previous_block(self, before: int, wanted: Callable[[str], bool]) -> tuple[Block | None, int]:
        for block in reversed(self.blocks):
            if block.base_seq < before and any(map(wanted, block.topics)):
                return block, block.base_seq
        return None, 0

    def last_match(self, wanted: Callable[[str], bool], before: int | None = None) -> int | None:
        for block in reversed(self.blocks):
            if before is not None and block.base_seq >= before:
                continue
            for at, topic in reversed(list(enumerate(block.topic_names()))):
                if wanted(topic):
                    return block.base_seq + at
        return None


def router(reader: Any, token: Callable[[], bytes], **given: Any) -> Router:
    """A router with what is given: fields of Restored, and other arguments of Router."""
    rows = {name: given.pop(name) for name in Restored._fields if name in given}
    return Router(Restored(**rows), reader, token, **given)


class World:
    """Time is `now`; `disk` holds what was committed; everything said to a peer is in `said[peer]`."""

    def __init__(self, **restored: Any) -> None:
        self.now = 1000.0
        self.reader = MemoryReader()
        self.groups: dict[str, SaveGroup] = {}
        self.failures: dict[tuple[str, int], SaveFailure] = {}
        self.producers: dict[str, SaveProducer] = {}
        self.settings: dict[str, SaveSetting] = {}
        self.topic_rows: dict[str, SaveTopic] = {}
        self.said: dict[bytes, list[m.ToClient]] = {}
        self._tokens = 0
        self.router = self._router(**restored)

    def _router(self, **given: Any) -> Router:
        return router(self.reader, self._token, **given)

    def _token(self) -> bytes:
        self._tokens += 1
        return self._tokens.to_bytes(16, "big")

    def restart_at(self, first_seq: int) -> None:
        """As `restart`, when retention has removed what lies before a seq."""
        self.reader.blocks = [block for block in self.reader.blocks if block.last_seq >= first_seq]
        self._come_back(first_seq=first_seq)

    def restart(self) -> None:
        """The hub crashes and comes back with what is on disk."""
        self._come_back()

    def _come_back(self, **restored: Any) -> None:
        last = self.reader.blocks[-1] if self.reader.blocks else None
        self.said.clear()
        self.router = self._router(
            last_seq=last.last_seq if last else 0,
            last_ts_us=last.ts_us if last else 0,
            groups=list(self.groups.values()),
            producers=list(self.producers.values()),
            failures=list(self.failures.values()),
            wall_us=self.wall_us(),
            now=self.now,
            settings=list(self.settings.values()),
            topics=list(self.topic_rows.values()),
            **restored,
        )

    def say(self, peer: bytes, message: m.ToHub, *, commit: bool = True) -> list[m.ToClient]:
        """One command; returns what that peer hears because of it."""
        heard = len(self.said.setdefault(peer, []))
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.step(message, peer, self.now)
        out += self.router.take_frames()
        self.router.tick(self.now)
        out += self.router.take_frames()
        self._hear(out)
        if commit:
            self.commit()
        return self.said[peer][heard:]

    def wall_us(self) -> int:
        return int(self.now * 1e6)

    def commit(self) -> None:
        out: list[tuple[bytes, m.ToClient]] = []
        turn = self.router.seal(self.wall_us(), self.now)
        out += self.router.take_frames()
        self._hear(out)
        self.write(turn.records)
        out = []
        self.router.release(turn)
        self.router.committed(self.now)
        out += self.router.take_frames()
        while self.router.next_deadline() == 0.0:
            self.router.tick(self.now)
            out += self.router.take_frames()
        self._hear(out)

    def write(self, records: Iterable[Record]) -> None:
        for record in records:
            match record:
                case Append(raw):
                    block = Block(raw)
                    assert block.base_seq == (self.reader.blocks[-1].last_seq if self.reader.blocks else 0) + 1
                    self.reader.blocks.append(block)
                case SaveOrigin(base_seq, origin):
                    block = next(block for block in self.reader.blocks if block.base_seq == base_seq)
                    block.origin = origin
                case SaveEvents(first):
                    assert first == self.reader.next_event()
                    self.reader.events.append(record)
                case SaveSchedule() | DropSchedule() | CountSchedules():
                    self.reader.schedules.write(record)
                case SaveIds(number, value):
                    self.reader.ids[number] = value
                case DropIds(number):
                    self.reader.ids.pop(number, None)
                case SaveTopic(name):
                    self.topic_rows[name] = record
                case DropTopic(name):
                    self.topic_rows.pop(name, None)
                case Discard(bases):
                    last = self.reader.blocks[-1].base_seq
                    assert last not in bases, "the last block stays"
                    self.reader.blocks = [b for b in self.reader.blocks if b.base_seq not in bases]
                case SaveGroup(name):
                    self.groups[name] = record
                case DropGroup(name):
                    del self.groups[name]
                    self.failures = {key: row for key, row in self.failures.items() if key[0] != name}
                case SaveFailure(group, first):
                    self.failures[group, first] = record
                case DropFailure(group, first):
                    self.failures.pop((group, first), None)
                case SaveSetting(name, None):
                    self.settings.pop(name, None)
                case SaveSetting(name):
                    self.settings[name] = record
                case SaveProducer(name):
                    self.producers[name] = record
                case DropProducer(name):
                    self.producers.pop(name, None)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.tick(self.now)
        out += self.router.take_frames()
        self._hear(out)
        self.commit()

    def _hear(self, out: Iterable[tuple[bytes, m.ToClient]]) -> None:
        for peer, message in out:
            self.said.setdefault(peer, []).append(message)

    # Single lines.

    def hello(self, peer: bytes, **fields: Any) -> m.ToClient:
        return self.say(peer, m.Hello(1, {"proto": 1, **fields}))[0]

    def pub(self, peer: bytes, topic: str | list[str], *bodies: str, pseq: int = 0, rid: int = 9) -> list[m.ToClient]:
        block = encode(topic, [b.encode() for b in bodies])
        return self.say(peer, m.Publish(rid, pseq, m.Level.JOURNALED, block))

    def sub(self, peer: bytes, chan: int, *patterns: str, credit: int = 1000, **fields: Any) -> list[m.ToClient]:
        body = {"credit": [credit, BIG], **fields}
        if patterns:
            body["patterns"] = list(patterns)
        return self.say(peer, m.Subscribe(chan, 5, body))

    def settle(self, peer: bytes, chan: int, verdict: int, first: int, last: int, arg: Any = None) -> list[m.ToClient]:
        return self.say(peer, m.Settle(chan, 7, ((verdict, first, last, arg),)))

    def delivered(self, peer: bytes) -> list[tuple[int, int, int, str]]:
        """(ordinal, seq, attempt, body) of all that a peer was handed."""
        rows = []
        for message in self.said.get(peer, []):
            if isinstance(message, m.Deliver):
                block = Block(message.block)
                block.verify()
                block.verify_stamp()
                seqs = [s for a, n in zip(message.seqs[::2], message.seqs[1::2], strict=True) for s in range(a, a + n)]
                seqs = seqs or list(range(block.base_seq, block.base_seq + block.count))
                for i, (seq, body) in enumerate(zip(seqs, block.payloads(), strict=True)):
                    rows.append((message.first_ordinal + i, seq, message.attempt, body.decode()))
        return rows

    def bodies(self, peer: bytes) -> list[str]:
        return [body for _, _, _, body in self.delivered(peer)]
