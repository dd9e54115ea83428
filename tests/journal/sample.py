"""Sample blocks, messages as a plain list, and processes that may die."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fabric.journal.journal import Journal
from fabric.records import Append
from fabric_protocol.block import Block, encode, stamp


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


PROLOGUE = """
import os, sys
from pathlib import Path
from fabric.errors import JournalError
from fabric.journal.journal import Journal, Limits
from fabric.records import *
from fabric_protocol.messages import *
from tests.journal.sample import *
path = Path(sys.argv[1])
"""


def start_python(script: str, path: Path) -> "subprocess.Popen[str]":
    """A piece of code in a process of its own, which finds the journal's directory in `path`."""
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(script), str(path)],
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(script: str, path: Path, expect: int = 0) -> str:
    """Run it to its end; what it said."""
    child = start_python(script, path)
    said = "".join(child.communicate())
    assert child.returncode == expect, said
    return said
