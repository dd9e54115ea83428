"""The subscriptions of a session, by channel."""

import logging
from typing import Final

from fabric_client.core.subscription import FOREVER, Subscription
from fabric_client.core.unsettled import Unsettled
from fabric_client.errors import HubError, VerdictsUnconfirmed
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Gap

log = logging.getLogger("fabric_client")

CHANNEL_MAX: Final = 65_535


class Channels(dict[int, Subscription]):
    """A closed subscription keeps its channel until the hub has answered its UNSUB and all its verdicts. The hub
    answers verdicts later than UNSUB: when they are on disk."""

    def __init__(self) -> None:
        super().__init__()
        self._last = 0
        self._ended: set[int] = set()  # channels whose UNSUB is answered
        self._refused: list[HubError] = []  # refused verdicts of subscriptions that were removed

    def free(self) -> int:
        """A channel that no subscription uses; recently used channels come last."""
        for _ in range(CHANNEL_MAX):
            self._last = self._last % CHANNEL_MAX + 1
            if self._last not in self:
                return self._last
        raise FabricError("all channels are in use", "close subscriptions that are not needed")

    def ended(self, sub: Subscription) -> None:
        """The hub has ended a subscription."""
        self._ended.add(sub.chan)
        self.remove_ended(sub)

    def remove_ended(self, sub: Subscription) -> None:
        """Remove a subscription that the hub has ended, once all its verdicts are answered."""
        if sub.chan in self._ended and not sub.acks:
            self._refused += sub.refused
            del self[sub.chan]

    def __delitem__(self, chan: int) -> None:
        self._ended.discard(chan)
        super().__delitem__(chan)

    def gap(self, message: Gap) -> None:
        """The hub's GAP: retention or damage removed messages of a subscription."""
        sub = self.get(message.chan)
        if sub is not None:
            sub.lost += message.last_seq - message.first_seq + 1
            log.warning(
                "messages %d..%d are gone for %s: %s", message.first_seq, message.last_seq, sub.group, message.reason
            )

    def raise_refusal(self) -> None:
        """Raise the hub's refusals of verdicts, each once."""
        for refused in (self._refused, *(sub.refused for sub in self.values())):
            if refused:
                raise refused.pop(0)

    def seen(self) -> list[list[int]]:
        """Each channel with the last ordinal that arrived, for HELLO. The hub forgets a channel that is left out."""
        return [[sub.chan, sub.last_ordinal] for sub in self.values() if not sub.changing]

    @property
    def settled(self) -> bool:
        """Whether the hub has answered every verdict."""
        return not any(sub.acks or sub.dirty or sub.changing for sub in self.values())

    def unconfirmed(self, lost: Unsettled) -> VerdictsUnconfirmed | None:
        """The error that names all unconfirmed verdicts, lost or not answered yet; None if there are none."""
        found = lost.copy()
        for sub in list(self.values()):
            for batch, indexes in sub.acks.unanswered():
                found.add(batch, indexes)
        return found.take()

    def next_deadline(self) -> float:
        """When a subscription has something to send, if nothing happens before."""
        return min((min(sub.flush_at, sub.touch_at, sub.review_at) for sub in self.values()), default=FOREVER)

    def fail(self, error: FabricError) -> None:
        for sub in self.values():
            sub.error = sub.error or error
            sub.acks.fail(error)
