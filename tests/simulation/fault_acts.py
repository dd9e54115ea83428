"""What happens to a hub: time, slow commits and failed ones, crashes, clocks that are set, retention."""

from typing import Final

from fabric_protocol import messages as m
from tests.simulation.people import Client
from tests.simulation.plan import TICKS_S
from tests.simulation.world import World

PASSES: Final = (64, 256, 1024, 2048, 4096, 8192)  # in ticks


def pass_time(world: World, client: Client, n: int) -> bool:
    n, left = n >> 3, PASSES[n % 6]
    while True:
        world.until(world.time + min(left, 2 * TICKS_S))
        left -= 2 * TICKS_S
        if left <= 0:
            return True
        for at, one in enumerate(world.clients):
            if one.wire is not None and (n >> 3 * at) & 7:  # some are silent
                world.send(one.wire, m.Ping(0))


def slow(world: World, client: Client, n: int) -> bool:
    world.slow = 1 + n % 3
    return True


def crash(world: World, client: Client, n: int) -> bool:
    world.note(lambda: f"the hub crashes; {('no commit', 'the commit', 'every commit')[n % 3]} in flight lands")
    world.crash(n % 3)
    return True


def fail(world: World, client: Client, n: int) -> bool:
    world.failing = True
    return True


def fault(world: World, client: Client, n: int) -> bool:
    world.faulty = True
    world.note(lambda: "the router will fail")
    return True


def stop(world: World, client: Client, n: int) -> bool:
    world.note(lambda: "the hub is stopped")
    world.stop()
    return True


def clock(world: World, client: Client, n: int) -> bool:
    jump_s = (-3600, -5, -1, 1, 5, 3600)[n % 6]
    world.set_clock(jump_s)
    world.note(lambda: "the wall's clock is set")
    return True


def trim(world: World, client: Client, n: int) -> bool:
    """Retention removes the oldest messages, up to the beginning of a block or into it; or, the hub crashes and starts
    with narrower limits, so that retention comes first and the news of it later."""
    disk = world.disk
    if n & 0x80:
        world.note(lambda: "the hub crashes and starts with narrower limits")
        world.narrower = 1 + (n & 0x7F)
        world.crash(n % 3)
        return True
    if len(disk.bases) < 3:
        return False
    first = disk.bases[1 + n % (len(disk.bases) - 1)]
    if n & 0x40:
        block = disk.block_at(first)
        assert block is not None
        first += (n >> 8) % block.count
    first = disk.trim(first)
    world.note(lambda: f"the journal starts at {first} now")
    world.trimmed(first)
    return True
