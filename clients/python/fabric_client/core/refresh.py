"""A data refresh: the hub asks a consumer to load its local copy anew.

`begin` comes before the first message that is sent again, `end` after the last one that makes the copy complete. Both
take their place among the messages. `ready` tells the hub that the copy is in use again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription


class Refresh:
    """One step of a refresh; `phase` is "begin" or "end"."""

    __slots__ = ("_sub", "generation", "number", "phase", "target")

    def __init__(self, sub: "Subscription", number: int, phase: str, target: int) -> None:
        self._sub = sub
        self.generation = sub.generation
        self.number = number
        self.phase = phase
        self.target = target  # the seq up to which the copy must reach

    def __repr__(self) -> str:
        return f"<Refresh {self.number} {self.phase}, up to seq {self.target}>"

    @property
    def begins(self) -> bool:
        """Whether the copy is to be dropped now; otherwise it is complete."""
        return self.phase == "begin"

    def ready(self) -> None:
        """The copy is in use again. Sent soon, without waiting; `consumer.ready` waits for the hub's answer."""
        self._sub.note_ready(self.number)

    def tell(self, on_refresh: "Callable[[Refresh], object] | None") -> object:
        """Give it to the application. One that does not care is ready when everything has come."""
        if on_refresh is not None:
            return on_refresh(self)
        if not self.begins:
            self.ready()
        return None
