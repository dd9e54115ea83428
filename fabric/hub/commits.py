"""Commits: the turns on their way to the disk. A turn is sealed, submitted to the journal thread, and then on disk.

One commit is under way at a time; turns that are sealed meanwhile go to disk together with the next one.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from fabric.hub.advisory_log import JOURNAL_TRIMMED, SLOW_COMMIT, AdvisoryLog
from fabric.hub.intake import Intake
from fabric.hub.journal_thread import (
    Begins,
    Committed,
    Failed,
    JournalThread,
    Trimmed,
    TrimWanted,
    Unwritable,
    journal_failed,
)
from fabric.hub.restore import finish
from fabric.hub.vital_signs import VitalSigns
from fabric.router.router import Router, Transaction
from fabric.router.turn import Frames

SLOW_COMMIT_S: Final = 0.5  # a longer commit is logged: the disk is slow, or another program uses it


class Commits:
    def __init__(
        self,
        router: Router,
        journal_thread: JournalThread,
        intake: Intake,
        signs: VitalSigns,
        log: AdvisoryLog,
        counters: Counter[str],
        send: Callable[[], None],
    ) -> None:
        self._router = router
        self._journal_thread = journal_thread
        self._intake = intake
        self._signs = signs
        self._log = log
        self._counters = counters
        self._send = send
        self._turns: list[Transaction] = []  # sealed, not submitted to the journal thread yet
        self._committing: list[Transaction] = []  # submitted to the journal thread, not on disk yet

    @property
    def is_under_way(self) -> bool:
        return bool(self._committing)

    @property
    def is_idle(self) -> bool:
        return not (self._committing or self._turns)

    def submit(self, now: float) -> None:
        """Seal the turn and submit it to the journal thread, if no commit is under way."""
        router = self._router
        busy = bool(self._committing)
        if (not busy and router.wants_commit(now)) or router.wants_seal():
            self._turns.append(router.seal(time.time_ns() // 1000, now))
        if self._turns and not busy:
            self._committing, self._turns = self._turns, []
            self._journal_thread.submit([record for turn in self._committing for record in turn.records])
            self._intake.submitted()
            self._signs.submitted(now)

    def take_reports(self, now: float) -> None:
        """Act on the reports of the journal thread."""
        for report in self._journal_thread.reports():
            match report:
                case Committed(seconds):
                    self._committed(seconds, now)
                case Trimmed(first_seq):
                    self._router.trimmed(first_seq)
                    self._log.write(JOURNAL_TRIMMED, {"first_seq": first_seq})
                case Begins(first_seq):
                    self._router.begins_at(first_seq)
                case TrimWanted(seq):
                    self._router.trim_request(seq)
                case Unwritable(error):
                    self._committing, self._turns = [], []
                    raise error
                case Failed(error):
                    raise journal_failed(error)

    def _committed(self, seconds: float, now: float) -> None:
        """Submit the next commit, then release the answers and messages that waited for this one."""
        done, self._committing = self._committing, []
        self._counters["commits"] += 1
        self._counters["commit_us"] += int(seconds * 1e6)
        self._intake.committed(seconds)
        self._signs.committed(seconds, now)
        if seconds > SLOW_COMMIT_S:
            self._log.write(SLOW_COMMIT, {"ms": round(seconds * 1000), "turns": len(done)})
        self.submit(now)
        for transaction in done:
            self._router.release(transaction)
        self._send()  # confirmations do not wait for deliveries
        for _ in done:
            self._router.committed(now)

    def is_all_written(self, now: float) -> bool:
        """True if all rows are on disk; otherwise submit them."""
        turn = self._router.seal(time.time_ns() // 1000, now)
        if turn.records or turn.sends:
            self._turns.append(turn)
            self.submit(now)
            self._send()
            return False
        return True

    def finish(self) -> Frames:
        """Wait until all sealed turns are on disk; returns the frames that waited for them."""
        frames = finish(self._journal_thread, self._committing, self._turns)
        self._committing, self._turns = [], []
        return frames

    def restored(self, router: Router) -> None:
        """A new router is used."""
        self._router = router
