"""Applies verdicts to deliveries, and ends leases that lapse, are lost or are taken back.

All failures follow one policy: a retry, a lapsed lease and a lost consumer count alike and wait alike. A delivery that
was not begun counts nothing and is ready at once. On its last failure a message becomes a dead letter, in the turn that
settles it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from fabric.router.groups.backoff import wait_ms
from fabric.router.groups.deliver import record_event
from fabric.router.groups.group import Group
from fabric.router.groups.key_index import KeyIndex
from fabric.router.groups.key_locks import ParkedMessage
from fabric.router.groups.lease import DeadLetter, Lease, Redelivery
from fabric.router.groups.subscription import Subscription
from fabric.router.ranges import Ranges
from fabric.router.turn import Turn
from fabric_protocol.block import Block
from fabric_protocol.messages import Happening, Notice, Verdict
from fabric_protocol.names import DEAD

RETRIES_SPENT: Final = "retries spent"
LEASE_LAPSED: Final = "lease lapsed"
CONSUMER_LOST: Final = "consumer lost"
CONNECTION_LOST: Final = "the connection was lost"
EARLIER_FIRST: Final = "an earlier message comes first"
REJECTED: Final = "rejected"

Span = tuple[int, int]


class _Cause(NamedTuple):
    """Why deliveries failed: the texts to record, and the delay that the consumer requests."""

    reason: str
    error: str = ""
    delay_ms: int | None = None  # None: the backoff of the group
    is_shared: bool = False  # other messages were begun too, and each of them can be the cause


def settle(
    group: Group, sub: Subscription, verdict: int, first: int, last: int, arg: Any, now: float, turn: Turn
) -> Ranges:
    """Apply a verdict to ordinals. Returns the stale ordinals: the consumer does not hold them any more."""
    stale = Ranges([(first, last)])
    leases = sub.leases_in(first, last)
    if group.ordered:
        leases.reverse()  # later messages get their verdicts first, before an earlier message takes them back
    for lease in leases:
        if verdict == Verdict.TOUCH:
            taken = lease.open.within(first, last)
            if taken:
                lease_ms = arg if type(arg) is int else group.settings.lease_ms
                lease.deadline = min(max(lease.deadline, now + lease_ms / 1000), lease.ends)
        else:
            taken = lease.open.remove(first, last)
        for a, b in reversed(taken):
            stale.remove(a, b)
            if verdict != Verdict.TOUCH:
                sub.outstanding -= b - a + 1
                _apply(group, lease, (a, b), verdict, arg, now, turn)
        _finish(group, lease)
    if sub.lapsed and verdict != Verdict.TOUCH:
        sub.lapsed.difference_update(_among(sub.lapsed, first, last))
    return stale


def _among(ordinals: set[int], first: int, last: int) -> list[int]:
    """The ordinals in first..last. The shorter of the two is scanned."""
    if last - first < len(ordinals):
        return [ordinal for ordinal in range(first, last + 1) if ordinal in ordinals]
    return [ordinal for ordinal in ordinals if first <= ordinal <= last]


def _apply(group: Group, lease: Lease, ordinals: Span, verdict: int, arg: Any, now: float, turn: Turn) -> None:
    seqs = lease.seqs(*ordinals)
    if verdict == Verdict.ACK:
        for a, b in seqs:
            group.close(a, b)
        if lease.keys is not None:
            _keys_done(group, lease, ordinals)
        if turn.recorder.is_on:  # as `record_event`, without a call
            turn.recorder.note(Happening.ACK, group.name, lease.sub.session.client, lease.attempt, seqs)
    elif verdict == Verdict.REJECT:
        _give_up(group, lease, ordinals, REJECTED, arg if isinstance(arg, str) else "", turn)
    elif verdict == Verdict.RELEASE:
        record_event(turn, group, Happening.RELEASE, lease.sub, lease.attempt, seqs)
        _make_ready(group, lease, [ordinals], lease.attempt)
        _take_back_later(group, lease, [ordinals], turn)
    else:
        delay_ms: Any
        delay_ms, error = arg if isinstance(arg, tuple) else (arg, "")
        if isinstance(delay_ms, str):
            delay_ms, error = None, delay_ms
        record_event(turn, group, Happening.RETRY, lease.sub, lease.attempt, seqs)
        _fail(group, lease, [ordinals], _Cause(RETRIES_SPENT, error, delay_ms), now, turn)
        _take_back_later(group, lease, [ordinals], turn)  # also after a dead letter: the consumer has dropped them


def lapse(group: Group, lease: Lease, now: float, turn: Turn) -> None:
    """A lease lapses: begun deliveries have failed, and all its ordinals are stale from now on."""
    sub = lease.sub
    started = sub.begun()
    why = _Cause(LEASE_LAPSED, is_shared=_is_shared(sub, started))
    begun, rest = _revoke(group, lease, started)
    lost = [*begun, *rest]
    sub.lapsed.update(ordinal for a, b in begun for ordinal in range(a, b + 1))
    record_event(
        turn, group, Happening.LAPSE, sub, lease.attempt, [pair for span in lost for pair in lease.seqs(*span)]
    )
    _fail(group, lease, begun, why, now, turn)
    _make_ready(group, lease, rest, lease.attempt + 1)
    _take_back_later(group, lease, lost, turn)
    _send_lease_lost(sub, lost, LEASE_LAPSED, turn)
    if group.strict and len(group.members) > 1 and group.members[0] is sub:
        group.members.append(group.members.pop(0))  # the next member is first


def leave(group: Group, sub: Subscription, now: float, turn: Turn, *, lost: bool) -> None:
    """Remove a member. If it was lost, begun deliveries have failed; its other deliveries are ready again."""
    started = sub.begun() if lost else Ranges()
    why = _Cause(CONSUMER_LOST, is_shared=_is_shared(sub, started))
    for lease in list(sub.leases):
        begun, rest = _revoke(group, lease, started)
        if lost:
            seqs = [pair for span in (*begun, *rest) for pair in lease.seqs(*span)]
            record_event(turn, group, Happening.LOST, sub, lease.attempt, seqs)
        _fail(group, lease, begun, why, now, turn)
        _make_ready(group, lease, rest, lease.attempt + lost)
    group.members.remove(sub)
    group.next_member = 0
    if group.keys is not None:
        group.keys.movable.pop(sub, None)
    if group.reserved is sub:
        group.reserved = None


def detach(group: Group, sub: Subscription, turn: Turn) -> None:
    """The connection of a member was closed: deliveries that it cannot have begun are ready again."""
    kept = sub.kept()
    for lease in list(sub.leases):
        lease.open, taken = _split(lease.open, kept)
        sub.outstanding -= sum(b - a + 1 for a, b in taken)
        record_event(
            turn, group, Happening.LOST, sub, lease.attempt, [pair for span in taken for pair in lease.seqs(*span)]
        )
        _make_ready(group, lease, taken, lease.attempt + 1)
        _finish(group, lease)
        for a, b in taken:
            sub.away.add(a, b)
    if group.strict and len(group.members) > 1 and group.members[0] is sub:
        group.members.append(group.members.pop(0))  # the next member is first when this member holds nothing


def reattach(group: Group, sub: Subscription, turn: Turn) -> None:
    """Tell a reconnected client which deliveries were taken back."""
    _send_lease_lost(sub, sub.away, CONNECTION_LOST, turn)
    sub.away = Ranges()


def take_back_unseen(group: Group, sub: Subscription, leases: Sequence[Lease], turn: Turn) -> None:
    """Take back deliveries that a reconnected client has not seen: they are ready again."""
    _take_back(group, sub, {lease: list(lease.open) for lease in leases}, turn, CONNECTION_LOST)


def take_back_all(group: Group, why: str, turn: Turn) -> None:
    """End all leases of a group. Nothing is counted, and nothing is ready again."""
    for sub in group.members:
        ordinals = [span for lease in sub.leases for span in lease.open]
        for lease in list(sub.leases):
            _revoke(group, lease, Ranges())
        _send_lease_lost(sub, ordinals, why, turn)


def take_back_up_to(group: Group, seq: int, why: str, turn: Turn) -> None:
    """End the leases of messages up to a seq. Nothing is counted, and nothing is ready again."""
    for sub in group.members:
        lost: list[Span] = []
        for lease in list(sub.leases):
            taken = lease.open_up_to(seq)
            for a, b in taken:
                lease.open.remove(a, b)
                sub.outstanding -= b - a + 1
                if lease.keys is not None:
                    _keys_done(group, lease, (a, b))
            _finish(group, lease)
            lost += taken
        _send_lease_lost(sub, lost, why, turn)


# Helpers of these functions.


def _fail(group: Group, lease: Lease, ordinals: Sequence[Span], why: _Cause, now: float, turn: Turn) -> None:
    """Count a failure for deliveries: they are retrying, or dead after their last failure. A failure that several
    messages share is never the last: each message is delivered alone again, and the cause then fails alone."""
    failures, settings = lease.failures + 1, group.settings
    is_last = settings.attempts_max and failures >= settings.attempts_max and not why.is_shared
    if is_last and not _is_dead_letter(group, lease):
        for span in ordinals:
            _give_up(group, lease, span, why.reason, why.error, turn)
        return
    for span in ordinals:
        for a, b in lease.seqs(*span):
            delay = why.delay_ms
            if delay is None:
                delay = wait_ms(settings, failures, f"{group.name} {a}")
            due = now + delay / 1000 if delay else 0.0
            due_us = group.shared.clock.wall_us(due) if due else 0
            for first, last in group.open.within(a, b):  # messages that retention has removed are not open
                group.failures.note(first, last, failures, due_us, why.error or why.reason)
            group.dirty = group.durable
            _put_back(group, lease, (a, b), (lease.attempt + 1, failures), due, failed=True)


def _is_shared(sub: Subscription, started: Ranges) -> bool:
    """Whether a consumer works on several messages. It may still work on lapsed messages."""
    return started.size() + len(sub.lapsed) > 1


def _is_dead_letter(group: Group, lease: Lease) -> bool:
    """Whether a lease is of dead letters. Failures never end a dead letter."""
    block = group.shared.block_store.at(lease.runs[-1][1])  # retention removes the last message of a block last
    return isinstance(block, Block) and block.topics[0].startswith(DEAD)


def _make_ready(group: Group, lease: Lease, ordinals: Iterable[Span], attempt: int) -> None:
    """Make deliveries ready again that were not begun. Nothing is counted."""
    for span in ordinals:
        for seqs in lease.seqs(*span):
            _put_back(group, lease, seqs, (attempt, lease.failures), 0.0, failed=False)


def _put_back(group: Group, lease: Lease, seqs: Span, counts: tuple[int, int], due: float, *, failed: bool) -> None:
    first, last = seqs
    attempt, failures = counts
    if lease.expires_us:
        group.expiring.put(first, last, lease.expires_us)
    if lease.keys is None or group.keys is None:
        group.pending.put(Redelivery(lease.rank, first, last, attempt, failures), due)
        return
    start = lease.ordinal_of(first)
    for _, seq, key in lease.each(start, start + last - first):
        if key:
            group.keys.return_message(key, ParkedMessage(seq, attempt, failures, due), failed=failed)
        else:
            group.pending.put(Redelivery(lease.rank, seq, seq, attempt, failures), due)


def _give_up(group: Group, lease: Lease, ordinals: Span, reason: str, error: str, turn: Turn) -> None:
    """Give messages up: their dead letters are written from this turn on."""
    seqs = lease.seqs(*ordinals)
    group.dead += [DeadLetter(a, b, lease.attempt, reason, error) for a, b in seqs]
    record_event(turn, group, Happening.DEAD, lease.sub, lease.attempt, seqs)
    if lease.keys is not None:
        _keys_done(group, lease, ordinals)


def _keys_done(group: Group, lease: Lease, ordinals: Span) -> None:
    assert lease.keys is not None
    assert group.keys is not None
    first = lease.first
    group.keys.done(lease.keys[ordinals[0] - first : ordinals[1] - first + 1])


def _take_back_later(group: Group, lease: Lease, ordinals: Sequence[Span], turn: Turn) -> None:
    """In groups that keep an order, take back messages that come after a message that is delivered again."""
    if not ordinals:
        return
    if group.strict:
        first = min(a for span in ordinals for a, _ in lease.seqs(*span))
        later = {other: other.open_after(first) for other in _leases_after(lease.sub, first)}
        _take_back(group, lease.sub, later, turn)
    elif lease.keys is not None:
        firsts: dict[bytes, int] = {}
        for span in ordinals:
            for _, seq, key in lease.each(*span):
                if key:
                    firsts.setdefault(key, seq)
        if firsts:
            _take_back(group, lease.sub, (lease.sub.key_index or KeyIndex(lease.sub)).later(firsts), turn)


def _leases_after(sub: Subscription, seq: int) -> list[Lease]:
    """Leases with a higher seq. In a strict group these are the last leases."""
    found = []
    for lease in reversed(sub.leases):
        if lease.runs[-1][1] <= seq:
            break
        found.append(lease)
    return found[::-1]


def _take_back(
    group: Group, sub: Subscription, ahead: Mapping[Lease, list[Span]], turn: Turn, why: str = EARLIER_FIRST
) -> None:
    """Take deliveries back. Nothing is counted."""
    lost: list[Span] = []
    for lease, taken in ahead.items():
        for a, b in taken:
            lease.open.remove(a, b)
            sub.outstanding -= b - a + 1
        _make_ready(group, lease, taken, lease.attempt + 1)
        _finish(group, lease)
        lost += taken
    _send_lease_lost(sub, lost, why, turn)


def _send_lease_lost(sub: Subscription, ordinals: Iterable[Span], why: str, turn: Turn) -> None:
    """Tell a consumer which deliveries it does not hold any more."""
    spans = [list(span) for span in Ranges(ordinals)]
    if spans:
        fields = {"chan": sub.chan, "ordinals": spans, "why": why}
        turn.notify(sub.session, Notice("lease_lost", fields))


def _revoke(group: Group, lease: Lease, started: Ranges) -> tuple[list[Span], list[Span]]:
    """End a lease. Returns the open ordinals that are in `started`, and the other open ordinals."""
    taken, lease.open = lease.open, Ranges()
    lease.sub.outstanding -= taken.size()
    begun, rest = _split(taken, started)
    _finish(group, lease)
    return list(begun), rest


def _split(ordinals: Ranges, by: Ranges) -> tuple[Ranges, list[Span]]:
    """Ordinals that are in `by`, and the others. The first part is removed from `ordinals`."""
    found = Ranges()
    for first, last in by.between(ordinals.first, ordinals.last) if ordinals else ():
        for a, b in ordinals.remove(first, last):
            found.add(a, b)
    return found, list(ordinals)


def _finish(group: Group, lease: Lease) -> None:
    if not lease.open and not lease.done:
        lease.done = True
        lease.sub.forget(lease)
        for a, b in lease.gaps:
            group.close(a, b)
