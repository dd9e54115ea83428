"""Origins: where a message was born, if another journal had it first.

A link or a connector publishes whole blocks of another journal. The block that is stored here has seqs and a time of
its own, so the first ones are told beside it. An origin is that of the first message of a block: a message that is n
seqs further has the origin's seq plus n.
"""

from typing import Any, Final, NamedTuple

from fabric_protocol.bounds import NUMBER_MAX

JOURNAL_BYTES: Final = 16  # of a journal's uuid


class Origin(NamedTuple):
    """The journal in which a message was born, the epoch of that journal, its seq and its time there."""

    journal: bytes
    epoch: int
    seq: int
    time_us: int  # when it was accepted there, microseconds since 1970

    @property
    def time(self) -> float:
        """The same in seconds."""
        return self.time_us / 1e6

    def shifted(self, by: int) -> "Origin":
        """The origin of the message that is `by` seqs further."""
        return self._replace(seq=self.seq + by) if by else self


def read_origin(value: Any) -> Origin:
    """The origin in a frame. Raises ValueError with what is wrong."""
    if not isinstance(value, list | tuple) or len(value) < len(Origin._fields):
        raise ValueError(f"origin is [journal, epoch, seq, time_us], not {value!r:.60}")
    journal, *numbers = value[: len(Origin._fields)]
    if type(journal) is not bytes or len(journal) != JOURNAL_BYTES:
        raise ValueError(f"the journal of an origin is its uuid, {JOURNAL_BYTES} bytes, not {journal!r:.60}")
    for name, number, least in zip(Origin._fields[1:], numbers, (1, 1, 0), strict=True):
        if type(number) is not int or not least <= number <= NUMBER_MAX:
            raise ValueError(f"{name} of an origin is {least}..2^63-1, not {number!r:.60}")
    return Origin(journal, *numbers)
