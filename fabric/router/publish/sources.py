"""Numbered sources: producers whose numbers may jump.

A numbered source has positions of its own that rise: the offset of a log, the id of a row, the byte of a file. Its
blocks are numbered by them, and the last position is its cursor, stored in the transaction of the messages. So a source
that crashes reads its cursor from WELCOME and goes on behind it, and each position is stored once.

A block has the positions pseq..last. Its resend is recognised by these two numbers, the count and the CRC of the body,
as that of any producer. Numbers that jump do not show that a block before this one was refused: `after` does.
"""

from array import array
from typing import ClassVar

from fabric.records import SaveProducer
from fabric.router.fields import bounded
from fabric.router.publish.producers import NO_OPTIONS, RECENT_MAX, TRIM_BLOCKS, Options, Producer
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError


class Source(Producer):
    jumps: ClassVar = True
    __slots__ = ("spans",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.spans = array("Q")  # flat (first, last position) of the blocks in `blocks`

    def restore(self, saved: SaveProducer) -> None:
        super().restore(saved)
        self.spans.frombytes(saved.spans)

    def duplicate_of(self, pseq: int, count: int, body_crc: int, options: Options = NO_OPTIONS) -> int | None:
        """The first seq of a block that was stored before; None when the block is new. Refuses positions that are not
        above the cursor, and a block whose `after` is not the cursor."""
        last = _last(pseq, count, options)
        after = bounded(options, "after", 0, -1, NUMBER_MAX)
        if pseq <= after:
            raise ProtocolError(Code.BAD_OPTION, f"after is below pseq, which is {pseq}, not {after}")
        if pseq > self.last_pseq:
            if after not in (-1, self.last_pseq):
                raise ProtocolError(
                    Code.SEQUENCE_GAP,
                    f"source {self.label!r}: {pseq}..{last} cannot follow {after}, because the cursor is "
                    f"{self.last_pseq}: publish what is between first",
                    retry_ms=1,
                    expected=self.last_pseq + 1,
                )
            return None
        return self._seq_of(self._back_to((pseq, last, count, body_crc))) or 0

    def _back_to(self, block: tuple[int, int, int, int]) -> int:
        """How many messages were stored from the first of this block on. Refuses what is no resend."""
        pseq, last, *_ = block
        blocks, spans, back = self.blocks, self.spans, 0
        oldest = max(len(blocks) - 2 * RECENT_MAX, 0)
        if pseq < self.since_pseq and last <= self.last_pseq:
            raise self._taken(pseq, last, "was passed by an earlier session of this name")
        for at in range(len(blocks) - 2, oldest - 2, -2):
            back += blocks[at]
            if (spans[at], spans[at + 1], blocks[at], blocks[at + 1]) == block:
                return back
            if spans[at] <= pseq:
                break
        else:
            if last <= self.last_pseq:
                raise ProtocolError(
                    Code.BAD_OPTION,
                    f"source {self.label!r}: {pseq}..{last} is older than the last {RECENT_MAX} blocks, so the hub "
                    "cannot tell whether it is a resend",
                )
        if last > self.last_pseq:
            raise self._taken(pseq, last, "is stored in part: cut off what is not above the cursor")
        raise self._taken(pseq, last, "is below the cursor and is no resend")

    def _taken(self, pseq: int, last: int, why: str) -> ProtocolError:
        return ProtocolError(
            Code.PSEQ_TAKEN,
            f"source {self.label!r}: {pseq}..{last} {why} (the cursor is {self.last_pseq}); this block is not stored",
            cursor=self.last_pseq,
        )

    def stored(self, pseq: int, count: int, body_crc: int, seq: int, options: Options = NO_OPTIONS) -> None:
        super().stored(pseq, count, body_crc, seq, options)
        self.last_pseq = _last(pseq, count, options)
        self.spans.append(pseq)
        self.spans.append(self.last_pseq)
        if len(self.spans) > len(self.blocks):
            del self.spans[: 2 * TRIM_BLOCKS]

    def record(self, now_us: int) -> SaveProducer:
        return super().record(now_us)._replace(jumps=True, spans=self.spans[-2 * RECENT_MAX :].tobytes())


def new_producer(name: str, jumps: bool) -> Producer:
    return Source(name) if jumps else Producer(name)


def restored_producer(saved: SaveProducer) -> Producer:
    producer = new_producer(saved.name, saved.jumps)
    producer.restore(saved)
    return producer


def _last(pseq: int, count: int, options: Options) -> int:
    """The position of the last message of a block; without the option, positions are dense."""
    dense = pseq + count - 1
    last = bounded(options, "last", 0, dense, NUMBER_MAX)
    if not pseq <= last <= NUMBER_MAX:
        raise ProtocolError(
            Code.BAD_OPTION,
            f"last is the position of the last message, from pseq ({pseq}) to {NUMBER_MAX}, not {last}",
        )
    return last
