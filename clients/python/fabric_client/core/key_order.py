"""Keeping order on the client's side of an ordered group.

In a group of order `key` or `strict`, a message that failed (or was given back) must be handled again before any later
message of its key. The hub takes the later ones back as soon as it hears of the failure, but some are here already and
some are on their way. So the key is *barred*: at once, in the thread that gave the verdict, what is buffered of that
key is not handed out any more; when the verdict leaves, what is buffered goes back with it; and what arrives of the key
goes back too. The bar is lifted when one of the messages that went back comes again, because from then on everything is
in order; or when the hub has answered to the last ACK that gave something back, because then nothing of before is left.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from fabric_client.core.verdict_rows import Row

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch

EVERYTHING: Final = b"\0strict"  # the one key of a strict group


class Bar:
    """From which delivery on a key is barred, and what lifts it."""

    __slots__ = ("leaves", "ordinal", "rid", "seqs")

    def __init__(self, seq: int, ordinal: int) -> None:
        self.seqs = {seq}  # what went back: the failed message, and those after it
        self.ordinal = ordinal
        self.leaves = False  # something of it is about to be sent
        self.rid = 0  # of the last ACK with something of it; 0: not sent yet


class Bars:
    """The keys of one subscription that wait for a failed message."""

    __slots__ = ("by_key", "order")

    def __init__(self) -> None:
        self.order = "none"
        self.by_key: dict[bytes, Bar] = {}  # one object for good: whoever looks at it often holds on to it

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
        bar = self.by_key.get(key)
        if key and (bar is None or ordinal < bar.ordinal):
            self.by_key[key] = Bar(batch.seq_of(index), ordinal)

    def barred(self, batch: "Batch", index: int) -> bool:
        """Whether this message, which is here, must not be handed out."""
        bar = self.by_key.get(self.key_of(batch, index))
        return bar is not None and batch.first_ordinal + index > bar.ordinal

    def leaving(self, rows: Collection[Row]) -> bool:
        """These verdicts, none of them an ack, are about to be sent. True when any key is barred by one of them."""
        found = False
        for bar in list(self.by_key.values()):
            if any(first <= bar.ordinal <= last for _, first, last, _ in rows):
                bar.leaves = found = True
        return found

    def goes_back(self, batch: "Batch", index: int) -> bool:
        """Whether this message, which is here, should leave together with the failure that bars it."""
        bar = self.by_key.get(self.key_of(batch, index))
        if bar is None or not bar.leaves or batch.first_ordinal + index <= bar.ordinal:
            return False
        bar.seqs.add(batch.seq_of(index))
        return True

    def sent(self, rid: int) -> None:
        """What was about to leave has left with this ACK."""
        for bar in list(self.by_key.values()):
            if bar.leaves:
                bar.leaves, bar.rid = False, rid

    def arrived(self, batch: "Batch") -> list[int]:
        """Which messages of a delivery must go back, since they were sent before the hub knew what went back."""
        early = []
        for index in range(batch.count):
            bar = self.by_key.get(key := self.key_of(batch, index))
            if bar is None:
                continue
            seq = batch.seq_of(index)
            if seq in bar.seqs:
                del self.by_key[key]
            else:
                early.append(index)
                bar.seqs.add(seq)
                bar.leaves, bar.rid = True, 0
        return early

    def answered(self, rid: int) -> None:
        """The hub has answered an ACK: what arrives from now on was sent afterwards."""
        for key in [key for key, bar in list(self.by_key.items()) if bar.rid == rid]:
            del self.by_key[key]

    def clear(self) -> None:
        self.by_key.clear()
