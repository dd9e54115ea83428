"""Idle subscriptions that fetch() keeps for its next call, so that a fetch in a loop does not subscribe each time."""

import threading
from collections.abc import Hashable
from typing import Final

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.subscription import Subscription

IDLE_MAX: Final = 64  # idle subscriptions; the hub allows 1,024 channels for a session


class Fetchers:
    """Subscriptions that no fetch() uses at the moment, by patterns, group and settings. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[Hashable, Subscription]] = []  # least recently used first

    def take(self, key: Hashable) -> Subscription | None:
        """An idle subscription for one caller, or None. Raises the hub's refusals of earlier verdicts."""
        with self._lock:
            self._idle = [(k, sub) for k, sub in self._idle if not sub.closed and sub.error is None]
            for at in range(len(self._idle) - 1, -1, -1):
                if self._idle[at][0] == key:
                    sub = self._idle[at][1]
                    sub.raise_error()
                    del self._idle[at]
                    return sub
        return None

    def put(self, key: Hashable, sub: Subscription) -> Subscription | None:
        """Keep a subscription; returns the least recently used one if there are too many."""
        with self._lock:
            self._idle.append((key, sub))
            return self._idle.pop(0)[1] if len(self._idle) > IDLE_MAX else None


def fetched(sub: Subscription) -> list[Message]:
    """The messages that have arrived. The caller holds the client's lock."""
    items = list(iter(sub.take, None))
    for item in items:
        if isinstance(item, Refresh):
            item.tell(None)
    return [message for item in items if isinstance(item, Batch) for message in item if not message.lost]
