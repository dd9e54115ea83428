"""Sample blocks, and a twin of the journal that is a plain list."""

from collections.abc import Sequence
from typing import NamedTuple

from fabric.block import Block, encode, stamp
from fabric.journal.store import Journal
from fabric.messages import Append


class Pen:
    """Writes blocks one after the other, as a hub would stamp them."""

    def __init__(self, seq: int = 1, ts_us: int = 1_000_000) -> None:
        self.seq = seq
        self.ts_us = ts_us

    def block(
        self, topics: str | Sequence[str] = "a.b", count: int = 4, size: int = 20, *, later_us: int = 1000
    ) -> Append:
        """One topic for all `count` messages, or one for each of the given."""
        if not isinstance(topics, str):
            count = len(topics)
        payloads = [b"%d:" % (self.seq + i) + b"x" * size for i in range(count)]
        self.ts_us += later_us
        append = Append(stamp(encode(topics, payloads), self.seq, self.ts_us))
        self.seq += count
        return append

    def blocks(self, n: int, topics: str = "a.b", count: int = 4, size: int = 20) -> list[Append]:
        return [self.block(topics, count, size) for _ in range(n)]


class Row(NamedTuple):
    seq: int
    ts_us: int
    topic: str
    payload: bytes


def rows_of(block: Block) -> list[Row]:
    return [
        Row(block.base_seq + i, block.ts_us, topic, payload)
        for i, (topic, payload) in enumerate(zip(block.topic_names(), block.payloads(), strict=True))
    ]


def rows_in(journal: Journal) -> list[Row]:
    """Every message of a journal, read block by block; any damage is an error."""
    reader = journal.reader()
    rows: list[Row] = []
    block, seq = reader.next_block(1, lambda _: True)
    while block is not None:
        assert isinstance(block, Block), block
        rows += rows_of(block)
        block, seq = reader.next_block(seq, lambda _: True)
    return rows
