"""Handlers in tasks: `await fab.work(...)` and `await fab.respond(...)`."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from fabric_client.aio.consumer import OnRefresh, tell
from fabric_client.aio.driver import AsyncDriver
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.work_queue import WorkQueue, check_ran, give_back, is_async, report
from fabric_client.io.handler_runs import HandlerRun

T = TypeVar("T")
POLL_S: Final = 0.01


async def work(
    driver: AsyncDriver,
    sub: Subscription,
    call: Callable[[Message], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    on_refresh: OnRefresh | None,
    run: HandlerRun,
) -> int:
    """Run the handler on every message until `count`, or nothing came for `timeout` seconds; how many it was."""
    queue = WorkQueue(sub, concurrency, count)
    finished: deque[Message] = deque()
    tasks: set[asyncio.Task[None]] = set()
    refresh: Refresh | None = None

    threads = None if is_async(call) else Threads(concurrency)

    async def handle(message: Message) -> None:
        try:
            if sub.stopped:
                give_back(message)
                return
            async with message:
                result = call(message) if threads is None else await threads.run(call, message)
                if inspect.isawaitable(result):
                    await result
                elif result is not None:
                    check_ran(result)
        except Exception as error:
            report(message, error)
        finally:
            finished.append(message)
            driver.run_turn()

    try:
        while True:
            while finished:
                queue.done(finished.popleft())
            is_open = True
            while is_open and queue.can_begin:
                is_open = not sub.careful or await driver.may_begin(sub, queue.first, timeout)
                if is_open and (message := queue.next()) is not None:
                    task = asyncio.create_task(handle(message))
                    for workers in (tasks, run.workers):
                        workers.add(task)
                        task.add_done_callback(workers.discard)
            if sub.over:
                sub.raise_error()
            if sub.over or queue.over or not is_open:
                break
            if refresh is not None and queue.idle:
                await tell(refresh, on_refresh)
                refresh = None
            if refresh is None and queue.wants_more:
                item = await driver.next_item(sub, None if queue.running else timeout, lambda: finished)
                if isinstance(item, Refresh):
                    refresh = item
                elif item is not None:
                    queue.add(item)
                elif not finished and queue.idle:
                    break
            elif not await driver.wait(lambda: finished or sub.over, None):
                await asyncio.sleep(POLL_S)  # the client was closed: what has begun may end nevertheless
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        queue.release()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)  # what has begun may end, and give its verdict
        finally:
            if threads is not None:
                threads.close()
            driver.drop(sub)
    return queue.begun


class Threads:
    """Runs plain functions, so many at once, without holding up the event loop."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "fabric-worker")

    async def run(self, call: Callable[[T], Any], argument: T) -> Any:
        """The result of the call. A thread cannot be stopped: although the task is cancelled, the call may end."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._pool, context.run, call, argument)
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        return future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _replied(handler: Callable[[Request], Any], request: Request) -> Any:
    """What a plain function answers; a generator is gone through here, in its thread."""
    result = handler(request)
    if not inspect.isgenerator(result):
        return result
    for part in result:
        request.reply(part, final=False)
    request.end()
    return None


async def answer(request: Request, handler: Callable[[Request], Any], threads: Threads | None) -> None:
    """Run a handler on a request. What it returns is the answer; a generator gives several."""
    try:
        if threads is None:
            result = handler(request)
        else:
            result = await threads.run(functools.partial(_replied, handler), request)
        if inspect.isasyncgen(result):
            async for part in result:
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
    driver: AsyncDriver,
    sub: Responder,
    handler: Callable[[Request], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    run: HandlerRun,
) -> int:
    """Answer requests until `count`, or none came for `timeout` seconds; how many it was."""
    begun = 0
    tasks: set[asyncio.Task[None]] = set()
    threads = None if is_async(handler) else Threads(concurrency)

    def done(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        run.workers.discard(task)
        driver.run_turn()

    try:
        while begun != count:
            await driver.wait(lambda: len(tasks) < concurrency or sub.over, None)
            request = await driver.next_request(sub, timeout)
            if request is None:
                break
            begun += 1
            task = asyncio.create_task(answer(request, handler, threads))
            tasks.add(task)
            run.workers.add(task)
            task.add_done_callback(done)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if threads is not None:
                threads.close()
            driver.drop(sub)
    return begun
