"""The publisher of a numbered source: its messages have positions of their own, which rise and may jump.

The hub's cursor is the last position that it has stored. A position at or below it is not sent, because the hub has it.
Positions on their way are above it. If the hub refuses a message for good, the messages behind it are refused too, so
that the cursor does not pass a position that is not stored.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from typing import Final

from fabric_client.core.outgoing import OpenBlock, Options, Outgoing, Prepared, Settles
from fabric_client.core.publisher import Publisher
from fabric_client.core.receipt import Receipt
from fabric_client.core.ticket import Ticket
from fabric_client.errors import BadMessage
from fabric_protocol import messages as m
from fabric_protocol.bounds import NUMBER_MAX

KNOWN: Final = Receipt(0, 1, 1)  # of a position that the hub has: its seq is not known


class Source(Publisher):
    def __init__(self, send: Callable[[m.ToHub], None], next_rid: Callable[[], int]) -> None:
        super().__init__(send, next_rid)
        self.cursor = 0
        self._last = 0  # of the last message that is on its way; the cursor if there is none

    def put_numbered(self, position: int, message: Prepared, options: Options, waiter: Ticket | None = None) -> None:
        """Accept the message of a position, unless the hub has it."""
        if type(position) is not int or not 1 <= position <= NUMBER_MAX:
            raise BadMessage(
                f"a position is a whole number from 1 to 2^63-1, not {position!r:.60}",
                "if the source counts from 0, add 1",
            )
        if self.cursor < position <= self._last:
            raise BadMessage(
                f"position {position} is not above {self._last}, which is on its way to the hub",
                "positions rise; after an error, flush() and go on above `position`",
            )
        if position > self.cursor:
            super().put(message, options, waiter, position)
            self._last = position
        elif waiter is not None:
            waiter.succeed(KNOWN)

    def put(self, message: Prepared, options: Options, waiter: Ticket | None = None, position: int = 0) -> None:
        raise _no_position()

    def put_block(self, raw: bytes, count: int, options: Options, topic: str, waiter: Ticket, each: bool) -> None:
        raise _no_position()

    def put_transaction(self, open_block: OpenBlock, settles: Settles, waiter: Ticket) -> None:
        raise _no_position()

    def open_fast_path(self, message: Prepared) -> None:
        """There is none: each message has a position."""

    def withdraw(self, waiter: Ticket) -> bool:
        withdrawn = super().withdraw(waiter)
        self._recount()
        return withdrawn

    def welcomed(
        self,
        last_pseq: int,
        same_journal: bool,
        flow: tuple[int, int],
        block_bytes_max: int,
        known: Collection[int] = (),
    ) -> None:
        """A session is open, and `last_pseq` is the cursor. Messages at or below it that this journal was not sent are
        dropped. A block that was sent goes out again unchanged, and its answer has the seqs."""
        self.seal()
        super().welcomed(last_pseq, same_journal, flow, block_bytes_max, known)
        self.cursor = last_pseq
        for block in list(self._queue.queued):
            covered = bisect_right(block.positions, last_pseq)
            if covered and not block.pseq:
                for index, waiter in block.waiters:
                    if index < covered:
                        waiter.succeed(KNOWN)
                self._queue.cut(block, covered)
        self._recount()

    def _land(self, rid: int, block: Outgoing) -> None:
        super()._land(rid, block)
        self.cursor = max(self.cursor, block.positions[-1])

    def _drop(self, block: Outgoing, answer: m.Err) -> None:
        super()._drop(block, answer)
        self.seal()
        for behind in list(self._queue.queued):
            self._refuse(behind, answer, f"a message before it was refused: {answer.text}")
        self._recount()

    def _recount(self) -> None:
        """Find the last position that is on its way."""
        held = [block.positions[-1] for block in self._queue.all()]
        self._last = max((self.cursor, *held, *self.open_block.positions))


def put(
    publisher: Publisher, message: Prepared, options: Options, waiter: Ticket | None, position: int | None = None
) -> None:
    """Let the publisher accept a message: with its position, as a schedule, or as a plain publish."""
    if position is not None:
        source_of(publisher).put_numbered(position, message, options, waiter)
    elif options.scheduled:
        publisher.put_alone(message, options, waiter)  # so that the schedule has this message only
    else:
        publisher.put(message, options, waiter)


def source_of(publisher: Publisher) -> Source:
    """The publisher of a client that is a numbered source."""
    if not isinstance(publisher, Source):
        raise BadMessage("this client is no numbered source", "name it: connect(source=...)")
    return publisher


def _no_position() -> BadMessage:
    return BadMessage("this client is a numbered source", "use publish_numbered, or another client")
