"""ACKs that the hub has not answered, and callers that wait for the answer to a verdict.

An ACK is kept until it is answered, and sent again on a resumed session. If the hub has forgotten the session, the
messages of an unanswered ACK can still be named, because the ACK keeps their batches.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fabric_client.core.batch import Batch
from fabric_client.core.ticket import Ticket
from fabric_client.core.unsettled import NAMES_MAX, Unsettled
from fabric_client.core.verdict_rows import Row
from fabric_client.errors import HubError, Stale, VerdictsUnconfirmed, describe
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Verdict

# Verdicts without a confirmation: when a session ends the hub releases its messages anyway.
_PASSING = (Verdict.TOUCH, Verdict.RELEASE)


class Watch:
    """A caller that waits for the answer to verdicts on some messages of a batch."""

    __slots__ = ("batch", "doubtful", "indexes", "is_touch", "rids", "stale", "ticket")

    def __init__(self, batch: Batch, indexes: Collection[int], ticket: Ticket, *, is_touch: bool = False) -> None:
        self.batch = batch
        self.indexes = indexes
        self.ticket = ticket
        self.is_touch = is_touch  # the verdict is a touch, and the messages stay open
        self.rids: set[int] = set()  # of the ACKs that carry the verdicts
        self.stale: list[int] = []  # seqs
        self.doubtful = False  # stale in the answer to an ACK that was sent twice: the first may have been applied

    def covers(self, rows: Sequence[Row]) -> bool:
        first = self.batch.first_ordinal
        spans = [(a, b) for verdict, a, b, _ in rows if (verdict == Verdict.TOUCH) == self.is_touch]
        return any(a <= first + index <= b for index in self.indexes for a, b in spans)

    def answered(self, rid: int, stale: Sequence[Sequence[int]], resent: bool) -> None:
        first = self.batch.first_ordinal
        for index in self.indexes if stale else ():
            if _within(first + index, stale):
                self.stale.append(self.batch.seq_of(index))
                self.doubtful |= resent and not self.is_touch  # a touch may be repeated
        self.rids.discard(rid)
        if self.rids:
            return
        if self.doubtful:
            self.lost("the answer was lost with a connection")
        elif self.stale:
            self.ticket.fail(too_late(self.stale))
        else:
            self.ticket.succeed(None)

    def lost(self, why: str = "the hub forgot the session") -> None:
        if self.is_touch:  # the hub has no lease of a session that it has forgotten
            self.ticket.fail(too_late([self.batch.seq_of(index) for index in self.indexes]))
            return
        names = [(self.batch.topics[index], self.batch.seq_of(index)) for index in self.indexes]
        self.ticket.fail(VerdictsUnconfirmed(names, len(names), why))


def _within(ordinal: int, ranges: Sequence[Sequence[int]]) -> bool:
    return any(first <= ordinal <= last for first, last in ranges)


def too_late(seqs: Sequence[int]) -> Stale:
    """The error for verdicts without effect."""
    some = ", ".join(map(str, seqs[:10])) + (", …" if len(seqs) > 10 else "")
    text = f"the verdict had no effect: the hub has taken back seq {some}, or it was settled before"
    return Stale(text, describe(Code.STALE), code=Code.STALE, fields={"seqs": list(seqs)})


class Ack:
    """An ACK without an answer, and the batches that its verdicts are about."""

    __slots__ = ("batches", "message", "resent", "watches")

    def __init__(self, message: m.Settle, batches: Sequence[Batch], watches: list[Watch]) -> None:
        self.message = message
        self.batches = batches
        self.watches = watches
        self.resent = False  # the hub may have applied it before

    def messages(self) -> Iterator[tuple[Batch, list[int]]]:
        """The messages that it settles, as batches with indexes."""
        rows = [(a, b) for verdict, a, b, _ in self.message.verdicts if verdict not in _PASSING]
        for batch in self.batches:
            first = batch.first_ordinal
            found = [place for a, b in rows for place in range(max(a - first, 0), min(b - first + 1, batch.count))]
            if found:
                yield batch, found

    def unwatched(self) -> Iterator[tuple[Batch, list[int]]]:
        """The messages that it settles and that no caller waits for."""
        watched = {(id(watch.batch), index) for watch in self.watches if not watch.is_touch for index in watch.indexes}
        for batch, indexes in self.messages():
            yield batch, [index for index in indexes if (id(batch), index) not in watched]


class Acks:
    """The unanswered ACKs of one subscription, by request id."""

    def __init__(self) -> None:
        self.unsettled = Unsettled()  # replaced by the session's own
        self._open: dict[int, Ack] = {}
        self._watches: list[Watch] = []  # their verdicts are not in an ACK yet
        self.collecting: list[Batch] = []  # batches whose verdicts are being collected

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def last_rid(self) -> int:
        """The request id of the latest unanswered ACK; 0 if all are answered."""
        return next(reversed(self._open), 0)

    def watch(self, watch: Watch) -> None:
        """Register a caller that waits for verdicts of the next ACKs."""
        self._watches.append(watch)

    def all_sent(self) -> None:
        """All collected verdicts are in ACKs. A watch without an ACK fails: its messages had verdicts before."""
        self.collecting = []
        watches, self._watches = self._watches, []
        for watch in watches:
            if not watch.rids:
                watch.ticket.fail(FabricError("the message has a verdict already", "the first verdict counts"))

    def sent(self, message: m.Settle, batches: Sequence[Batch]) -> m.Settle:
        watches = [watch for watch in self._watches if watch.covers(message.verdicts)] if self._watches else []
        for watch in watches:
            watch.rids.add(message.rid)
        self._open[message.rid] = Ack(message, batches, watches)
        return message

    def messages(self) -> list[m.Settle]:
        """The unanswered ACKs, to be sent again on a resumed session."""
        for ack in self._open.values():
            ack.resent = True
        return [ack.message for ack in self._open.values()]

    def unanswered(self) -> Iterator[tuple[Batch, list[int]]]:
        """The messages of all unanswered ACKs, as batches with indexes."""
        for ack in self._open.values():
            yield from ack.messages()

    def answered(self, rid: int, fields: Mapping[str, Any]) -> int | None:
        """The hub's OK to an ACK: how many of its verdicts were stale; None if it answers no ACK of this
        subscription."""
        ack = self._open.pop(rid, None)
        if ack is None:
            return None
        stale: Sequence[Sequence[int]] = fields.get("stale", ())
        for watch in ack.watches:
            watch.answered(rid, stale, ack.resent)
        if self.unsettled:
            for batch, indexes in ack.messages():
                first = batch.first_ordinal
                self.unsettled.confirmed(batch, [index for index in indexes if not _within(first + index, stale)])
        return sum((last - first + 1 for first, last in stale), 0)

    def refused(self, rid: int, error: HubError) -> bool | None:
        """The hub's ERR to an ACK. Adds the names of the messages to the error. True if no caller waits for some of its
        verdicts; None if it answers no ACK of this subscription."""
        ack = self._open.pop(rid, None)
        if ack is None:
            return None
        for watch in ack.watches:
            watch.ticket.fail(error)
        names = [(batch.topics[index], batch.seq_of(index)) for batch, indexes in ack.unwatched() for index in indexes]
        error.fields["messages"] = names[:NAMES_MAX]
        return bool(names) or not ack.watches

    def lost(self) -> None:
        """The hub has forgotten the session: no ACK will be answered."""
        unanswered, self._open = self._open, {}
        for ack in unanswered.values():
            for watch in ack.watches:
                watch.lost()
            self._remember(ack)

    def void(self, rows: Sequence[Row], batches: Sequence[Batch]) -> None:
        """Remember verdicts that cannot be sent, because the hub has forgotten their session."""
        self._remember(Ack(m.Settle(0, 0, tuple(rows)), batches, []))

    def interrupted(self, torn: bool) -> None:
        """Remember the verdicts of an interrupted collect: which of them are in ACKs is not known."""
        for batch in self.collecting if torn else ():
            batch.verdicts.is_listed = False
            self.unsettled.add(batch, batch.verdicts.given())
        self.collecting = []

    def fail(self, error: FabricError) -> None:
        """The subscription has ended: waiting callers get the error."""
        unanswered, self._open = self._open, {}
        for watch in [watch for ack in unanswered.values() for watch in ack.watches]:
            watch.ticket.fail(error)

    def _remember(self, ack: Ack) -> None:
        for batch, indexes in ack.unwatched():
            self.unsettled.add(batch, indexes)
