"""A hub with a planted bug: it confirms publishes and verdicts before they are on disk. The crash test must find it."""

import sys
import time
from collections.abc import Sequence
from typing import Final

from fabric.cli import main
from fabric.journal.journal import Journal
from fabric.records import Record
from fabric.router.router import Router, Transaction

DISK_S: Final = 0.05  # a slow disk, so that a kill is sure to fall between the confirmation and the commit

_honest_seal, _quick_commit = Router.seal, Journal.commit


def _hasty_seal(self: Router, wall_us: int, now: float) -> Transaction:
    transaction = _honest_seal(self, wall_us, now)
    for peer, message in transaction.sends:
        self.turn.send(peer, message)
    transaction.sends.clear()
    return transaction


def _slow_commit(self: Journal, turn: Sequence[Record]) -> None:
    time.sleep(DISK_S)
    _quick_commit(self, turn)


if __name__ == "__main__":
    Router.seal = _hasty_seal  # type: ignore[method-assign]
    Journal.commit = _slow_commit  # type: ignore[method-assign]
    sys.exit(main())
