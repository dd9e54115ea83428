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
from fabric_client.core.work_queue import Bench, check_ran, give_back, report
from fabric_client.io.shifts import Shift
from fabric_client.sync.driver import Pump

POLL_S: Final = 0.01

OnRefresh = Callable[[Refresh], object]


def work(
    pump: Pump,
    sub: Subscription,
    call: Callable[[Message], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    on_refresh: OnRefresh | None,
    shift: Shift,
) -> int:
    """Run the handler on every message until `count`, or nothing came for `timeout` seconds; how many it was."""
    bench = Bench(sub, concurrency, count)
    finished: deque[Message] = deque()
    refresh: Refresh | None = None

    def handle(message: Message) -> None:
        shift.crew.add(get_ident())
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
            pump.poke()

    with ThreadPoolExecutor(concurrency, "fabric-worker") as pool:
        try:
            while True:
                while finished:
                    bench.done(finished.popleft())
                is_open = True
                while is_open and bench.can_begin:
                    is_open = not sub.careful or pump.may_begin(sub, bench.first, timeout)
                    if is_open and (message := bench.next()) is not None:
                        pool.submit(handle, message)
                if sub.over:
                    sub.complain()
                if sub.over or bench.over or not is_open:
                    break
                if refresh is not None and bench.idle:
                    refresh.tell(on_refresh)
                    refresh = None
                if refresh is None and bench.hungry:
                    item = pump.next_item(sub, None if bench.running else timeout, lambda: finished)
                    if isinstance(item, Refresh):
                        refresh = item
                    elif item is not None:
                        bench.add(item)
                    elif not finished and bench.idle:
                        break
                elif not pump.wait(lambda: finished or sub.over, None):
                    time.sleep(POLL_S)  # the client was closed: what has begun may end nevertheless
        finally:
            bench.release()
            try:
                pool.shutdown(wait=True)  # what has begun may end, and give its verdict
            finally:
                pump.drop(sub)
    return bench.begun


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
    pump: Pump,
    sub: Responder,
    handler: Callable[[Request], Any],
    concurrency: int,
    count: int | None,
    timeout: float | None,
    shift: Shift,
) -> int:
    """Answer requests until `count`, or none came for `timeout` seconds; how many it was."""
    begun = 0
    running: set[Request] = set()

    def handle(request: Request) -> None:
        shift.crew.add(get_ident())
        try:
            answer(request, handler)
        finally:
            running.discard(request)
            pump.poke()

    with ThreadPoolExecutor(concurrency, "fabric-responder") as pool:
        try:
            while begun != count:
                pump.wait(lambda: len(running) < concurrency or sub.over, None)
                request = pump.next_request(sub, timeout)
                if request is None:
                    break
                running.add(request)
                begun += 1
                pool.submit(handle, request)
        finally:
            try:
                pool.shutdown(wait=True)
            finally:
                pump.drop(sub)
    return begun
