"""What clients and fate do. Each act reads what it needs from its number, and does nothing when it does not apply."""

from collections.abc import Callable
from typing import Any, Final

from fabric import messages as m
from fabric.messages import Level, Verdict
from tests.simulation.blocks import LATER
from tests.simulation.people import Client, Taken, Wire
from tests.simulation.plan import BIG, TICKS_S, Act
from tests.simulation.world import HEAL, World

VERDICTS: Final = (
    *[Verdict.ACK] * 6,
    *[Verdict.RETRY] * 3,
    *[Verdict.RELEASE] * 2,
    *[Verdict.REJECT],
    *[Verdict.TOUCH] * 2,
)
OPERATIONS: Final = (
    *("group.pause", "group.resume", "group.resume", "group.seek", "group.update", "group.delete"),
    *("dlq.redrive", "dlq.redrive"),
)
DELAYS_MS: Final = (None, None, 0, 125, 1000, 3000)
PASSES: Final = (64, 256, 1024, 2048, 4096, 8192)
CHANNELS: Final = 4


def live(world: World) -> None:
    """The acts of a plan, one after the other, with everything that happens between them."""
    waits, counts = world.swarm.waits, world.acts
    for kind, number in world.plan.acts:
        number, wait = divmod(number, 32)
        world.until(world.time + waits[wait])
        number, who = divmod(number, 8)
        for name in (kind, *INSTEAD.get(kind, ())):
            if _anyone(world, PLAY[name], who, number):
                world.steps += 1
                counts[name] += 1
                break


def _anyone(world: World, play: "Play", who: int, number: int) -> bool:
    """Let somebody play it, the one whose turn it is if possible."""
    clients = world.clients
    for at in range(who, who + len(clients)):  # noqa: SIM110 - a generator would take twice as long
        if play(world, clients[at % len(clients)], number):
            return True
    return False


# Connections.


def connect(world: World, client: Client, n: int) -> bool:
    if client.wire is not None and client.welcomed:
        return False
    if client.wire is not None:
        client.wire.cut(drops=bool(n & 64))
    greet(world, client, resume=n & 7 != 0, forget=n & 0xF00 == 0)
    return True


def greet(world: World, client: Client, *, resume: bool = True, forget: bool = False) -> Wire:
    """A new connection and its HELLO."""
    world.peers += 1
    wire = client.wire = Wire(client, b"\0" + world.peers.to_bytes(4, "big"), client.latency)
    world.wires[wire.peer] = wire
    client.welcomed = False
    fields: dict[str, Any] = {"proto": 1, "hb_ms": 1000, "ttl_ms": world.swarm.ttl_ms}
    if client.eager:
        fields |= {"hb_ms": 60_000, "ttl_ms": 600_000}
    fields["producer"] = {"name": client.producer, "epoch": client.epoch} if client.epoch else {"name": client.producer}
    if client.session and resume:
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
        world.observer.gone(wire.peer, world.router.clock.now)
    return True


def hold(world: World, client: Client, n: int) -> bool:
    wire = client.wire
    if wire is None or wire.held_up is not None or wire.held_down is not None:
        return False
    if n & 1:
        wire.held_up = []
    else:
        wire.held_down = []
    world.at(world.time + PASSES[(n >> 1) % 6], HEAL, wire)
    return True


def congest(world: World, client: Client, n: int) -> bool:
    if client.wire is None:
        return False
    world.router.block_peer(client.wire.peer, bool(n & 1))
    world.observer.blocked(client.wire.peer, bool(n & 1))
    world.hub_turn()
    return True


# Publishing.


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
    options = {"ttl_ms": (125, 1000, 4000)[n % 3]} if ttl < world.swarm.ttl_pct else {}
    pseq = client.pseq + 1 if numbered else 0
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
    elif n & 0xC0 == 0x80:
        options["name"] = f"n{n >> 10 & 1}"
    template = LATER[place * 2 + ("every_ms" in options)]  # what repeats is not taken for what does not
    message = m.Publish(client.next_rid(), client.pseq + 1 if n & 0x3000 else 0, 0, template.raw, options)
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
    rid = known[n % len(known)]
    world.send(wire, client.sent[rid].message)
    return True


def publish_ahead(world: World, client: Client, n: int) -> bool:
    wire = ready(client)
    if wire is None:
        return False
    template = world.templates[n % len(world.templates)]
    world.send(wire, m.Publish(client.next_rid(), client.pseq + 2, 0, template.raw))
    return True


# Consuming.


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
    if ephemeral >= swarm.ephemeral_pct:
        fields["group"] = plan.name
    else:
        fields["order"] = "none"
    if start < swarm.start_pct:
        start = n
        fields["start"] = ("first", "new", {"seq": n % 30}, "last")[start % 4]
    client.subs.setdefault(chan + 1, Taken(plan.name))
    world.send(wire, m.Subscribe(chan + 1, client.next_rid(), fields))
    return True


def _channel(client: Client, n: int) -> tuple[int, Taken] | None:
    return list(client.subs.items())[n % len(client.subs)] if client.subs else None


def credit(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None or found[1].fetching:
        return False
    chan, sub = found
    more = (-3, -1, 0, 1, 2, 5, 6, 1000)[(n >> 4) & 7]
    size = (0, 300, BIG, BIG)[(n >> 7) & 3]
    world.send(wire, m.Credit(chan, max(0, sub.seen + more), sub.bytes_got + size))
    return True


def fetch(world: World, client: Client, n: int) -> bool:
    wire, found = ready(client), _channel(client, n & 15)
    if wire is None or found is None:
        return False
    chan, sub = found
    sub.fetching = True
    world.send(wire, m.Fetch(chan, client.next_rid(), (1, 2, 5)[(n >> 4) % 3], (125, 1000, 4000)[(n >> 6) % 3]))
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


# Administration.


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
            if world.swarm.until_acked and fields["to"] == "last":
                fields["to"] = "first"  # which one is the last depends on what was removed, and the observer cannot see
        case "group.update":
            fields |= ({"attempts_max": 1 + n % 4}, {"lease_ms": 1000 + 500 * (n % 3)})[n & 1]
        case "dlq.redrive":
            fields["all"] = True
    world.send(wire, m.Admin(client.next_rid(), fields))
    return True


# Fate.


def pass_time(world: World, client: Client, n: int) -> bool:
    n, left = n >> 3, PASSES[n % 6]
    while left > 0:
        for at, one in enumerate(world.clients):
            if one.wire is not None and (n >> 3 * at) & 7:  # some are silent
                world.send(one.wire, m.Ping(0))
        world.until(world.time + min(left, 2 * TICKS_S))
        left -= 2 * TICKS_S
    return True


def slow(world: World, client: Client, n: int) -> bool:
    world.slow = 1 + n % 3
    return True


def crash(world: World, client: Client, n: int) -> bool:
    world.note(lambda: f"the hub crashes; {'' if n & 1 else 'no '}commit in flight lands")
    world.crash(n & 1)
    return True


def fail(world: World, client: Client, n: int) -> bool:
    world.failing = True
    return True


def clock(world: World, client: Client, n: int) -> bool:
    jump_s = (-3600, -5, -1, 1, 5, 3600)[n % 6]
    world.set_clock(jump_s)
    world.note(lambda: "the wall's clock is set")
    return True


def trim(world: World, client: Client, n: int) -> bool:
    """Retention removes the oldest blocks."""
    disk = world.disk
    if len(disk.bases) < 3:
        return False
    first = disk.trim(disk.bases[1 + n % (len(disk.bases) - 1)])
    world.note(lambda: f"the journal starts at {first} now")
    world.trimmed(first)
    return True


Play = Callable[[World, Client, int], bool]
PLAY: Final[dict[int, Play]] = {
    Act.CONNECT: connect,
    Act.PUBLISH: publish,
    Act.PUBLISH_AGAIN: publish_again,
    Act.PUBLISH_AHEAD: publish_ahead,
    Act.PUBLISH_LATER: publish_later,
    Act.CANCEL: cancel,
    Act.TRANSACT: transact,
    Act.ADMINISTER: administer,
    Act.SUBSCRIBE: subscribe,
    Act.CREDIT: credit,
    Act.FETCH: fetch,
    Act.VERDICT: verdict,
    Act.VERDICT_STALE: verdict_stale,
    Act.VERDICT_NEVER_SENT: verdict_never_sent,
    Act.UNSUBSCRIBE: unsubscribe,
    Act.GOODBYE: goodbye,
    Act.DISCONNECT: disconnect,
    Act.HOLD: hold,
    Act.CONGEST: congest,
    Act.PASS: pass_time,
    Act.SLOW: slow,
    Act.CRASH: crash,
    Act.FAIL: fail,
    Act.CLOCK: clock,
    Act.TRIM: trim,
}

# What is done when something cannot be done, so that few acts are in vain.
INSTEAD: Final[dict[int, tuple[Act, ...]]] = {
    Act.PUBLISH: (Act.CONNECT,),
    Act.SUBSCRIBE: (Act.CONNECT,),
    Act.VERDICT: (Act.SUBSCRIBE, Act.CONNECT),
    Act.CREDIT: (Act.SUBSCRIBE, Act.CONNECT),
    Act.CONNECT: (Act.SUBSCRIBE,),
}
ROUNDS_MAX: Final = 100  # a second each: a lost session, a lapsed lease and a wait may follow each other


def finish(world: World) -> None:
    """Faults are over and a willing consumer comes for every group: everything must be settled in the end."""
    world.slow, world.failing = 0, False
    world.note(lambda: "finish: faults are over")
    for one in list(world.wires.values()):
        one.heal(world)
    for number, client in enumerate(world.clients):
        wire = client.wire
        if wire is not None:
            world.router.block_peer(wire.peer, False)
            world.observer.blocked(wire.peer, False)
        if wire is not None and client.welcomed and (world.plan.seed >> number) & 1:
            world.send(wire, m.Goodbye(0))
    world.quiesce()
    for client in world.clients:
        client.to_resend = []
        if client.wire is not None:
            client.wire.cut(drops=True)  # some never said goodbye: their sessions must end by themselves
    worker = Client(9, world.swarm._replace(latency=(0,)))
    worker.producer, worker.eager = "worker", True
    greet(world, worker)
    world.quiesce()
    assert worker.wire is not None
    for name in world.observer.durable_groups():
        world.send(worker.wire, m.Admin(worker.next_rid(), {"op": "group.resume", "group": name}))
    for name in ("n0", "n1"):  # what repeats would never be finished
        world.send(worker.wire, m.Cancel(worker.next_rid(), {"name": name}))
    join_all(world, worker)
    for turn in range(ROUNDS_MAX):
        world.until(world.time + TICKS_S)
        world.quiesce()
        if world.observer.is_finished():
            break
        if turn % 60 == 59:
            world.send(worker.wire, m.Ping(0))
    if not world.observer.is_finished():  # what waits by the wall's clock waits longer when that was set back
        for _ in range(world.set_back_s // 900 + 1 if world.set_back_s else 0):
            world.until(world.time + 920 * TICKS_S)
            greet(world, worker)
            world.quiesce()
            join_all(world, worker)
            world.until(world.time + 4 * TICKS_S)
    world.quiesce()
    world.observer.finished()


def join_all(world: World, worker: Client) -> None:
    assert worker.wire is not None
    for chan, name in enumerate(world.observer.durable_groups(), 1):
        worker.subs[chan] = Taken(name)
        world.send(worker.wire, m.Subscribe(chan, chan, {"group": name, "credit": [BIG, BIG]}))
