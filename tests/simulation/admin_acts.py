"""Acts of administration."""

from typing import Any, Final

from fabric import messages as m
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client
from tests.simulation.world import World

OPERATIONS: Final = (
    *("group.pause", "group.resume", "group.resume", "group.seek", "group.update", "group.delete"),
    *("dlq.redrive", "dlq.redrive"),
)


def administer(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    n, at = divmod(n, len(world.swarm.groups))
    n, kind = divmod(n, len(OPERATIONS))
    fields: dict[str, Any] = {"op": OPERATIONS[kind], "group": world.swarm.groups[at].name}
    match OPERATIONS[kind]:
        case "group.seek":
            fields["to"] = ("first", "last", {"seq": (n >> 2) % (world.disk.last_seq + 1)})[n % 3]
            if world.swarm.topics and fields["to"] == "last":
                fields["to"] = "first"  # which one is the last depends on what was removed, and the observer cannot see
        case "group.update":
            fields |= ({"attempts_max": 1 + n % 4}, {"lease_ms": 1000 + 500 * (n % 3)})[n & 1]
        case "dlq.redrive":
            fields["all"] = True
    world.send(wire, m.Admin(client.next_rid(), fields))
    return True
