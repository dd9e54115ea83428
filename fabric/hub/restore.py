"""Makes a router from the state in the journal: at the start of the hub, and after a fault of the hub."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import fabric
from fabric.hub.journal_thread import Committed, Failed, JournalThread, Unwritable, journal_failed
from fabric.hub.log import event
from fabric.journal.journal import Journal
from fabric.records import Restored
from fabric.router.access.book import Book
from fabric.router.router import Router, Transaction
from fabric.router.turn import Frames, LogAdvisory


def restored_router(
    journal: Journal,
    restored: Restored,
    counters: Counter[str],
    log: LogAdvisory,
    book: Book | None = None,
    reached_at: Mapping[str, Any] | None = None,
) -> Router:
    """A router with the state that was restored; damage in the journal is logged. `reached_at` is for INFO: the
    addresses of the hub."""
    router = _router(journal, restored, counters, log, book, reached_at or {})
    event(
        logging.INFO,
        "journal opened",
        first_seq=restored.first_seq,
        last_seq=restored.last_seq,
        groups=len(restored.groups),
        clean=restored.was_clean,
    )
    journal.hold(router.trim_limit)
    for finding in restored.findings:
        event(logging.ERROR, "journal damaged", finding=str(finding))
    return router


def offline_router(journal: Journal) -> Router:
    """A router that answers questions about a journal. Nothing of it is written."""
    return _router(journal, journal.load(), Counter(), None, None, {})


def _router(
    journal: Journal,
    restored: Restored,
    counters: Counter[str],
    log: LogAdvisory | None,
    book: Book | None,
    reached_at: Mapping[str, Any],
) -> Router:
    about = {"hub": fabric.__version__, "journal": journal.uuid, "epoch": journal.epoch}
    return Router(
        restored,
        journal.reader(),
        lambda: secrets.token_bytes(16),
        about,
        place={**about, "journal": journal.uuid.hex(), "path": str(journal.path.resolve()), **reached_at},
        counters=counters,
        log=log,
        book=book,
        wall_us=time.time_ns() // 1000,
        now=time.monotonic(),
    )


def finish(journal_thread: JournalThread, committing: Sequence[Transaction], sealed: Sequence[Transaction]) -> Frames:
    """Wait until all turns are on disk: `committing` were submitted to the journal thread, `sealed` were not yet.

    Returns the frames that wait for these turns.
    """
    sends: Frames = []
    for turns, is_submitted in ((committing, True), (sealed, False)):
        if not is_submitted and turns:
            journal_thread.submit([record for turn in turns for record in turn.records])
        journal_thread.ask(lambda: None)  # returns after the commit
        for report in journal_thread.reports():
            match report:
                case Failed(error):
                    raise journal_failed(error)
                case Unwritable():
                    return sends  # the turns that were sealed later depend on this one
                case Committed():
                    sends += [send for turn in turns for send in turn.sends]
    return sends
