"""JournalThread commits turns in order, and wakes the hub when they are on disk.

While it commits some turns, the hub gathers the next ones. So commits become larger under load, without a timer.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

from fabric.journal.journal import Journal
from fabric.records import Record
from fabric_protocol.errors import FabricError

TRIM_EVERY_S: Final = 1.0
ALIVE_EVERY_S: Final = 0.5


class Committed(NamedTuple):
    seconds: float


class Trimmed(NamedTuple):
    first_seq: int


class Begins(NamedTuple):
    """The journal begins at a later seq, and no message was removed: only holes were before it."""

    first_seq: int


class TrimWanted(NamedTuple):
    """Retention would remove messages below this seq, but the router still holds them."""

    seq: int


class Unwritable(NamedTuple):
    """The submitted records cannot be encoded: none of them is on disk, and the journal is sound."""

    error: Exception


class Failed(NamedTuple):
    """The journal has failed and commits nothing more. The hub must stop confirming and end."""

    error: BaseException


Report = Committed | Trimmed | Begins | TrimWanted | Unwritable | Failed
Answer = TypeVar("Answer")


def journal_failed(error: BaseException) -> FabricError:
    failure = FabricError(
        f"the journal failed, so the hub stops: {error}",
        "check the disk, then start the hub again; all that was confirmed is on it",
    )
    failure.__cause__ = error
    return failure


class JournalThread:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._work: SimpleQueue[Sequence[Record] | Callable[[], None] | None] = SimpleQueue()
        self._reports: deque[Report] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="fabric-journal", daemon=True)
        self._trim_at = 0.0

    @property
    def wake_fd(self) -> int:
        """Readable when there is a report, or after `wake`."""
        return self._wake_fd

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Interrupt the hub's wait; safe in signal handlers and from other threads."""
        os.eventfd_write(self._wake_fd, 1)

    def submit(self, records: Sequence[Record]) -> None:
        """Commit records; `Committed` is reported when they are on disk."""
        self._work.put(records)

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """Call `question` in the journal thread after all that was submitted; waits for the answer and returns it."""
        answers: SimpleQueue[Answer | Exception] = SimpleQueue()

        def reply() -> None:
            try:
                answers.put(question())
            except Exception as error:
                answers.put(error)

        self._work.put(reply)
        while True:
            try:
                answer = answers.get(timeout=ALIVE_EVERY_S)
            except Empty:
                if not self._thread.is_alive():
                    raise FabricError("the journal thread has ended", "see the log for the reason") from None
                continue
            if isinstance(answer, Exception):
                raise answer
            return answer

    def has_reports(self) -> bool:
        return bool(self._reports)

    def reports(self) -> list[Report]:
        """The reports since the last call. To be called when `wake_fd` is readable."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        found = []
        while self._reports:
            found.append(self._reports.popleft())
        return found

    def stop(self) -> None:
        """Commit all that was submitted, and end the thread."""
        self._work.put(None)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._wake_fd)

    def _run(self) -> None:
        try:
            self._trim()  # since the last hub, limits may have changed and messages have become older
            while True:
                try:
                    records = self._work.get(timeout=TRIM_EVERY_S)
                except Empty:
                    self._trim()
                    self._journal.rest()
                    continue
                if records is None:
                    return
                if callable(records):
                    records()
                    continue
                self._commit(records)
                self._trim()
        except BaseException as error:  # after any exception the hub must stop
            self._report(Failed(error))

    def _commit(self, records: Sequence[Record]) -> None:
        begun = time.monotonic()
        try:
            self._journal.commit(records)
        except (FabricError, OSError):
            raise
        except Exception as error:  # the whole transaction was aborted
            self._report(Unwritable(error))
        else:
            self._report(Committed(time.monotonic() - begun))

    def _trim(self) -> None:
        """One step of retention between commits, at most every TRIM_EVERY_S if there is nothing to remove."""
        if time.monotonic() < self._trim_at:
            return
        before = self._journal.first_seq
        first_seq = self._journal.trim_step(time.time_ns() // 1000)
        if first_seq is not None:
            self._report(Trimmed(first_seq))
        elif self._journal.first_seq > before:
            self._report(Begins(self._journal.first_seq))
        if not self._journal.may_trim_more:
            self._trim_at = time.monotonic() + TRIM_EVERY_S
            if wanted := self._journal.trim_wanted:
                self._report(TrimWanted(wanted))

    def _report(self, report: Report) -> None:
        self._reports.append(report)
        self.wake()
