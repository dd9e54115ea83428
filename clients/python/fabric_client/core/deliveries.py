"""The deliveries of a subscription that are not settled, and the window that they use.

A batch is `held` until all of its messages are settled, and `ready` until the program takes it. A settled message, and
a message that this consumer no longer holds, makes room in the window.
"""

from collections import deque
from collections.abc import Collection, Iterable, MutableMapping
from weakref import WeakValueDictionary

from fabric_client.core.batch import Batch
from fabric_client.core.refresh import Refresh
from fabric_client.core.verdict_rows import Row, extend
from fabric_client.core.window import Window
from fabric_protocol.messages import Verdict


class Deliveries:
    __slots__ = ("held", "ready", "returns", "window")

    def __init__(self, window: Window, fetching: bool) -> None:
        self.window = window
        self.ready: deque[Batch | Refresh] = deque()  # arrived and not taken
        # By first ordinal. Only the program holds what fetch() has handed out: a batch that it drops is released.
        self.held: MutableMapping[int, Batch] = WeakValueDictionary() if fetching else {}
        self.returns: deque[Row] = deque()  # RELEASE rows: to keep the order, or for batches that the program dropped

    def hold(self, batch: Batch, now: float) -> None:
        """Keep a batch until it is settled."""
        if not self.held:
            self.window.began(now)
        self.held[batch.first_ordinal] = batch

    def holds(self, batch: Batch) -> bool:
        return self.held.get(batch.first_ordinal) is batch

    def restart(self, is_void: bool) -> int:
        """The hub has forgotten the subscription. Void deliveries are dropped: the hub sends them again. Returns how
        many open messages that were."""
        count = 0
        if is_void:
            count = sum(len(batch.verdicts.open_indexes()) for batch in self.held.values())
            self.ready.clear()
            self.held.clear()
            self.returns.clear()
        self.window = self.window.renewed()
        return count

    def close(self) -> None:
        for batch in self.held.values():
            batch.verdicts.refuse()
        self.held.clear()
        self.ready.clear()

    def give_back(self, batch: Batch, indexes: Iterable[int]) -> None:
        """Release messages with the next ACK."""
        rows: list[Row] = []
        extend(rows, Verdict.RELEASE, (batch.first_ordinal + index for index in indexes))
        self.returns.extend(rows)

    def forget(self, batch: Batch, indexes: Collection[int]) -> bool:
        """Stop holding messages: the hub has them again, or they go back to it. True if the program has the batch,
        and may give verdicts without effect."""
        if batch in self.ready:
            self._cut_up(batch, indexes)
            return False
        if not indexes:
            return False
        batch.verdicts.take_back(indexes)
        self.window.lost(len(indexes))
        self.settle(batch, indexes)
        return True

    def _cut_up(self, batch: Batch, gone: Collection[int]) -> None:
        """Replace a batch that was not taken by batches of the messages that are left."""
        at = self.ready.index(batch)
        del self.ready[at], self.held[batch.first_ordinal]
        batch.verdicts.is_whole = True  # its pieces replace it
        pieces = batch.without(gone)
        for place, piece in enumerate(pieces):
            self.ready.insert(at + place, piece)
            self.held[piece.first_ordinal] = piece
        self.window.lost(len(gone))
        self.window.settled_bytes += len(batch.block.raw) - sum(len(piece.block.raw) for piece in pieces)

    def settle(self, batch: Batch, indexes: Collection[int]) -> None:
        """Mark messages as settled without an ACK."""
        if batch.verdicts.settle(indexes):
            self.let_go(batch)

    def let_go(self, batch: Batch) -> None:
        """Stop holding a batch whose messages are all settled."""
        if self.held.pop(batch.first_ordinal, None) is not None:
            self.window.settled_bytes += len(batch.block.raw)
            batch.forget_payloads()
