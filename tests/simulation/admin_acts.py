"""Acts of administration."""

from typing import Any, Final

from fabric_protocol import messages as m
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client, Taken
from tests.simulation.plan import PATTERNS
from tests.simulation.world import World

OPERATIONS: Final = (
    *("group.pause", "group.resume", "group.resume", "group.seek", "group.update", "group.update", "group.delete"),
    *("dlq.redrive", "dlq.redrive", "group.settle"),
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
            if n & 0x700 == 0:
                fields["dry_run"] = True
        case "group.settle":
            fields["up_to"] = n % (world.disk.last_seq + 1)
        case "group.update":
            fields |= ({"attempts_max": 1 + n % 4}, {"lease_ms": 1000 + 500 * (n % 3)})[n & 1]
            if n & 0x30 and not world.swarm.topics:  # who needs what a topic keeps would change with them
                fields["patterns"] = list(PATTERNS[(n >> 6) % (len(PATTERNS) - 1)])
            if world.swarm.groups[at].settings.rate and n & 0x3000 == 0:
                fields["rate"] = (0, 10, 40)[(n >> 14) % 3]
            if world.swarm.groups[at].settings.expires_ms and n & 0x30000 == 0:
                fields["expires_ms"] = (0, 1000, 3000)[(n >> 18) % 3]
        case "dlq.redrive":
            fields["all"] = True
    world.send(wire, m.Admin(client.next_rid(), fields))
    return True


def refresh(world: World, client: Client, n: int) -> bool:
    """The consumers of a group reload their copies. Now and then the group is deleted and made again just before."""
    wire = ready(client)
    if wire is None:
        return False
    n, at = divmod(n, len(world.swarm.groups))
    plan = world.swarm.groups[at]
    n, kind = divmod(n, 3)
    start: Any = "first" if kind == 0 else {"seq": n % (world.disk.last_seq + 1)}
    n >>= 8
    if n & 3 == 0:
        chan = 1 + (n >> 2) % 4
        world.send(wire, m.Admin(client.next_rid(), {"op": "group.refresh", "group": plan.name, "from": start}))
        world.send(wire, m.Admin(client.next_rid(), {"op": "group.delete", "group": plan.name}))
        fields = {**plan.fields, "credit": [2, 1 << 40], "concurrency": 1, "group": plan.name}
        client.subs.setdefault(chan, Taken(plan.name, fields))
        world.send(wire, m.Subscribe(chan, client.next_rid(), fields))
    world.send(wire, m.Admin(client.next_rid(), {"op": "group.refresh", "group": plan.name, "from": start}))
    return True


def say_ready(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    chans = [chan for chan, sub in client.subs.items() if sub.refresh]
    if wire is None or not chans:
        return False
    chan = chans[n % len(chans)]
    world.send(wire, m.Ready(chan, client.next_rid(), client.subs[chan].refresh))
    return True
