"""Settling: what consumers say about their deliveries, and what happens when they say nothing.

One policy for all failures. A `retry`, a lapsed lease and a lost consumer count alike and wait alike; what a consumer
had only in its buffer counts for nothing and waits for nothing. On the last failure a message becomes a dead letter at
once, in the turn that settles it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fabric.block import Block
from fabric.messages import Happening, Notice, Verdict
from fabric.names import DEAD
from fabric.router.backoff import wait_ms
from fabric.router.delivery import Backlog, DeadLetter, Parcel
from fabric.router.groups import Group
from fabric.router.handing import note
from fabric.router.key_index import KeyIndex
from fabric.router.keys import Held
from fabric.router.members import Subscription
from fabric.router.ranges import Ranges

RETRIES_SPENT: Final = "retries spent"
LEASE_LAPSED: Final = "lease lapsed"
CONSUMER_LOST: Final = "consumer lost"
CONNECTION_LOST: Final = "the connection was lost"
REJECTED: Final = "rejected"

Span = tuple[int, int]


class _Why(NamedTuple):
    """Why deliveries failed: what is written down, and how long the consumer wishes to wait."""

    reason: str
    error: str = ""
    delay_ms: int | None = None  # None: as the group's settings say
    is_shared: bool = False  # other messages were begun at the same time, and each of them can be the cause


def settle(group: Group, sub: Subscription, verdict: int, first: int, last: int, arg: Any, now: float) -> Ranges:
    """Apply a verdict to ordinals. Returns those that are stale: they are someone else's by now, or settled."""
    stale = Ranges([(first, last)])
    parcels = sub.parcels_in(first, last)
    if group.ordered:
        parcels.reverse()  # what comes back takes later ones along, and these are to be judged themselves
    for parcel in parcels:
        if verdict == Verdict.TOUCH:
            taken = parcel.open.within(first, last)
            if taken:
                lease_ms = arg if type(arg) is int else group.settings.lease_ms
                parcel.deadline = min(max(parcel.deadline, now + lease_ms / 1000), parcel.ends)
        else:
            taken = parcel.open.remove(first, last)
        for a, b in reversed(taken):
            stale.remove(a, b)
            if verdict != Verdict.TOUCH:
                sub.outstanding -= b - a + 1
                _judge(group, parcel, (a, b), verdict, arg, now)
        _finish(group, parcel)
    if sub.stuck and verdict != Verdict.TOUCH:
        sub.stuck.difference_update(_among(sub.stuck, first, last))
    return stale


def _among(ordinals: set[int], first: int, last: int) -> list[int]:
    """Those in first..last, found by the shorter way."""
    if last - first < len(ordinals):
        return [ordinal for ordinal in range(first, last + 1) if ordinal in ordinals]
    return [ordinal for ordinal in ordinals if first <= ordinal <= last]


def _judge(group: Group, parcel: Parcel, ordinals: Span, verdict: int, arg: Any, now: float) -> None:
    seqs = parcel.seqs(*ordinals)
    if verdict == Verdict.ACK:
        for a, b in seqs:
            group.close(a, b)
        if parcel.keys is not None:
            _keys_done(group, parcel, ordinals)
        if group.commons.events is not None:
            note(group, Happening.ACK, parcel.sub, parcel.attempt, seqs)
    elif verdict == Verdict.REJECT:
        _give_up(group, parcel, ordinals, REJECTED, arg if isinstance(arg, str) else "")
    elif verdict == Verdict.RELEASE:
        note(group, Happening.RELEASE, parcel.sub, parcel.attempt, seqs)
        _come_back(group, parcel, [ordinals], parcel.attempt)
        _take_back_later(group, parcel, [ordinals])
    else:
        delay_ms, error = arg if isinstance(arg, tuple) else (arg, "")
        if isinstance(delay_ms, str):
            delay_ms, error = None, delay_ms
        note(group, Happening.RETRY, parcel.sub, parcel.attempt, seqs)
        _fail(group, parcel, [ordinals], _Why(RETRIES_SPENT, error, delay_ms), now)
        _take_back_later(group, parcel, [ordinals])  # also behind a dead letter: the consumer has dropped them


def lapse(group: Group, parcel: Parcel, now: float) -> None:
    """The lease ran out: what was begun has failed, and all its ordinals are stale from now on."""
    sub = parcel.sub
    started = sub.begun()
    why = _Why(LEASE_LAPSED, is_shared=_is_shared(sub, started))
    begun, rest = _revoke(group, parcel, started)
    lost = [*begun, *rest]
    sub.stuck.update(ordinal for a, b in begun for ordinal in range(a, b + 1))
    note(group, Happening.LAPSE, sub, parcel.attempt, [pair for span in lost for pair in parcel.seqs(*span)])
    _fail(group, parcel, begun, why, now)
    _come_back(group, parcel, rest, parcel.attempt + 1)
    _take_back_later(group, parcel, lost)
    _tell_lost(group, sub, lost, LEASE_LAPSED)
    if group.strict and len(group.members) > 1 and group.members[0] is sub:
        group.members.append(group.members.pop(0))  # someone else may do better


def leave(group: Group, sub: Subscription, now: float, *, lost: bool) -> None:
    """A member goes. If it was lost, what it can have begun has failed; all else is ready again."""
    started = sub.begun() if lost else Ranges()
    why = _Why(CONSUMER_LOST, is_shared=_is_shared(sub, started))
    for parcel in list(sub.parcels):
        begun, rest = _revoke(group, parcel, started)
        if lost:
            seqs = [pair for span in (*begun, *rest) for pair in parcel.seqs(*span)]
            note(group, Happening.LOST, sub, parcel.attempt, seqs)
        _fail(group, parcel, begun, why, now)
        _come_back(group, parcel, rest, parcel.attempt + lost)
    group.members.remove(sub)
    group.turn = 0
    if group.keys is not None:
        group.keys.movable.pop(sub, None)
    if group.reserved is sub:
        group.reserved = None


def detach(group: Group, sub: Subscription) -> None:
    """The connection of a member was closed: what it cannot have begun is ready again, the rest is its own for now."""
    kept = sub.kept()
    for parcel in list(sub.parcels):
        parcel.open, taken = _split(parcel.open, kept)
        sub.outstanding -= sum(b - a + 1 for a, b in taken)
        note(group, Happening.LOST, sub, parcel.attempt, [pair for span in taken for pair in parcel.seqs(*span)])
        _come_back(group, parcel, taken, parcel.attempt + 1)
        _finish(group, parcel)
        for a, b in taken:
            sub.away.add(a, b)
    if group.strict and len(group.members) > 1 and group.members[0] is sub:
        group.members.append(group.members.pop(0))  # the next one is first when this one holds nothing any more


def reattach(group: Group, sub: Subscription) -> None:
    """The client is back: tell it what was taken from its buffer meanwhile."""
    _tell_lost(group, sub, sub.away, CONNECTION_LOST)
    sub.away = Ranges()


def take_back_unseen(group: Group, sub: Subscription, parcels: Sequence[Parcel]) -> None:
    """The client is back, and has not seen its latest deliveries: they are ready again."""
    _take_back(group, sub, {parcel: list(parcel.open) for parcel in parcels}, CONNECTION_LOST)


def take_back_all(group: Group, why: str) -> None:
    """Nobody holds anything any more; nothing is counted, and nothing is ready again either."""
    for sub in group.members:
        ordinals = [span for parcel in sub.parcels for span in parcel.open]
        for parcel in list(sub.parcels):
            _revoke(group, parcel, Ranges())
        _tell_lost(group, sub, ordinals, why)


# Parts of the above.


def _fail(group: Group, parcel: Parcel, ordinals: Sequence[Span], why: _Why, now: float) -> None:
    """These deliveries count as failures: again later, or never again. A failure that several messages share ends none
    of them: each comes once more, alone, and what fails then is the cause."""
    failures, settings = parcel.failures + 1, group.settings
    is_last = settings.attempts_max and failures >= settings.attempts_max and not why.is_shared
    if is_last and not _is_letter(group, parcel):
        for span in ordinals:
            _give_up(group, parcel, span, why.reason, why.error)
        return
    for span in ordinals:
        for a, b in parcel.seqs(*span):
            delay = why.delay_ms
            if delay is None:
                delay = wait_ms(settings, failures, f"{group.name} {a}")
            due = now + delay / 1000 if delay else 0.0
            group.failures.note(a, b, failures, group.commons.clock.wall_us(due) if due else 0, why.error or why.reason)
            group.dirty = group.durable
            _put_back(group, parcel, (a, b), (parcel.attempt + 1, failures), due, failed=True)


def _is_shared(sub: Subscription, started: Ranges) -> bool:
    """Whether a consumer is at work on several messages; it may still be at work on what has lapsed."""
    return started.size() + len(sub.stuck) > 1


def _is_letter(group: Group, parcel: Parcel) -> bool:
    """Dead letters have none of their own: they are tried for ever."""
    block = group.commons.shelf.at(parcel.runs[0][0])
    return isinstance(block, Block) and block.topics[0].startswith(DEAD)


def _come_back(group: Group, parcel: Parcel, ordinals: Iterable[Span], attempt: int) -> None:
    """These deliveries were not begun: they are ready again, and nothing is counted."""
    for span in ordinals:
        for seqs in parcel.seqs(*span):
            _put_back(group, parcel, seqs, (attempt, parcel.failures), 0.0, failed=False)


def _put_back(group: Group, parcel: Parcel, seqs: Span, counts: tuple[int, int], due: float, *, failed: bool) -> None:
    first, last = seqs
    attempt, failures = counts
    if parcel.keys is None or group.keys is None:
        group.pending.put(Backlog(parcel.rank, first, last, attempt, failures), due)
        return
    start = parcel.ordinal_of(first)
    for _, seq, key in parcel.each(start, start + last - first):
        if key:
            group.keys.come_back(key, Held(seq, attempt, failures, due), failed=failed)
        else:
            group.pending.put(Backlog(parcel.rank, seq, seq, attempt, failures), due)


def _give_up(group: Group, parcel: Parcel, ordinals: Span, reason: str, error: str) -> None:
    """To the dead letters, in this turn."""
    seqs = parcel.seqs(*ordinals)
    group.dead += [DeadLetter(a, b, parcel.attempt, reason, error) for a, b in seqs]
    note(group, Happening.DEAD, parcel.sub, parcel.attempt, seqs)
    if parcel.keys is not None:
        _keys_done(group, parcel, ordinals)


def _keys_done(group: Group, parcel: Parcel, ordinals: Span) -> None:
    assert parcel.keys is not None
    assert group.keys is not None
    first = parcel.first
    group.keys.done(parcel.keys[ordinals[0] - first : ordinals[1] - first + 1])


def _take_back_later(group: Group, parcel: Parcel, ordinals: Sequence[Span]) -> None:
    """In groups that keep an order, whatever comes after a message that comes back must come after it again."""
    if not ordinals:
        return
    if group.strict:
        first = min(a for span in ordinals for a, _ in parcel.seqs(*span))
        _take_back(group, parcel.sub, {other: other.open_after(first) for other in _parcels_after(parcel.sub, first)})
    elif parcel.keys is not None:
        firsts: dict[bytes, int] = {}
        for span in ordinals:
            for _, seq, key in parcel.each(*span):
                if key:
                    firsts.setdefault(key, seq)
        if firsts:
            _take_back(group, parcel.sub, (parcel.sub.key_index or KeyIndex(parcel.sub)).later(firsts))


def _parcels_after(sub: Subscription, seq: int) -> list[Parcel]:
    """Parcels with a higher seq; in a strict group they are the last ones."""
    found = []
    for parcel in reversed(sub.parcels):
        if parcel.runs[-1][1] <= seq:
            break
        found.append(parcel)
    return found[::-1]


def _take_back(
    group: Group, sub: Subscription, ahead: Mapping[Parcel, list[Span]], why: str = "an earlier message comes first"
) -> None:
    """Take back what was sent ahead; nothing of it is counted."""
    lost: list[Span] = []
    for parcel, taken in ahead.items():
        for a, b in taken:
            parcel.open.remove(a, b)
            sub.outstanding -= b - a + 1
        _come_back(group, parcel, taken, parcel.attempt + 1)
        _finish(group, parcel)
        lost += taken
    _tell_lost(group, sub, lost, why)


def _tell_lost(group: Group, sub: Subscription, ordinals: Iterable[Span], why: str) -> None:
    """Tell a consumer which deliveries are not its own any more."""
    spans = [list(span) for span in Ranges(ordinals)]
    if spans:
        fields = {"chan": sub.chan, "ordinals": spans, "why": why}
        group.mail.append((sub.session.peer, Notice("lease_lost", fields)))


def _revoke(group: Group, parcel: Parcel, started: Ranges) -> tuple[list[Span], list[Span]]:
    """End a lease. Returns the ordinals that were open and started, and the other open ones."""
    taken, parcel.open = parcel.open, Ranges()
    parcel.sub.outstanding -= taken.size()
    begun, rest = _split(taken, started)
    _finish(group, parcel)
    return list(begun), rest


def _split(ordinals: Ranges, by: Ranges) -> tuple[Ranges, list[Span]]:
    """Ordinals that are in `by`, and those that are not; takes them out of the first argument."""
    found = Ranges()
    for first, last in by.between(ordinals.first, ordinals.last) if ordinals else ():
        for a, b in ordinals.remove(first, last):
            found.add(a, b)
    return found, list(ordinals)


def _finish(group: Group, parcel: Parcel) -> None:
    if not parcel.open and not parcel.done:
        parcel.done = True
        parcel.sub.forget(parcel)
        for a, b in parcel.gaps:
            group.close(a, b)
