"""The consuming half of the core: one subscription, its deliveries, its verdicts and its credit.

A delivery comes in as a `Batch`, is taken by the shell, and is settled by verdicts that the batch collects. `collect`
turns verdicts into one ACK of ordinal ranges and raises the credit. The one idea to hold while reading: ordinals count
the deliveries of one *generation*. When the hub has forgotten the session the generation ends; what was held from it
is void, because the hub will deliver it again.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from fabric import messages as m
from fabric.block import Block
from fabric.errors import FabricError
from fabric.messages import Verdict
from fabric_client.errors import Closed
from fabric_client.message import NEVER, VERDICTS_PER_FRAME, Batch

# Enough to keep the line full while a consumer works through a block, and a multiple of a full block, which the hub
# need not cut then. Slow jobs want less, so that work which one worker could not start is not withheld from others.
PREFETCH: Final = 8192
# Not below the largest block, so that bytes alone can never stall a subscription.
PREFETCH_BYTES: Final = 16 << 20
LEASE_S: Final = 30.0  # the hub's default, in case its answer to SUB was lost
VERDICT_DELAY_S: Final = 0.005  # verdicts wait so long for company
VERDICT_ROWS_MAX: Final = 10_000  # per ACK frame; far below what the wire allows
FOREVER: Final = float("inf")

Row = tuple[int, int, int, Any]


class Subscription:
    """State of one channel. `hook(self, urgent)` is called, from any thread, when there are verdicts to send."""

    def __init__(
        self,
        chan: int,
        request: Mapping[str, Any],
        *,
        prefetch: int = PREFETCH,
        count_max: int | None = None,
        fetching: bool = False,
        hook: "Callable[[Subscription, bool], None]" = lambda sub, urgent: None,
    ) -> None:
        self.chan = chan
        self.group: str | None = request.get("group")
        self.request = dict(request)
        self.hook = hook
        self.fetching = fetching  # credit is given by FETCH, not by us
        self.ready: deque[Batch] = deque()  # delivered and not yet taken
        self.dirty: deque[Batch] = deque()  # have verdicts to send
        self.unconfirmed: dict[int, m.Settle] = {}  # ACKs without an answer, by rid
        self.flush_at = FOREVER
        self.touch_at = FOREVER
        self.lease_s: float = request.get("lease_ms", LEASE_S * 1000) / 1000
        self.error: FabricError | None = None
        self.closed = False
        self.unwanted = False  # nobody takes deliveries any more; those that still come go back at once
        self.generation = 0
        self.void = 0  # deliveries that a lost session made void
        self.stale = 0  # verdicts that came after the lease had lapsed
        self.lost = 0  # messages that retention or damage took (GAP)
        self.taken = 0  # messages taken since the last collect
        self._prefetch = prefetch
        self._count_max = count_max
        self._next_seq = 0  # where an ephemeral subscription goes on; 0: not known
        self._touches: list[Row] = []
        self._held: dict[int, Batch] = {}  # group deliveries not settled yet, by first ordinal
        self._start_generation()

    def _start_generation(self) -> None:
        self.last_ordinal = 0  # last <= credit
        self.jump_allowed = False  # on a resumed connection ordinals may be missing
        self._settled = 0  # messages
        self._settled_bytes = 0
        self._credit = self._credit_target()
        self._credit_bytes = 0 if self.fetching else PREFETCH_BYTES

    def subscribe(self, rid: int) -> m.Subscribe:
        """The SUB that opens, or opens again, this subscription."""
        fields = {**self.request, "credit": [self._credit, self._credit_bytes]}
        if self.group is None and self._next_seq:
            fields["start"] = {"seq": self._next_seq}
        return m.Subscribe(self.chan, rid, fields)

    def accepted(self, fields: Mapping[str, Any]) -> None:
        """The hub's OK to SUB."""
        self.lease_s = fields.get("lease_ms", self.lease_s * 1000) / 1000
        if not self._next_seq:
            self._next_seq = fields.get("cursor", 0)

    def restart(self, same_journal: bool) -> None:
        """The hub knows nothing of this subscription any more. A group's deliveries will come again, so what is held
        of them is void. Without a group nothing comes twice: what is buffered stays, and we go on after it."""
        self.generation += 1
        if self.group is not None:
            for batch in self._held.values():
                self.void += len(batch.open_indexes())
                batch._due = NEVER
            self.ready.clear()
            self._held.clear()
            self.dirty.clear()
            self._touches.clear()
            self.unconfirmed.clear()
        if not same_journal:
            self._next_seq = 0
        self.flush_at = self.touch_at = FOREVER
        if self._count_max is not None:
            self._count_max -= self._settled
        self._start_generation()

    def close(self) -> None:
        """No more deliveries. A verdict on what is still held is an error from now on: the hub has taken it back."""
        self.closed = True
        for batch in self._held.values():
            batch._due = 0
        self._held.clear()
        self.ready.clear()
        self.dirty.clear()
        self.flush_at = self.touch_at = FOREVER

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
        self._settled += missing  # they lapsed while we were away: the hub does not count on us for them
        if self.closed:
            return True
        batch = Batch(self, block, message.first_ordinal, message.attempt, message.seqs, now)
        self._next_seq = batch.last_seq + 1
        if self.group is not None:
            self._held[message.first_ordinal] = batch
            self.touch_at = min(self.touch_at, now + self.lease_s / 4)
        if self.unwanted:
            batch.release()
        else:
            self.ready.append(batch)
        return True

    @property
    def wants_collect(self) -> bool:
        """Whether verdicts or credit should leave before waiting: much was taken, or the hub may wait for credit.
        Otherwise they can wait a moment for company."""
        return self.taken >= VERDICTS_PER_FRAME or self._credit - self.last_ordinal <= self._prefetch // 2

    def take(self) -> Batch | None:
        """The next batch, if there is one."""
        if not self.ready:
            return None
        batch = self.ready.popleft()
        self.taken += batch.count
        if self.group is None and batch.generation == self.generation:
            self._settled += batch.count
            self._settled_bytes += len(batch.block.raw)
        return batch

    # Verdicts.

    def noted(self, batch: Batch, urgent: bool) -> None:
        """A batch has verdicts to send. Called from any thread, without a lock."""
        if self.closed:
            raise Closed(
                "this subscription is closed; the message went back to its group",
                "settle messages before leaving the loop, or use fetch() to hold on to them",
            )
        if batch.generation != self.generation:
            batch._due = NEVER
            return
        if not batch._listed:
            batch._listed = True
            self.dirty.append(batch)
        self.hook(self, urgent)

    def touch(self, batch: Batch, first: int, last: int, lease: float | None) -> None:
        if self.group is None or self.closed or batch.generation != self.generation:
            return
        arg = None if lease is None else round(lease * 1000)
        self._touches.append((Verdict.TOUCH, batch.first_ordinal + first, batch.first_ordinal + last, arg))
        self.hook(self, False)

    def collect(self, next_rid: Callable[[], int]) -> list[m.ToHub]:
        """Everything that this subscription has to say: verdicts as ranges, and credit at half the window."""
        self.flush_at = FOREVER
        self.taken = 0
        out: list[m.ToHub] = []
        rows = self._rows()
        if self._touches:
            touches, self._touches = self._touches, []
            rows.extend(touches)
        for start in range(0, len(rows), VERDICT_ROWS_MAX):
            settle = m.Settle(self.chan, next_rid(), tuple(rows[start : start + VERDICT_ROWS_MAX]))
            self.unconfirmed[settle.rid] = settle
            out.append(settle)
        credit = self._raise_credit()
        if credit is not None:
            out.append(credit)
        return out

    def renew(self, now: float) -> m.ToHub | None:
        """Every quarter of a lease, whatever is held longer than a quarter is touched: nothing gets past half.
        A lease covers a delivery, so one open ordinal of it is enough."""
        quarter = self.lease_s / 4
        rows: list[Row] = []
        for batch in self._held.values():
            if now - batch.leased_at >= quarter:
                batch.leased_at = now
                if left := batch.open_indexes():
                    ordinal = batch.first_ordinal + left[0]
                    rows.append((Verdict.TOUCH, ordinal, ordinal, None))
        self.touch_at = now + quarter if self._held else FOREVER
        # Unanswered: a lost touch is repeated by the next one.
        return m.Settle(self.chan, 0, tuple(rows[:VERDICT_ROWS_MAX])) if rows else None

    def resumed(self) -> Iterator[m.ToHub]:
        """What the hub may have missed before a resume: unanswered ACKs and the credit, both safe to repeat."""
        self.jump_allowed = True
        yield from self.unconfirmed.values()
        if not self.fetching:
            yield m.Credit(self.chan, self._credit, self._credit_bytes)

    def answered(self, rid: int, fields: Mapping[str, Any]) -> bool:
        """The hub's OK to an ACK. True when it was one of ours."""
        if self.unconfirmed.pop(rid, None) is None:
            return False
        self.stale += sum(last - first + 1 for first, last in fields.get("stale", ()))
        return True

    def _rows(self) -> list[Row]:
        acks: list[Row] = []
        others: list[Row] = []
        while self.dirty:
            batch = self.dirty.popleft()
            batch._listed = False
            first = batch.first_ordinal
            if self._held.get(first) is not batch:
                continue  # settled before, or void
            self._fresh_others(batch, others)
            acked = self._rest(batch) if batch._whole else self._fresh_acks(batch)
            self._settled += len(acked)
            if len(acked) == batch.count:
                _extend_range(acks, Verdict.ACK, first, first + batch.count - 1)
            else:
                _extend(acks, Verdict.ACK, (first + index for index in sorted(acked)))
            if batch._whole or len(batch._settled) == batch.count:
                del self._held[first]
                self._settled_bytes += len(batch.block.raw)
        return acks + others

    @staticmethod
    def _rest(batch: Batch) -> Collection[int]:
        everything = range(batch.count)
        return set(everything).difference(batch._settled) if batch._settled else everything

    def _fresh_acks(self, batch: Batch) -> set[int]:
        """Acked since the last time. See `Batch._noted` for the order of steps."""
        done, start = batch._done, batch._sent
        count = len(done)
        batch._due = count + 1
        if len(done) > count and not batch._listed:
            batch._listed = True
            self.dirty.append(batch)
        batch._sent = count
        fresh = set(done[start:count])
        if batch._settled:
            fresh -= batch._settled
            batch._settled |= fresh
        else:
            batch._settled = fresh.copy()
        return fresh

    def _fresh_others(self, batch: Batch, rows: list[Row]) -> None:
        while batch._other:
            verdict, index, arg = batch._other.popleft()
            if index not in batch._settled:
                batch._settled.add(index)
                self._settled += 1
                _extend_range(rows, verdict, batch.first_ordinal + index, batch.first_ordinal + index, arg)

    # Credit: cumulative limits, so that a repeated or lost CREDIT does no harm.

    def _credit_target(self) -> int:
        if self.fetching:
            return 0
        target = self._settled + self._prefetch
        return target if self._count_max is None else min(target, self._count_max)

    def _raise_credit(self) -> m.Credit | None:
        if self.fetching:
            return None
        target, target_bytes = self._credit_target(), self._settled_bytes + PREFETCH_BYTES
        enough = target - self._credit >= max(1, self._prefetch // 2)
        last_part = target == self._count_max and target > self._credit
        if not (enough or last_part or target_bytes - self._credit_bytes >= PREFETCH_BYTES // 2):
            return None
        self._credit, self._credit_bytes = target, target_bytes
        return m.Credit(self.chan, target, target_bytes)


def _extend(rows: list[Row], verdict: int, ordinals: Iterable[int]) -> None:
    """Add ascending ordinals to rows of ranges."""
    first = last = -2
    for ordinal in ordinals:
        if ordinal != last + 1:
            if last > 0:
                _extend_range(rows, verdict, first, last)
            first = ordinal
        last = ordinal
    if last > 0:
        _extend_range(rows, verdict, first, last)


def _extend_range(rows: list[Row], verdict: int, first: int, last: int, arg: Any = None) -> None:
    if rows and rows[-1][2] == first - 1 and rows[-1][0] == verdict and rows[-1][3] == arg:
        rows[-1] = (verdict, rows[-1][1], last, arg)
    else:
        rows.append((verdict, first, last, arg))
