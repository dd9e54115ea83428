"""The receipt: the result of a publish."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from fabric_protocol.bounds import TIME_US_MAX


def moment(time_us: int) -> datetime:
    """A time of the hub as a datetime; times after the year 9999 become its end."""
    return datetime.fromtimestamp(min(time_us, TIME_US_MAX) / 1e6, UTC)


class Receipt(NamedTuple):
    """The hub's confirmation: `seq` of the first message, the `count` of messages, and how many were `duplicates`.

    `seq` is 0 if the message is scheduled: then this is a `Scheduled`.
    """

    seq: int
    count: int = 1  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    duplicates: int = 0
    seqs: Sequence[int] = ()  # of each message, if `publish_many` was called with ids
    repeated: Sequence[int] = ()  # indexes of duplicates: messages that the hub had by their ids
    schedule: int = 0  # the id of a schedule, for `cancel`
    due_us: int = 0

    @property
    def duplicate(self) -> bool:
        """Whether the hub had the message already; `seq` is then that of the stored message."""
        return self.duplicates > 0

    @property
    def due(self) -> datetime | None:
        """When the hub will publish a scheduled message."""
        return moment(self.due_us) if self.due_us else None


class Scheduled(Receipt):
    """A scheduled publish: it has no seq yet, but an `id` for `cancel` and the time when it is `due`."""

    __slots__ = ()

    @property
    def id(self) -> int:
        return self.schedule


def receipt_of(index: int, first_seq: int, whole: bool, repeated: Mapping[int, int]) -> Receipt:
    """The receipt of one message of a block that starts at `first_seq`; `repeated` are its duplicates by id."""
    if index in repeated:
        return Receipt(repeated[index], 1, 1)
    if not first_seq:
        return Receipt(0, 1, int(whole))
    return Receipt(first_seq + index - sum(place < index for place in repeated), 1, int(whole))


def receipt_of_all(count: int, first_seq: int, duplicates: int, repeated: Mapping[int, int], each: bool) -> Receipt:
    """The receipt of a whole block; with `each` it has the seq of every message."""
    if not each:
        return Receipt(first_seq, count, duplicates)
    seqs = [receipt_of(index, first_seq, False, repeated).seq for index in range(count)]
    return Receipt(seqs[0], count, duplicates, seqs, sorted(repeated))


def total(receipts: Sequence[Receipt]) -> Receipt:
    """One receipt for several blocks: the first seq, and the sums."""
    first = receipts[0]
    if len(receipts) == 1:
        return first
    seqs: list[int] = []
    repeated: list[int] = []
    for receipt in receipts:
        repeated.extend(len(seqs) + index for index in receipt.repeated)
        seqs.extend(receipt.seqs)
    return first._replace(
        count=sum(r.count for r in receipts),
        duplicates=sum(r.duplicates for r in receipts),
        seqs=seqs,
        repeated=repeated,
    )
