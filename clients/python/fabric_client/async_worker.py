"""Handlers in tasks: `await fab.work(...)` and `await fab.respond(...)`."""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from fabric_client.async_consumer import OnRefresh, tell
from fabric_client.message import Message
from fabric_client.reactor import Reactor
from fabric_client.refresh import Refresh
from fabric_client.requests import Request, Responder
from fabric_client.subscription import Subscription
from fabric_client.workbench import Bench, caller, report

POLL_S: Final = 0.01


async def work(
    reactor: Reactor,
    sub: Subscription,
    handler: Callable[..., Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    on_refresh: OnRefresh | None,
) -> int:
    """Run the handler on every message until `count`, or nothing came for `timeout` seconds; how many it was."""
    bench = Bench(sub, concurrency, count)
    call = caller(handler)
    finished: deque[Message] = deque()
    tasks: set[asyncio.Task[None]] = set()
    refresh: Refresh | None = None

    async def handle(message: Message) -> None:
        try:
            async with message:
                result = call(message)
                if inspect.isawaitable(result):
                    await result
        except Exception as error:
            report(message, error)
        finally:
            finished.append(message)
            reactor.pump()

    try:
        while True:
            while finished:
                bench.done(finished.popleft())
            while (message := bench.next()) is not None:
                task = asyncio.create_task(handle(message))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if bench.over:
                break
            if refresh is not None and bench.idle:
                await tell(refresh, on_refresh)
                refresh = None
            if refresh is None and bench.hungry:
                item = await reactor.next_item(sub, None if bench.running else timeout, lambda: finished)
                if isinstance(item, Refresh):
                    refresh = item
                elif item is not None:
                    bench.add(item)
                elif not finished and (bench.idle or sub.closed or sub.error):
                    break
            elif not await reactor.wait(lambda: finished, None):
                await asyncio.sleep(POLL_S)  # the client was closed: what has begun may end nevertheless
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        try:
            await asyncio.gather(*tasks, return_exceptions=True)  # what has begun may end, and give its verdict
        finally:
            reactor.drop(sub)
    return bench.begun


async def answer(request: Request, handler: Callable[[Request], Any]) -> None:
    """Run a handler on a request. What it returns is the answer; an async generator gives several."""
    try:
        result = handler(request)
        if inspect.isasyncgen(result):
            async for part in result:
                request.reply(part, final=False)
            request.end()
            return
        if inspect.isgenerator(result):
            for part in result:
                request.reply(part, final=False)
            request.end()
            return
        if inspect.isawaitable(result):
            result = await result
        if not request.answered:
            request.reply(b"" if result is None else result)
    except Exception as error:
        report(request, error)
        request.fail(f"{type(error).__name__}: {error}")


async def respond(
    reactor: Reactor,
    sub: Responder,
    handler: Callable[[Request], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
) -> int:
    """Answer requests until `count`, or none came for `timeout` seconds; how many it was."""
    begun = 0
    tasks: set[asyncio.Task[None]] = set()

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        reactor.pump()

    try:
        while begun != count:
            await reactor.wait(lambda: len(tasks) < concurrency, None)
            request = await reactor.next_request(sub, timeout)
            if request is None:
                break
            begun += 1
            task = asyncio.create_task(answer(request, handler))
            tasks.add(task)
            task.add_done_callback(done)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            reactor.drop(sub)
    return begun
