"""The publishing half of the core: gathers, numbers, sends, and keeps what is unconfirmed until it is confirmed.

    put --> gather --full, or the line is free--> queue --window open--> flight --PUBOK--> gone, waiters told
                                                    ^                      |
                                                    '--BUSY, gap, reconnect'

The one idea to hold while reading: a block gets its producer sequence when it is sent, and a block that must be sent
again goes back to the front of the queue. Its bytes never change, so the hub knows a repeated block by its numbers
and stores it once. Every sending has a new request id: answers to an earlier sending are strangers and are ignored.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from fabric_client.core.outgoing import (
    BLOCK_ROOM,
    BLOCK_SLACK,
    CLOSED_LANE,
    LANE_BODY_MAX,
    LANE_COUNT_MAX,
    MESSAGE_COST,
    PLAIN,
    Fit,
    Gather,
    Lane,
    Options,
    Outgoing,
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

# What may wait unsent, on top of the window that the hub grants. A second of full speed; then the caller waits.
BUFFER_MESSAGES_MAX: Final = 1 << 19
BUFFER_BYTES_MAX: Final = 64 << 20
TOPICS_KNOWN_MAX: Final = 1 << 16  # topics whose check is remembered
RETRY_S: Final = 0.05  # when the hub asks for a repetition without saying when
_RETRYABLE: Final = frozenset({Code.BUSY, Code.OVERRUN, Code.DISK_FULL, Code.SHUTTING_DOWN, Code.NO_SESSION})


class Publisher:
    """Give it messages and the hub's answers; it calls `send` with what goes out."""

    def __init__(self, send: Callable[[m.ToHub], None], next_rid: Callable[[], int]) -> None:
        self._send = send
        self._next_rid = next_rid
        self.gather = Gather()
        self.lane = CLOSED_LANE  # open only while something is gathered
        self.refusals: list[Refusal] = []
        self.hold_until = 0.0  # the hub asked for patience: nothing is sent before
        self.last_reason = ""  # why, for whoever gives up waiting
        self.blocks = 0  # how many blocks were gathered
        self.full_blocks = 0  # how many blocks filled up: tells a tight loop from a trickle
        self.block_bytes_max = BLOCK_ROOM
        self._topics: set[str] = set()  # known to be well-formed
        self._live = False
        self._queue: deque[Outgoing] = deque()
        self._queued_messages = 0
        self._queued_bytes = 0
        self._flight: dict[int, Outgoing] = {}  # by rid, in order of sending
        self._flight_bytes = 0
        self._window_blocks = 0
        self._window_bytes = 0
        self._pseq = 1  # the next number
        self._stored_pseq = 0  # the hub said that all up to here is stored
        self._kick = False  # a confirm came: whatever is gathered may go

    # What the caller sees.

    @property
    def settled(self) -> bool:
        """Nothing waits for the hub."""
        return not (self._flight or self._queue or self.gather.payloads)

    @property
    def busy(self) -> bool:
        """An answer of the hub would set something in motion."""
        return bool(self._flight or self._queue or self.gather.payloads)

    @property
    def waiting(self) -> bool:
        """Something is unsent."""
        return bool(self._queue or self.gather.payloads)

    @property
    def full(self) -> bool:
        return self._queued_messages >= BUFFER_MESSAGES_MAX or self._queued_bytes >= BUFFER_BYTES_MAX

    @property
    def gathered(self) -> int:
        """Messages in the open block."""
        return len(self.gather.payloads) + len(self.lane.items) - self.lane.taken

    @property
    def sent(self) -> int:
        """Messages that were sent and that the hub may have stored."""
        return sum(block.count for block in (*self._flight.values(), *self._queue) if block.pseq)

    @property
    def unconfirmed(self) -> int:
        """Messages that the hub has not confirmed."""
        return self._queued_messages + self.gathered + sum(b.count for b in self._flight.values())

    def put(self, message: Fit, options: Options, waiter: Ticket | None = None) -> None:
        """Accept one message. It leaves with `pump`, at once when the line is free."""
        if message.cost + BLOCK_SLACK > self.block_bytes_max:
            limit = self.block_bytes_max - BLOCK_SLACK
            raise BadMessage(f"a message of {message.cost} bytes is over {limit}", describe(Code.TOO_LARGE))
        self._check_topic(message.topic)
        self._close_lane()
        if not self.gather.takes(options, message.cost):
            self.seal()
        self.gather.add(message, options, waiter)
        if self.gather.room <= 0:
            self.seal()

    def absorb(self, lane: Lane) -> None:
        """Take over what is in a lane: it is full, or it was closed while someone was entering."""
        self._empty(lane)
        if lane is self.lane:
            self.lane = CLOSED_LANE
            self._empty(lane)  # what has come before it was closed
        if len(lane.items) >= lane.limit:
            self._seal()

    def _empty(self, lane: Lane) -> None:
        if len(lane.items) > lane.taken:
            if not self.gather.takes(PLAIN, 0):
                self._seal()
            self.gather.extend(lane)

    def open_lane(self, message: Fit) -> None:
        """Let plain messages like this one, which was gathered, enter the block without ado."""
        gather = self.gather
        if gather.payloads and gather.options == PLAIN and message.cost <= LANE_BODY_MAX + MESSAGE_COST:
            limit = max(min(LANE_COUNT_MAX - len(gather.payloads), gather.room // message.cost), 1)
            self.lane = Lane(None, self._topics, limit) if gather.mixed else Lane(message.topic, (), limit)

    def _check_topic(self, topic: str) -> None:
        if topic not in self._topics:
            check_topic(topic)
            if len(self._topics) >= TOPICS_KNOWN_MAX:
                self._topics.clear()
            self._topics.add(topic)

    def _close_lane(self) -> None:
        if self.lane is not CLOSED_LANE:
            self.absorb(self.lane)

    def withdraw(self, waiter: Ticket) -> bool:
        """Take back what is waited for, so that it is not sent later. False when it was sent and the hub has not said
        that it did not store it: then the hub may have it."""
        self._close_lane()
        for index, other in self.gather.marks:
            if other is waiter:
                self.gather.remove(index)
                return True
        for block in self._queue:
            for index, other in block.marks:
                if other is waiter and not block.pseq:
                    self._remove(block, index)
                    return True
        sent = (*self._flight.values(), *self._queue)
        return not any(other is waiter for block in sent for _, other in block.marks)

    def put_alone(self, message: Fit, options: Options, waiter: Ticket | None) -> None:
        """Accept one message as a block of its own, so that the answer is about it alone."""
        self.seal()
        self.put(message, options, waiter)
        self.seal()

    def put_block(self, raw: bytes, count: int, options: Options, topic: str, waiter: Ticket, each: bool) -> None:
        """Accept a block that the caller packed; the waiter gets one receipt for all of it."""
        self._check_topic(topic)
        self.seal()
        self._enqueue(Outgoing(raw, count, options, (topic,), [(-1, waiter)], each))

    def put_transaction(self, gather: Gather, settles: Settles, waiter: Ticket) -> None:
        """Accept messages that are stored together with verdicts, or not at all."""
        self.seal()
        count = len(gather.payloads)
        raw, topics = gather.take()
        if len(raw) > self.block_bytes_max:
            raise BadMessage(f"a transaction of {len(raw)} bytes is over {self.block_bytes_max}", "publish less in it")
        block = Outgoing(raw, count, PLAIN, topics, [(-1, waiter)], each=True)
        block.settles = settles
        self._enqueue(block)

    def seal(self) -> None:
        """Close the gathered block; what is put next goes into another one."""
        self._close_lane()
        self._seal()

    def _seal(self) -> None:
        gather = self.gather
        if not gather.payloads:
            return
        self.full_blocks += gather.room < BLOCK_ROOM // 4 or len(gather.payloads) >= LANE_COUNT_MAX
        count, options, marks = len(gather.payloads), gather.options, gather.marks
        self.blocks += 1
        try:
            raw, topics = gather.encoded()
        except Exception as error:  # a message that should not have come so far must not take others along
            log.error("a block cannot be encoded, so its messages go one by one: %r", error)
            self._enqueue_singly(gather.take_singly(), options)
            return
        block, fresh = Outgoing(raw, count, options, topics, marks), Gather()
        self._queued_messages += count
        self._queued_bytes += len(raw)
        # A signal's handler may raise after a call, so nothing is called between these two.
        self.gather = fresh
        self._queue.append(block)

    def _enqueue_singly(self, singles: Iterable[Single], options: Options) -> None:
        for made, topic, body, waiter in singles:
            if isinstance(made, bytes):
                self._enqueue(Outgoing(made, 1, options, (topic,), [] if waiter is None else [(0, waiter)]))
                continue
            refusal = Refusal((topic,), (body,), Code.BAD_BLOCK, f"it cannot be encoded: {made}")
            if waiter is None:
                self.refusals.append(refusal)
            else:
                waiter.fail(refusal_error([refusal]))

    def pump(self, now: float) -> None:
        """Send what may be sent. With nothing in flight a message leaves at once; otherwise it gathers company until
        its block is full or a confirm arrives: batching without a timer. (Letting a lone message go while others are
        in flight was tried: it doubles the blocks, and at 2,000 messages a second they arrived later, not earlier.)"""
        if not self._live or now < self.hold_until:
            return
        self.hold_until = 0.0
        while len(self._flight) < self._window_blocks:
            if not self._queue:
                if not self.gather.payloads or (self._flight and not self._kick):
                    break
                self._kick = False
                self.seal()
            size = len(self._queue[0].raw)
            if not self._window_bytes or (self._flight and self._flight_bytes + size > self._window_bytes):
                break
            self._launch(self._queue[0])
        self._kick = False

    def take_refusals(self) -> list[Refusal]:
        refusals, self.refusals = self.refusals, []
        return refusals

    # What the hub says.

    def welcomed(
        self,
        last_pseq: int,
        same_journal: bool,
        flow: tuple[int, int],
        block_bytes_max: int,
        known: Collection[int] = (),
    ) -> None:
        """A session is open. The hub's last number decides: what it has keeps its numbers and is sent again to learn
        its seq; what it lacks is numbered from there on. `known` are the channels that outlived the connection."""
        self._rewind(self._flight)
        self._stored_pseq = last_pseq
        self._pseq = last_pseq + 1
        for block in list(self._queue):
            if not same_journal or block.pseq > last_pseq:
                block.pseq = 0
            if not block.pseq and any(chan not in known for chan, _ in block.settles):
                self._unqueue(block)
                self._tell(block, Stale("the connection was lost before the transaction", describe(Code.STALE)))
        self.hold_until = 0.0
        self.last_reason = ""
        self._window_blocks, self._window_bytes = flow
        self.block_bytes_max = block_bytes_max
        self._live = True

    def disconnected(self) -> None:
        """Nobody is listening; everything stays."""
        self._live = self._kick = False

    def flow(self, window: m.Flow) -> None:
        self._window_blocks, self._window_bytes = window.blocks_max, window.bytes_max

    def confirmed(self, answer: m.PubOk) -> None:
        for row in answer.confirms:
            block = self._flight.get(row[0])
            if block is not None:
                if block.marks:
                    self._receipts(block, row[1], row[3], dict(row[4]) if len(row) > 4 else {})
                self._land(row[0], block)

    def answered(self, answer: m.Ok) -> bool:
        """An OK confirms a schedule or a transaction. True when it was one of ours."""
        block = self._flight.get(answer.rid)
        if block is None:
            return False
        fields = answer.fields
        if block.options.scheduled:
            duplicates = block.count if fields.get("dup") else 0
            receipt = Scheduled(0, block.count, duplicates, (), (), fields.get("schedule", 0), fields.get("due_us", 0))
            for _, waiter in block.marks:
                waiter.succeed(receipt)
        else:
            repeated = dict(fields.get("dup_rows", ()))
            self._receipts(block, fields.get("first_seq", 0), fields.get("dups", 0), repeated)
        self._land(answer.rid, block)
        return True

    def _land(self, rid: int, block: Outgoing) -> None:
        """A block is confirmed, and its waiters were told: if that was interrupted, it is sent again and confirmed
        again."""
        self._flight_bytes -= len(block.raw)
        self._kick = True
        del self._flight[rid]

    @staticmethod
    def _receipts(block: Outgoing, first_seq: int, duplicates: int, repeated: dict[int, int]) -> None:
        whole = duplicates == block.count and not repeated
        for index, waiter in block.marks:
            if index < 0:
                waiter.succeed(receipt_of_all(block.count, first_seq, duplicates, repeated, block.each))
            else:
                waiter.succeed(receipt_of(index, first_seq, whole, repeated))

    def refused(self, answer: m.Err, now: float) -> bool:
        """The hub did not store a block. True when the answer was to one of ours."""
        block = self._flight.get(answer.rid)
        if block is None:
            return False
        retry_ms = answer.fields.get("retry_ms", 0)
        if answer.code == Code.SEQUENCE_GAP:
            self._go_back_to(answer.fields.get("expected", block.pseq), block)
            self.hold_until = max(self.hold_until, now + (retry_ms / 1000 or RETRY_S))
        elif retry_ms or answer.code in _RETRYABLE:
            self._renumber_from(block)
            self.last_reason = answer.text
            self.hold_until = max(self.hold_until, now + (retry_ms / 1000 or RETRY_S))
        else:
            self._drop(block, answer)
        return True

    def fail_all(self, error: FabricError) -> None:
        """The client is over: everyone who still waits hears why."""
        self._live = False
        self._close_lane()
        for block in (*self._flight.values(), *self._queue):
            self._tell(block, Unconfirmed(f"sent and not confirmed: {error}") if block.pseq else error)
        for _, waiter in self.gather.marks:
            waiter.fail(error)

    # Moving blocks.

    def _enqueue(self, block: Outgoing) -> None:
        self._queue.append(block)
        self._queued_messages += block.count
        self._queued_bytes += len(block.raw)

    def _launch(self, block: Outgoing) -> None:
        if not block.pseq:
            block.pseq = self._pseq
            self._pseq += block.count
        block.rid = self._next_rid()
        size = len(block.raw)
        self._queued_messages -= block.count
        self._queued_bytes -= size
        self._flight_bytes += size
        self._flight[block.rid] = block  # before it leaves the queue: it is never in neither
        self._queue.popleft()
        self._send(block.message())

    def _rewind(self, blocks: "dict[int, Outgoing]") -> None:
        """Take blocks out of the flight and put them back to the front of the queue, in order."""
        for rid, block in reversed(list(blocks.items())):
            if not self._queue or self._queue[0] is not block:  # or this was interrupted before
                self._queue.appendleft(block)
            del self._flight[rid]
            size = len(block.raw)
            self._flight_bytes -= size
            self._queued_messages += block.count
            self._queued_bytes += size

    def _renumber_from(self, first: Outgoing) -> None:
        """`first` and all that were sent after it were not stored: they go back and are numbered anew."""
        later = {rid: b for rid, b in self._flight.items() if rid >= first.rid}
        self._rewind(later)
        if first.pseq > self._stored_pseq:
            self._pseq = first.pseq
            for block in later.values():
                block.pseq = 0

    def _go_back_to(self, expected: int, block: Outgoing) -> None:
        """The hub misses numbers before `block`: go back to where it stands."""
        first = next((b for b in self._flight.values() if b.pseq >= expected), block)
        self._renumber_from(first)
        if first.pseq == 0:
            self._pseq = expected

    def _drop(self, block: Outgoing, answer: m.Err) -> None:
        """Refused for good. Its numbers are not used up, so those who came after it move up."""
        self._renumber_from(block)
        assert self._queue[0] is block
        self._unqueue(block)
        refusal = Refusal(block.topics, tuple(Block(block.raw).payloads()), answer.code, answer.text)
        itself = answer.code in (Code.FENCED, Code.STALE)
        self._tell(block, from_wire(answer) if itself else refusal_error([refusal]))
        if len(block.marks) < block.count and not (block.marks and block.marks[0][0] < 0):
            self.refusals.append(refusal)

    def _remove(self, block: Outgoing, index: int) -> None:
        """Take a message, or all of a block, out of the queue."""
        if index < 0 or block.count == 1:
            self._unqueue(block)
            return
        size = len(block.raw)
        block.without(index)
        self._queued_messages -= 1
        self._queued_bytes += len(block.raw) - size

    def _unqueue(self, block: Outgoing) -> None:
        self._queue.remove(block)
        self._queued_messages -= block.count
        self._queued_bytes -= len(block.raw)

    @staticmethod
    def _tell(block: Outgoing, error: FabricError) -> None:
        for _, waiter in block.marks:
            waiter.fail(error)
