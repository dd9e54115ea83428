"""Producer sequences: a publish that is sent again after a lost confirmation is stored once.

A producer numbers its messages 1, 2, 3, …; the hub remembers how far it got and which seqs the latest ones have.
"""

from typing import Final

from fabric.errors import Code, ProtocolError
from fabric.messages import SaveProducer

# The unconfirmed publishes of one session: enough for a full pipeline while the disk takes its time.
WINDOW_BLOCKS: Final = 64
# Runs remembered for each producer. What it sends again was unconfirmed, and so is among the last window of blocks.
# The row is rewritten with each commit; a lone producer needs one run, since its own numbers and the journal's go in
# step.
RECENT_MAX: Final = WINDOW_BLOCKS
# Delayed publishes have no seq yet: in place of it stands this and the number of the schedule.
SCHEDULED: Final = 1 << 63


class Producer:
    __slots__ = ("epoch", "last_pseq", "name", "recent", "seen_us")

    def __init__(self, name: str, epoch: int = 0, last_pseq: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        self.last_pseq = last_pseq
        self.recent: list[int] = []  # flat (count, first seq) runs, oldest first; the last one ends with last_pseq
        self.seen_us = 0

    @classmethod
    def restore(cls, saved: SaveProducer) -> "Producer":
        producer = cls(saved.name, saved.epoch, saved.last_pseq)
        producer.recent = list(saved.recent)
        producer.seen_us = saved.seen_us
        return producer

    @property
    def last_seq(self) -> int:
        """Of the last message that has one."""
        for at in range(len(self.recent) - 2, -1, -2):
            if self.recent[at + 1] < SCHEDULED:
                return self.recent[at + 1] + self.recent[at] - 1
        return 0

    def duplicate_of(self, pseq: int, count: int) -> int | None:
        """The first seq of messages stored before, or None when they are the next in line. Gaps are refused."""
        if pseq == self.last_pseq + 1:
            return None
        if pseq > self.last_pseq:
            raise ProtocolError(
                Code.SEQUENCE_GAP,
                f"producer {self.name!r}: {pseq} cannot follow {self.last_pseq}",
                retry_ms=1,
                expected=self.last_pseq + 1,
            )
        seq = self._seq_of(pseq) if pseq + count - 1 <= self.last_pseq else None
        if seq is None:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"producer {self.name!r}: {pseq}..{pseq + count - 1} was stored long ago or in other blocks",
            )
        return seq

    def _seq_of(self, pseq: int) -> int | None:
        first = self.last_pseq + 1
        for at in range(len(self.recent) - 2, -1, -2):
            first -= self.recent[at]
            if pseq >= first:
                return self.recent[at + 1] + pseq - first
        return None

    def stored(self, pseq: int, count: int, seq: int) -> None:
        recent = self.recent
        if recent and recent[-1] + recent[-2] == seq:
            recent[-2] += count
        else:
            recent += (count, seq)
            if len(recent) > 2 * RECENT_MAX:
                del recent[:2]
        self.last_pseq = pseq + count - 1

    def record(self, now_us: int) -> SaveProducer:
        self.seen_us = now_us
        return SaveProducer(self.name, self.epoch, self.last_pseq, tuple(self.recent), now_us)
