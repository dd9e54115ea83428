"""Acts of connections: they begin, break, hold back and congest."""

from typing import Any, Final

from fabric_protocol import messages as m
from tests.simulation.people import Client, Wire
from tests.simulation.world import HEAL, World

HOLDS: Final = (64, 256, 1024, 2048, 4096, 8192)  # in ticks


def connect(world: World, client: Client, n: int) -> bool:
    """A client connects; mostly, so do all others that have no connection."""
    if client.wire is not None and client.welcomed:
        return False
    if client.wire is not None:
        client.wire.cut(drops=bool(n & 64))
    if n & 0xF000 == 0:  # another process of the same name: it knows nothing of numbers, and says them again
        client.session, client.epoch = b"", None
    greet(world, client, resume=n & 7 != 0, forget=n & 0xF00 == 0)
    for other in world.clients if n & 0x30000 else ():
        if other.wire is None:
            greet(world, other)
    return True


def intrude(world: World, client: Client, n: int) -> bool:
    """A client has learned something of a client of another principal, and resumes its session or cancels its
    schedule. Names of producers and schedules are the same for all, so each claim and each name is an attempt, too."""
    others = [other for other in world.clients if other.principal != client.principal]
    if not others:
        return False
    n, at = divmod(n, len(others))
    n, is_cancelling = divmod(n, 2)
    victim = others[at]
    if is_cancelling:
        wire = ready(client)
        if wire is None or not victim.schedules:
            return False
        number = victim.schedules[n % len(victim.schedules)]
        world.send(wire, m.Cancel(client.next_rid(), {"id": number}))
        return True
    if not victim.session:
        return False
    if client.wire is not None:
        client.wire.cut(drops=bool(n & 1))
    greet(world, client, stolen=victim)
    return True


def greet(
    world: World, client: Client, *, resume: bool = True, forget: bool = False, stolen: Client | None = None
) -> Wire:
    """A new connection and its HELLO. With `stolen`, it has the secret of another client."""
    world.peers += 1
    wire = client.wire = Wire(client, b"\0" + world.peers.to_bytes(4, "big"), client.latency)
    world.wires[wire.peer] = wire
    world.observer.principals[wire.peer] = client.principal
    client.welcomed = False
    fields: dict[str, Any] = {"proto": 1, "hb_ms": 1000, "ttl_ms": world.swarm.ttl_ms}
    if client.eager:
        fields |= {"hb_ms": 60_000, "ttl_ms": 600_000}
    fields["producer"] = {"name": client.producer, "epoch": client.epoch} if client.epoch else {"name": client.producer}
    if client.jumps:
        fields["producer"]["jumps"] = True
    if stolen is not None:
        subs = [[chan, 0] for chan in stolen.subs]
        fields["resume"] = {"session": stolen.session, "subs": subs}
    elif client.session and resume:
        subs = [[chan, sub.seen] for chan, sub in client.subs.items()]
        fields["resume"] = {"session": client.session, "subs": subs[1:] if forget else subs}
    world.send(wire, m.Hello(client.next_rid(), fields))
    return wire


def ready(client: Client) -> Wire | None:
    return client.wire if client.welcomed else None


def disconnect(world: World, client: Client, n: int) -> bool:
    """The connection breaks; the hub may notice or not; what was on its way may still arrive."""
    wire = client.wire
    if wire is None:
        return False
    wire.cut(drops=bool(n & 1))
    if n & 2:
        world.router.peer_gone(wire.peer)
        world.observer.gone(wire.peer, world.router.shared.clock.now)
    return True


def hold(world: World, client: Client, n: int) -> bool:
    wire = client.wire
    if wire is None or wire.held_up is not None or wire.held_down is not None:
        return False
    if n & 1:
        wire.held_up = []
    else:
        wire.held_down = []
    world.at(world.time + HOLDS[(n >> 1) % 6], HEAL, wire)
    return True


def congest(world: World, client: Client, n: int) -> bool:
    if client.wire is None:
        return False
    world.router.peer_blocked(client.wire.peer, bool(n & 1))
    world.observer.blocked(client.wire.peer, bool(n & 1))
    world.hub_turn()
    return True
