"""Which message may be handled next, when several are handled at once. Shared by both twins; no threads, no waiting.

In an ordered group the hub sends several messages of a key ahead; here they wait for one another, so that the handler
sees one of them at a time, in order.
"""

import contextlib
import inspect
import logging
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.subscription import Subscription
from fabric_client.errors import Closed, Stale
from fabric_protocol.errors import FabricError

log = logging.getLogger("fabric_client")


class WorkQueue:
    """Messages that wait for a handler, and how many handlers are at work."""

    def __init__(self, sub: Subscription, concurrency: int, count: int | None) -> None:
        self._sub = sub
        self._concurrency = concurrency
        self._left = count  # how many may still begin
        self._ready: list[tuple[int, int, Message]] = []  # a heap: the oldest delivery first, as the hub thinks
        self._queues: dict[bytes, deque[Message]] = {}  # by key: behind a message that is ready or being handled
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
        """A message to begin with now."""
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
        """The handler is through with it."""
        self.running -= 1
        self._pass_on(message)

    def release(self) -> None:
        """Nothing more is begun: what waits goes back to the group at once."""
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
        """What the next message to begin with belongs to."""
        return self._ready[0][-1].batch

    @property
    def wants_more(self) -> bool:
        """Whether there is nothing to begin with although someone is free."""
        return not self._ready and self.running < self._concurrency and self._left != 0

    @property
    def idle(self) -> bool:
        return not self.running and not self._ready

    @property
    def over(self) -> bool:
        """Whether as many as wanted have been handled."""
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
    """A message is not begun, and goes to another consumer; with a closed subscription it has gone back already."""
    if not message.lost:
        with contextlib.suppress(Closed):
            message.release()


def caller(handler: Callable[..., Any] | None, *, coroutines: bool = True) -> Callable[[Message], Any]:
    """A function of the message alone: a handler that takes two arguments gets the message's context as well. A handler
    that cannot be called with a message is refused here, before the first message is handed to it."""
    form = "handler(message) or handler(message, context)"
    required = check_handler(handler, form, 2, coroutines=coroutines, generators=False)
    assert handler is not None
    if required < 2:
        return handler
    if is_async(handler):

        async def call(message: Message) -> Any:
            return await handler(message, message.context)

        return call
    return lambda message: handler(message, message.context)


def check_handler(
    handler: Callable[..., Any] | None,
    form: str,
    most: int,
    *,
    what: str = "handler",
    coroutines: bool = True,
    generators: bool = True,
) -> int:
    """How many arguments a handler needs, which may be up to `most`. Raises when it cannot be called in this form, or
    when the call alone would run nothing of it."""
    if not callable(handler):
        raise FabricError(f"{what} {handler!r} is not a function", f"give a function: {form}")
    if not coroutines and is_async(handler):
        hint = f"give a plain function, {form}, or use the asyncio client: aconnect()"
        raise FabricError(f"the {what} is a coroutine function, which the blocking client does not run", hint)
    if not generators and _is_any(handler, inspect.isgeneratorfunction, inspect.isasyncgenfunction):
        hint = f"give a function without yield: {form}"
        raise FabricError(f"the {what} is a generator: to call it runs nothing of it", hint)
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # some built-ins do not tell
        return 1
    parameters = signature.parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in plain if p.default is p.empty]
    named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if named or len(required) > most or not (plain or takes_any):
        arguments = signature.replace(return_annotation=signature.empty)
        raise FabricError(f"the {what} takes {arguments}, which does not fit", f"it is called as {form}")
    return len(required)


def check_on_refresh(hook: Callable[..., Any] | None, *, coroutines: bool = True) -> None:
    """Raise unless `on_refresh` is a function of the refresh, or nothing."""
    if hook is not None:
        form = "on_refresh(refresh)"
        check_handler(hook, form, 1, what="on_refresh", coroutines=coroutines, generators=False)


def check_ran(result: Any) -> None:
    """Raise when what a handler has returned is work that nothing runs, so that its message is not acked."""
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()  # so that Python does not warn of it besides
        raise TypeError("the handler returned a coroutine, which the blocking client does not run; use aconnect()")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError("the handler returned a generator, which nothing runs")


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling the handler only makes a coroutine or an async generator, which runs in the event loop."""
    return _is_any(handler, inspect.iscoroutinefunction, inspect.isasyncgenfunction)


def _is_any(handler: Callable[..., Any], *kinds: Callable[[object], bool]) -> bool:
    call = getattr(handler, "__call__", None)  # noqa: B004  an object with an async __call__
    return any(kind(function) for kind in kinds for function in (handler, call))


def report(message: Message, error: Exception) -> None:
    """A handler failed, or its transaction did. The verdict has been given already; here someone hears of it."""
    if isinstance(error, Stale):
        log.warning("%s seq %d was taken back before it was done: %s", message.topic, message.seq, error)
    else:
        log.error("the handler failed on %s seq %d, attempt %d", message.topic, message.seq, message.attempt,
                  exc_info=error)  # fmt: skip
