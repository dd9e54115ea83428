"""Open deliveries of one subscription by key, for an ACK of many rows in a group that keeps the order of keys.

Each RETRY there takes back what was sent of its key after it. To look through all that the subscription holds for each
row would cost rows times deliveries; this looks once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fabric.router.delivery import Parcel

if TYPE_CHECKING:
    from fabric.router.members import Subscription


class KeyIndex:
    __slots__ = ("_places", "_sub")

    def __init__(self, sub: "Subscription") -> None:
        self._sub = sub
        self._places: dict[bytes, list[tuple[int, int, Parcel]]] | None = None  # key -> (seq, ordinal, parcel)

    def later(self, firsts: Mapping[bytes, int]) -> dict[Parcel, list[tuple[int, int]]]:
        """Open ordinals of messages with one of the keys and a higher seq than it has here."""
        if self._places is None:
            self._places = {}
            for parcel in self._sub.parcels:
                for span in parcel.open:
                    for ordinal, seq, key in parcel.each(*span):
                        self._places.setdefault(key, []).append((seq, ordinal, parcel))
        found: dict[Parcel, list[tuple[int, int]]] = {}
        for key, first in firsts.items():
            for seq, ordinal, parcel in self._places.get(key, ()):
                if seq > first and parcel.open.holds(ordinal):  # rows before this one may have settled it
                    found.setdefault(parcel, []).append((ordinal, ordinal))
        return {parcel: sorted(found[parcel]) for parcel in sorted(found, key=lambda parcel: parcel.first)}
