"""Retention of a real journal, and a router that is told later: no dead letter is dropped silently."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from fabric.journal.journal import Journal, Limits
from fabric.records import Record
from fabric.router.router import Router
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A = b"\0prod", b"\0aaaa"
KEPT = 2


class OnDisk(World):
    """A router over a journal that keeps few messages. `trim` moves the journal's start, `tell` tells the router."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal.open(path, Limits(max_messages=KEPT))
        super().__init__()

    def _router(self, **restored: Any) -> Router:
        self.reader, state = cast("Any", self.journal.reader()), self.journal.load()
        return super()._router(
            first_seq=state.first_seq,
            last_seq=state.last_seq,
            last_ts_us=state.last_ts_us,
            groups=state.groups,
            failures=state.failures,
            settings=state.settings,
            now=self.now,
        )

    def write(self, records: Iterable[Record]) -> None:
        self.journal.commit(list(records))

    def trim(self) -> None:
        while self.journal.trim_step(self.wall_us()) is not None:
            pass

    def tell(self) -> None:
        out: list[tuple[bytes, m.ToClient]] = []
        self.router.trimmed(self.journal.first_seq)
        out += self.router.take_frames()
        self._hear(out)
        self.commit()

    def hold(self, *bodies: str) -> None:
        """A consumer holds one block, and nothing of it is in the router's memory."""
        self.hello(P)
        self.say(P, m.Admin(3, {"op": "group.create", "group": "g", "patterns": ["a"]}))
        self.pub(P, "a", *bodies)
        self.router = self._router()
        for peer in (P, A):
            self.hello(peer)
        self.sub(A, 1, group="g")
        assert self.bodies(A) == list(bodies)

    def letters(self) -> list[bytes]:
        reader, found, seq = self.journal.reader(), list[bytes](), 1
        while True:
            block, seq = reader.next_block(seq, "$dlq.g".__eq__)
            if not isinstance(block, Block):
                return found
            found += block.payloads()

    def gaps(self) -> list[tuple[int, int]]:
        return [(said.first_seq, said.last_seq) for said in self.said[A] if isinstance(said, m.Gap)]


@pytest.mark.parametrize("verdict", [Verdict.REJECT, Verdict.RETRY])
def test_a_verdict_between_the_removal_of_a_block_and_the_news_of_it(tmp_path: Path, verdict: int) -> None:
    w = OnDisk(tmp_path / "j")
    w.hold("1")
    w.pub(P, "b", "2", "3")
    w.trim()
    assert w.journal.first_block_seq == 2
    w.settle(A, 1, verdict, 1, 1, 0)
    w.tell()
    w.say(A, m.Ping(0))
    assert w.letters() == []
    assert w.gaps() == [(1, 1)]
    w.journal.close()


@pytest.mark.parametrize("told", [False, True])
def test_a_reject_between_a_new_floor_and_the_news_of_it(tmp_path: Path, told: bool) -> None:
    """The block is still there: until the router knows of the floor, what lies below it becomes a dead letter."""
    w = OnDisk(tmp_path / "j")
    w.hold("1", "2", "3")
    w.trim()
    assert (w.journal.first_block_seq, w.journal.first_seq) == (1, 2)
    if told:
        w.tell()
    w.settle(A, 1, Verdict.REJECT, 1, 3, "no")
    assert w.letters() == ([b"2", b"3"] if told else [b"1", b"2", b"3"])
    assert w.gaps() == ([(1, 1)] if told else [])
    w.journal.close()
