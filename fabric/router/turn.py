"""What this turn must write down besides its blocks, and what may be said only when that is on disk."""

from fabric.records import Record
from fabric_protocol.messages import PeerId, ToClient

Out = list[tuple[PeerId, ToClient]]


class TurnBuffer:
    __slots__ = ("_records", "_sends")

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._sends: Out = []

    def __bool__(self) -> bool:
        return bool(self._records or self._sends)

    def write(self, record: Record) -> None:
        """To be on disk with this turn, in this order."""
        self._records.append(record)

    def answer(self, peer: PeerId, message: ToClient) -> None:
        """To be said when this turn is on disk."""
        self._sends.append((peer, message))

    def take(self) -> tuple[list[Record], Out]:
        taken = self._records, self._sends
        self._records, self._sends = [], []
        return taken
