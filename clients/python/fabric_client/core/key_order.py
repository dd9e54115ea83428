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
    """From which delivery on a key is must_wait, and what lifts it."""

    __slots__ = ("leaves", "ordinal", "rid", "seqs")

    def __init__(self, seq: int, ordinal: int) -> None:
        self.seqs = {seq}  # what went back: the failed message, and those after it
        self.ordinal = ordinal
        self.leaves = False  # something of it is about to be sent
        self.rid = 0  # of the last ACK with something of it; 0: not sent yet


class WaitingKeys:
    """The keys of one subscription that wait for a failed message."""

    __slots__ = ("by_key", "order")

    def __init__(self) -> None:
        self.order = "none"
        self.by_key: dict[bytes, WaitingKey] = {}  # one object for good: whoever looks at it often holds on to it

    def __bool__(self) -> bool:
        return bool(self.by_key)

    @property
    def ordered(self) -> bool:
        return self.order != "none"

    def key_of(self, batch: "Batch", index: int) -> bytes:
        """What the message is ordered by; empty when it is not."""
        return EVERYTHING if self.order == "strict" else batch.keys[index]

    def failed(self, batch: "Batch", index: int) -> None:
        """The message goes back: all later ones of its key must wait. Called from any thread, without a lock."""
        key = self.key_of(batch, index)
        ordinal = batch.first_ordinal + index
        waiting = self.by_key.get(key)
        if key and (waiting is None or ordinal < waiting.ordinal):
            self.by_key[key] = WaitingKey(batch.seq_of(index), ordinal)

    def must_wait(self, batch: "Batch", index: int) -> bool:
        """Whether this message, which is here, must not be handed out."""
        waiting = self.by_key.get(self.key_of(batch, index))
        return waiting is not None and batch.first_ordinal + index > waiting.ordinal

    def leaving(self, rows: Collection[Row]) -> bool:
        """These verdicts, none of them an ack, are about to be sent. True when any key is must_wait by one of them."""
        found = False
        for waiting in list(self.by_key.values()):
            if any(first <= waiting.ordinal <= last for _, first, last, _ in rows):
                waiting.leaves = found = True
        return found

    def goes_back(self, batch: "Batch", index: int) -> bool:
        """Whether this message, which is here, should leave together with the failure that waiting_keys it."""
        waiting = self.by_key.get(self.key_of(batch, index))
        if waiting is None or not waiting.leaves or batch.first_ordinal + index <= waiting.ordinal:
            return False
        waiting.seqs.add(batch.seq_of(index))
        return True

    def sent(self, rid: int) -> None:
        """What was about to leave has left with this ACK."""
        for waiting in list(self.by_key.values()):
            if waiting.leaves:
                waiting.leaves, waiting.rid = False, rid

    def arrived(self, batch: "Batch") -> list[int]:
        """Which messages of a delivery must go back, since they were sent before the hub knew what went back."""
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
        """The hub has answered an ACK: what arrives from now on was sent afterwards."""
        for key in [key for key, waiting in list(self.by_key.items()) if waiting.rid == rid]:
            del self.by_key[key]

    def clear(self) -> None:
        self.by_key.clear()
