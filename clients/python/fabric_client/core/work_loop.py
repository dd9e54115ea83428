"""The steps of `work`, decided in one place and taken by both drivers.

`step` names the next step; the driver waits, runs handlers and reports back. Nothing here waits.
"""

from collections import deque
from enum import Enum

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.subscription import Subscription
from fabric_client.core.work_queue import WorkQueue


class Step(Enum):
    BEGIN = "ask whether the next message may begin, then run a handler on the message that `begin` returns"
    REFRESH = "tell the program of the refresh that `take_refresh` returns"
    TAKE = "wait for the next item of the subscription, and `add` it"
    WAIT = "wait until `must_look`"
    END = "the loop is over"


class WorkLoop:
    def __init__(self, sub: Subscription, concurrency: int, count: int | None) -> None:
        self._sub = sub
        self._refresh: Refresh | None = None
        self._over = False
        self.queue = WorkQueue(sub, concurrency, count)
        self.finished: deque[Message] = deque()  # handlers add to it, from any thread

    def step(self) -> Step:
        """The next step. Raises the error of the subscription."""
        queue, sub = self.queue, self._sub
        while self.finished:
            queue.done(self.finished.popleft())
        if self._over:
            return Step.END
        if queue.can_begin:
            return Step.BEGIN
        if sub.over:
            sub.raise_error()
        if sub.over or queue.over:
            return Step.END
        if self._refresh is None:
            return Step.TAKE if queue.wants_more else Step.WAIT
        return Step.REFRESH if queue.idle else Step.WAIT

    def begin(self, allowed: bool) -> Message | None:
        """The message for a handler, if there is one. Without permission the loop ends."""
        if not allowed:
            if self._sub.over:
                self._sub.raise_error()
            self._over = True
            return None
        return self.queue.next()

    def take_refresh(self) -> Refresh:
        refresh, self._refresh = self._refresh, None
        assert refresh is not None
        return refresh

    def add(self, item: Batch | Refresh | None) -> None:
        """An item of the subscription. None means that none came in time: the loop ends if no handler is running."""
        if isinstance(item, Refresh):
            self._refresh = item
        elif item is not None:
            self.queue.add(item)
        elif not self.finished and self.queue.idle:
            self._over = True

    def has_finished(self) -> bool:
        """Whether a handler has finished since the last step."""
        return bool(self.finished)

    def must_look(self) -> bool:
        return bool(self.finished) or self._sub.over
