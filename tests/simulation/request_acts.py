"""Acts of requests and replies: clients answer a topic, ask, and reply."""

from typing import Final

from fabric_protocol import messages as m
from tests.simulation.blocks import IDENTS, QUESTIONS
from tests.simulation.connection_acts import ready
from tests.simulation.people import Client
from tests.simulation.world import World

SERVICES: Final = (("s0", ["a.#"]), ("s1", ["b.#"]))  # each topic is answered by one of them
CHANNELS: Final = (5, 6)  # beside those of groups
OF_SERVICE: Final = [[one for one in QUESTIONS if IDENTS[one.idents[0]].topic[0] == letter] for letter in "ab"]
TIMEOUTS_MS: Final = (125, 1000, 1000, 5000)


def serve(world: World, client: Client, n: int) -> bool:
    """Answer requests from now on, or no more."""
    wire = ready(client)
    if wire is None:
        return False
    n, at = divmod(n, len(CHANNELS))
    chan = CHANNELS[at]
    if chan in client.serves and n & 7:
        return False
    if chan in client.serves:
        del client.serves[chan]
        world.send(wire, m.Unsubscribe(chan, client.next_rid()))
        return True
    client.serves[chan] = n >> 3 & 1
    name, patterns = SERVICES[client.serves[chan]]
    fields = {"respond": True, "group": name, "patterns": patterns, "concurrency": (1, 1, 2)[(n >> 4) % 3]}
    world.send(wire, m.Subscribe(chan, client.next_rid(), fields))
    return True


def ask(world: World, client: Client, n: int) -> bool:
    """Ask; mostly what some client answers."""
    wire = ready(client)
    served = [service for one in world.clients for service in one.serves.values()]
    if wire is None or not (served or n & 0x700 == 0):
        return False
    fields = {"timeout_ms": TIMEOUTS_MS[n & 3], "replies_max": (1, 1, 2, 3)[n >> 2 & 3]}
    questions = OF_SERVICE[served[(n >> 4) % len(served)]] if served and n & 0x7000 else QUESTIONS
    world.send(wire, m.Request(0, client.next_rid(), fields, questions[(n >> 16) % len(questions)].raw))
    return True


def reply(world: World, client: Client, n: int) -> bool:
    """Answer what the client was asked, now and then twice."""
    wire = ready(client)
    if wire is None or not client.asked:
        return False
    n, at = divmod(n, len(client.asked))
    n, place = divmod(n, len(QUESTIONS))
    chan, number = client.asked[at]
    final = n & 3 != 0
    if final and n & 0x1C:
        del client.asked[at]
    world.send(wire, m.Reply(chan, number, {"final": final}, QUESTIONS[place].raw))
    return True
