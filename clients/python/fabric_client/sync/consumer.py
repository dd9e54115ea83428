"""The loop over messages or batches: `for msg in fab.consume(...)`.

A consumer is an iterator that must unsubscribe at its end, whether the program leaves the loop, calls `close()` or
drops it. So the loop is a generator whose `finally` unsubscribes; it is started at once, because the `finally` of a
generator that was never started does not run."""

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import Generic, TypeVar, cast

from fabric_client import spans
from fabric_client.core.batch import Batch
from fabric_client.core.in_hand import InHand
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Seconds, patience
from fabric_client.options import ANSWER_S
from fabric_client.sync.driver import SyncDriver

T = TypeVar("T")
OnRefresh = Callable[[Refresh], object]


class Consumer(Generic[T]):
    """An iterator for one thread at a time. Verdicts may be given from any thread until the consumer is closed; `stop`
    and `close` may be called from any thread."""

    def __init__(
        self, owner: object, driver: SyncDriver, sub: Subscription, loop: "Generator[T | None, None, None]"
    ) -> None:
        self._owner = owner  # keeps the client alive as long as this iterator
        self._driver = driver
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

    def ready(self, refresh: Refresh | int, timeout: Seconds | None = ANSWER_S) -> None:
        """Tell the hub that the local copy is in use again after a refresh; returns after the hub's answer."""
        number = refresh.number if isinstance(refresh, Refresh) else refresh
        ticket = Ticket()
        self._driver.check()
        with self._driver.lock:
            self._driver.session.ready(self._sub, number, ticket)
        self._driver.result(ticket, patience(timeout), "the hub did not answer a READY")

    def stop(self) -> None:
        """End the loop at its next step, from any thread or a signal handler. Messages that the loop has not handed out
        go back to the group at once; the message in hand may be settled."""
        self._driver.halt(self._sub)

    def close(self) -> None:
        """Unsubscribe, and end the loop; from any thread. Messages without a verdict go back to the group, which does
        not count as an attempt."""
        try:
            self._loop.close()
        except ValueError:  # another thread waits in it
            self._driver.drop(self._sub)

    def __enter__(self) -> "Consumer[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def messages(
    owner: object,
    driver: SyncDriver,
    sub: Subscription,
    count: int | None,
    timeout: float | None,
    on_refresh: OnRefresh | None,
) -> Generator[Message | None, None, None]:
    left = -1 if count is None else count
    try:
        yield None
        while left:
            began_ns = spans.clock()
            batch = driver.next_item(sub, timeout)
            if batch is None:
                return
            if isinstance(batch, Refresh):
                batch.tell(on_refresh)
                continue
            sub.in_hand = InHand(batch, bodies := iter(batch.payloads))
            is_traced = spans.is_traced(batch)
            for index, body in enumerate(bodies):
                if sub.careful:
                    if not driver.may_begin(sub, batch, timeout):
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


def batches(
    owner: object,
    driver: SyncDriver,
    sub: Subscription,
    count: int | None,
    timeout: float | None,
    on_refresh: OnRefresh | None,
) -> Generator[Batch | None, None, None]:
    left = -1 if count is None else count
    try:
        yield None
        while left:
            began_ns = spans.clock()
            batch = driver.next_item(sub, timeout)
            if batch is None:
                return
            if isinstance(batch, Refresh):
                batch.tell(on_refresh)
                continue
            if sub.careful:
                if not driver.may_begin(sub, batch, timeout):
                    return
                if batch.is_void:
                    continue
            if spans.is_traced(batch):
                spans.received_all("receive", batch, began_ns, sub.group)
            yield batch
            left -= batch.count
            if count is not None and left <= 0:
                return
    finally:
        driver.drop(sub)


def requests(
    owner: object, driver: SyncDriver, sub: Responder, count: int | None, timeout: float | None
) -> Generator[Request | None, None, None]:
    left = -1 if count is None else count
    try:
        yield None
        while left:
            request = driver.next_request(sub, timeout)
            if request is None:
                return
            yield request
            left -= 1
    finally:
        driver.drop(sub)
