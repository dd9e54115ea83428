"""Faults of the hub's own code: unexpected exceptions, how they are logged, and when the hub gives up.

A fault in a command is answered INTERNAL and is never a reason to end: no peer can stop the hub by finding one. A fault
anywhere else lets the hub go on with a router that is restored from the journal; it waits before that, longer each
time. If no client was heard of between several of these, the cause is in the journal, and the hub ends.
"""

import logging
import traceback
from collections.abc import Sequence
from typing import Final

from fabric.hub.advisory_log import AdvisoryLog, Line
from fabric_protocol.errors import FabricError

COMMAND_FAILED: Final = Line(logging.ERROR, "command failed")
ANSWER_FAILED: Final = Line(logging.ERROR, "answer failed")
HUB_FAILED: Final = Line(logging.ERROR, "fault")
HEX_BYTES_MAX: Final = 120  # of a frame, in the log
PLACES_MAX: Final = 4  # of the stack, the innermost
IN_A_ROW_MAX: Final = 3  # faults without a word from a client between them
FORGET_S: Final = 60.0
PAUSE_S: Final = (0.05, 5.0)  # the first and the longest


class Faults:
    def __init__(self, log: AdvisoryLog) -> None:
        self._log = log
        self._at = float("-inf")  # the latest one outside of a command
        self._pause_s = 0.0
        self._in_a_row = 0

    def of_command(self, error: Exception, frames: Sequence[bytes]) -> None:
        """Write down what was received, so that it can be sent again to find the cause."""
        shown = {f"frame{n}": _hex(frame) for n, frame in enumerate(frames[:2])}
        self._log.write(COMMAND_FAILED, {"error": described(error), "at": places(error), **shown})

    def of_answer(self, error: Exception, message: object) -> None:
        """Write down an answer that cannot be encoded."""
        fields = {"error": described(error), "message": type(message).__name__, "at": places(error)}
        self._log.write(ANSWER_FAILED, fields)

    def of_hub(self, error: Exception, now: float, *, heard: bool) -> float:
        """Write down a fault outside of a command; `heard`: clients were, since the one before. Returns how long to
        wait before the hub goes on; raises when that has no prospect."""
        if now - self._at > FORGET_S:
            self._pause_s, self._in_a_row = 0.0, 0
        self._at = now
        self._in_a_row = 1 if heard else self._in_a_row + 1
        self._log.write(HUB_FAILED, {"error": described(error), "at": places(error)})
        if self._in_a_row >= IN_A_ROW_MAX:
            raise FabricError(
                f"the hub has failed {self._in_a_row} times in a row: {described(error)}",
                "all that was confirmed is on disk; report the lines of the log, with a copy of the journal",
            ) from error
        pause_s, self._pause_s = self._pause_s, min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        return pause_s


def described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def places(error: BaseException) -> str:
    """Where it was raised: the innermost places of the stack."""
    stack = traceback.extract_tb(error.__traceback__)[-PLACES_MAX:]
    shown = [f"{place.filename.rpartition('fabric/')[2]}:{place.lineno} {place.name}" for place in reversed(stack)]
    return " < ".join(shown)


def _hex(frame: bytes) -> str:
    shown = frame[:HEX_BYTES_MAX].hex()
    return shown if len(frame) <= HEX_BYTES_MAX else f"{shown}…({len(frame)} bytes)"
