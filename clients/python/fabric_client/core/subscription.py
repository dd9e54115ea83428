"""The consuming half of the core: one subscription, its deliveries, its verdicts and its credit.

A delivery arrives as a `Batch`, the program takes it, and verdicts settle it. `collect` turns verdicts into one ACK of
ordinal ranges and raises the credit. The one idea to hold while reading: ordinals count the deliveries of one
*generation*. When the hub has forgotten the session the generation ends; its held deliveries are void, because the hub
delivers their messages again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from fabric_client.core.acks import Acks
from fabric_client.core.batch import Batch, FetchedBatch
from fabric_client.core.batch_verdicts import VERDICTS_PER_FRAME
from fabric_client.core.begun import SURE_ATTEMPT, UNSURE, Begun
from fabric_client.core.deliveries import Deliveries
from fabric_client.core.in_hand import InHand
from fabric_client.core.key_order import WaitingKeys
from fabric_client.core.refresh import Refresh
from fabric_client.core.subscription_driver import SubscriptionDriver
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_rows import VERDICT_ROWS_MAX, Row, drained
from fabric_client.core.window import Window
from fabric_client.errors import Closed, HubError
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict

# Enough to keep the line full while a consumer handles a block, and a multiple of a full block, so that the hub need
# not cut one. Slow handlers want less, so that the hub keeps the messages for other consumers.
PREFETCH: Final = 8192
LEASE_S: Final = 30.0  # the hub's default, in case its answer to SUB was lost
VERDICT_DELAY_S: Final = 0.005  # verdicts wait this long for more verdicts
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
        renews: bool = True,
        on_error: str = "retry",
        hook: "Callable[[Subscription, bool], None]" = lambda sub, urgent: None,
        driver: "SubscriptionDriver | None" = None,
    ) -> None:
        self.chan = chan
        self.group: str | None = request.get("group")
        self.request = dict(request)
        self.hook, self.driver = hook, driver
        self.on_error = on_error
        self.fetching, self.renews = fetching, renews  # renews: leases are renewed while messages are held
        self.deliveries = Deliveries(Window(prefetch, count_max, fetching, least), fetching)
        self.ready = self.deliveries.ready  # the same queue, for loops that look at it often
        self.dirty: deque[Batch] = deque()  # have verdicts to send
        self.acks = Acks()  # without an answer
        self.refused: list[HubError] = []  # refused ACKs that the program has not been told of
        self.flush_at = FOREVER  # when to send verdicts
        self.touch_at = FOREVER  # when to renew leases
        self.review_at = FOREVER  # when to see whether an unsure consumer is sure again; see `begun`
        self.lease_s: float = request.get("lease_ms", LEASE_S * 1000) / 1000
        self.error: FabricError | None = None
        self.closed = False
        self.stopped = False  # the loop over it ends at its next step
        self.changing = False  # True during a delivery or a collect, and after one that was interrupted
        self.retired = False  # deliveries go back at once; it is closed when it holds nothing
        self.in_hand: InHand | None = None
        self.generation = 0
        self.void = 0  # deliveries that a lost session made void
        self.stale = 0  # verdicts without effect: given, or to be expected, after the hub took the message back
        self.lost = 0  # messages that retention or damage removed (GAP)
        self.taken_back = 0  # deliveries that the hub took back, or that went back to keep the order
        self.taken = 0  # messages taken since the last collect
        self.last_ordinal = 0  # of the last delivery; never above the credit
        self.jump_allowed = False  # on a resumed connection ordinals may be missing
        self.waiting_keys = WaitingKeys()
        self.begun = Begun()
        self._next_seq = 0  # where a subscription without a group goes on; 0: not known
        self._touches: deque[Row] = deque()
        self._readies: deque[int] = deque()  # refreshes that the program has finished
        self._adopt(request)

    def _adopt(self, settings: Mapping[str, Any]) -> None:
        """Apply the settings of the group."""
        self.waiting_keys.order = settings.get("order", self.waiting_keys.order)
        self.unsure = self.group is not None and "order" not in settings and "order" not in self.request
        # Deliveries take verdicts, except without a group and where the hub acks what it sends.
        self.settles = self.group is not None and settings.get("ack", self.request.get("ack")) != "auto"
        self.careful = self.settles or self.stopped  # the driver must ask before a message is begun; see `begun`

    # Opening and closing.

    def subscribe(self, rid: int) -> m.Subscribe:
        """The SUB that opens this subscription, for the first time or again."""
        window = self.deliveries.window
        fields = {**self.request, "credit": [window.ordinal_max, window.bytes_max]}
        if self.group is None and self._next_seq:
            fields["start"] = {"seq": self._next_seq}
        return m.Subscribe(self.chan, rid, fields)

    def learned(self, ticket: Ticket) -> None:
        """Apply what INFO says of the group, for hubs whose OK to SUB does not tell its order."""
        self._adopt(ticket.value if ticket.error is None else {})
        self.unsure = False

    def accepted(self, fields: Mapping[str, Any]) -> None:
        """The hub's OK to SUB."""
        self.lease_s = fields.get("lease_ms", self.lease_s * 1000) / 1000
        self._adopt(fields)
        if not self._next_seq:
            self._next_seq = fields.get("cursor", 0)

    def restart(self, same_journal: bool) -> None:
        """Start again after the hub has forgotten this subscription. A group's messages are delivered again, so held
        deliveries are void. Without verdicts nothing is delivered twice: buffered messages stay."""
        if self.settles:
            self.acks.interrupted(self.changing)
            batches: list[Batch] = []
            self.acks.void(self._rows(batches), batches)
            self.acks.lost()
            self._touches.clear()
            self.waiting_keys.clear()
        self.void += self.deliveries.restart(self.settles)
        self.generation += 1
        self.changing = False
        self._readies.clear()
        if not same_journal:
            self._next_seq = 0
        self.flush_at = self.touch_at = self.review_at = FOREVER
        self.begun.restarted()
        self.careful = self.settles or self.stopped
        self.last_ordinal = 0
        self.jump_allowed = False

    def stop(self) -> None:
        """End the loop over it at its next step. Called from any thread, also in a signal handler."""
        self.stopped = self.careful = True

    def close(self) -> None:
        """Accept no more deliveries. A verdict on a held message raises from now on: the hub has taken it back."""
        self.closed = True
        if self.dirty:  # another thread gave a verdict just before
            batches: list[Batch] = []
            self.acks.void(self._rows(batches), batches)
        self.deliveries.close()
        self.dirty.clear()
        self.flush_at = self.touch_at = self.review_at = FOREVER

    @property
    def awake(self) -> bool:
        """Whether a waiting consumer must look: at a delivery, or at the reason why there will be none."""
        return bool(self.ready or self.refused or self.over)

    @property
    def over(self) -> bool:
        """Whether nothing more is handed out."""
        return self.stopped or self.closed or self.error is not None

    def raise_error(self) -> None:
        """Raise the error of this subscription, or the hub's refusal of verdicts, each refusal once."""
        if self.error is not None and not isinstance(self.error, Closed):
            raise self.error
        if self.refused:
            raise self.refused.pop(0)

    # Deliveries.

    def deliver(self, message: m.Deliver, now: float) -> bool:
        """Accept a delivery. False if deliveries are missing before it: the session must be resumed."""
        if message.first_ordinal <= self.last_ordinal:
            return True  # a resume sent it again although it had arrived
        missing = message.first_ordinal - self.last_ordinal - 1
        if missing and not self.jump_allowed:
            return False
        block = Block(message.block)
        block.verify_body()
        block.origin = message.origin
        self.last_ordinal += missing + block.count
        self.deliveries.window.lost(missing)  # their leases lapsed while there was no connection
        self.deliveries.window.arrived_bytes += len(message.block)
        if self.closed:
            return True
        kind = FetchedBatch if self.fetching else Batch
        batch = kind(self, block, message.first_ordinal, message.attempt, message.seqs, now)
        if block.base_seq:  # an advisory has none
            self._next_seq = batch.last_seq + 1
        if self.settles:
            self.deliveries.hold(batch, now)
            if self.renews:
                self.touch_at = min(self.touch_at, now + self.lease_s / 4)
        if self.retired:
            batch.release()
            return True
        self.ready.append(batch)
        if self.waiting_keys and (early := self.waiting_keys.arrived(batch)):
            self._forget(batch, early, give_back=True)
            self.hook(self, False)
        return True

    def take(self) -> Batch | Refresh | None:
        """The next batch or refresh, if there is one."""
        if not self.ready:
            return None
        item = self.ready.popleft()
        if isinstance(item, Batch):
            self.taken += item.count
            if item.attempt >= SURE_ATTEMPT:
                self.careful = self.settles
            if not self.settles and item.generation == self.generation:
                window = self.deliveries.window
                window.settled += item.count
                window.settled_bytes += len(item.block.raw)
                if window.can_rise:
                    self.hook(self, False)  # no verdict will raise the credit
        return item

    def take_back(self, ordinals: Sequence[Sequence[int]]) -> None:
        """The hub took deliveries back: they are not handed out, and no verdict on them is sent."""
        for batch in list(self.deliveries.held.values()):
            if gone := batch.among(ordinals):
                self._forget(batch, gone)
        self.hook(self, False)  # the credit may rise

    def forgotten(self, batch: Batch) -> None:
        """Release the open messages of a fetched batch that the program has dropped. Called by the finalizer of the
        batch, in any thread, without a lock."""
        if self.settles and not self.closed and batch.generation == self.generation:
            self.deliveries.give_back(batch, batch.verdicts.open_indexes())
            self.hook(self, False)

    def is_held(self, batch: Batch) -> bool:
        return not self.closed and self.deliveries.holds(batch)

    def _forget(self, batch: Batch, indexes: Collection[int], *, give_back: bool = False) -> None:
        """Neither hand out these messages nor send verdicts on them."""
        fresh = sorted(batch.verdicts.unsettled(indexes))
        self.taken_back += len(fresh)
        if give_back:
            self.deliveries.give_back(batch, fresh)
        if self.deliveries.forget(batch, fresh):
            self.careful = True
            self.stale += len(fresh)

    # Refreshes.

    def reset(self, fields: Mapping[str, Any]) -> None:
        """The hub's RESET, queued in order with the deliveries."""
        if not self.closed:
            self.ready.append(Refresh(self, fields["refresh"], fields["phase"], fields.get("target", 0)))

    def note_ready(self, number: int) -> None:
        """The program has finished a refresh. Called from any thread, without a lock."""
        self._readies.append(number)
        self.hook(self, False)

    def readies(self) -> list[int]:
        """Refreshes that the program has finished since the last call."""
        return [self._readies.popleft() for _ in range(len(self._readies))]

    # Verdicts and credit.

    def noted(self, batch: Batch, urgent: bool) -> None:
        """List a batch that has verdicts to send. Called from any thread, without a lock."""
        if not batch.verdicts.is_listed:
            batch.verdicts.is_listed = True
            self.dirty.append(batch)
        if self.closed:  # tested last, so that every verdict is either sent or refused here
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

    def renew(self, now: float) -> m.ToHub | None:
        """Every quarter of a lease, touch each batch held longer than a quarter: no lease gets past its half."""
        quarter, held = self.lease_s / 4, self.deliveries.held
        due = [batch for batch in list(held.values()) if now - batch.leased_at >= quarter]
        rows = [row for batch in due[:VERDICT_ROWS_MAX] for row in batch.touch_row(now)]
        self.touch_at = FOREVER if not held else now if len(due) > VERDICT_ROWS_MAX else now + quarter
        # Without a request id: the next touch replaces a lost one.
        return m.Settle(self.chan, 0, tuple(rows)) if rows else None

    @property
    def wants_collect(self) -> bool:
        """Whether verdicts or credit should be sent before waiting: many messages were taken, or the hub may wait for
        credit. Otherwise they can wait a moment for more."""
        return self.taken >= VERDICTS_PER_FRAME or self.deliveries.window.used(self.last_ordinal)

    def collect(self, next_rid: Callable[[], int], now: float | None = None) -> list[m.ToHub]:
        """All messages to send: verdicts as ranges, and a CREDIT once half the window is free."""
        self.flush_at = FOREVER
        self.taken = 0
        out: list[m.ToHub] = []
        batches: list[Batch] = []
        rows = drained(self._touches)  # first: a touch of a settled message would be stale
        rows += self._rows(batches) + drained(self.deliveries.returns)
        for start in range(0, len(rows), VERDICT_ROWS_MAX):
            settle = m.Settle(self.chan, next_rid(), tuple(rows[start : start + VERDICT_ROWS_MAX]))
            out.append(self.acks.sent(settle, batches))
            self.waiting_keys.sent(settle.rid)
        self.acks.all_sent()
        window = self.deliveries.window
        if now is not None:
            window.measure(now, not self.deliveries.held)
        if (not self.retired and window.rise()) or self.begun.reported != self.begun.is_unsure:
            out.append(self.credit())
        return out

    def credit(self) -> m.Credit:
        self.begun.reported = self.begun.is_unsure
        unsure = UNSURE if self.begun.is_unsure else self.request.get("unsure", 0)
        window = self.deliveries.window
        limits = (0, 0) if self.retired else (window.ordinal_max, window.bytes_max)
        return m.Credit(self.chan, *limits, unsure)

    def resumed(self) -> Iterable[m.ToHub]:
        """What the hub may have missed before a resume: unanswered ACKs and the credit, both safe to repeat."""
        self.jump_allowed = True
        self.begun.resumed()
        yield from self.acks.messages()
        if not self.fetching or self.retired:
            yield self.credit()

    def answered(self, rid: int, fields: Mapping[str, Any]) -> bool:
        """The hub's OK to an ACK. True if the ACK is of this subscription."""
        stale = self.acks.answered(rid, fields)
        if stale is None:
            return False
        self.stale += stale
        self.waiting_keys.answered(rid)
        return True

    def refuse(self, rid: int, error: HubError) -> bool:
        """The hub's ERR to an ACK. True if the ACK is of this subscription; the next step of the program raises it."""
        unwatched = self.acks.refused(rid, error)
        if unwatched is None:
            return False
        self.waiting_keys.answered(rid)
        if unwatched:
            self.refused.append(error)
        return True

    def confirmed(self, batch: Batch, indexes: Collection[int]) -> None:
        """A transaction has acked these messages."""
        fresh = batch.verdicts.unsettled(indexes)
        self.deliveries.window.settled += len(fresh)
        self.deliveries.settle(batch, fresh)
        self.acks.unsettled.confirmed(batch, indexes)

    def give_up(self, batch: Batch, indexes: Collection[int]) -> None:
        """Release the messages of a stale transaction. The hub may have taken back only some of them; for these
        the release is stale too."""
        self._forget(batch, indexes, give_back=True)
        self.hook(self, False)

    def _rows(self, batches: list[Batch]) -> list[Row]:
        """The verdicts since the last call; the batches that they belong to are added to `batches`."""
        acks: list[Row] = []
        others: list[Row] = []
        while self.dirty:
            self.acks.collecting.append(batch := self.dirty[0])
            self.dirty.popleft()
            batch.verdicts.is_listed = False
            if batch.generation != self.generation:
                self.acks.void(batch.verdicts.rows(), [batch])
            if not self.deliveries.holds(batch):
                continue  # settled before, or void
            batches.append(batch)
            self.deliveries.window.settled += batch.verdicts.harvest(acks, others)
            if batch.verdicts.is_listed:
                self.dirty.append(batch)
            if batch.verdicts.is_complete:
                self.deliveries.let_go(batch)
        if self.waiting_keys and self.waiting_keys.leaving(others):
            self._give_back_waiting()
        return acks + others

    def _give_back_waiting(self) -> None:
        """Give back the held messages of waiting keys, in the same ACK as the verdicts that made the keys wait."""
        for batch in list(self.deliveries.held.values()):
            open_indexes = batch.verdicts.open_indexes()
            if late := [index for index in open_indexes if self.waiting_keys.goes_back(batch, index)]:
                self._forget(batch, late, give_back=True)
