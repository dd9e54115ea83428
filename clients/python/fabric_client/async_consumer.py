"""The asyncio loop over messages or batches: `async for msg in fab.consume(...)`."""

from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Generic, TypeVar

from fabric_client.message import Batch, Message
from fabric_client.reactor import Reactor
from fabric_client.subscription import Subscription

T = TypeVar("T")


class AsyncConsumer(Generic[T]):
    """Iterate it with `async for`."""

    def __init__(self, sub: Subscription, loop: AsyncGenerator[T, None]) -> None:
        self._sub = sub
        self._loop = loop

    @property
    def group(self) -> str | None:
        return self._sub.group

    def __aiter__(self) -> AsyncIterator[T]:
        return self._loop

    async def __anext__(self) -> T:
        return await self._loop.__anext__()

    async def close(self) -> None:
        """Unsubscribe. What has no verdict yet goes back to the group, uncounted."""
        await self._loop.aclose()

    async def __aenter__(self) -> "AsyncConsumer[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def messages(
    reactor: Reactor, sub: Subscription, count: int | None, timeout: float | None
) -> AsyncGenerator[Message, None]:
    left = -1 if count is None else count
    try:
        while left and (batch := await reactor.next_batch(sub, timeout)) is not None:
            for index, body in enumerate(batch.payloads):
                yield Message(batch, index, body)
                left -= 1
                if not left:
                    break
    finally:
        reactor.drop(sub)


async def batches(
    reactor: Reactor, sub: Subscription, count: int | None, timeout: float | None
) -> AsyncGenerator[Batch, None]:
    left = -1 if count is None else count
    try:
        while left and (batch := await reactor.next_batch(sub, timeout)) is not None:
            yield batch
            left = left if count is None else max(0, left - batch.count)
    finally:
        reactor.drop(sub)
