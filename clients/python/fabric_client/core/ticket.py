"""A ticket: the place of one answer. The core fills it; a driver waits for it, blocking or awaiting."""

from collections.abc import Callable
from typing import Any

from fabric_protocol.errors import FabricError


class Ticket:
    """Done once it has a `value` or an `error`; `on_done` is called once."""

    __slots__ = ("done", "error", "on_done", "value")

    def __init__(self, on_done: "Callable[[Ticket], None] | None" = None) -> None:
        self.done = False
        self.value: Any = None
        self.error: FabricError | None = None
        self.on_done = on_done

    def succeed(self, value: Any) -> None:
        if not self.done:
            self.value = value
            self._finish()

    def fail(self, error: FabricError) -> None:
        if not self.done:
            self.error = error
            self._finish()

    def result(self) -> Any:
        assert self.done
        if self.error is not None:
            raise self.error
        return self.value

    def _finish(self) -> None:
        self.done = True
        if self.on_done is not None:
            self.on_done(self)
