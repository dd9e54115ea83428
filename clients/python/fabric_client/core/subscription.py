"""The consuming half of the core: one subscription, its deliveries, its verdicts and its credit.

A delivery comes in as a `Batch`, is taken by the shell, and is settled by verdicts that the batch collects. `collect`
turns verdicts into one ACK of ordinal ranges and raises the credit. The one idea to hold while reading: ordinals count
the deliveries of one *generation*. When the hub has forgotten the session the generation ends; what was held from it
is void, because the hub will deliver it again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final
from weakref import WeakValueDictionary

from fabric_client.core.acks import Acks
from fabric_client.core.batch import VERDICTS_PER_FRAME, Batch
from fabric_client.core.begun import SURE_ATTEMPT, UNSURE, Begun
from fabric_client.core.ending import InHand
from fabric_client.core.key_order import Bars
from fabric_client.core.refresh import Refresh
from fabric_client.core.shell import Shell
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_rows import VERDICT_ROWS_MAX, Row, drained, extend
from fabric_client.core.window import PREFETCH_BYTES, Window
from fabric_client.errors import Closed, HubError
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict

__all__ = ["FOREVER", "PREFETCH", "PREFETCH_BYTES", "VERDICT_DELAY_S", "Subscription"]

# Enough to keep the line full while a consumer works through a block, and a multiple of a full block, which the hub
# need not cut then. Slow jobs want less, so that work which one worker could not start is not withheld from others.
PREFETCH: Final = 8192
LEASE_S: Final = 30.0  # the hub's default, in case its answer to SUB was lost
VERDICT_DELAY_S: Final = 0.005  # verdicts wait so long for company
FOREVER: Final = float("inf")


class Subscription:
    """State of one channel. `hook(self, urgent)` is called, from any thread, when there are verdicts to send."""

    def __init__(
        self,
        chan: int,
        request: Mapping[str, Any],
        *,
        prefetch: int = PREFETCH,
        least: int | None = None,
        count_max: int | None = None,
        fetching: bool = False,
        on_error: str = "retry",
        hook: "Callable[[Subscription, bool], None]" = lambda sub, urgent: None,
        shell: "Shell | None" = None,
    ) -> None:
        self.chan = chan
        self.group: str | None = request.get("group")
        self.request = dict(request)
        self.hook = hook
        self.shell = shell
        self.on_error = on_error
        self.fetching = fetching
        self.ready: deque[Batch | Refresh] = deque()  # arrived and not yet taken
        self.dirty: deque[Batch] = deque()  # have verdicts to send
        self.acks = Acks()  # those without an answer
        self.refused: list[HubError] = []  # answers to ACKs that the application has not heard of yet
        self.flush_at = FOREVER
        self.touch_at = FOREVER
        self.lease_s: float = request.get("lease_ms", LEASE_S * 1000) / 1000
        self.error: FabricError | None = None
        self.closed = False
        self.stopped = False  # a loop over it is to end
        self.torn = False  # True while it takes a delivery or collects, and after that if it was interrupted
        self.retired = False  # it is left: deliveries go back at once, and it ends when nothing is held
        self.in_hand: InHand | None = None  # what a loop hands out
        self.generation = 0
        self.void = 0  # deliveries that a lost session made void
        self.stale = 0  # verdicts that came, or would come, after the delivery was someone else's
        self.lost = 0  # messages that retention or damage took (GAP)
        self.taken_back = 0  # deliveries that the hub took back, or that went back to keep the order
        self.taken = 0  # messages taken since the last collect
        self.bars = Bars()
        self.begun = Begun()
        self.careful = False  # before a message is begun, the shell must ask whether it may be
        self.look_at = FOREVER  # when to see whether a consumer that is unsure what it has begun is sure again
        self._next_seq = 0  # where an ephemeral subscription goes on; 0: not known
        self._touches: deque[Row] = deque()
        self._returns: deque[Row] = deque()  # go back to keep the order, or since the program has forgotten them
        # Deliveries not settled yet, by first ordinal. What fetch() has handed out is held by the program alone.
        self._held: MutableMapping[int, Batch] = WeakValueDictionary() if fetching else {}
        self._readies: deque[int] = deque()  # refreshes that the application is through with
        self._adopt(request)
        self._window = Window(prefetch, count_max, fetching, least)
        self.last_ordinal = 0  # last <= credit
        self.jump_allowed = False  # on a resumed connection ordinals may be missing

    def _adopt(self, settings: Mapping[str, Any]) -> None:
        """What the group's settings mean for us."""
        self.bars.order = settings.get("order", self.bars.order)
        self.unsure = self.group is not None and "order" not in settings and "order" not in self.request
        # Whether deliveries want verdicts: not without a group, nor where the hub acks what it sends.
        self.settles = self.group is not None and settings.get("ack", self.request.get("ack")) != "auto"
        self.careful = self.settles or self.stopped

    def subscribe(self, rid: int) -> m.Subscribe:
        """The SUB that opens, or opens again, this subscription."""
        fields = {**self.request, "credit": [self._window.ordinal_max, self._window.bytes_max]}
        if self.group is None and self._next_seq:
            fields["start"] = {"seq": self._next_seq}
        return m.Subscribe(self.chan, rid, fields)

    def learned(self, ticket: Ticket) -> None:
        """What INFO says of the group, for hubs whose OK to SUB does not tell its order."""
        self._adopt(ticket.value if ticket.error is None else {})
        self.unsure = False

    def accepted(self, fields: Mapping[str, Any]) -> None:
        """The hub's OK to SUB."""
        self.lease_s = fields.get("lease_ms", self.lease_s * 1000) / 1000
        self._adopt(fields)
        if not self._next_seq:
            self._next_seq = fields.get("cursor", 0)

    def restart(self, same_journal: bool) -> None:
        """The hub knows nothing of this subscription any more. A group's deliveries will come again, so what is held
        of them is void. Without verdicts nothing comes twice: what is buffered stays, and we go on after it."""
        if self.settles:
            self.acks.interrupted(self.torn)
            batches: list[Batch] = []
            self.acks.void(self._rows(batches), batches)
            self.acks.lost()
            self.void += sum(len(batch.open_indexes()) for batch in self._held.values())
            self.ready.clear()
            self._held.clear()
            self._touches.clear()
            self._returns.clear()
            self.bars.clear()
        self.generation += 1
        self.torn = False
        self._readies.clear()
        if not same_journal:
            self._next_seq = 0
        self.flush_at = self.touch_at = self.look_at = FOREVER
        self.begun.restarted()
        self.careful = self.settles or self.stopped
        self._window = self._window.renewed()
        self.last_ordinal = 0
        self.jump_allowed = False

    def stop(self) -> None:
        """The loop over it is to end, at its next step. Called from any thread, also in a signal handler."""
        self.stopped = self.careful = True

    @property
    def holds(self) -> bool:
        """Whether deliveries are here that are not settled."""
        return bool(self._held)

    def close(self) -> None:
        """No more deliveries. A verdict on what is still held is an error from now on: the hub has taken it back."""
        self.closed = True
        if self.dirty:  # another thread has given a verdict just before
            batches: list[Batch] = []
            self.acks.void(self._rows(batches), batches)
        for batch in self._held.values():
            batch._due = 0
        self._held.clear()
        self.ready.clear()
        self.dirty.clear()
        self.flush_at = self.touch_at = self.look_at = FOREVER

    # Deliveries.

    def deliver(self, message: m.Deliver, now: float) -> bool:
        """Accept a delivery. False when deliveries are missing in between: the session must be resumed."""
        if message.first_ordinal <= self.last_ordinal:
            return True  # sent again by a resume although it had arrived
        missing = message.first_ordinal - self.last_ordinal - 1
        if missing and not self.jump_allowed:
            return False
        block = Block(message.block)
        block.verify_body()
        self.last_ordinal += missing + block.count
        self._window.lost(missing)  # they lapsed while we were away: the hub does not count on us for them
        self._window.arrived_bytes += len(message.block)
        if self.closed:
            return True
        batch = Batch(self, block, message.first_ordinal, message.attempt, message.seqs, now)
        if block.base_seq:  # an advisory of the hub has none
            self._next_seq = batch.last_seq + 1
        if self.settles:
            if not self._held:
                self._window.began(now)
            self._held[message.first_ordinal] = batch
            self.touch_at = min(self.touch_at, now + self.lease_s / 4)
        if self.retired:
            batch.release()
            return True
        self.ready.append(batch)
        if self.bars and (early := self.bars.arrived(batch)):
            self._forget(batch, early, give_back=True)
            self.hook(self, False)
        return True

    def reset(self, fields: Mapping[str, Any]) -> None:
        """The hub asks for a refresh; it takes its place among the deliveries."""
        if not self.closed:
            self.ready.append(Refresh(self, fields["refresh"], fields["phase"], fields.get("target", 0)))

    def note_ready(self, number: int) -> None:
        """The application is through with a refresh. Called from any thread, without a lock."""
        self._readies.append(number)
        self.hook(self, False)

    def take_back(self, ordinals: Sequence[Sequence[int]]) -> None:
        """The hub gave these deliveries to others: what has not begun is dropped, and no verdict on them is sent."""
        for batch in list(self._held.values()):
            if gone := batch.among(ordinals):
                self._forget(batch, gone)
        self.hook(self, False)  # there may be credit to give

    def _forget(self, batch: Batch, indexes: Collection[int], *, give_back: bool = False) -> None:
        """Do not hand these out any more, nor send a verdict on them: they are the hub's again, or go back to it."""
        fresh = sorted(set(indexes).difference(batch._settled))
        self.taken_back += len(fresh)
        if give_back:
            self._give_back(batch, fresh)
        if batch in self.ready:
            self._cut_up(batch, fresh)
        elif fresh:
            batch._lost = batch._lost.union(fresh)
            self.careful = True
            self.stale += len(fresh)  # whoever has them may give verdicts, in vain
            self._window.lost(len(fresh))
            self._settle(batch, fresh)

    def _give_back(self, batch: Batch, indexes: Iterable[int]) -> None:
        rows: list[Row] = []
        extend(rows, Verdict.RELEASE, (batch.first_ordinal + index for index in indexes))
        self._returns.extend(rows)

    def forgotten(self, batch: Batch) -> None:
        """The program has dropped fetched messages without a verdict: they go back. Called by the finalizer of the
        batch, in any thread, without a lock."""
        if self.settles and not self.closed and batch.generation == self.generation:
            self._give_back(batch, batch.open_indexes())
            self.hook(self, False)

    def _cut_up(self, batch: Batch, gone: Collection[int]) -> None:
        """Put what is left of a batch that nobody has taken in its place."""
        at = self.ready.index(batch)
        del self.ready[at], self._held[batch.first_ordinal]
        batch._whole = True  # its pieces stand for it
        pieces = batch.without(gone)
        for place, piece in enumerate(pieces):
            self.ready.insert(at + place, piece)
            self._held[piece.first_ordinal] = piece
        self._window.lost(len(gone))
        self._window.settled_bytes += len(batch.block.raw) - sum(len(piece.block.raw) for piece in pieces)

    @property
    def wants_collect(self) -> bool:
        """Whether verdicts or credit should leave before waiting: much was taken, or the hub may wait for credit.
        Otherwise they can wait a moment for company."""
        return self.taken >= VERDICTS_PER_FRAME or self._window.used(self.last_ordinal)

    @property
    def awake(self) -> bool:
        """Whether there is something for whoever waits: a delivery, or news that there will be none."""
        return bool(self.ready or self.refused or self.over)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be handed out."""
        return self.stopped or self.closed or self.error is not None

    def complain(self) -> None:
        """Raise what the hub has against this subscription or its verdicts, each refusal of a verdict once."""
        if self.error is not None and not isinstance(self.error, Closed):
            raise self.error
        if self.refused:
            raise self.refused.pop(0)

    def take(self) -> Batch | Refresh | None:
        """What comes next, if there is something."""
        if not self.ready:
            return None
        item = self.ready.popleft()
        if isinstance(item, Batch):
            self.taken += item.count
            if item.attempt >= SURE_ATTEMPT:
                self.careful = self.settles
            if not self.settles and item.generation == self.generation:
                self._window.settled += item.count
                self._window.settled_bytes += len(item.block.raw)
                if self._window.can_rise:
                    self.hook(self, False)  # no verdict will say that there is room again
        return item

    @property
    def verdicts(self) -> int:
        """How many have been collected; of a lost delivery, too, nothing more is expected."""
        return self._window.settled

    # Verdicts.

    def noted(self, batch: Batch, urgent: bool) -> None:
        """A batch has verdicts to send. Called from any thread, without a lock."""
        if not batch._listed:
            batch._listed = True
            self.dirty.append(batch)
        if self.closed:  # looked at last, so that a verdict is either sent or refused here
            raise Closed(
                "this subscription is closed; the message went back to its group",
                "settle messages before leaving the loop, or use fetch() to hold on to them",
            )
        self.hook(self, urgent)

    def touch(self, batch: Batch, first: int, last: int, lease_ms: int | None) -> None:
        if not self.settles or self.closed or batch.generation != self.generation:
            return
        self._touches.append((Verdict.TOUCH, batch.first_ordinal + first, batch.first_ordinal + last, lease_ms))
        self.hook(self, False)

    def collect(self, next_rid: Callable[[], int], now: float | None = None) -> list[m.ToHub]:
        """Everything that this subscription has to say: verdicts as ranges, and credit at half the window."""
        self.flush_at = FOREVER
        self.taken = 0
        out: list[m.ToHub] = []
        batches: list[Batch] = []
        rows = drained(self._touches)  # first, since a touch of what is settled would be stale
        rows += self._rows(batches) + drained(self._returns)
        for start in range(0, len(rows), VERDICT_ROWS_MAX):
            settle = m.Settle(self.chan, next_rid(), tuple(rows[start : start + VERDICT_ROWS_MAX]))
            out.append(self.acks.sent(settle, batches))
            self.bars.sent(settle.rid)
        self.acks.all_sent()
        if now is not None:
            self._window.measure(now, not self._held)
        if (not self.retired and self._window.rise()) or self.begun.told != self.begun.is_unsure:
            out.append(self.credit())
        return out

    def credit(self) -> m.Credit:
        self.begun.told = self.begun.is_unsure
        unsure = UNSURE if self.begun.is_unsure else self.request.get("unsure", 0)
        limits = (0, 0) if self.retired else (self._window.ordinal_max, self._window.bytes_max)
        return m.Credit(self.chan, *limits, unsure)

    def _give_back_barred(self) -> None:
        """What is here of barred keys goes back together with the failure that barred them."""
        for batch in list(self._held.values()):
            late = [index for index in batch.open_indexes() if self.bars.goes_back(batch, index)]
            if late:
                self._forget(batch, late, give_back=True)

    def readies(self) -> list[int]:
        """Refreshes that the application is through with, since the last time."""
        return [self._readies.popleft() for _ in range(len(self._readies))]

    def renew(self, now: float) -> m.ToHub | None:
        """Every quarter of a lease, whatever is held longer than a quarter is touched: nothing gets past half."""
        quarter = self.lease_s / 4
        due = [batch for batch in list(self._held.values()) if now - batch.leased_at >= quarter]
        rows = [row for batch in due[:VERDICT_ROWS_MAX] for row in batch.touch_row(now)]
        self.touch_at = FOREVER if not self._held else now if len(due) > VERDICT_ROWS_MAX else now + quarter
        # Unanswered: a lost touch is repeated by the next one.
        return m.Settle(self.chan, 0, tuple(rows)) if rows else None

    def resumed(self) -> Iterable[m.ToHub]:
        """What the hub may have missed before a resume: unanswered ACKs and the credit, both safe to repeat."""
        self.jump_allowed = True
        self.begun.resumed()
        yield from self.acks.messages()
        if not self.fetching or self.retired:
            yield self.credit()

    def answered(self, rid: int, fields: Mapping[str, Any]) -> bool:
        """The hub's OK to an ACK. True when it was one of ours."""
        stale = self.acks.answered(rid, fields)
        if stale is None:
            return False
        self.stale += stale
        self.bars.answered(rid)
        return True

    def refuse(self, rid: int, error: HubError) -> bool:
        """The hub's ERR to an ACK. True when it was one of ours; the application hears of it with its next step."""
        untold = self.acks.refused(rid, error)
        if untold is None:
            return False
        self.bars.answered(rid)
        if untold:
            self.refused.append(error)
        return True

    def confirmed(self, batch: Batch, indexes: Collection[int]) -> None:
        """A transaction has acked these messages."""
        fresh = set(indexes).difference(batch._settled)
        self._window.settled += len(fresh)
        self._settle(batch, fresh)
        self.acks.unsettled.confirmed(batch, indexes)

    def give_up(self, batch: Batch, indexes: Collection[int]) -> None:
        """A transaction on these messages was stale. Some may still be ours, but nothing was done for them either; for
        those that are not, the release is stale once more."""
        self._forget(batch, indexes, give_back=True)
        self.hook(self, False)

    def is_held(self, batch: Batch) -> bool:
        return not self.closed and self._held.get(batch.first_ordinal) is batch

    def _void(self, batch: Batch) -> None:
        """Verdicts on messages of a session that the hub has forgotten: they are not sent, but remembered."""
        rows: list[Row] = []
        batch.harvest(rows, rows)
        self.acks.void(rows, [batch])

    def _settle(self, batch: Batch, indexes: Collection[int]) -> None:
        """Nothing more is expected of us for these messages."""
        batch._settled = batch._settled.union(indexes)
        if len(batch._settled) == batch.count:
            self._let_go(batch)

    def _let_go(self, batch: Batch) -> None:
        if self._held.pop(batch.first_ordinal, None) is not None:
            self._window.settled_bytes += len(batch.block.raw)
            batch._payloads = None  # an ACK holds on to the batch until it is answered, and needs no payloads

    def _rows(self, batches: list[Batch]) -> list[Row]:
        """The verdicts given since the last time; the batches that they are about are added to `batches`."""
        acks: list[Row] = []
        others: list[Row] = []
        while self.dirty:
            self.acks.collecting.append(batch := self.dirty[0])
            self.dirty.popleft()
            batch._listed = False
            if batch.generation != self.generation:
                self._void(batch)
            if self._held.get(batch.first_ordinal) is not batch:
                continue  # settled before, or void
            batches.append(batch)
            self._window.settled += batch.harvest(acks, others)
            if batch._listed:
                self.dirty.append(batch)
            if batch.complete:
                self._let_go(batch)
        if self.bars and self.bars.leaving(others):
            self._give_back_barred()
        return acks + others
