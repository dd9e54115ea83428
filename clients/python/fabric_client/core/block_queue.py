"""Sealed blocks on their way to the hub: queued, in flight, and their producer sequence numbers.

The one idea to hold while reading: a block gets its numbers when it is sent, and a block that must be sent again goes
back to the front of the queue. Its bytes never change, so the hub recognizes a repeated block by its numbers and stores
it once. A block is at every moment in the queue or in flight, also if a signal handler raises between two steps.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from fabric_client.core.outgoing import Outgoing
from fabric_client.core.ticket import Ticket


class BlockQueue:
    __slots__ = (
        "in_flight", "in_flight_bytes", "next_pseq", "queued", "queued_bytes", "queued_messages", "stored_pseq",
    )  # fmt: skip

    def __init__(self) -> None:
        self.queued: deque[Outgoing] = deque()
        self.queued_messages = 0
        self.queued_bytes = 0
        self.in_flight: dict[int, Outgoing] = {}  # by request id, in the order of sending
        self.in_flight_bytes = 0
        self.next_pseq = 1
        self.stored_pseq = 0  # the hub has stored every number up to this one

    def __bool__(self) -> bool:
        return bool(self.in_flight or self.queued)

    def all(self) -> Iterable[Outgoing]:
        return (*self.in_flight.values(), *self.queued)

    def add(self, block: Outgoing) -> None:
        self.queued.append(block)
        self.queued_messages += block.count
        self.queued_bytes += len(block.raw)

    def launch(self, rid: int) -> Outgoing:
        """Number the first block of the queue and move it into flight."""
        block = self.queued[0]
        if not block.pseq and block.positions:
            block.after, block.pseq = self.next_pseq - 1, block.positions[0]
            self.next_pseq = block.positions[-1] + 1
        elif not block.pseq:
            block.pseq = self.next_pseq
            self.next_pseq += block.count
        block.rid = rid
        size = len(block.raw)
        self.queued_messages -= block.count
        self.queued_bytes -= size
        self.in_flight_bytes += size
        self.in_flight[rid] = block  # before it leaves the queue
        self.queued.popleft()
        return block

    def land(self, rid: int, block: Outgoing) -> None:
        """Remove a confirmed block. Its waiters have their receipts already: if that was interrupted, the block is sent
        and confirmed again."""
        self.in_flight_bytes -= len(block.raw)
        del self.in_flight[rid]

    def rewind(self, blocks: Mapping[int, Outgoing]) -> None:
        """Move blocks from flight back to the front of the queue, in order."""
        for rid, block in reversed(list(blocks.items())):
            if not self.queued or self.queued[0] is not block:  # it is there if an earlier rewind was interrupted
                self.queued.appendleft(block)
            del self.in_flight[rid]
            size = len(block.raw)
            self.in_flight_bytes -= size
            self.queued_messages += block.count
            self.queued_bytes += size

    def renumber_from(self, first: Outgoing) -> None:
        """Take back `first` and every block sent after it, which were not stored; they get new numbers."""
        later = {rid: block for rid, block in self.in_flight.items() if rid >= first.rid}
        self.rewind(later)
        if first.pseq > self.stored_pseq:
            self.next_pseq = first.after + 1 if first.positions else first.pseq
            for block in later.values():
                block.pseq = 0

    def go_back_to(self, expected: int, block: Outgoing) -> None:
        """Send again from the number that the hub expects; numbers before `block` are missing there."""
        first = next((other for other in self.in_flight.values() if other.pseq >= expected), block)
        self.renumber_from(first)
        if first.pseq == 0:
            self.next_pseq = expected

    def restart(self, last_pseq: int, same_journal: bool) -> None:
        """Queue everything again for a new session. Blocks up to the hub's last number keep their numbers, and are sent
        again to learn their seqs; later blocks are numbered from there on."""
        self.rewind(self.in_flight)
        self.stored_pseq = last_pseq
        self.next_pseq = last_pseq + 1
        for block in self.queued:
            if not same_journal or block.pseq > last_pseq:
                block.pseq = 0

    def remove(self, block: Outgoing) -> None:
        """Remove a queued block."""
        self.queued.remove(block)
        self.queued_messages -= block.count
        self.queued_bytes -= len(block.raw)

    def cut(self, block: Outgoing, count: int) -> None:
        """Remove the first messages of a queued block."""
        if count >= block.count:
            self.remove(block)
            return
        size = len(block.raw)
        block.without(0, count)
        self.queued_messages -= count
        self.queued_bytes += len(block.raw) - size

    def withdraw(self, waiter: Ticket) -> bool:
        """Remove the queued message or block that a ticket waits for. False if it was sent, and not refused since: then
        the hub may have it."""
        for block in self.queued:
            for index, other in block.waiters:
                if other is waiter and not block.pseq:
                    self._remove_message(block, index)
                    return True
        return not any(other is waiter for block in self.all() for _, other in block.waiters)

    def _remove_message(self, block: Outgoing, index: int) -> None:
        """Remove one message of a queued block; all of it with -1."""
        if index < 0 or block.count == 1:
            self.remove(block)
            return
        size = len(block.raw)
        block.without(index)
        self.queued_messages -= 1
        self.queued_bytes += len(block.raw) - size
