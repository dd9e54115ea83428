"""A router with the state that is in the journal: when a hub starts, and when it goes on after a fault of its own."""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Sequence

import fabric
from fabric.hub.journal_thread import Committed, Failed, JournalThread, Unwritable, journal_failed
from fabric.hub.log import event
from fabric.journal.journal import Journal, Restored
from fabric.router.router import Router, Turn
from fabric.router.turn import Out


def restored_router(journal: Journal, state: Restored, counters: "Counter[str] | None" = None) -> Router:
    about = {"hub": fabric.__version__, "journal": journal.uuid, "epoch": journal.epoch}
    router = Router(
        journal.reader(),
        lambda: secrets.token_bytes(16),
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        last_ts_us=state.last_ts_us,
        groups=state.groups,
        producers=state.producers,
        failures=state.failures,
        topics=state.topics,
        settings=state.settings,
        about=about,
        counters=counters,
        clean=state.was_clean,
        wall_us=time.time_ns() // 1000,
        now=time.monotonic(),
    )
    event(
        logging.INFO,
        "journal opened",
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        groups=len(state.groups),
        clean=state.was_clean,
    )
    journal.hold_seq = router.topics.hold
    router.place = {**about, "journal": journal.uuid.hex(), "path": str(journal.path.resolve())}
    for finding in state.findings:
        event(logging.ERROR, "journal damaged", finding=str(finding))
    return router


def finish(journal_thread: JournalThread, committing: Sequence[Turn], sealed: Sequence[Turn]) -> Out:
    """Wait until turns are on disk that were handed to the journal thread, and others that were only sealed. Returns
    what may be said then."""
    sends: Out = []
    for turns, is_submitted in ((committing, True), (sealed, False)):
        if not is_submitted and turns:
            journal_thread.submit([record for turn in turns for record in turn.records])
        journal_thread.ask(lambda: None)  # answered after the commit
        for report in journal_thread.reports():
            match report:
                case Failed(error):
                    raise journal_failed(error)
                case Unwritable():
                    return sends  # and what was sealed after it follows from it
                case Committed():
                    sends += [send for turn in turns for send in turn.sends]
    return sends
