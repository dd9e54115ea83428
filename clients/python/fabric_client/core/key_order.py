"""Keeping order on the client's side of an ordered group.

In a group of order `key` or `strict`, a message with a RETRY or RELEASE must be handled again before any later message
of its key. The hub takes the later messages back when the verdict arrives, but some are already in this client and some
are on the way. So the key *waits*: from the moment of the verdict, in the thread that gave it, no buffered message of
the key is handed out; the buffered messages go back to the hub in the same ACK as the verdict; and messages of the key
that arrive later go back too. The wait ends when a message that went back is delivered again, because deliveries are in
order from there on, or when the hub answers the last ACK that gave messages back, because no earlier delivery can
arrive after that answer.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from fabric_client.core.verdict_rows import Row

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch

EVERYTHING: Final = b"\0strict"  # the one key of a strict group


class WaitingKey:
    """A key that waits: the ordinal after which its messages are held back, and what ends the wait."""

    __slots__ = ("leaves", "ordinal", "rid", "seqs")

    def __init__(self, seq: int, ordinal: int) -> None:
        self.seqs = {seq}  # messages that went back: the failed message, and later messages of its key
        self.ordinal = ordinal
        self.leaves = False  # the next ACK gives a message of it back
        self.rid = 0  # of the last ACK that gave a message of it back; 0: not sent yet


class WaitingKeys:
    """The keys of one subscription that wait for a failed message."""

    __slots__ = ("by_key", "order")

    def __init__(self) -> None:
        self.order = "none"
        self.by_key: dict[bytes, WaitingKey] = {}  # never replaced, so that other objects may keep a reference

    def __bool__(self) -> bool:
        return bool(self.by_key)

    @property
    def ordered(self) -> bool:
        return self.order != "none"

    def key_of(self, batch: "Batch", index: int) -> bytes:
        """The key that orders the message; empty if none does."""
        return EVERYTHING if self.order == "strict" else batch.keys[index]

    def failed(self, batch: "Batch", index: int) -> None:
        """A message goes back: later messages of its key wait. Called from any thread, without a lock."""
        key = self.key_of(batch, index)
        ordinal = batch.first_ordinal + index
        waiting = self.by_key.get(key)
        if key and (waiting is None or ordinal < waiting.ordinal):
            self.by_key[key] = WaitingKey(batch.seq_of(index), ordinal)

    def must_wait(self, batch: "Batch", index: int) -> bool:
        """Whether a message of a held batch must not be handed out."""
        waiting = self.by_key.get(self.key_of(batch, index))
        return waiting is not None and batch.first_ordinal + index > waiting.ordinal

    def leaving(self, rows: Collection[Row]) -> bool:
        """The next ACK has these rows, which are no acks. True if one of them made a key wait."""
        found = False
        for waiting in list(self.by_key.values()):
            if any(first <= waiting.ordinal <= last for _, first, last, _ in rows):
                waiting.leaves = found = True
        return found

    def goes_back(self, batch: "Batch", index: int) -> bool:
        """Whether a message of a held batch goes back in the same ACK as the verdict that made its key wait."""
        waiting = self.by_key.get(self.key_of(batch, index))
        if waiting is None or not waiting.leaves or batch.first_ordinal + index <= waiting.ordinal:
            return False
        waiting.seqs.add(batch.seq_of(index))
        return True

    def sent(self, rid: int) -> None:
        """The ACK with the rows of `leaving` was sent."""
        for waiting in list(self.by_key.values()):
            if waiting.leaves:
                waiting.leaves, waiting.rid = False, rid

    def arrived(self, batch: "Batch") -> list[int]:
        """The indexes of messages that must go back, because the hub sent them before it knew of the wait."""
        early = []
        for index in range(batch.count):
            waiting = self.by_key.get(key := self.key_of(batch, index))
            if waiting is None:
                continue
            seq = batch.seq_of(index)
            if seq in waiting.seqs:
                del self.by_key[key]
            else:
                early.append(index)
                waiting.seqs.add(seq)
                waiting.leaves, waiting.rid = True, 0
        return early

    def answered(self, rid: int) -> None:
        """The hub has answered an ACK: it sent later deliveries after it applied the ACK."""
        for key in [key for key, waiting in list(self.by_key.items()) if waiting.rid == rid]:
            del self.by_key[key]

    def clear(self) -> None:
        self.by_key.clear()
