"""The batch that a loop hands out message by message."""

from collections.abc import Iterator
from operator import length_hint
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch


class InHand(NamedTuple):
    """A batch, and the iterator of the loop over its payloads, which knows how many are left."""

    batch: "Batch"
    bodies: Iterator[bytes]

    def rest(self) -> range:
        """The indexes of the messages that the loop has not handed out."""
        return range(self.batch.count - length_hint(self.bodies), self.batch.count)
