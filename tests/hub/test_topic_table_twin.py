"""The topic table against its plain counterpart, on a real journal: holes, restarts and the journal's own retention."""

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fabric.journal.journal import Journal, Limits
from fabric.journal.tables import chunks
from fabric.journal.tools.verify import verify
from fabric.records import Record, SaveTopic
from fabric.router.topics import retention as retention_module
from fabric_protocol.block import Block
from tests.router import test_topic_table_twin as twin
from tests.seeds import seeded


class Disk:
    """A journal's reader, and for comparing all blocks that it has."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._reader = journal.reader()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    @property
    def blocks(self) -> list[Block]:
        reader, found = self._journal.reader(), list[Block]()
        block, seq = reader.next_block(1, lambda _: True)
        while block is not None or seq <= self._journal.last_seq:
            if block is not None:
                assert isinstance(block, Block), block
                found.append(block)
            block, seq = reader.next_block(seq, lambda _: True)
        return found


class Life(twin.Life):
    """As in the router's tests, but what is written is written to disk."""

    def __init__(self, rng: Random, path: Path) -> None:
        self.path = path
        self.journal = Journal.open(path, Limits(max_messages=25))
        self.trims = 0
        super().__init__(rng)

    def _router(self, **restored: Any) -> Any:
        self.reader = Disk(self.journal)  # type: ignore[assignment]
        state = self.journal.load()
        restored |= {"first_seq": state.first_seq, "last_seq": state.last_seq, "last_ts_us": state.last_ts_us}
        restored |= {"groups": state.groups, "producers": state.producers, "failures": state.failures}
        return super()._router(**restored | {"topics": state.topics, "settings": state.settings})

    def write(self, records: Iterable[Record]) -> None:
        rows = list(records)
        self.journal.commit(rows)
        self.topic_rows |= {row.name: row for row in rows if isinstance(row, SaveTopic)}

    def crash(self) -> None:
        self.twin.messages = [row for row in self.twin.messages if row.seq <= self.journal.last_seq]
        self.journal.close()
        report = verify(self.path)
        assert report.findings == ()
        self.journal = Journal.open(self.path, Limits(max_messages=25))
        self.reader = Disk(self.journal)  # type: ignore[assignment]
        self.restart()
        self.greet()

    def configure(self, topic: str) -> None:
        """A topic that gets settings begins after what the journal is about to remove."""
        hold = self.router.trim_limit
        super().configure(topic)
        if hold < 1 << 60:
            self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), hold)

    def request_trim(self) -> None:
        """The journal's own retention, as far as it gets."""
        for _ in range(4):
            self.journal.hold(self.router.trim_limit)
            first_seq = self.journal.trim_step(self.wall_us())
            if self.journal.trim_wanted:
                self.router.trim_request(self.journal.trim_wanted)
                for topic in twin.TOPICS if self.router.topics.tracked else ():
                    if topic in self.twin.settings:
                        self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), self.journal.trim_wanted)
                self.finish()
            if first_seq is not None:
                self.trims += 1
                self.router.trimmed(first_seq)
                self.router.take_frames()
                for topic in twin.TOPICS:
                    self.twin.floors[topic] = max(self.twin.floors.get(topic, 0), first_seq)
            self.router.begins_at(self.journal.first_seq)

    def check(self) -> None:
        super().check()
        assert self.journal.stats().messages == sum(block.count for block in self.reader.blocks)


@pytest.mark.parametrize("part", range(2))
def test_table_list_and_disk_agree_whatever_happens(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "COMPACT_MIN", 3)
    monkeypatch.setattr(chunks, "BLOCKS_MAX", 4)
    rng, trims = seeded(f"topics on disk {part}"), 0
    events = {getattr(Life, event.__name__): weight for event, weight in twin.EVENTS.items()} | {Life.request_trim: 8}
    for number in range(5):
        seed = rng.getrandbits(48)
        life = Life(Random(seed), tmp_path / f"{number}")
        try:
            twin.live(life, events, seed, steps=70, checks=0.3)
        finally:
            life.journal.close()
        assert verify(life.path).findings == ()
        trims += life.trims
    assert trims, "the journal was never trimmed"
