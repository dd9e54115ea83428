"""A data refresh: the hub asks a consumer to load its local copy again.

`begin` comes before the first message that is delivered again, `end` after the last message that the copy needs. Both
come in order with the messages. `ready` tells the hub that the copy is in use again.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fabric_client.core.ticket import Ticket

if TYPE_CHECKING:
    from fabric_client.core.subscription import Subscription


log = logging.getLogger("fabric_client")


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
        """True if the program should drop its copy now; False if the copy is complete."""
        return self.phase == "begin"

    def ready(self) -> None:
        """Tell the hub that the copy is in use again, without waiting; `consumer.ready` waits for the hub's answer."""
        self._sub.note_ready(self.number)

    def tell(self, on_refresh: "Callable[[Refresh], object] | None") -> object:
        """Call the program's `on_refresh`. Without one the consumer is ready when all messages have arrived."""
        if on_refresh is not None:
            return on_refresh(self)
        if not self.begins:
            self.ready()
        return None


def log_refusal(ticket: Ticket) -> None:
    """Log the hub's ERR to a READY that no caller waits for."""
    if ticket.error is not None:
        log.error("the hub refused a READY: %s", ticket.error)
