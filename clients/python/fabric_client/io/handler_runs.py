"""Running calls of `work` and `respond`, each a *run*: how it ends, and which threads or tasks belong to it.

`close()` and SIGTERM end runs: no handler begins after that, and running handlers finish. The client handles SIGTERM
only if the program does not, and only while a run is active that was started in the main thread. After SIGTERM a
program that calls `work` in a loop does not start another run: it exits.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Final

STILL_AT_WORK: Final = "handlers are still running: their messages go back to their groups when the client is closed"


class HandlerRun:
    """One call of `work` or `respond`."""

    __slots__ = ("_end", "is_over", "workers")

    def __init__(self) -> None:
        self.workers: set[Hashable] = set()  # threads or tasks that run, or ran, its handlers
        self.is_over = False  # no handler may begin
        self._end: Callable[[], None] | None = None

    def ends_by(self, end: Callable[[], None]) -> None:
        """Set the function that ends it; called at once if the run is over already."""
        self._end = end
        if self.is_over:
            end()

    def end(self) -> None:
        """End it. Called from any thread, also in a signal handler."""
        self.is_over = True
        if self._end is not None:
            self._end()


class HandlerRuns:
    """The runs of one client."""

    def __init__(self) -> None:
        self._running: set[HandlerRun] = set()
        self._terminated = False

    @contextlib.contextmanager
    def begin(self, member: Hashable, wake: Callable[[], None]) -> Iterator[HandlerRun]:
        """A run for the time of the `with` block, started in a thread or task; `wake` wakes callers that wait for its
        end."""
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
        """Whether there are runs that a thread or task does not belong to."""
        return any(member not in run.workers for run in list(self._running))

    def _terminate(self) -> None:
        self._terminated = True


# SIGTERM.

_runs: dict[HandlerRun, Callable[[], None]] = {}  # runs of all clients, with a function that is called on SIGTERM


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


def _heard(number: int, frame: object) -> None:
    """End all runs. A second SIGTERM ends the program at once, and so does the first if there is no run."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _runs:
        signal.raise_signal(signal.SIGTERM)
    for run, terminate in list(_runs.items()):
        terminate()
        run.end()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
