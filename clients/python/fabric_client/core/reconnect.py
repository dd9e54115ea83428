"""When a client opens its next socket: soon after a loss, later with each attempt, and always at a random time, so that
many clients do not come back at once.

A handshake with keys costs the hub about a millisecond. So clients with keys spread over a second after a loss, which
is within the grace that the hub gives to begun messages, and over five seconds after more attempts.
"""

from collections.abc import Callable
from typing import Final

BACKOFF_S: Final = (0.05, 2.0)  # first and longest pause before a new socket; each is jittered
KEYED_S: Final = (0.1, 1.0, 5.0)  # with keys: shortest pause, and longest pause at first and later
REFUSED_S: Final = 5.0  # a refused key may be enrolled meanwhile; libzmq itself does not try again


class Reconnect:
    """Counts attempts, and says when the next socket is due."""

    __slots__ = ("_attempt", "_keyed", "_random", "due_at")

    def __init__(self, random: Callable[[], float], keyed: bool = False) -> None:
        self._random = random
        self._keyed = keyed
        self._attempt = 0
        self.due_at = 0.0

    def reset(self) -> None:
        """The client was connected."""
        self._attempt = 0

    def after_loss(self, now: float) -> None:
        """The connection was lost, or did not come."""
        doubled = 2.0 ** min(self._attempt, 10)
        self._attempt += 1
        if self._keyed:
            least, first, most = KEYED_S
            self.due_at = now + least + (min(most, first * doubled) - least) * self._random()
        else:
            self.due_at = now + min(BACKOFF_S[1], BACKOFF_S[0] * doubled) * (0.5 + self._random())

    def after_refusal(self, now: float) -> None:
        """The hub refused the key of the client."""
        self.due_at = now + REFUSED_S * (0.5 + self._random())

    def after_failure(self, now: float) -> None:
        """No socket could be opened."""
        self.due_at = now + BACKOFF_S[1]
