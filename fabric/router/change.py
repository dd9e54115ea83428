"""The boundary within a command: before it the command is checked, after it the router's state changes.

An unexpected exception before the boundary has changed nothing, so only the session that sent the command gets an
error. After the boundary the state in memory may be half changed: the hub drops the router and restores a new router
from the journal. Each handler calls `begin` after its last check and before its first change. A call that is too early
is safe, a call that is too late is not (a test raises an exception at every line of every handler and compares state).
"""


class Change:
    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        """The current command changes state from here on."""
        self.begun = True
