"""Acts of consumers: subscriptions, credit and verdicts."""

from typing import Any, Final

from fabric_protocol import messages as m
from fabric_protocol.bounds import HORIZON_MS
from fabric_protocol.messages import Verdict
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client, Lie, Taken
from tests.simulation.plan import BIG, PATTERNS
from tests.simulation.world import World

VERDICTS: Final = (
    *[Verdict.ACK] * 6,
    *[Verdict.RETRY] * 3,
    *[Verdict.RELEASE] * 2,
    *[Verdict.REJECT],
    *[Verdict.TOUCH] * 2,
)
EDGES_MS: Final = (HORIZON_MS, HORIZON_MS + 1, (1 << 63) - 1, (1 << 64) - 1)
DELAYS_MS: Final = (None, None, 0, 125, 1000, 3000)
CHANNELS: Final = 4


def subscribe(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    swarm = world.swarm
    n, chan = divmod(n, CHANNELS)
    if chan + 1 in client.subs and n & 3:  # now and then a channel is asked for twice
        return False
    n, at = divmod(n, len(swarm.groups))
    n, ephemeral = divmod(n, 100)
    n, start = divmod(n, 100)
    n, credit = divmod(n, len(swarm.credits))
    n, size = divmod(n, len(swarm.bytes))
    plan = swarm.groups[at]
    fields = {**plan.fields, "credit": [swarm.credits[credit], swarm.bytes[size]], "concurrency": swarm.concurrency}
    if swarm.unsure and n & 0x30 == 0:
        fields["unsure"] = 1 + (n >> 6) % 3
    if swarm.batches:
        fields["batches"] = True
    if ephemeral >= swarm.ephemeral_pct:
        fields["group"] = plan.name
    else:
        fields |= {"order": "none", "max_in_flight": 0, "expires_ms": 0}
    if start < swarm.start_pct:
        start = n
        fields["start"] = ("first", "new", {"seq": n % 30}, "last")[start % 4]
    client.subs.setdefault(chan + 1, Taken(plan.name, fields))
    world.send(wire, m.Subscribe(chan + 1, client.next_rid(), fields))
    return True


def join(world: World, client: Client, n: int) -> bool:
    """Subscribe, if the client has no subscription yet."""
    return not client.subs and subscribe(world, client, n)


def _channel(client: Client, n: int) -> tuple[int, Taken] | None:
    return list(client.subs.items())[n % len(client.subs)] if client.subs else None


def credit(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None or found[1].fetching:
        return False
    chan, sub = found
    more = (-3, -1, 0, 1, 2, 5, 6, 1000)[(n >> 4) & 7]
    size = (0, 300, BIG, BIG)[(n >> 7) & 3]
    unsure = (0, 0, 1, 3)[(n >> 9) & 3] if world.swarm.unsure else 0
    world.send(wire, m.Credit(chan, max(0, sub.seen + more), sub.bytes_got + size, unsure))
    return True


def fetch(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None:
        return False
    chan, sub = found
    sub.fetching = True
    world.send(wire, m.Fetch(chan, client.next_rid(), (1, 2, 5)[(n >> 4) % 3], (125, 1000, 4000)[(n >> 6) % 3]))
    return True


def get(world: World, client: Client, n: int) -> bool:
    """Read without a group."""
    wire = ready(client)
    if wire is None:
        return False
    n, place = divmod(n, len(PATTERNS) - 1)
    n, seq = divmod(n, world.disk.last_seq + 2)
    fields = {"pattern": list(PATTERNS[place]), "seq": seq, "n": (1, 2, 5, 100)[n % 4]}
    world.send(wire, m.Get(client.next_rid(), fields))
    return True


def verdict(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    chans = [chan for chan, sub in client.subs.items() if sub.held]
    if wire is None or not chans:
        return False
    n, at = divmod(n, len(chans))
    sub = client.subs[chans[at]]
    rows = []
    n, rounds = divmod(n, 3)
    for _ in range(rounds + 1):
        if not sub.held:
            break
        n, row = _row(sub, n)
        rows.append(row)
    world.send(wire, m.Settle(chans[at], client.next_rid(), tuple(rows)))
    return True


def _row(sub: Taken, n: int) -> tuple[int, tuple[int, int, int, Any]]:
    """One verdict on a range of what the client holds."""
    ordinals = list(sub.held)
    n, kind = divmod(n, len(VERDICTS))
    n, at = divmod(n, len(ordinals))
    n, length = divmod(n, 5)
    n, delay = divmod(n, len(DELAYS_MS))
    said = VERDICTS[kind]
    first = ordinals[at]
    last = min(first + (0, 0, 1, 3, 20)[length], sub.seen)
    arg: Any = None
    if said is Verdict.RETRY:
        arg = DELAYS_MS[delay]
    elif said is Verdict.TOUCH:
        arg = (None, 500, 6000)[delay % 3]
    if said is not Verdict.TOUCH:
        for ordinal in range(first, last + 1):
            sub.held.pop(ordinal, None)
    return n, (said, first, last, arg)


def verdict_stale(world: World, client: Client, n: int) -> bool:
    """On ordinals of long ago, settled or not."""
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None or not found[1].seen:
        return False
    chan, sub = found
    n >>= 4
    n, first = divmod(n, sub.seen)
    n, kind = divmod(n, len(VERDICTS))
    last = min(first + 1 + n % 4, sub.seen)
    for ordinal in range(first + 1, last + 1):
        if VERDICTS[kind] is not Verdict.TOUCH:
            sub.held.pop(ordinal, None)
    world.send(wire, m.Settle(chan, client.next_rid(), ((VERDICTS[kind], first + 1, last, None),)))
    return True


def lie(world: World, client: Client, n: int) -> bool:
    """A wait at the edge of what is allowed, or beyond it."""
    wire = ready(client)
    free = {plan.name for plan in world.swarm.groups if plan.settings.order == "none"}
    chans = [chan for chan, sub in client.subs.items() if sub.held and sub.group in free]
    if wire is None or not chans:
        return False
    n, at = divmod(n, len(chans))
    sub = client.subs[chans[at]]
    n, place = divmod(n, len(sub.held))
    ordinal = list(sub.held)[place]
    said = (Verdict.RETRY, Verdict.TOUCH)[n & 1]
    wait_ms = EDGES_MS[(n >> 1) % len(EDGES_MS)]
    is_absurd = wait_ms > HORIZON_MS
    if said is Verdict.RETRY and not is_absurd:
        del sub.held[ordinal]
    message = m.Settle(chans[at], client.next_rid(), ((said, ordinal, ordinal, wait_ms),))
    world.send(wire, Lie(message, is_absurd))
    return True


def verdict_never_sent(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None:
        return False
    world.send(wire, m.Settle(found[0], client.next_rid(), ((Verdict.ACK, 1, 1_000_000, None),)))
    return True


def unsubscribe(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None:
        return False
    del client.subs[found[0]]
    world.send(wire, m.Unsubscribe(found[0], client.next_rid()))
    return True


def goodbye(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    world.send(wire, m.Goodbye(client.next_rid()))
    client.welcomed, client.session, client.subs = False, b"", {}
    return True
