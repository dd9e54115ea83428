"""KeyIndex: open deliveries of one subscription by key, for an ACK of many rows in a group of order `key`.

Each RETRY in such a group takes back later deliveries of the same key. A search through all deliveries for each row
would cost rows times deliveries; the index is built once for each ACK.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fabric.router.groups.lease import Lease

if TYPE_CHECKING:
    from fabric.router.groups.subscription import Subscription


class KeyIndex:
    __slots__ = ("_places", "_sub")

    def __init__(self, sub: "Subscription") -> None:
        self._sub = sub
        self._places: dict[bytes, list[tuple[int, int, Lease]]] | None = None  # key -> (seq, ordinal, lease)

    def later(self, firsts: Mapping[bytes, int]) -> dict[Lease, list[tuple[int, int]]]:
        """Open ordinals of the keys with a seq above the seq that `firsts` has for the key."""
        if self._places is None:
            self._places = {}
            for lease in self._sub.leases:
                for span in lease.open:
                    for ordinal, seq, key in lease.each(*span):
                        self._places.setdefault(key, []).append((seq, ordinal, lease))
        found: dict[Lease, list[tuple[int, int]]] = {}
        for key, first in firsts.items():
            for seq, ordinal, lease in self._places.get(key, ()):
                if seq > first and lease.open.holds(ordinal):  # an earlier row may have settled it
                    found.setdefault(lease, []).append((ordinal, ordinal))
        return {lease: sorted(found[lease]) for lease in sorted(found, key=lambda lease: lease.first)}
