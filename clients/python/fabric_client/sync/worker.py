"""Handlers in threads: `fab.work(...)` and `fab.respond(...)`."""

import inspect
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from typing import Any, Final

from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Request, Responder
from fabric_client.core.subscription import Subscription
from fabric_client.core.work_queue import WorkQueue, check_ran, give_back, report
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
    """Run the handler on every message until `count`, or nothing came for `timeout` seconds; how many it was."""
    queue = WorkQueue(sub, concurrency, count)
    finished: deque[Message] = deque()
    refresh: Refresh | None = None

    def handle(message: Message) -> None:
        run.workers.add(get_ident())
        try:
            if sub.stopped:
                give_back(message)
                return
            with message:
                if (result := call(message)) is not None:
                    check_ran(result)
        except Exception as error:
            report(message, error)
        finally:
            finished.append(message)
            driver.wake_waiters()

    with ThreadPoolExecutor(concurrency, "fabric-worker") as pool:
        try:
            while True:
                while finished:
                    queue.done(finished.popleft())
                is_open = True
                while is_open and queue.can_begin:
                    is_open = not sub.careful or driver.may_begin(sub, queue.first, timeout)
                    if is_open and (message := queue.next()) is not None:
                        pool.submit(handle, message)
                if sub.over:
                    sub.raise_error()
                if sub.over or queue.over or not is_open:
                    break
                if refresh is not None and queue.idle:
                    refresh.tell(on_refresh)
                    refresh = None
                if refresh is None and queue.wants_more:
                    item = driver.next_item(sub, None if queue.running else timeout, lambda: finished)
                    if isinstance(item, Refresh):
                        refresh = item
                    elif item is not None:
                        queue.add(item)
                    elif not finished and queue.idle:
                        break
                elif not driver.wait(lambda: finished or sub.over, None):
                    time.sleep(POLL_S)  # the client was closed: what has begun may end nevertheless
        finally:
            queue.release()
            try:
                pool.shutdown(wait=True)  # what has begun may end, and give its verdict
            finally:
                driver.drop(sub)
    return queue.begun


def answer(request: Request, handler: Callable[[Request], Any]) -> None:
    """Run a handler on a request. What it returns is the answer; a generator gives several."""
    try:
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
    """Answer requests until `count`, or none came for `timeout` seconds; how many it was."""
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
