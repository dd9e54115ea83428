"""The loop over messages or batches: `for msg in fab.consume(...)`.

A consumer is an iterator that must end well: leaving the loop, `close()` and being forgotten all unsubscribe. So the
work is in a generator whose `finally` does it, and which is started at once so that the `finally` is sure to run.
"""

from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Generic, TypeVar, cast

from fabric_client.message import Batch, Message
from fabric_client.pump import Pump
from fabric_client.subscription import Subscription

T = TypeVar("T")


class Consumer(Generic[T]):
    """Iterate it, from one thread at a time. Verdicts may be given from any thread, until the consumer is closed."""

    def __init__(self, owner: object, sub: Subscription, loop: "Generator[T | None, None, None]") -> None:
        self._owner = owner  # keeps the client alive as long as someone iterates
        self._sub = sub
        self._loop = loop
        next(loop)

    @property
    def group(self) -> str | None:
        return self._sub.group

    def __iter__(self) -> Iterator[T]:
        return cast(Iterator[T], self._loop)  # None is yielded once, in __init__

    def __next__(self) -> T:
        return cast(T, next(self._loop))

    def close(self) -> None:
        """Unsubscribe. What has no verdict yet goes back to the group, uncounted."""
        self._loop.close()

    def __enter__(self) -> "Consumer[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def messages(
    owner: object, pump: Pump, sub: Subscription, count: int | None, timeout: float | None
) -> Generator[Message | None, None, None]:
    left = -1 if count is None else count
    try:
        yield None
        while left:
            batch = pump.next_batch(sub, timeout)
            if batch is None:
                return
            for index, body in enumerate(batch.payloads):
                yield Message(batch, index, body)
                left -= 1
                if not left:
                    break
    finally:
        pump.drop(sub)


def batches(
    owner: object, pump: Pump, sub: Subscription, count: int | None, timeout: float | None
) -> Generator[Batch | None, None, None]:
    left = -1 if count is None else count
    try:
        yield None
        while left:
            batch = pump.next_batch(sub, timeout)
            if batch is None:
                return
            yield batch
            left -= batch.count
            if count is not None and left <= 0:
                return
    finally:
        pump.drop(sub)
