"""ACKs that the hub has not answered, and callers that wait for the answer to a verdict.

An ACK is kept until it is answered, and sent again on a resumed session. When the hub has forgotten the session, the
messages of an unanswered ACK are known by name, because the ACK holds on to their batches.
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

# Verdicts that leave nothing to confirm: without a session the hub releases everything anyway.
_PASSING = (Verdict.TOUCH, Verdict.RELEASE)


class Watch:
    """A caller that waits for the answer to verdicts on some messages of a batch."""

    __slots__ = ("batch", "doubtful", "indexes", "rids", "stale", "ticket")

    def __init__(self, batch: Batch, indexes: Collection[int], ticket: Ticket) -> None:
        self.batch = batch
        self.indexes = indexes
        self.ticket = ticket
        self.rids: set[int] = set()  # of the ACKs that carry the verdicts
        self.stale: list[int] = []  # seqs
        self.doubtful = False  # stale in the answer to an ACK that was sent twice: the first one may have been applied

    def covers(self, rows: Sequence[Row]) -> bool:
        first = self.batch.first_ordinal
        spans = [(a, b) for verdict, a, b, _ in rows if verdict != Verdict.TOUCH]
        return any(a <= first + index <= b for index in self.indexes for a, b in spans)

    def answered(self, rid: int, stale: Sequence[Sequence[int]], resent: bool) -> None:
        first = self.batch.first_ordinal
        for index in self.indexes if stale else ():
            if _within(first + index, stale):
                self.stale.append(self.batch.seq_of(index))
                self.doubtful |= resent
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
        names = [(self.batch.topics[index], self.batch.seq_of(index)) for index in self.indexes]
        self.ticket.fail(VerdictsUnconfirmed(names, len(names), why))


def _within(ordinal: int, ranges: Sequence[Sequence[int]]) -> bool:
    return any(first <= ordinal <= last for first, last in ranges)


def too_late(seqs: Sequence[int]) -> Stale:
    """The error for verdicts on messages that the hub has taken back, or that were settled before."""
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
        """The messages that it settles, as batches with the places in them."""
        rows = [(a, b) for verdict, a, b, _ in self.message.verdicts if verdict not in _PASSING]
        for batch in self.batches:
            first = batch.first_ordinal
            found = [place for a, b in rows for place in range(max(a - first, 0), min(b - first + 1, batch.count))]
            if found:
                yield batch, found

    def unwatched(self) -> Iterator[tuple[Batch, list[int]]]:
        """Those of them that no caller waits for."""
        watched = {(id(watch.batch), index) for watch in self.watches for index in watch.indexes}
        for batch, indexes in self.messages():
            yield batch, [index for index in indexes if (id(batch), index) not in watched]


class Acks:
    """The unanswered ACKs of one subscription, by request id."""

    def __init__(self) -> None:
        self.unsettled = Unsettled()  # that of the session, once the subscription belongs to one
        self._open: dict[int, Ack] = {}
        self._watches: list[Watch] = []  # not yet on their way
        self.collecting: list[Batch] = []  # their verdicts are being collected

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def last_rid(self) -> int:
        """Of the latest ACK without an answer; 0 when all are answered."""
        return next(reversed(self._open), 0)

    def watch(self, watch: Watch) -> None:
        """The next ACKs carry verdicts that somebody waits for."""
        self._watches.append(watch)

    def all_sent(self) -> None:
        """All verdicts that were collected are in ACKs. A watch that no ACK was for has nothing to wait for: its
        messages had verdicts before."""
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
        """To be sent again on a resumed session."""
        for ack in self._open.values():
            ack.resent = True
        return [ack.message for ack in self._open.values()]

    def unanswered(self) -> Iterator[tuple[Batch, list[int]]]:
        """The messages of all ACKs without an answer, as batches with the places in them."""
        for ack in self._open.values():
            yield from ack.messages()

    def answered(self, rid: int, fields: Mapping[str, Any]) -> int | None:
        """The hub's OK: how many of the verdicts were stale; None when it answers no ACK of ours."""
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
        """The hub's ERR to an ACK, which is given the names of the messages. Whether there are verdicts in it that no
        caller waits for; None when it answers no ACK of ours."""
        ack = self._open.pop(rid, None)
        if ack is None:
            return None
        for watch in ack.watches:
            watch.ticket.fail(error)
        names = [(batch.topics[index], batch.seq_of(index)) for batch, indexes in ack.unwatched() for index in indexes]
        error.fields["messages"] = names[:NAMES_MAX]
        return bool(names) or not ack.watches

    def lost(self) -> None:
        """The hub has forgotten the session: none of these will be answered."""
        unanswered, self._open = self._open, {}
        for ack in unanswered.values():
            for watch in ack.watches:
                watch.lost()
            self._remember(ack)

    def void(self, rows: Sequence[Row], batches: Sequence[Batch]) -> None:
        """Verdicts that cannot be sent, because the hub has forgotten the session that they belong to."""
        self._remember(Ack(m.Settle(0, 0, tuple(rows)), batches, []))

    def interrupted(self, torn: bool) -> None:
        """If the program was interrupted while verdicts were collected, which of them are in ACKs is not known."""
        for batch in self.collecting if torn else ():
            batch.verdicts.is_listed = False
            self.unsettled.add(batch, batch.verdicts.given())
        self.collecting = []

    def fail(self, error: FabricError) -> None:
        """The subscription is over; callers that wait hear why."""
        unanswered, self._open = self._open, {}
        for watch in [watch for ack in unanswered.values() for watch in ack.watches]:
            watch.ticket.fail(error)

    def _remember(self, ack: Ack) -> None:
        for batch, indexes in ack.unwatched():
            self.unsettled.add(batch, indexes)
