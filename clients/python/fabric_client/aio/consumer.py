"""The asyncio loop over messages or batches: `async for msg in fab.consume(...)`."""

import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from fabric_client import spans
from fabric_client.aio.driver import AsyncDriver
from fabric_client.core.batch import Batch
from fabric_client.core.in_hand import InHand
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Seconds, patience
from fabric_client.options import ANSWER_S

T = TypeVar("T")
OnRefresh = Callable[[Refresh], object]


class AsyncConsumer(Generic[T]):
    """An iterator for `async for`."""

    def __init__(self, driver: AsyncDriver, sub: Subscription, loop: AsyncGenerator[T, None]) -> None:
        self._driver = driver
        self._sub = sub
        self._loop = loop
        # The `finally` of a generator that was never started does not run.
        weakref.finalize(loop, driver.drop, sub).atexit = False

    @property
    def group(self) -> str | None:
        return self._sub.group

    def __aiter__(self) -> AsyncIterator[T]:
        return self._loop

    async def __anext__(self) -> T:
        return await self._loop.__anext__()

    async def ready(self, refresh: Refresh | int, timeout: Seconds | None = ANSWER_S) -> None:
        """Tell the hub that the local copy is in use again after a refresh; returns after the hub's answer."""
        number = refresh.number if isinstance(refresh, Refresh) else refresh
        ticket = Ticket()
        self._driver.check()
        self._driver.session.ready(self._sub, number, ticket)
        self._driver.run_turn()
        await self._driver.result(ticket, patience(timeout), "the hub did not answer a READY")

    def stop(self) -> None:
        """End the loop at its next step, from any task, thread or signal handler. Messages that the loop has not handed
        out go back to the group at once; the message in hand may be settled."""
        self._driver.halt(self._sub)

    async def close(self) -> None:
        """Unsubscribe, and end the loop; from any task. Messages without a verdict go back to the group, which does not
        count as an attempt."""
        with contextlib.suppress(RuntimeError):  # another task waits in it
            await self._loop.aclose()
        self._driver.drop(self._sub)

    async def __aenter__(self) -> "AsyncConsumer[T]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def tell(refresh: Refresh, on_refresh: OnRefresh | None) -> None:
    """Call the program's `on_refresh`, and await its result if it is awaitable."""
    answer = refresh.tell(on_refresh)
    if isinstance(answer, Awaitable):
        await answer


async def messages(
    driver: AsyncDriver, sub: Subscription, count: int | None, timeout: float | None, on_refresh: OnRefresh | None
) -> AsyncGenerator[Message, None]:
    left = -1 if count is None else count
    try:
        while left:
            began_ns = spans.clock()
            batch = await driver.next_item(sub, timeout)
            if batch is None:
                return
            if isinstance(batch, Refresh):
                await tell(batch, on_refresh)
                continue
            sub.in_hand = InHand(batch, bodies := iter(batch.payloads))
            is_traced = spans.is_traced(batch)
            for index, body in enumerate(bodies):
                if sub.careful:
                    if not await driver.may_begin(sub, batch, timeout):
                        return
                    if batch.is_gone(index):
                        continue
                if is_traced:
                    began_ns = spans.received(batch.message(index), began_ns)
                yield Message(batch, index, body)
                left -= 1
                if not left:
                    break
    finally:
        driver.drop(sub)


async def batches(
    driver: AsyncDriver, sub: Subscription, count: int | None, timeout: float | None, on_refresh: OnRefresh | None
) -> AsyncGenerator[Batch, None]:
    left = -1 if count is None else count
    try:
        while left:
            began_ns = spans.clock()
            batch = await driver.next_item(sub, timeout)
            if batch is None:
                return
            if isinstance(batch, Refresh):
                await tell(batch, on_refresh)
                continue
            if sub.careful:
                if not await driver.may_begin(sub, batch, timeout):
                    return
                if batch.is_void:
                    continue
            if spans.is_traced(batch):
                spans.received_all("receive", batch, began_ns, sub.group)
            yield batch
            left = left if count is None else max(0, left - batch.count)
    finally:
        driver.drop(sub)


async def requests(
    driver: AsyncDriver, sub: Responder, count: int | None, timeout: float | None
) -> AsyncGenerator[Request, None]:
    left = -1 if count is None else count
    try:
        while left and (request := await driver.next_request(sub, timeout)) is not None:
            yield request
            left -= 1
    finally:
        driver.drop(sub)
