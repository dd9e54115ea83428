"""Acts of producers: publishes, now, later and again, and transactions."""

from typing import Any

from fabric_protocol import messages as m
from fabric_protocol.messages import Level, Verdict
from tests.simulation.blocks import LATER
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client
from tests.simulation.source_acts import position
from tests.simulation.world import World


def publish(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    n, at = divmod(n, len(world.templates))
    template = world.templates[at]
    n, level = divmod(n, 100)
    n, numbered = divmod(n, 4)
    n, ttl = divmod(n, 100)
    level = Level.RECEIVED if level < world.swarm.received_pct else Level.JOURNALED
    options: dict[str, Any] = {"ttl_ms": (125, 1000, 4000)[n % 3]} if ttl < world.swarm.ttl_pct else {}
    pseq = 0
    if numbered:
        pseq, positions = position(client, n // 3, len(template.idents))
        options |= positions
    message = m.Publish(client.next_rid(), pseq, level, template.raw, options)
    client.remember(message, template)
    world.send(wire, message)
    return True


def publish_later(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    n, place = divmod(n, len(LATER) // 2)
    options: dict[str, Any] = {"delay_ms": (125, 1000, 3000, 20_000)[n % 4]}
    if n & 0x30 == 0x10:
        options["ttl_ms"] = 1000
    if n & 0xC0 == 0x40:
        options = {"delay_ms": 1000, "every_ms": 2000 + 1000 * (n >> 8 & 3), "name": f"n{n >> 10 & 1}"}
        if n & 0x4000:  # each minute
            options = {"cron": "* * * * *", "name": options["name"]}
    elif n & 0xC0 == 0x80:
        options["name"] = f"n{n >> 10 & 1}"
    repeats = "every_ms" in options or "cron" in options
    template = LATER[place * 2 + repeats]  # what repeats is not taken for what does not
    pseq = 0
    if n & 0x3000:
        pseq, positions = position(client, n >> 15, len(template.idents))
        options |= positions
    message = m.Publish(client.next_rid(), pseq, 0, template.raw, options)
    client.remember(message, template)
    world.send(wire, message)
    return True


def cancel(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None or not (client.schedules or n & 1):
        return False
    fields = {"name": f"n{n >> 1 & 1}"} if n & 1 else {"id": client.schedules[(n >> 1) % len(client.schedules)]}
    world.send(wire, m.Cancel(client.next_rid(), fields))
    return True


def transact(world: World, client: Client, n: int) -> bool:
    """Verdicts on what the client holds, and what follows from it."""
    wire = ready(client)
    chans = [chan for chan, sub in client.subs.items() if sub.held]
    if wire is None or not chans:
        return False
    n, at = divmod(n, len(chans))
    n, place = divmod(n, len(world.templates))
    template, sub = world.templates[place], client.subs[chans[at]]
    n, first = divmod(n, len(sub.held))
    ordinals = list(sub.held)[first : first + 1 + n % 3]
    said = (Verdict.ACK, Verdict.ACK, Verdict.ACK, Verdict.RETRY, Verdict.REJECT)[n // 3 % 5]
    rows = tuple((said, ordinal, ordinal, None) for ordinal in ordinals)
    for ordinal in ordinals:
        del sub.held[ordinal]
    message = m.Transact(client.next_rid(), client.pseq + 1, ((chans[at], rows),), template.raw)
    client.remember(message, template)
    world.send(wire, message)
    return True


def publish_again(world: World, client: Client, n: int) -> bool:
    """A confirmation was lost, or so the client thinks."""
    wire = ready(client)
    known = [rid for rid, sent in client.sent.items() if sent.pseq]
    if wire is None or not known:
        return False
    n, at = divmod(n, len(known))
    message = client.sent[known[at]].message
    if n & 3 == 0:  # something else under the same number
        other = world.templates[(n >> 2) % len(world.templates)]
        message = m.Publish(client.next_rid(), message.pseq, Level.JOURNALED, other.raw)
    world.send(wire, message)
    return True


def publish_ahead(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    template = world.templates[n % len(world.templates)]
    options = {"after": client.pseq + 1} if client.jumps else {}
    world.send(wire, m.Publish(client.next_rid(), client.pseq + 2, 0, template.raw, options))
    return True
