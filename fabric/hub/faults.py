"""Faults logs unexpected exceptions of the hub's own code, and decides when the hub ends.

A fault in a command is answered with INTERNAL and never ends the hub: no peer can stop the hub by a command. After a
fault outside of a command the hub restores its router from the journal and goes on. It waits before that, longer each
time. After IN_A_ROW_MAX such faults without a new session between them the cause is in the journal, and the hub ends.
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
HEX_BYTES_MAX: Final = 120  # bytes of a frame in the log
PLACES_MAX: Final = 4  # innermost places of the stack in the log
IN_A_ROW_MAX: Final = 3  # faults without a new session between them
FORGET_S: Final = 60.0  # after this time without a fault, counting begins again
PAUSE_S: Final = (0.05, 5.0)  # the shortest pause above zero, and the longest


class Faults:
    def __init__(self, log: AdvisoryLog) -> None:
        self._log = log
        self._at = float("-inf")  # time of the latest fault outside of a command
        self._pause_s = 0.0
        self._in_a_row = 0

    def of_command(self, error: Exception, frames: Sequence[bytes]) -> None:
        """Log a fault in a command with the frames of the command, so that they can be sent again to find the cause."""
        shown = {f"frame{n}": _hex(frame) for n, frame in enumerate(frames[:2])}
        self._log.write(COMMAND_FAILED, {"error": described(error), "at": places(error), **shown})

    def of_answer(self, error: Exception, message: object) -> None:
        """Log an answer that cannot be encoded."""
        fields = {"error": described(error), "message": type(message).__name__, "at": places(error)}
        self._log.write(ANSWER_FAILED, fields)

    def of_hub(self, error: Exception, now: float, *, heard: bool) -> float:
        """Log a fault outside of a command. Returns the seconds to wait before the hub goes on.

        `heard`: a session was opened since the fault before. Raises when the hub has to end.
        """
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
    """The innermost places of the stack, the place of the exception first."""
    stack = traceback.extract_tb(error.__traceback__)[-PLACES_MAX:]
    shown = [f"{place.filename.rpartition('fabric/')[2]}:{place.lineno} {place.name}" for place in reversed(stack)]
    return " < ".join(shown)


def _hex(frame: bytes) -> str:
    shown = frame[:HEX_BYTES_MAX].hex()
    return shown if len(frame) <= HEX_BYTES_MAX else f"{shown}…({len(frame)} bytes)"
