"""The messages that wait for a handler of `work`, and the order in which handlers get them.

In an ordered group the hub sends several messages of a key ahead; here each waits for the message before it, so that
handlers get the messages of a key one at a time, in order.
"""

import contextlib
from collections import deque
from heapq import heappop, heappush

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.subscription import Subscription
from fabric_client.errors import Closed


class WorkQueue:
    """Messages that wait for a handler, and how many handlers are running."""

    def __init__(self, sub: Subscription, concurrency: int, count: int | None) -> None:
        self._sub = sub
        self._concurrency = concurrency
        self._left = count  # messages that may still begin; None: any number
        self._ready: list[tuple[int, int, Message]] = []  # a heap, oldest delivery first: the hub assumes this order
        self._queues: dict[bytes, deque[Message]] = {}  # by key: wait for a message that is ready or running
        self.begun = 0
        self.running = 0

    def add(self, batch: Batch) -> None:
        for message in batch:
            key = self._key(message)
            if key and key in self._queues:
                self._queues[key].append(message)
            else:
                if key:
                    self._queues[key] = deque()
                self._push(message)

    def next(self) -> Message | None:
        """The next message for a handler, if one may begin now."""
        while self.can_begin:
            message = heappop(self._ready)[-1]
            if message.lost:
                self._pass_on(message)
                continue
            self.running += 1
            self.begun += 1
            if self._left is not None:
                self._left -= 1
            return message
        return None

    def done(self, message: Message) -> None:
        """A handler has finished."""
        self.running -= 1
        self._pass_on(message)

    def release(self) -> None:
        """Return all waiting messages to the group at once."""
        waiting = [row[-1] for row in self._ready] + [message for queue in self._queues.values() for message in queue]
        self._ready.clear()
        self._queues.clear()
        for message in waiting:
            give_back(message)

    @property
    def can_begin(self) -> bool:
        return bool(self._ready) and self.running < self._concurrency and self._left != 0

    @property
    def first(self) -> Batch:
        """The batch of the next message."""
        return self._ready[0][-1].batch

    @property
    def wants_more(self) -> bool:
        """Whether a handler is free and no message is ready."""
        return not self._ready and self.running < self._concurrency and self._left != 0

    @property
    def idle(self) -> bool:
        return not self.running and not self._ready

    @property
    def over(self) -> bool:
        """Whether `count` messages have been handled."""
        return self._left == 0 and not self.running

    def _push(self, message: Message) -> None:
        batch = message.batch
        heappush(self._ready, (batch.generation, batch.first_ordinal + message.index, message))

    def _key(self, message: Message) -> bytes:
        waiting_keys = self._sub.waiting_keys
        return waiting_keys.key_of(message.batch, message.index) if waiting_keys.ordered else b""

    def _pass_on(self, message: Message) -> None:
        key = self._key(message)
        if not key:
            return
        queue = self._queues[key]
        if queue:
            self._push(queue.popleft())
        else:
            del self._queues[key]


def give_back(message: Message) -> None:
    """Release a message that was not begun; if the subscription is closed, the hub has it already."""
    if not message.lost:
        with contextlib.suppress(Closed):
            message.release()
