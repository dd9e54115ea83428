"""Producer sequences: a publish that is sent again after a lost confirmation is stored once.

A producer numbers its messages 1, 2, 3, …; the hub remembers the last pseq, the seqs of the latest messages, and the
CRCs of the latest blocks. A resend is the same block under the same pseqs in the same epoch. Another block under pseqs
that were used is refused, because a confirmation would say that this block is stored.
"""

from array import array
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from fabric.records import SaveProducer
from fabric_protocol.errors import Code, ProtocolError

# Unconfirmed publishes of one session: enough for a full pipeline during a commit.
WINDOW_BLOCKS: Final = 64
# Runs and blocks remembered for each producer. A resend was unconfirmed, so it is among the blocks of the last window.
# The row is written again with each commit. If only one producer publishes, it needs one run, because its pseqs and the
# seqs rise together.
RECENT_MAX: Final = WINDOW_BLOCKS
TRIM_BLOCKS: Final = 64  # removed at a time, because removing the front of an array is slow
# A delayed publish has no seq yet: its place is this number plus the id of the schedule.
SCHEDULED: Final = 1 << 63
Options = Mapping[str, Any]  # of PUB
NO_OPTIONS: Final[Options] = {}
POSITIONS: Final = ("last", "after")  # options of PUB for numbered sources


class Producer:
    jumps: ClassVar = False  # see `sources`
    __slots__ = ("blocks", "epoch", "label", "last_pseq", "name", "recent", "seen_us", "since_pseq")

    def __init__(self, name: str, epoch: int = 0, last_pseq: int = 0) -> None:
        self.name = name  # in the journal
        self.label = name  # that the client of the latest claim has given, for the texts of errors
        self.epoch = epoch
        self.last_pseq = last_pseq
        self.since_pseq = 1  # the first pseq of this epoch; 0: not known, the row is of an older program
        self.recent: list[int] = []  # flat (count, first seq) runs, oldest first; the last run ends with last_pseq
        self.blocks = array(
            "I"
        )  # flat (count, CRC of the body) of the latest blocks; the last block ends with last_pseq
        self.seen_us = 0

    def restore(self, saved: SaveProducer) -> None:
        """Take over the row of this producer."""
        self.epoch, self.last_pseq = saved.epoch, saved.last_pseq
        self.recent = list(saved.recent)
        self.seen_us = saved.seen_us
        self.since_pseq = saved.since_pseq
        self.blocks.frombytes(saved.blocks)

    @property
    def last_seq(self) -> int:
        """The seq of the last message that has a seq."""
        for at in range(len(self.recent) - 2, -1, -2):
            if self.recent[at + 1] < SCHEDULED:
                return self.recent[at + 1] + self.recent[at] - 1
        return 0

    def claim(self, epoch: int) -> None:
        """A session claims the name. Blocks of earlier epochs are not resends of this session."""
        self.epoch = epoch
        self.since_pseq = self.last_pseq + 1

    def duplicate_of(self, pseq: int, count: int, body_crc: int, options: Options = NO_OPTIONS) -> int | None:
        """The first seq of a block that was stored before; None when the block is new. Refuses a gap in the pseqs, and
        a block that differs from the block that was stored under these pseqs."""
        if options:
            _require_no_positions(self.label, options)
        if pseq == self.last_pseq + 1:
            return None
        if pseq > self.last_pseq:
            raise ProtocolError(
                Code.SEQUENCE_GAP,
                f"producer {self.label!r}: pseq {pseq} cannot follow {self.last_pseq}; publish {self.last_pseq + 1} "
                "first",
                retry_ms=1,
                expected=self.last_pseq + 1,
            )
        is_known = self._is_stored(pseq, count, body_crc)
        seq = self._seq_of(self.last_pseq + 1 - pseq) if is_known and pseq + count - 1 <= self.last_pseq else None
        if seq is None:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"producer {self.label!r}: pseq {pseq}..{pseq + count - 1} is older than the last {RECENT_MAX} blocks, "
                "so the hub cannot tell whether it is a resend",
            )
        return seq

    def _is_stored(self, pseq: int, count: int, body_crc: int) -> bool:
        """Whether this block was stored; False when its pseqs are too old to tell. Refuses another block."""
        blocks, first = self.blocks, self.last_pseq + 1
        at, oldest = len(blocks), max(len(blocks) - 2 * RECENT_MAX, 0)
        while first > pseq and at > oldest:
            at -= 2
            first -= blocks[at]
        if pseq < self.since_pseq:
            why = "was stored by an earlier session of this name"
        elif first > pseq:
            return not self.since_pseq  # an older program wrote no CRCs: only the pseqs are compared
        elif (first, blocks[at], blocks[at + 1]) == (pseq, count, body_crc):
            return True
        else:
            why = "was stored with other content, or in other blocks"
        raise ProtocolError(
            Code.PSEQ_TAKEN, f"producer {self.label!r}: pseq {pseq}..{pseq + count - 1} {why}; this block is not stored"
        )

    def _seq_of(self, back: int) -> int | None:
        """The seq of the message that is so many messages back; 1 is the last one."""
        for at in range(len(self.recent) - 2, -1, -2):
            count, first = self.recent[at], self.recent[at + 1]
            if back <= count:
                return first + count - back
            back -= count
        return None

    def stored(self, pseq: int, count: int, body_crc: int, seq: int, options: Options = NO_OPTIONS) -> None:
        recent, blocks = self.recent, self.blocks
        if recent and recent[-1] + recent[-2] == seq:
            recent[-2] += count
        else:
            recent += (count, seq)
            if len(recent) > 2 * RECENT_MAX:
                del recent[:2]
        blocks.append(count)
        blocks.append(body_crc)
        if len(blocks) > 2 * (RECENT_MAX + TRIM_BLOCKS):
            del blocks[: 2 * TRIM_BLOCKS]
        self.last_pseq = pseq + count - 1

    def record(self, now_us: int) -> SaveProducer:
        self.seen_us = now_us
        recent, blocks = tuple(self.recent), self.blocks[-2 * RECENT_MAX :].tobytes()
        return SaveProducer(self.name, self.epoch, self.last_pseq, recent, now_us, self.since_pseq, blocks)


def _require_no_positions(name: str, options: Options) -> None:
    for option in POSITIONS:
        if options.get(option) is not None:
            raise ProtocolError(
                Code.BAD_OPTION,
                f"option {option} is for a numbered source, and producer {name!r} numbers its messages without gaps: "
                "leave it out, or name another producer with jumps: true",
            )
