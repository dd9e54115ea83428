"""The boundary within a command: before it the command is checked, after it the router's state changes.

An unexpected exception before the boundary has changed nothing, so only the session that sent the command hears of it.
After the boundary the state in memory may be half changed: the router is then not used any more, and a new one is
restored from the journal. Each handler calls `begin` after its last check and before its first change; to call it too
early is safe, too late is not (a test raises an exception at every line of every handler and compares the state).
"""


class Change:
    __slots__ = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def begin(self) -> None:
        """From here on the command at hand changes state."""
        self.begun = True
