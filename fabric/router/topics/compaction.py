"""The latest message of each key of a topic with `keep: last_per_key`; older messages of the key are superseded.

Only topics with this setting have memory for each key. It is derived state: after a restart it is computed by reading
the topic once, and until then no message counts as superseded. A message without a key supersedes no other message and
is kept.
"""

from collections.abc import Iterable
from typing import Final

LATEST_KEYS_MAX: Final = 100_000  # for one topic; some 15 MB. A topic with more keys keeps all messages (`overflowed`)
_SIZE_BITS: Final = 32  # payloads are shorter than 4 GB


class Latest:
    __slots__ = ("_places", "superseded")

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}  # key -> seq and payload size, in one number
        self.superseded = 0  # superseded messages since the last pass of retention

    def __len__(self) -> int:
        return len(self._places)

    @property
    def is_full(self) -> bool:
        return len(self._places) > LATEST_KEYS_MAX

    def put(self, key: bytes, seq: int, size: int) -> tuple[int, int]:
        """Add a message. Returns by how many messages and bytes the topic grows."""
        if not key:
            return 1, size
        place = self._places.get(key)
        if place is None:
            self._places[key] = seq << _SIZE_BITS | size
            return 1, size
        self.superseded += 1
        if place >> _SIZE_BITS > seq:
            return 0, 0
        self._places[key] = seq << _SIZE_BITS | size
        return 0, size - (place & (1 << _SIZE_BITS) - 1)

    def growth(self, messages: Iterable[tuple[bytes, int]]) -> tuple[int, int]:
        """By how many messages and bytes the topic would grow with these (key, size)."""
        count = total = 0
        news: dict[bytes, int] = {}
        for key, size in messages:
            if not key:
                count, total = count + 1, total + size
            else:
                news[key] = size
        for key, size in news.items():
            place = self._places.get(key)
            if place is None:
                count, total = count + 1, total + size
            else:
                total += size - (place & (1 << _SIZE_BITS) - 1)
        return count, total

    def is_superseded(self, key: bytes, seq: int) -> bool:
        return bool(key) and self._places.get(key, 0) >> _SIZE_BITS > seq

    def remove(self, key: bytes, seq: int) -> bool:
        """Remove a message; True when it was not superseded, so that it was counted."""
        if not key:
            return True
        place = self._places.get(key)
        if place is None or place >> _SIZE_BITS != seq:
            return False
        del self._places[key]
        return True
