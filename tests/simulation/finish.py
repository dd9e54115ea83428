"""The end of a life: what was promised for the end is looked at."""

from typing import Final

from fabric.router.access.identity import LOCAL, LOCAL_NAME
from fabric_protocol import messages as m
from tests.simulation.connection_acts import greet
from tests.simulation.people import Client, Taken
from tests.simulation.plan import BIG, TICKS_S
from tests.simulation.world import World

CALM_ROUNDS: Final = 3  # what has expired may become a dead letter a moment later, which is a new message
ROUNDS_MAX: Final = 100  # a second each: a lost session, a lapsed lease and a wait may follow each other


def finish(world: World) -> None:
    """Faults are over and a willing consumer comes for every group: everything must be settled in the end."""
    world.slow, world.failing, world.faulty = 0, False, False
    world.note(lambda: "finish: faults are over")
    for one in list(world.wires.values()):
        one.heal(world)
    for number, client in enumerate(world.clients):
        wire = client.wire
        if wire is not None:
            world.router.peer_blocked(wire.peer, False)
            world.observer.blocked(wire.peer, False)
        if wire is not None and client.welcomed and (world.plan.seed >> number) & 1:
            world.send(wire, m.Goodbye(0))
    world.quiesce()
    for client in world.clients:
        client.to_resend, client.to_rejoin = [], {}
        if client.wire is not None:
            client.wire.cut(drops=True)  # some never said goodbye: their sessions must end by themselves
    worker = Client(9, world.swarm._replace(latency=(0,)))
    worker.producer, worker.eager, worker.identity = "worker", True, LOCAL
    greet(world, worker)
    world.quiesce()
    assert worker.wire is not None
    for name in world.observer.paused_groups():
        world.send(worker.wire, m.Admin(worker.next_rid(), {"op": "group.resume", "group": name}))
    for name, owner in world.observer.named_schedules():  # what repeats would never be finished
        whose = {"owner": owner} if owner != LOCAL_NAME else {}
        world.send(worker.wire, m.Cancel(worker.next_rid(), {"name": name, **whose}))
    join_all(world, worker)
    wait(world, worker)
    if not world.observer.is_finished():  # what waits by the wall's clock waits longer when that was set back
        for _ in range(world.set_back_s // 900 + 1 if world.set_back_s else 0):
            world.until(world.time + 920 * TICKS_S)
            greet(world, worker)
            world.quiesce()
            join_all(world, worker)
            world.until(world.time + 4 * TICKS_S)
        wait(world, worker)  # a refresh may have started over, and a rate may be slow
    world.quiesce()
    world.observer.finished()
    world.observer.check_tallies(world.router, final=True)


def wait(world: World, worker: Client) -> None:
    """Wait until all is settled, within bounds."""
    assert worker.wire is not None
    calm = 0
    for turn in range(ROUNDS_MAX):
        world.until(world.time + TICKS_S)
        world.quiesce()
        calm = calm + 1 if world.observer.is_finished() else 0
        if calm == CALM_ROUNDS:
            break
        if turn % 60 == 59:
            world.send(worker.wire, m.Ping(0))


def join_all(world: World, worker: Client) -> None:
    assert worker.wire is not None
    for chan, name in enumerate(world.observer.durable_groups(), 1):
        fields = {"group": name, "credit": [BIG, BIG]}
        worker.subs[chan] = Taken(name, fields)
        world.send(worker.wire, m.Subscribe(chan, chan, fields))
