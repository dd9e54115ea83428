"""Calls of `work` and `respond` that are under way, each a run: what ends it, and which threads or tasks are at work.

`close()` and SIGTERM end shifts: no handler begins after that, and handlers at work may finish. SIGTERM is listened to
only where the program does not do so itself, and as long as a run is under way that was begun in the main thread. A
program that works in a loop is not meant to begin another run then: it ends instead.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

STILL_AT_WORK: Final = "handlers are still at work: their messages go back to their groups when the client is closed"


class HandlerRun:
    """One call of `work` or `respond`."""

    __slots__ = ("_end", "is_over", "workers")

    def __init__(self) -> None:
        self.workers: set[Hashable] = set()  # threads or tasks that are, or were, at work in it
        self.is_over = False  # no handler is to begin any more
        self._end: Callable[[], None] | None = None

    def ends_by(self, end: Callable[[], None]) -> None:
        """How to end it; done at once if it was meant to end before."""
        self._end = end
        if self.is_over:
            end()

    def end(self) -> None:
        """Called from any thread, also in a signal handler."""
        self.is_over = True
        if self._end is not None:
            self._end()


class HandlerRuns:
    """The shifts of one client."""

    def __init__(self) -> None:
        self._running: set[HandlerRun] = set()
        self._terminated = False

    @contextlib.contextmanager
    def begin(self, member: Hashable, wake: Callable[[], None]) -> Iterator[HandlerRun]:
        """A run for the time of the `with` block, in a thread or task; `wake` tells callers that wait of its end."""
        if self._terminated:
            raise SystemExit(0)
        run = HandlerRun()
        run.workers.add(member)
        self._running.add(run)
        try:
            with _listening(run, self._terminate):
                yield run
        finally:
            self._running.discard(run)
            wake()

    def others(self, member: Hashable) -> bool:
        """Whether shifts are under way that a thread or task is no part of."""
        return any(member not in run.workers for run in list(self._running))

    def _terminate(self) -> None:
        self._terminated = True


# SIGTERM.

_runs: dict[HandlerRun, Callable[[], None]] = {}  # of all clients of this process, and what is called besides


@contextlib.contextmanager
def _listening(run: HandlerRun, terminate: Callable[[], None]) -> Iterator[None]:
    _runs[run] = terminate
    if _is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _heard)
    try:
        yield
    finally:
        del _runs[run]
        if not _runs and _is_main() and signal.getsignal(signal.SIGTERM) is _heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _heard(number: int, frame: Any) -> None:
    """End all shifts. A second signal ends the program at once, and so does the first where no run is left."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _runs:
        signal.raise_signal(signal.SIGTERM)
    for run, terminate in list(_runs.items()):
        terminate()
        run.end()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
