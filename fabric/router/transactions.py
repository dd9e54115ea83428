"""TXN: verdicts on deliveries and a publish that follows from them, in one commit or not at all.

All checks come before all changes: the publish passes the checks of every publish, and each ordinal must be open. Then
both are applied in the same turn, and so in the same commit. The result of a consumer is stored exactly once: if the
lease was lost, the publish is refused together with the verdict; if only the answer was lost, the resend is recognised
by its pseq.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

from fabric.router.groups.dispatcher import Dispatcher
from fabric.router.groups.subscription import Subscription
from fabric.router.groups.verdict_rows import Row, merged, require_few, require_light
from fabric.router.publish.publishing import Publishing
from fabric.router.ranges import Ranges
from fabric.router.sessions.session import Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, ProtocolError

_Verdicts = Sequence[Row]


class Transactions:
    def __init__(self, publishing: Publishing, dispatcher: Dispatcher) -> None:
        self._publishing = publishing
        self._dispatcher = dispatcher

    def transact(self, session: Session, message: m.Transact, window: tuple[int, int], now: float, turn: Turn) -> None:
        """Apply a transaction as a whole, or raise and change nothing. The answer waits for the commit."""
        publish = m.Publish(0, message.pseq, m.Level.JOURNALED, message.block)
        examined = self._publishing.examine(session, publish, window)
        is_resend = examined[1] is not None
        work = [] if is_resend else self._checked(session, message)
        self._publishing.accept(session, publish, window, turn, examined)
        _, first, stored, dups, *dup_rows = self._publishing.confirmed
        applied = sum(
            self._dispatcher.apply(sub, _in_safe_order(sub, verdicts), now, turn, whole=True)["applied"]
            for sub, verdicts in work
        )
        counters = self._dispatcher.counters
        counters["transactions"] += 1
        counters["duplicates"] += is_resend
        if message.rid:
            answer: dict[str, Any] = {"first_seq": first, "stored": stored, "dups": dups, "applied": applied}
            if dup_rows:
                answer["dup_rows"] = dup_rows[0]
            turn.answer(session.peer, m.Ok(0, message.rid, answer))

    def _checked(self, session: Session, message: m.Transact) -> list[tuple[Subscription, _Verdicts]]:
        """The subscriptions and their verdicts. Raises unless every ordinal is open."""
        gathered: dict[int, list[Row]] = {}
        for chan, verdicts in message.settles:
            gathered.setdefault(chan, []).extend(verdicts)
        work: list[tuple[Subscription, _Verdicts]] = []
        for chan, rows in gathered.items():
            sub = session.channels.get(chan)
            if sub is None:
                raise ProtocolError(Code.NOT_FOUND, f"no subscription on channel {chan}")
            work.append((sub, merged(rows, twice=False)))
        require_few(sum(len(checked) for _, checked in work))
        require_light(work, whole=True)
        for sub, checked in work:
            _require_open(sub, checked)
        return work


def _require_open(sub: Subscription, verdicts: _Verdicts) -> None:
    spans = sorted((first, last) for _, first, last, _ in verdicts)
    for (_, end), (start, _) in pairwise(spans):
        if start <= end:
            raise ProtocolError(Code.BAD_OPTION, f"channel {sub.chan}: ordinal {start} has two verdicts")
    if spans[-1][1] > sub.sent:
        raise ProtocolError(Code.BAD_ORDINAL, f"ordinal {spans[-1][1]} was never sent; the last ordinal is {sub.sent}")
    stale = [pair for first, last in spans for pair in _stale(sub, first, last)]
    if stale:
        raise ProtocolError(
            Code.STALE,
            f"channel {sub.chan}: ordinals {_shown(stale)} are not leased to this consumer any more; nothing was done",
            chan=sub.chan,
            ordinals=[list(pair) for pair in stale],
        )


def _stale(sub: Subscription, first: int, last: int) -> Ranges:
    """Ordinals of first..last that were settled or lost before this transaction."""
    stale = Ranges([(first, last)])
    for lease in sub.leases_in(first, last):
        for a, b in lease.open.within(first, last):
            stale.remove(a, b)
    return stale


def _in_safe_order(sub: Subscription, verdicts: _Verdicts) -> tuple[Row, ...]:
    """Verdicts that settle come first; verdicts that return messages come last, backwards, one lease at a time.

    In an ordered group a returned message ends the leases of the messages after it, so their verdicts must come before.
    """
    settling, back = [], []
    for verdict, first, last, arg in verdicts:
        if verdict in (m.Verdict.RETRY, m.Verdict.RELEASE):
            leases = sub.leases_in(first, last)
            back += [(verdict, max(first, lease.first), min(last, lease.last), arg) for lease in leases]
        else:
            settling.append((verdict, first, last, arg))
    return (*settling, *sorted(back, key=itemgetter(1), reverse=True))


def _shown(ranges: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{a}..{b}" if a < b else str(a) for a, b in ranges[:4])
    return shown if len(ranges) <= 4 else f"{shown}, …"
