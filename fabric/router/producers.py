"""Producer sequences: a publish that is sent again after a lost confirmation is stored once.

A producer numbers its messages 1, 2, 3, …; the hub remembers how far it got and which seqs the latest ones have.
"""

from typing import Final

from fabric.errors import Code, ProtocolError
from fabric.messages import SaveProducer

# Ranges remembered for each producer. A resend lies within the publish window, so a few windows are plenty; a lone
# producer needs one range, since its own numbers and the journal's run in step.
RECENT_MAX: Final = 256


class Producer:
    __slots__ = ("epoch", "last_pseq", "name", "recent", "seen_us")

    def __init__(self, name: str, epoch: int = 0, last_pseq: int = 0) -> None:
        self.name = name
        self.epoch = epoch
        self.last_pseq = last_pseq
        self.recent: list[tuple[int, int, int]] = []  # (first pseq, count, first seq), ascending, not mergeable
        self.seen_us = 0

    @classmethod
    def restore(cls, saved: SaveProducer) -> "Producer":
        producer = cls(saved.name, saved.epoch, saved.last_pseq)
        producer.recent = list(saved.recent)
        producer.seen_us = saved.seen_us
        return producer

    @property
    def last_seq(self) -> int:
        if not self.recent:
            return 0
        _, count, seq = self.recent[-1]
        return seq + count - 1

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
        if pseq + count - 1 <= self.last_pseq:
            for first, n, seq in reversed(self.recent):
                if first <= pseq < first + n:
                    return seq + pseq - first
        raise ProtocolError(
            Code.BAD_OPTION,
            f"producer {self.name!r}: {pseq}..{pseq + count - 1} was stored long ago or in other blocks",
        )

    def stored(self, pseq: int, count: int, seq: int) -> None:
        recent = self.recent
        if recent:
            first, n, first_seq = recent[-1]
            if first + n == pseq and first_seq + n == seq:
                recent[-1] = (first, n + count, first_seq)
            else:
                recent.append((pseq, count, seq))
                del recent[:-RECENT_MAX]
        else:
            recent.append((pseq, count, seq))
        self.last_pseq = pseq + count - 1

    def record(self, now_us: int) -> SaveProducer:
        self.seen_us = now_us
        return SaveProducer(self.name, self.epoch, self.last_pseq, tuple(self.recent), now_us)
