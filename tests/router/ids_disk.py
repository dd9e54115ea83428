"""An index of idempotency keys with a memory for a disk; everything in it is made small, so that segments are full
soon."""

import pytest

from fabric.records import DropIds, Record, SaveIds, SaveSetting, TopicSettings
from fabric.router.clock import Clock
from fabric.router.publish.dedupe import index as ids
from fabric.router.publish.dedupe import segment as id_era
from fabric.router.publish.dedupe import segment_filter
from fabric.router.publish.dedupe.index import Ids
from fabric.router.publish.dedupe.segment import Segment
from fabric_protocol.block import Block, encode
from tests.router.world import MemoryReader

SMALL = {
    "BUCKETS": 16, "BUCKET_SHIFT": 60, "SEGMENT_KEYS": 64, "WORDS": 64, "_SLOT": 63, "FILTER_BYTES": 512, "SLICES": 4,
    "SLICE_BYTES": 128, "PAGE_BYTES": 5 * 32,
}  # fmt: skip
HOUR_MS = 3_600_000


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(id_era, name, value)
        monkeypatch.setattr(ids, name, value, raising=False)
    for name, value in {"BUCKETS": 16, "FILTER_SEGMENTS": 3, "SHARED_WORDS": 256, "_SLOT": 255}.items():
        monkeypatch.setattr(segment_filter, name, value)
    monkeypatch.setattr(segment_filter, "SHARED_BYTES", 8 * 256)
    monkeypatch.setattr(ids, "STEP_ROWS", 7)
    monkeypatch.setattr(ids, "STEP_BUCKETS", 3)


class Disk:
    """An index with a memory for a disk. Turns are committed one by one; `crash` forgets those that are not."""

    def __init__(self) -> None:
        self.now_us = 1_000_000_000
        self.reader = MemoryReader()
        self.settings: dict[str, TopicSettings] = {}
        self.seq = 1
        self.saved: dict[str, SaveSetting] = {}
        self.sealed: list[tuple[list[Record], int]] = []
        self.on_disk = 0
        self.crash()

    def crash(self) -> None:
        self.clock = Clock()
        self.clock.set(self.now_us, 0.0)
        self.sealed.clear()
        self.seq = self.on_disk + 1
        self.ids = Ids(
            self.reader,
            self.clock,
            lambda topic: self.settings.get(topic, TopicSettings()),
            lambda topic, seq: False,
            self.saved.values(),
        )

    def wait(self, us: int) -> None:
        self.now_us += us
        self.clock.set(self.now_us, 0.0)

    def put(self, *names: str, topic: str = "t") -> dict[str, int]:
        """The seqs of messages with these ids."""
        raw = [name.encode() for name in names]
        checked = self.ids.check(Block(encode(topic, raw, ids=raw)))
        self.ids.remember(checked, self.seq)
        rows = dict(checked.rows(self.seq))
        seqs = {}
        for index, name in enumerate(names):
            if index not in rows:
                seqs[name] = self.seq
                self.seq += 1
        return {name: seqs.get(name) or rows[index] for index, name in enumerate(names)}

    def seal(self) -> None:
        self.sealed.append((self.ids.rows(), self.seq - 1))

    def commit(self) -> None:
        """The oldest turn is on disk."""
        records, self.on_disk = self.sealed.pop(0)
        for record in records:
            match record:
                case SaveIds(number, value):
                    self.reader.ids[number] = value
                case DropIds(number):
                    self.reader.ids.pop(number, None)
                case SaveSetting(name, None):
                    self.saved.pop(name, None)
                case SaveSetting(name):
                    self.saved[name] = record
        self.ids.committed()

    def turn(self) -> None:
        self.seal()
        self.commit()

    def settle_down(self) -> None:
        """Let the background finish."""
        for _ in range(200):
            self.ids.sweep()
            self.turn()

    @property
    def segments(self) -> list[Segment]:
        return self.ids._segments
