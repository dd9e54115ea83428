"""What the observer writes down of producers: under which numbers each of them has stored which messages."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fabric_protocol.errors import Code

if TYPE_CHECKING:
    from tests.simulation.ledgers import Session


class Producer:
    """A producer's name, and the seq of each message that it numbered."""

    __slots__ = ("blocks", "claimant", "epoch", "name", "proven", "seqs")

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.claimant: Session | None = None  # has claimed the name, and waits for its WELCOME
        self.proven = 0  # the epoch of the latest publish or WELCOME
        self.seqs: list[int] = []  # by pseq - 1; 0: not sealed yet
        self.blocks: dict[int, tuple[tuple[int, ...], int]] = {}  # by first pseq: the idents, and the epoch

    @property
    def last(self) -> int:
        return len(self.seqs)

    @property
    def jumps(self) -> bool:
        return False

    def refusal(self, pseq: int, idents: tuple[int, ...], epoch: int, options: Mapping[str, Any]) -> int:
        """The error for a block under a number; 0 when it is new, or a resend of what was stored."""
        if pseq > self.last + 1:
            return Code.SEQUENCE_GAP
        if not 0 < pseq <= self.last:
            return 0
        return 0 if self.blocks.get(pseq) == (idents, epoch) else Code.PSEQ_TAKEN

    def take(self, pseq: int, idents: tuple[int, ...], epoch: int, options: Mapping[str, Any]) -> None:
        """The next numbers are those of a new block."""
        self.blocks[self.last + 1] = idents, epoch
        self.seqs += [0] * len(idents)

    def take_back(self, last: int, proven: int) -> None:
        """A crash has taken the block behind this number."""
        self.blocks.pop(last + 1, None)
        del self.seqs[last:]
        self.proven = proven

    def found(self, pseq: int, first: int, count: int) -> None:
        """A block is in the log."""
        self.seqs[pseq - 1 : pseq - 1 + count] = range(first, first + count)

    def first_seq_of(self, pseq: int) -> int:
        return self.seqs[pseq - 1]


class Source(Producer):
    """A numbered source: its blocks have positions that jump, each stored once, and the last one is its cursor."""

    __slots__ = ("cursor", "firsts", "lasts")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.cursor = 0
        self.lasts: dict[int, int] = {}  # by first position: the last one of the block,
        self.firsts: dict[int, int] = {}  # and its first seq; 0: not sealed yet, or it waits for its time

    @property
    def last(self) -> int:
        return self.cursor

    @property
    def jumps(self) -> bool:
        return True

    def refusal(self, pseq: int, idents: tuple[int, ...], epoch: int, options: Mapping[str, Any]) -> int:
        if not pseq:
            return 0
        last = last_of(pseq, len(idents), options)
        if pseq > self.cursor:
            return Code.SEQUENCE_GAP if options.get("after", self.cursor) != self.cursor else 0
        if self.blocks.get(pseq) == (idents, epoch) and self.lasts[pseq] == last:
            return 0
        oldest = min(self.blocks)
        if pseq < oldest and last <= self.cursor and self.blocks[oldest][1] == epoch:
            return Code.BAD_OPTION  # before the first block that is remembered, which is of this epoch
        return Code.PSEQ_TAKEN

    def take(self, pseq: int, idents: tuple[int, ...], epoch: int, options: Mapping[str, Any]) -> None:
        assert pseq > self.cursor, "J9: each position of a source is stored once"
        self.cursor = self.lasts[pseq] = last_of(pseq, len(idents), options)
        self.blocks[pseq], self.firsts[pseq] = (idents, epoch), 0

    def take_back(self, last: int, proven: int) -> None:
        for pseq in [pseq for pseq in self.blocks if pseq > last]:
            del self.blocks[pseq], self.lasts[pseq], self.firsts[pseq]
        self.cursor, self.proven = last, proven

    def found(self, pseq: int, first: int, count: int) -> None:
        self.firsts[pseq] = first

    def first_seq_of(self, pseq: int) -> int:
        return self.firsts[pseq]

    def last_seq(self) -> int:
        """The seq of the last message; 0: it cannot be told yet."""
        if not self.firsts:
            return 0
        pseq = max(self.firsts)
        return self.firsts[pseq] + len(self.blocks[pseq][0]) - 1 if self.firsts[pseq] else 0


def last_of(pseq: int, count: int, options: Mapping[str, Any]) -> int:
    """The position of the last message of a block."""
    last: int = options.get("last", pseq + count - 1)
    return last
