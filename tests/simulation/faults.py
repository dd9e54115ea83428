"""What the hub does with what no client should say, and with faults of its own router."""

from typing import TYPE_CHECKING

from fabric.router.change import Change
from fabric_protocol import messages as m
from fabric_protocol.errors import ProtocolError
from fabric_protocol.wire import decode_command, encode
from tests.simulation.people import Lie, Wire

if TYPE_CHECKING:
    from tests.simulation.world import World


class Fault(Exception):
    """Something that the router's authors did not think of."""


def _fault(self: Change) -> None:
    raise Fault


def understands(world: "World", wire: Wire, lie: Lie) -> bool:
    """Whether the hub takes what no honest client says; if not, it says so."""
    try:
        decode_command(encode(lie.message))
    except ProtocolError as error:
        world.counts["lies"] += 1
        world.router.refuse(error, wire.peer, 0, 0)
        world.out += world.router.take_frames()
        world.hub_turn()
        understood = False
    else:
        understood = True
    assert understood is not lie.is_absurd, f"J8: {lie.message} is taken, or should be"
    return understood


def falters(world: "World", wire: Wire, message: m.ToHub) -> bool:
    """Let the router take a command with a fault in its code, where it begins to change something. Whether it came
    to that: then the hub answers, and all is as before."""
    usual = Change.begin
    Change.begin = _fault  # type: ignore[method-assign]
    try:
        world.router.step(message, wire.peer, world.now, wire.client.identity)
        world.out += world.router.take_frames()
    except Fault:
        chan, rid = getattr(message, "chan", 0), getattr(message, "rid", 0)
        assert world.router.fail(wire.peer, chan, rid), "nothing was changed yet"
        world.out += world.router.take_frames()
    else:
        return False
    finally:
        Change.begin = usual  # type: ignore[method-assign]
    world.faulty = False
    world.counts["faults"] += 1
    world.observer.failed(wire.peer, world.now)
    world.flush()
    world.hub_turn()
    return True
