"""Part: what the router asks of each of its parts that keep rows on disk or wait for a time.

The router goes through its parts in fixed orders; `orders` has them with their reasons. A part overrides the methods
that it needs.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fabric.records import Record
from fabric.router.timers import NEVER

if TYPE_CHECKING:
    from fabric.router.turn import Turn


class Part:
    __slots__ = ()

    def rows(self) -> Iterable[Record]:
        """The rows that the turn writes at its end. A second call does not return them again."""
        return ()

    def committed(self) -> None:
        """The oldest sealed turn is on disk."""

    def tick(self, now: float, turn: "Turn") -> None:
        """Do the work that is due."""

    def next_deadline(self) -> float:
        """When `tick` has work to do, if no command arrives."""
        return NEVER
