"""Calls of `work` and `respond` that are under way, each a shift: what ends it, and which threads or tasks are at work.

`close()` and SIGTERM end shifts: no handler begins after that, and handlers at work may finish. SIGTERM is listened to
only where the program does not do so itself, and as long as a shift is under way that was begun in the main thread. A
program that works in a loop is not meant to begin another shift then: it ends instead.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final

STILL_AT_WORK: Final = "handlers are still at work: their messages go back to their groups when the client is closed"


class Shift:
    """One call of `work` or `respond`."""

    __slots__ = ("_end", "crew", "is_over")

    def __init__(self) -> None:
        self.crew: set[Hashable] = set()  # threads or tasks that are, or were, at work in it
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


class Shifts:
    """The shifts of one client."""

    def __init__(self) -> None:
        self._running: set[Shift] = set()
        self._terminated = False

    @contextlib.contextmanager
    def begin(self, member: Hashable, wake: Callable[[], None]) -> Iterator[Shift]:
        """A shift for the time of the `with` block, in a thread or task; `wake` tells callers that wait of its end."""
        if self._terminated:
            raise SystemExit(0)
        shift = Shift()
        shift.crew.add(member)
        self._running.add(shift)
        try:
            with _listening(shift, self._terminate):
                yield shift
        finally:
            self._running.discard(shift)
            wake()

    def others(self, member: Hashable) -> bool:
        """Whether shifts are under way that a thread or task is no part of."""
        return any(member not in shift.crew for shift in list(self._running))

    def _terminate(self) -> None:
        self._terminated = True


# SIGTERM.

_shifts: dict[Shift, Callable[[], None]] = {}  # of all clients of this process, and what is called besides


@contextlib.contextmanager
def _listening(shift: Shift, terminate: Callable[[], None]) -> Iterator[None]:
    _shifts[shift] = terminate
    if _is_main() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _heard)
    try:
        yield
    finally:
        del _shifts[shift]
        if not _shifts and _is_main() and signal.getsignal(signal.SIGTERM) is _heard:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _heard(number: int, frame: Any) -> None:
    """End all shifts. A second signal ends the program at once, and so does the first where no shift is left."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _shifts:
        signal.raise_signal(signal.SIGTERM)
    for shift, terminate in list(_shifts.items()):
        terminate()
        shift.end()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
