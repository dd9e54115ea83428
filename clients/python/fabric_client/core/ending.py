"""How a loop over a subscription ends: what was not handed to the program goes back to the group at once, and what the
program has in hand may still be settled.
"""

from collections.abc import Iterator
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

from fabric_client.core.batch import Batch
from fabric_protocol.messages import Verdict

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription


class InHand(NamedTuple):
    """The batch that a loop hands out message by message, and the iterator that knows how far it is."""

    batch: Batch
    bodies: Iterator[bytes]

    def rest(self) -> range:
        """The places in the batch that the loop has not come to."""
        return range(self.batch.count - length_hint(self.bodies), self.batch.count)


def retire(sub: "Subscription") -> None:
    """Nothing more is handed out. What is here and was not handed out goes back, and so does what still arrives. Wants
    the client's lock held."""
    sub.retired = True
    sub.stop()
    while (item := sub.take()) is not None:
        if isinstance(item, Batch):
            item.release()
    if sub.in_hand is not None:
        batch, places = sub.in_hand.batch, sub.in_hand.rest()
        sub.in_hand = None
        if sub.is_held(batch):
            for place in places:
                batch._settle(Verdict.RELEASE, place, None)
