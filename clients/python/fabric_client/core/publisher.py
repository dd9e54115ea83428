"""The publishing half of the core: collects messages into blocks, sends blocks, and keeps each until it is confirmed.

    put --> open block --full, or nothing in flight--> queue --window open--> in flight --PUBOK--> receipts
                                                         ^                       |
                                                         '--BUSY, gap, reconnect-'

Numbers and resending are in `block_queue`. Every sending of a block has a new request id, so an answer to an earlier
sending matches no block and is ignored.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from fabric_client.core.block_queue import BlockQueue
from fabric_client.core.outgoing import (
    BLOCK_ROOM,
    BLOCK_SLACK,
    CLOSED_FAST_PATH,
    FAST_PATH_BODY_MAX,
    FAST_PATH_COUNT_MAX,
    MESSAGE_COST,
    PLAIN,
    FastPath,
    OpenBlock,
    Options,
    Outgoing,
    Prepared,
    Settles,
    Single,
    check_topic,
)
from fabric_client.core.receipt import Scheduled, receipt_of, receipt_of_all
from fabric_client.core.ticket import Ticket
from fabric_client.errors import BadMessage, Refusal, Stale, Unconfirmed, describe, from_wire, refusal_error
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import Code, FabricError

log = logging.getLogger("fabric_client")

# Unsent messages, on top of the window that the hub grants: a second of full speed. Then the caller waits.
BUFFER_MESSAGES_MAX: Final = 1 << 19
BUFFER_BYTES_MAX: Final = 64 << 20
TOPICS_KNOWN_MAX: Final = 1 << 16  # topics whose check is remembered
RETRY_S: Final = 0.05  # pause before a resend when the hub names none
_RETRYABLE: Final = frozenset({Code.BUSY, Code.OVERRUN, Code.DISK_FULL, Code.SHUTTING_DOWN, Code.NO_SESSION})


class Publisher:
    """Accepts messages and the hub's answers; calls `send` with each frame that leaves."""

    def __init__(self, send: Callable[[m.ToHub], None], next_rid: Callable[[], int]) -> None:
        self._send = send
        self._next_rid = next_rid
        self.open_block = OpenBlock()
        self.fast_path = CLOSED_FAST_PATH  # open only while the open block has messages
        self.refusals: list[Refusal] = []
        self.hold_until = 0.0  # the hub asked for a pause: nothing is sent before
        self.last_reason = ""  # why the hub asked for the pause, for the error of a caller that gives up
        self.blocks = 0  # sealed so far
        self.full_blocks = 0  # sealed because they were full: tells a tight loop from single publishes
        self.block_bytes_max = BLOCK_ROOM
        self._topics: set[str] = set()  # known to be well-formed
        self._live = False
        self._queue = BlockQueue()
        self._window_blocks = 0
        self._window_bytes = 0
        self._pace = 0  # blocks in flight after a pause that the hub asked for; 0: as many as the window allows
        self._may_send_open = False  # a confirm arrived: the open block may be sent

    # For the caller.

    @property
    def settled(self) -> bool:
        """Every publish is confirmed or refused."""
        return not self.busy

    @property
    def busy(self) -> bool:
        """A publish has no answer yet."""
        return bool(self._queue or self.open_block.payloads)

    @property
    def waiting(self) -> bool:
        """A message is unsent."""
        return bool(self._queue.queued or self.open_block.payloads)

    @property
    def full(self) -> bool:
        queue = self._queue
        return queue.queued_messages >= BUFFER_MESSAGES_MAX or queue.queued_bytes >= BUFFER_BYTES_MAX

    @property
    def gathered(self) -> int:
        """Messages in the open block."""
        return len(self.open_block.payloads) + len(self.fast_path.items) - self.fast_path.taken

    @property
    def sent(self) -> int:
        """Messages that were sent and that the hub may have stored."""
        return sum(block.count for block in self._queue.all() if block.pseq)

    @property
    def unconfirmed(self) -> int:
        """Messages that the hub has not confirmed."""
        in_flight = self._queue.in_flight.values()
        return self._queue.queued_messages + self.gathered + sum(block.count for block in in_flight)

    def put(self, message: Prepared, options: Options, waiter: Ticket | None = None, position: int = 0) -> None:
        """Accept one message. `send_blocks` sends it, at once if nothing is in flight. A numbered source gives its
        position."""
        if message.cost + BLOCK_SLACK > self.block_bytes_max:
            limit = self.block_bytes_max - BLOCK_SLACK
            raise BadMessage(f"a message of {message.cost} bytes is over {limit}", describe(Code.TOO_LARGE))
        self._check_topic(message.topic)
        self._close_fast_path()
        if not self.open_block.takes(options, message.cost):
            self.seal()
        self.open_block.add(message, options, waiter, position)
        if self.open_block.room <= 0 or options.alone:
            self.seal()

    def put_alone(self, message: Prepared, options: Options, waiter: Ticket | None) -> None:
        """Accept one message as a block of its own, so that the answer concerns this message only."""
        self.seal()
        self.put(message, options, waiter)
        self.seal()

    def put_block(self, raw: bytes, count: int, options: Options, topic: str, waiter: Ticket, each: bool) -> None:
        """Accept a block that the caller encoded; the waiter gets one receipt for all of it."""
        self._check_topic(topic)
        self.seal()
        self._queue.add(Outgoing(raw, count, options, (topic,), [(-1, waiter)], each))

    def put_transaction(self, open_block: OpenBlock, settles: Settles, waiter: Ticket) -> None:
        """Accept messages that the hub stores together with verdicts, or not at all."""
        self.seal()
        count = len(open_block.payloads)
        raw, topics = open_block.take()
        if len(raw) > self.block_bytes_max:
            raise BadMessage(f"a transaction of {len(raw)} bytes is over {self.block_bytes_max}", "publish less in it")
        block = Outgoing(raw, count, PLAIN, topics, [(-1, waiter)], each=True)
        block.settles = settles
        self._queue.add(block)

    def withdraw(self, waiter: Ticket) -> bool:
        """Remove an unsent publish, so that it is not sent later. False if it was sent, and not refused since: then the
        hub may have it."""
        self._close_fast_path()
        for index, other in self.open_block.waiters:
            if other is waiter:
                self.open_block.remove(index)
                return True
        return self._queue.withdraw(waiter)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._topics:
            check_topic(topic)
            if len(self._topics) >= TOPICS_KNOWN_MAX:
                self._topics.clear()
            self._topics.add(topic)

    # The fast path into the open block.

    def open_fast_path(self, message: Prepared) -> None:
        """Let further plain messages like this one, which is in the open block, be appended without a lock."""
        block = self.open_block
        if block.payloads and block.options == PLAIN and message.cost <= FAST_PATH_BODY_MAX + MESSAGE_COST:
            limit = max(min(FAST_PATH_COUNT_MAX - len(block.payloads), block.room // message.cost), 1)
            topic, topics = (None, self._topics) if block.mixed else (message.topic, ())
            self.fast_path = FastPath(topic, topics, limit)

    def absorb(self, fast_path: FastPath) -> None:
        """Move the items of a fast path into the open block: it is full, or was closed during an append."""
        self._empty(fast_path)
        if fast_path is self.fast_path:
            self.fast_path = CLOSED_FAST_PATH
            self._empty(fast_path)  # items appended before it was closed
        if len(fast_path.items) >= fast_path.limit:
            self._seal()

    def _empty(self, fast_path: FastPath) -> None:
        if len(fast_path.items) > fast_path.taken:
            if not self.open_block.takes(PLAIN, 0):
                self._seal()
            self.open_block.extend(fast_path)

    def _close_fast_path(self) -> None:
        if self.fast_path is not CLOSED_FAST_PATH:
            self.absorb(self.fast_path)

    # Sealing and sending.

    def seal(self) -> None:
        """Move the open block to the queue; the next message starts another block."""
        self._close_fast_path()
        self._seal()

    def _seal(self) -> None:
        open_block = self.open_block
        if not open_block.payloads:
            return
        self.full_blocks += open_block.room < BLOCK_ROOM // 4 or len(open_block.payloads) >= FAST_PATH_COUNT_MAX
        count, options, waiters = len(open_block.payloads), open_block.options, open_block.waiters
        self.blocks += 1
        try:
            raw, topics = open_block.encoded()
        except Exception as error:  # an unchecked bad message must not fail the other messages of its block
            log.error("a block cannot be encoded, so its messages are sent one by one: %r", error)
            positions = open_block.positions
            self._enqueue_singly(open_block.take_singly(), options, positions)
            return
        block, fresh = Outgoing(raw, count, options, topics, waiters, positions=open_block.positions), OpenBlock()
        queue = self._queue
        queue.queued_messages += count
        queue.queued_bytes += len(raw)
        # A signal handler may raise after a call, so there is no call between these two.
        self.open_block = fresh
        queue.queued.append(block)

    def _enqueue_singly(self, singles: Iterable[Single], options: Options, positions: list[int]) -> None:
        for index, (made, topic, body, waiter) in enumerate(singles):
            if isinstance(made, bytes):
                waiters = [] if waiter is None else [(0, waiter)]
                self._queue.add(Outgoing(made, 1, options, (topic,), waiters, positions=positions[index : index + 1]))
                continue
            refusal = Refusal((topic,), (body,), Code.BAD_BLOCK, f"it cannot be encoded: {made}")
            if waiter is None:
                self.refusals.append(refusal)
            else:
                waiter.fail(refusal_error([refusal]))

    def send_blocks(self, now: float) -> None:
        """Send every block that the window allows. With nothing in flight the open block is sent at once; otherwise it
        fills until it is full or a confirm arrives: batching without a timer. (Sending a single message while others
        are in flight was tried: it doubles the blocks, and at 2,000 messages a second they arrived later.)"""
        if not self._live or now < self.hold_until:
            return
        self.hold_until = 0.0
        queue = self._queue
        blocks_max = min(self._pace or self._window_blocks, self._window_blocks)
        while len(queue.in_flight) < blocks_max:
            if not queue.queued:
                if not self.open_block.payloads or (queue.in_flight and not self._may_send_open):
                    break
                self._may_send_open = False
                self.seal()
            size = len(queue.queued[0].raw)
            if not self._window_bytes or (queue.in_flight and queue.in_flight_bytes + size > self._window_bytes):
                break
            self._send(queue.launch(self._next_rid()).message())
        self._may_send_open = False

    def take_refusals(self) -> list[Refusal]:
        refusals, self.refusals = self.refusals, []
        return refusals

    # Answers of the hub.

    def welcomed(
        self,
        last_pseq: int,
        same_journal: bool,
        flow: tuple[int, int],
        block_bytes_max: int,
        known: Collection[int] = (),
    ) -> None:
        """A session is open. `last_pseq` is the last number that the hub has stored; `known` are the channels that the
        hub still has. A transaction on another channel is stale."""
        self._queue.restart(last_pseq, same_journal)
        for block in list(self._queue.queued):
            if not block.pseq and any(chan not in known for chan, _ in block.settles):
                self._queue.remove(block)
                self._fail(block, Stale("the connection was lost before the transaction", describe(Code.STALE)))
        self.hold_until = 0.0
        self.last_reason = ""
        self._pace = 0
        self._window_blocks, self._window_bytes = flow
        self.block_bytes_max = block_bytes_max
        self._live = True

    def disconnected(self) -> None:
        """The connection is lost; every block is kept."""
        self._live = self._may_send_open = False

    def flow(self, window: m.Flow) -> None:
        self._window_blocks, self._window_bytes = window.blocks_max, window.bytes_max

    def confirmed(self, answer: m.PubOk) -> None:
        for row in answer.confirms:
            block = self._queue.in_flight.get(row[0])
            if block is not None:
                if block.waiters:
                    self._receipts(block, row[1], row[3], dict(row[4]) if len(row) > 4 else {})
                self._land(row[0], block)

    def answered(self, answer: m.Ok) -> bool:
        """An OK confirms a schedule or a transaction. True if it answers a block of this publisher."""
        block = self._queue.in_flight.get(answer.rid)
        if block is None:
            return False
        fields = answer.fields
        if block.options.scheduled:
            duplicates = block.count if fields.get("dup") else 0
            receipt = Scheduled(0, block.count, duplicates, (), (), fields.get("schedule", 0), fields.get("due_us", 0))
            for _, waiter in block.waiters:
                waiter.succeed(receipt)
        else:
            repeated = dict(fields.get("dup_rows", ()))
            self._receipts(block, fields.get("first_seq", 0), fields.get("dups", 0), repeated)
        self._land(answer.rid, block)
        return True

    def _land(self, rid: int, block: Outgoing) -> None:
        self._may_send_open = True
        if self._pace:  # each confirmed block lets two go
            self._pace = self._pace + 1 if self._pace < self._window_blocks else 0
        self._queue.land(rid, block)

    @staticmethod
    def _receipts(block: Outgoing, first_seq: int, duplicates: int, repeated: dict[int, int]) -> None:
        whole = duplicates == block.count and not repeated
        for index, waiter in block.waiters:
            if index < 0:
                waiter.succeed(receipt_of_all(block.count, first_seq, duplicates, repeated, block.each))
            else:
                waiter.succeed(receipt_of(index, first_seq, whole, repeated))

    def refused(self, answer: m.Err, now: float) -> bool:
        """The hub did not store a block. True if the ERR answers a block of this publisher."""
        block = self._queue.in_flight.get(answer.rid)
        if block is None:
            return False
        retry_ms = answer.fields.get("retry_ms", 0)
        if answer.code == Code.SEQUENCE_GAP:
            self._queue.go_back_to(answer.fields.get("expected", block.pseq), block)
            self.hold_until = max(self.hold_until, now + (retry_ms / 1000 or RETRY_S))
        elif retry_ms or answer.code in _RETRYABLE:
            self._queue.renumber_from(block)
            self.last_reason = answer.text
            self._pace = 1  # one block tries first: the hub would read a whole window only to refuse it again
            self.hold_until = max(self.hold_until, now + (retry_ms / 1000 or RETRY_S))
        else:
            self._drop(block, answer)
        return True

    def _drop(self, block: Outgoing, answer: m.Err) -> None:
        """Remove a block that is refused for good. Its numbers are free, so later blocks are renumbered."""
        self._queue.renumber_from(block)
        assert self._queue.queued[0] is block
        self._refuse(block, answer, answer.text)

    def _refuse(self, block: Outgoing, answer: m.Err, why: str) -> None:
        """Remove a queued block, and return its messages to the program."""
        self._queue.remove(block)
        refusal = Refusal(block.topics, tuple(Block(block.raw).payloads()), answer.code, why)
        itself = answer.code in (Code.FENCED, Code.STALE)
        self._fail(block, from_wire(answer) if itself else refusal_error([refusal]))
        if len(block.waiters) < block.count and not (block.waiters and block.waiters[0][0] < 0):
            self.refusals.append(refusal)

    def fail_all(self, error: FabricError) -> None:
        """The client has ended: every waiter gets the error."""
        self._live = False
        self._close_fast_path()
        for block in self._queue.all():
            self._fail(block, Unconfirmed(f"sent and not confirmed: {error}") if block.pseq else error)
        for _, waiter in self.open_block.waiters:
            waiter.fail(error)

    @staticmethod
    def _fail(block: Outgoing, error: FabricError) -> None:
        for _, waiter in block.waiters:
            waiter.fail(error)
