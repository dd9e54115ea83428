"""Positions under which a numbered source publishes: they jump, and now and then they are not above the cursor."""

from typing import Any, Final

from tests.simulation.people import Client

JUMPS: Final = (0, 0, 1, 6, 1 << 33)  # between two blocks
SPREADS: Final = (0, 2, 40)  # within a block, more than it has messages


def position(client: Client, n: int, count: int) -> tuple[int, dict[str, Any]]:
    """The number of the next block of a client, and the options that belong to it."""
    if not client.jumps:
        return client.pseq + 1, {}
    n, jump = divmod(n, len(JUMPS))
    pseq = client.pseq + 1 + JUMPS[jump]
    n, kind = divmod(n, 8)
    if kind == 0:  # at the cursor or below it; a block of several messages may reach beyond it
        pseq = max(client.pseq - n % 4, 1)
    n >>= 2
    options: dict[str, Any] = {}
    n, spread = divmod(n, len(SPREADS) + 2)
    if spread < len(SPREADS):
        options["last"] = pseq + count - 1 + SPREADS[spread]
    elif spread == len(SPREADS):
        options["last"] = pseq  # all messages are of one position
    n, after = divmod(n, 8)
    if 0 < after < 7 and client.pseq < pseq:
        options["after"] = client.pseq
    elif after == 7 and pseq > 1:  # as if there were a block between
        options["after"] = pseq - 1
    return pseq, options
