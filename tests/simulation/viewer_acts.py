"""Acts of those who watch the hub."""

from typing import Final

from fabric_protocol import messages as m
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client
from tests.simulation.viewing import AHEAD
from tests.simulation.world import World

ROWS: Final = (1000, 1000, 1000, 1000, 1, 2, 3)  # that a viewer wants at most


def pulse(world: World, client: Client, n: int) -> bool:
    """A viewer asks what has changed: since its last answer, since an older one, or since one of another run."""
    wire = ready(client)
    if wire is None:
        return False
    n, rows = divmod(n, len(ROWS))
    n, kind = divmod(n, 16)
    versions = world.views.versions
    latest = since = versions[-1] if versions else 0
    if kind == 0:
        since = 0
    elif kind in (1, 2, 3) and versions:
        since = versions[n % len(versions)]
    elif kind == 4 and world.views.former:
        since = world.views.former[n % len(world.views.former)]
    elif kind == 5:
        since = latest + AHEAD
    world.send(wire, m.Info(client.next_rid(), {"what": "pulse", "since": since, "n": ROWS[rows]}))
    return True
