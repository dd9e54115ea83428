"""Keeping order on the client's side of an ordered group.

In a group of order `key` or `strict`, a message that failed (or was given back) must be handled again before any later
message of its key. The hub takes the later ones back as soon as it hears of the failure, but some are here already and
some are on their way. So the key is *barred*: at once, in the thread that gave the verdict, what is buffered of that
key is not handed out any more; when the verdict leaves, what is buffered goes back with it; and what arrives of the key
goes back too, until the hub has answered or delivers the failed message again.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from fabric_client.rows import Row

if TYPE_CHECKING:
    from fabric_client.batch import Batch

EVERYTHING: Final = b"\0strict"  # the one key of a strict group


class Bar:
    """From which delivery on a key is barred, and the ACK whose answer lifts it."""

    __slots__ = ("leaves", "ordinal", "rid", "seq")

    def __init__(self, seq: int, ordinal: int) -> None:
        self.seq = seq
        self.ordinal = ordinal
        self.leaves = False  # the verdict is about to be sent
        self.rid = 0  # 0: not sent yet


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
            bar.leaves = bar.leaves or any(first <= bar.ordinal <= last for _, first, last, _ in rows)
            found = found or (bar.leaves and not bar.rid)
        return found

    def goes_back(self, batch: "Batch", index: int) -> bool:
        """Whether this message, which is here, should leave together with the failure that bars it."""
        bar = self.by_key.get(self.key_of(batch, index))
        return bar is not None and bar.leaves and batch.first_ordinal + index > bar.ordinal

    def sent(self, rid: int) -> None:
        """The failures that were about to leave have left with this ACK."""
        for bar in list(self.by_key.values()):
            if bar.leaves:
                bar.rid = bar.rid or rid

    def arrived(self, batch: "Batch") -> list[int]:
        """Which messages of a delivery were sent before the hub knew of the failure. A failed message that comes
        again lifts its bar: everything after it is in order."""
        early = []
        for index in range(batch.count):
            bar = self.by_key.get(key := self.key_of(batch, index))
            if bar is None:
                continue
            if batch.seq_of(index) == bar.seq:
                del self.by_key[key]
            else:
                early.append(index)
        return early

    def answered(self, rid: int) -> None:
        """The hub has answered an ACK: what arrives from now on was sent afterwards."""
        for key in [key for key, bar in list(self.by_key.items()) if bar.rid == rid]:
            del self.by_key[key]

    def clear(self) -> None:
        self.by_key.clear()
