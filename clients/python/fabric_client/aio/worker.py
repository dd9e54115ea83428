"""Handlers in tasks: `await fab.work(...)` and `await fab.respond(...)`."""

import asyncio
import contextlib
import contextvars
import functools
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from fabric_client.aio.consumer import OnRefresh, tell
from fabric_client.aio.driver import AsyncDriver
from fabric_client.core.handlers import check_ran, is_async, report
from fabric_client.core.message import Message
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.work_loop import Step, WorkLoop
from fabric_client.core.work_queue import give_back
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
    """Run the handler on every message until `count`, or until none came for `timeout` seconds; returns how many."""
    loop = WorkLoop(sub, concurrency, count)
    queue = loop.queue
    threads = None if is_async(call) else Threads(concurrency)
    tasks: set[asyncio.Task[None]] = set()

    async def handle(message: Message) -> None:
        try:
            await _handle(message, call, sub, threads)
        finally:
            loop.finished.append(message)
            driver.run_turn()

    try:
        while (step := loop.step()) is not Step.END:
            if step is Step.BEGIN:
                allowed = not sub.careful or await driver.may_begin(sub, queue.first, timeout)
                if (message := loop.begin(allowed)) is not None:
                    task = asyncio.create_task(handle(message))
                    for group in (tasks, run.workers):
                        group.add(task)
                        task.add_done_callback(group.discard)
            elif step is Step.REFRESH:
                await tell(loop.take_refresh(), on_refresh)
            elif step is Step.TAKE:
                loop.add(await driver.next_item(sub, None if queue.running else timeout, loop.has_finished))
            elif not await driver.wait(loop.must_look, None):
                await asyncio.sleep(POLL_S)  # the client was closed: running handlers may finish nevertheless
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    finally:
        queue.release()
        await _finish(driver, sub, tasks, threads)
    return queue.begun


async def _handle(
    message: Message, call: Callable[[Message], Any], sub: Subscription, threads: "Threads | None"
) -> None:
    """Run the handler on a message, and give its verdict."""
    try:
        if sub.stopped:
            give_back(message)
            return
        async with message:
            with message.span():
                result = call(message) if threads is None else await threads.run(call, message)
                if inspect.isawaitable(result):
                    await result
                elif result is not None:
                    check_ran(result)
    except Exception as error:
        report(message, error)


async def _finish(
    driver: AsyncDriver, sub: Subscription, tasks: "set[asyncio.Task[None]]", threads: "Threads | None"
) -> None:
    """Wait for running handlers, which give their verdicts, and unsubscribe."""
    try:
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        if threads is not None:
            threads.close()
        driver.drop(sub)


class Threads:
    """Runs plain functions in up to `count` threads, without blocking the event loop."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "fabric-worker")

    async def run(self, call: Callable[[T], Any], argument: T) -> Any:
        """The result of the call. A thread cannot be stopped: after a cancel the call still runs to its end."""
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._pool, context.run, call, argument)
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        return future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _replied(handler: Callable[[Request], Any], request: Request) -> Any:
    """The result of a plain function; the replies of a generator are sent here, in its thread."""
    result = handler(request)
    if not inspect.isgenerator(result):
        return result
    for part in result:
        request.reply(part, final=False)
    request.end()
    return None


async def answer(request: Request, handler: Callable[[Request], Any], threads: Threads | None) -> None:
    """Run a handler on a request. Its result is the reply; a generator gives several."""
    try:
        with request.span():
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
    """Answer requests until `count`, or until none came for `timeout` seconds; returns how many."""
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
        await _finish(driver, sub, tasks, threads)
    return begun
