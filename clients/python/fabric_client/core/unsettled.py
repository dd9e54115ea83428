"""Verdicts that the hub may never have applied, because it forgot the session or refused them.

The hub delivers such messages again. A message is removed when a later verdict on it is confirmed, so the messages that
are left are settled for the program and not settled for the hub.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fabric_client.errors import VerdictsUnconfirmed

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch

NAMES_MAX: Final = 1_000  # messages that are named; more are only counted


class Unsettled:
    """The unconfirmed verdicts of one client. `add` is called from any thread, without a lock."""

    def __init__(self, topics: Mapping[tuple[str | None, int], str] | None = None, more: int = 0) -> None:
        self._topics = dict(topics or {})  # by group and seq
        self._more = more  # messages that are counted only

    def __bool__(self) -> bool:
        return bool(self._topics or self._more)

    def add(self, batch: "Batch", indexes: Iterable[int]) -> None:
        for index in indexes:
            if len(self._topics) < NAMES_MAX:
                self._topics[batch.group, batch.seq_of(index)] = batch.topics[index]
            else:
                self._more += 1

    def confirmed(self, batch: "Batch", indexes: Iterable[int]) -> None:
        """The hub has answered a verdict on these messages."""
        for index in indexes:
            self._topics.pop((batch.group, batch.seq_of(index)), None)

    def copy(self) -> "Unsettled":
        """A copy that more messages can be added to."""
        return Unsettled(self._topics, self._more)

    def take(self) -> VerdictsUnconfirmed | None:
        """The error that names the messages, once; None if there are none."""
        if not self:
            return None
        names = []
        while self._topics:  # another thread may add to it meanwhile
            (_, seq), topic = self._topics.popitem()
            names.append((topic, seq))
        more, self._more = self._more, 0
        return VerdictsUnconfirmed(sorted(names), len(names) + more)
