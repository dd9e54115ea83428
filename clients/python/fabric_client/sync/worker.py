"""Handlers in threads: `fab.work(...)` and `fab.respond(...)`."""

import inspect
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, Final

from fabric_client.core.handlers import check_ran, report
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.work_loop import Step, WorkLoop
from fabric_client.core.work_queue import give_back
from fabric_client.io.handler_runs import HandlerRun
from fabric_client.sync.driver import SyncDriver

POLL_S: Final = 0.01

OnRefresh = Callable[[Refresh], object]


def work(
    driver: SyncDriver,
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

    def handle(message: Message) -> None:
        run.workers.add(get_ident())
        try:
            _handle(message, call, sub)
        finally:
            loop.finished.append(message)
            driver.wake_waiters()

    with ThreadPoolExecutor(concurrency, "fabric-worker") as pool:
        try:
            while (step := loop.step()) is not Step.END:
                if step is Step.BEGIN:
                    allowed = not sub.careful or driver.may_begin(sub, queue.first, timeout)
                    if (message := loop.begin(allowed)) is not None:
                        pool.submit(handle, message)
                elif step is Step.REFRESH:
                    loop.take_refresh().tell(on_refresh)
                elif step is Step.TAKE:
                    loop.add(driver.next_item(sub, None if queue.running else timeout, loop.has_finished))
                elif not driver.wait(loop.must_look, None):
                    time.sleep(POLL_S)  # the client was closed: running handlers may finish nevertheless
        finally:
            queue.release()
            try:
                pool.shutdown(wait=True)  # running handlers finish, and give their verdicts
            finally:
                driver.drop(sub)
    return queue.begun


def _handle(message: Message, call: Callable[[Message], Any], sub: Subscription) -> None:
    """Run the handler on a message, and give its verdict."""
    try:
        if sub.stopped:
            give_back(message)
            return
        with message, message.span():
            if (result := call(message)) is not None:
                check_ran(result)
    except Exception as error:
        report(message, error)


def answer(request: Request, handler: Callable[[Request], Any]) -> None:
    """Run a handler on a request. Its result is the reply; a generator gives several."""
    try:
        with request.span():
            result = handler(request)
            if inspect.isgenerator(result):
                for part in result:
                    request.reply(part, final=False)
                request.end()
            elif not request.answered:
                request.reply(b"" if result is None else result)
    except Exception as error:
        report(request, error)
        request.fail(f"{type(error).__name__}: {error}")


def respond(
    driver: SyncDriver,
    sub: Responder,
    handler: Callable[[Request], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    run: HandlerRun,
) -> int:
    """Answer requests until `count`, or until none came for `timeout` seconds; returns how many."""
    begun = 0
    running: set[Request] = set()

    def handle(request: Request) -> None:
        run.workers.add(get_ident())
        try:
            answer(request, handler)
        finally:
            running.discard(request)
            driver.wake_waiters()

    with ThreadPoolExecutor(concurrency, "fabric-responder") as pool:
        try:
            while begun != count:
                driver.wait(lambda: len(running) < concurrency or sub.over, None)
                request = driver.next_request(sub, timeout)
                if request is None:
                    break
                running.add(request)
                begun += 1
                pool.submit(handle, request)
        finally:
            try:
                pool.shutdown(wait=True)
            finally:
                driver.drop(sub)
    return begun
