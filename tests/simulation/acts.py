"""What clients and fate do. Each act reads what it needs from its number, and does nothing when it does not apply."""

from collections.abc import Callable
from typing import Final

from tests.simulation import (
    admin_acts,
    connection_acts,
    delivery_acts,
    fault_acts,
    publish_acts,
    request_acts,
    viewer_acts,
)
from tests.simulation.people import Client
from tests.simulation.plan import Act
from tests.simulation.world import World

Play = Callable[[World, Client, int], bool]
PLAY: Final[dict[int, Play]] = {
    Act.CONNECT: connection_acts.connect,
    Act.PUBLISH: publish_acts.publish,
    Act.PUBLISH_AGAIN: publish_acts.publish_again,
    Act.PUBLISH_AHEAD: publish_acts.publish_ahead,
    Act.PUBLISH_LATER: publish_acts.publish_later,
    Act.CANCEL: publish_acts.cancel,
    Act.TRANSACT: publish_acts.transact,
    Act.ADMINISTER: admin_acts.administer,
    Act.REFRESH: admin_acts.refresh,
    Act.READY: admin_acts.say_ready,
    Act.GET: delivery_acts.get,
    Act.SERVE: request_acts.serve,
    Act.ASK: request_acts.ask,
    Act.REPLY: request_acts.reply,
    Act.SUBSCRIBE: delivery_acts.subscribe,
    Act.CREDIT: delivery_acts.credit,
    Act.FETCH: delivery_acts.fetch,
    Act.VERDICT: delivery_acts.verdict,
    Act.VERDICT_STALE: delivery_acts.verdict_stale,
    Act.VERDICT_NEVER_SENT: delivery_acts.verdict_never_sent,
    Act.UNSUBSCRIBE: delivery_acts.unsubscribe,
    Act.GOODBYE: delivery_acts.goodbye,
    Act.DISCONNECT: connection_acts.disconnect,
    Act.HOLD: connection_acts.hold,
    Act.CONGEST: connection_acts.congest,
    Act.PASS: fault_acts.pass_time,
    Act.SLOW: fault_acts.slow,
    Act.CRASH: fault_acts.crash,
    Act.FAIL: fault_acts.fail,
    Act.FAULT: fault_acts.fault,
    Act.STOP: fault_acts.stop,
    Act.LIE: delivery_acts.lie,
    Act.CLOCK: fault_acts.clock,
    Act.TRIM: fault_acts.trim,
    Act.PULSE: viewer_acts.pulse,
    Act.INTRUDE: connection_acts.intrude,
}
# What is done when something cannot be done, so that few acts are in vain: whatever is missing.
Instead = tuple[tuple[Act, Play], ...]
COME: Final[Instead] = ((Act.SUBSCRIBE, delivery_acts.join), (Act.CONNECT, connection_acts.connect))
INSTEAD: Final[dict[int, Instead]] = {
    Act.PUBLISH: COME[1:],
    Act.SUBSCRIBE: COME[1:],
    Act.VERDICT: (*COME, (Act.PUBLISH, publish_acts.publish)),
    Act.CREDIT: COME,
    Act.ASK: ((Act.SERVE, request_acts.serve),),
    Act.REPLY: ((Act.ASK, request_acts.ask), (Act.SERVE, request_acts.serve)),
    Act.CONNECT: (COME[0], (Act.PUBLISH, publish_acts.publish)),
}
_ORDERS: Final = {kind: ((kind, play), *INSTEAD.get(kind, ())) for kind, play in PLAY.items()}


def live(world: World) -> None:
    """The acts of a plan, one after the other, with everything that happens between them."""
    waits, counts = world.swarm.waits, world.acts
    for kind, number in world.plan.acts:
        number, wait = divmod(number, 32)
        if waits[wait]:  # else it happens together with the act before
            world.until(world.time + waits[wait])
        number, who = divmod(number, 8)
        for name, play in _ORDERS[kind]:
            if _anyone(world, play, who, number):
                world.steps += 1
                counts[name] += 1
                break


def _anyone(world: World, play: Play, who: int, number: int) -> bool:
    """Let somebody play it, the one whose turn it is if possible."""
    clients = world.clients
    for at in range(who, who + len(clients)):  # noqa: SIM110 - a generator would take twice as long
        if play(world, clients[at % len(clients)], number):
            return True
    return False
