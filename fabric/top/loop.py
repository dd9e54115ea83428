"""The loop: asks the hub at an interval, draws the view when something has changed, and obeys keys and signals.

All of it runs in one thread, on one event loop, so a hub that does not answer does not delay a key.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fabric.cli import EXIT_INTERRUPTED
from fabric.top.keyboard import ESCAPE_S, Keyboard
from fabric.top.model import Model
from fabric.top.screen import Screen
from fabric.top.source import Source
from fabric.top.state import State
from fabric.top.view import Link, screen
from fabric_client.errors import ConnectionLost, HubError, Timeout

if TYPE_CHECKING:
    from fabric_client import AsyncClient

REDRAW_S: Final = 1.0  # the view is drawn at least this often: ages grow without an answer of the hub
LINK_S: Final = 0.2  # how often the connection is looked at
ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Top:
    """A live view. `run` returns the exit code."""

    def __init__(self, fab: "AsyncClient", url: str, state: State, interval_s: float, timeout_s: float) -> None:
        self._fab = fab
        self._url = url
        self._state = state
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._model = Model()
        self._source = Source(fab)
        self._changed = asyncio.Event()
        self._going_on = asyncio.Event()  # not paused
        self._going_on.set()
        self._answered_s = time.monotonic()  # when the hub answered last
        self._why = ""  # why it did not, if it did not
        self._error: BaseException | None = None  # the reason for an end
        self._code = 0
        self._screen = Screen()
        self._keyboard = Keyboard(sys.stdin.fileno()) if has_keys() else None

    async def run(self) -> int:
        with contextlib.ExitStack() as stack:
            stack.enter_context(silent_client())
            stack.enter_context(self._signals())
            stack.enter_context(self._screen)
            if self._keyboard is not None:
                stack.enter_context(self._keyboard)
                asyncio.get_running_loop().add_reader(self._keyboard.fd, self._read)
                stack.callback(asyncio.get_running_loop().remove_reader, self._keyboard.fd)
            poll = asyncio.create_task(self._poll())
            poll.add_done_callback(self._poll_ended)
            try:
                await self._draw_until_the_end()
            finally:
                poll.cancel()
                await asyncio.gather(poll, return_exceptions=True)
        if self._error is not None:
            raise self._error
        return self._code

    # The hub.

    async def _poll(self) -> None:
        """Ask the hub again and again."""
        while True:
            await self._going_on.wait()
            begun_s = time.monotonic()
            try:
                pulse = await self._source.ask(self._timeout_s)
            except (Timeout, ConnectionLost, HubError) as error:
                self._why = str(error)
            else:
                self._answered_s, self._why = time.monotonic(), ""
                if self._source.has_restarted():
                    self._model.restart()
                if self._state.is_paused:
                    self._source.begin_anew()
                else:
                    self._model.merge(pulse, self._answered_s)
            self._changed.set()
            await asyncio.sleep(max(begun_s + self._interval_s - time.monotonic(), 0.01))

    def _poll_ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(0, error)

    def _link(self, now_s: float) -> Link:
        is_up = self._fab.connected and not self._why
        return Link(
            self._url,
            is_up,
            now_s - self._answered_s,
            self._why if self._fab.connected else "",
            time.strftime("%H:%M:%S"),
            self._keyboard is not None,
        )

    # The terminal.

    async def _draw_until_the_end(self) -> None:
        drawn_s, was_up = float("-inf"), True
        while not self._state.is_over:
            now_s = time.monotonic()
            link = self._link(now_s)
            if self._changed.is_set() or link.is_up != was_up or now_s - drawn_s >= REDRAW_S:
                self._changed.clear()
                drawn_s, was_up = now_s, link.is_up
                self._draw(link, now_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), LINK_S)

    def _draw(self, link: Link, now_s: float) -> None:
        size = self._screen.size()
        shown_s = self._shown_s(now_s)
        self._screen.draw(screen(self._model, self._state, link, shown_s, size.width, size.height), size)

    def _shown_s(self, now_s: float) -> float:
        """The time of the view: that of the last answer while it is paused or the hub does not answer."""
        merged_s = self._model.merged_s
        return now_s if merged_s is None or not (self._state.is_paused or self._why) else merged_s

    def _read(self) -> None:
        assert self._keyboard is not None
        keys = self._keyboard.read()
        if keys is None:
            self._end(0)
            return
        self._press(keys)
        if self._keyboard.keys.is_open:
            asyncio.get_running_loop().call_later(ESCAPE_S, self._escape)

    def _escape(self) -> None:
        assert self._keyboard is not None
        self._press(self._keyboard.keys.rest())

    def _press(self, keys: list[str]) -> None:
        for key in keys:
            self._state.press(key, self._state.ordered(self._model, self._shown_s(time.monotonic())))
        if self._state.is_paused:
            self._going_on.clear()
        else:
            self._going_on.set()
        if keys:
            self._changed.set()

    # Signals.

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in ENDS:
            loop.add_signal_handler(number, self._end, EXIT_INTERRUPTED)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        try:
            yield
        finally:
            for number in (*ENDS, signal.SIGWINCH, signal.SIGTSTP):
                loop.remove_signal_handler(number)

    def _end(self, code: int, error: BaseException | None = None) -> None:
        self._code, self._error, self._state.is_over = code, error, True
        self._changed.set()

    def _suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop, and take it again when the shell continues this process."""
        if self._keyboard is not None:
            self._keyboard.leave()
        self._screen.leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._screen.enter()
        if self._keyboard is not None:
            self._keyboard.enter()
        self._changed.set()


def has_keys() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


@contextlib.contextmanager
def silent_client() -> Iterator[None]:
    """Warnings of the client would be written over the view, which shows the same."""
    logger = logging.getLogger("fabric_client")
    before = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before
