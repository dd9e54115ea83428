"""Floods: one client that sends one kind of command as fast as the hub answers it, spoken directly on the wire.

A flood first makes what its command needs, then keeps as many commands unanswered as it may until it is told to end.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import zmq

from fabric.bench.crew import Line
from fabric.hub.router_socket import is_readable
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import FabricError

POLL_MS: Final = 30_000
WAIT_MS: Final = 50
UNANSWERED: Final = 256  # commands; the hub keeps as many frames of all clients
PUBLISHES: Final = 32  # unconfirmed, which is half of the window of a client
IDS: Final = 4_096
TOPICS: Final = 4_000
FAN_OUT: Final = 1_000
KEYS: Final = 900
MESSAGES: Final = 65_536  # of the block that is read: as many as a block can have
CREDITS: Final = 15  # before each PING: they have no answer
GETS: Final = 1_000  # messages asked for by one GET
CREDIT: Final = [1 << 40, 1 << 50]

Commands = Iterator[m.ToHub]
_ANSWERS: Final = (m.Ok, m.Err, m.Welcome, m.Pong)


class Talker:
    """One connection, and how many of its commands are not answered."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", url: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.connect(url)
        self.answered = 0
        self.sent = 0
        self.ask(m.Hello(1, {"proto": m.PROTOCOL_VERSION, "client": "flood"}))

    def send(self, message: m.ToHub) -> None:
        self._socket.send_multipart(wire.encode(message))
        self.sent += 1

    def tell(self, message: m.ToHub) -> None:
        """Send a command that has no answer."""
        self._socket.send_multipart(wire.encode(message))

    def ask(self, message: m.ToHub) -> None:
        """Send a command and wait for its answer, which must be no error."""
        self.send(message)
        while self.answered < self.sent:
            if not self._socket.poll(POLL_MS):
                raise FabricError(f"the hub does not answer {type(message).__name__}")
            for answer in self.hear():
                if isinstance(answer, m.Err):
                    raise FabricError(f"the hub refused {type(message).__name__}: {answer.text}")

    def hear(self) -> list[m.ToHub | m.ToClient]:
        """What has arrived. Requests are replied to."""
        heard = []
        while is_readable(self._socket):
            message = wire.decode(self._socket.recv_multipart())
            heard.append(message)
            match message:
                case m.PubOk():
                    self.answered += len(message.confirms)
                case m.Request(chan, rid, _, block):
                    self._socket.send_multipart(wire.encode(m.Reply(chan, rid, {}, block)))
                case m.Reply():
                    self.answered += 1
                case _:
                    self.answered += isinstance(message, _ANSWERS)
        return heard

    def wait(self) -> None:
        self._socket.poll(WAIT_MS)


class Flood(NamedTuple):
    """`commands(talker, name)` gives the commands; what it sends before the first one is preparation."""

    what: str
    commands: Callable[[Talker, str], Commands]
    unanswered_max: int


def _rids() -> Iterator[int]:
    return itertools.count(100)


def _publishes(blocks: Iterator[bytes]) -> Commands:
    for rid, block in zip(_rids(), blocks, strict=False):
        yield m.Publish(rid, 0, m.Level.JOURNALED, block)


def small(talker: Talker, name: str) -> Commands:
    return _publishes(itertools.repeat(b.encode(name, [bytes(100)])))


def large(talker: Talker, name: str) -> Commands:
    return _publishes(itertools.repeat(b.encode(name, [bytes(1_000)] * 1_000)))


def known_ids(talker: Talker, name: str) -> Commands:
    block = b.encode(name, [b""] * IDS, ids=[b"%d" % n for n in range(IDS)])
    talker.ask(m.Publish(2, 0, m.Level.JOURNALED, block))
    return _publishes(itertools.repeat(block))


def many_topics(talker: Talker, name: str) -> Commands:
    blocks = [b.encode([f"{name}.{at}.{n}" for n in range(TOPICS)], [b""] * TOPICS) for at in range(16)]
    return _publishes(itertools.cycle(blocks))


def fan_out(talker: Talker, name: str) -> Commands:
    for chan in range(1, FAN_OUT + 1):
        talker.ask(m.Subscribe(chan, 2, {"patterns": [name], "credit": CREDIT}))
    return _publishes(itertools.repeat(b.encode(name, [bytes(100)])))


def get(talker: Talker, name: str) -> Commands:
    talker.ask(m.Publish(2, 0, m.Level.JOURNALED, b.encode(name, [b"x"] * MESSAGES)))
    for rid in _rids():
        yield m.Get(rid, {"topic": name, "n": GETS})


def get_by_key(talker: Talker, name: str) -> Commands:
    keys = [b"%d" % (n % KEYS) for n in range(MESSAGES)]
    talker.ask(m.Publish(2, 0, m.Level.JOURNALED, b.encode(name, [b"x"] * MESSAGES, keys=keys)))
    for rid in _rids():
        yield m.Get(rid, {"topic": name, "by_key": True, "n": GETS})


def info(talker: Talker, name: str) -> Commands:
    for rid, what in zip(_rids(), itertools.cycle(("hub", "groups", "sessions", "topics")), strict=False):
        yield m.Info(rid, {"what": what})


def ping(talker: Talker, name: str) -> Commands:
    return map(m.Ping, _rids())


def request(talker: Talker, name: str) -> Commands:
    talker.ask(m.Subscribe(1, 2, {"patterns": [name], "respond": True, "concurrency": UNANSWERED}))
    block = b.encode(name, [bytes(100)])
    for rid in _rids():
        yield m.Request(0, rid, {}, block)


def subscribe(talker: Talker, name: str) -> Commands:
    for rid in _rids():
        yield (
            m.Subscribe(1, rid, {"patterns": [f"{name}.#"], "credit": CREDIT})
            if rid % 2 == 0
            else m.Unsubscribe(1, rid)
        )


def admin(talker: Talker, name: str) -> Commands:
    for group in range(16):
        talker.ask(m.Admin(2, {"op": "group.create", "group": f"{name}-{group}", "patterns": [name]}))
    for rid in _rids():
        yield m.Admin(rid, {"op": ("group.pause", "group.resume")[rid // 16 % 2], "group": f"{name}-{rid % 16}"})


def admin_groups(talker: Talker, name: str) -> Commands:
    for rid in _rids():
        op = ("group.create", "group.delete")[rid % 2]
        yield m.Admin(rid, {"op": op, "group": name} | ({"patterns": [f"{name}.#"]} if rid % 2 == 0 else {}))


def admin_topics(talker: Talker, name: str) -> Commands:
    talker.ask(m.Admin(2, {"op": "topic.create", "topic": name}))
    for rid in _rids():
        yield m.Admin(rid, {"op": "topic.update", "topic": name, "max_msgs": 1_000 + rid % 100})


def hello(talker: Talker, name: str) -> Commands:
    for rid in _rids():
        yield m.Hello(rid, {"proto": m.PROTOCOL_VERSION, "client": name})


def cancel(talker: Talker, name: str) -> Commands:
    for rid in _rids():
        yield m.Cancel(rid, {"name": name})


def transact(talker: Talker, name: str) -> Commands:
    block = b.encode(name, [bytes(100)])
    for rid in _rids():
        yield m.Transact(rid, 0, (), block)


def credit(talker: Talker, name: str) -> Commands:
    talker.ask(m.Subscribe(1, 2, {"patterns": [name], "credit": CREDIT}))
    for rid in _rids():
        for _ in range(CREDITS):
            talker.tell(m.Credit(1, *CREDIT))
        yield m.Ping(rid)


FLOODS: Final = {
    flood.commands.__name__: flood
    for flood in (
        Flood("small publishes", small, PUBLISHES),
        Flood("blocks of 1 MB", large, 6),
        Flood(f"blocks of {IDS:,} known ids", known_ids, PUBLISHES),
        Flood(f"blocks of {TOPICS:,} topics", many_topics, PUBLISHES),
        Flood(f"publishes to {FAN_OUT:,} subscriptions of its own", fan_out, PUBLISHES),
        Flood("GET", get, UNANSWERED),
        Flood("GET by key", get_by_key, UNANSWERED),
        Flood("INFO", info, UNANSWERED),
        Flood("PING", ping, UNANSWERED),
        Flood("requests", request, UNANSWERED),
        Flood("SUB and UNSUB", subscribe, UNANSWERED),
        Flood("ADMIN group.pause and resume", admin, UNANSWERED),
        Flood("ADMIN group.create and delete", admin_groups, UNANSWERED),
        Flood("ADMIN topic.update", admin_topics, UNANSWERED),
        Flood("HELLO", hello, UNANSWERED),
        Flood("CANCEL", cancel, UNANSWERED),
        Flood("TXN", transact, PUBLISHES),
        Flood("CREDIT", credit, UNANSWERED // (CREDITS + 1)),
    )
}


def flood(line: Line, *, url: str, kind: str, name: str, done: Any) -> dict[str, Any]:
    """Send one kind of command until the other client is done; `refused` of the answers were errors."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        talker, chosen = Talker(context, url), FLOODS[kind]
        commands = chosen.commands(talker, name)
        command, refused = next(commands), 0  # preparation is over when there is a first command
        line.ready()
        cpu_s, begun = time.process_time(), time.monotonic()
        sent, answered = talker.sent, talker.answered
        while not done.value:
            while talker.sent - talker.answered < chosen.unanswered_max:
                talker.send(command)
                command = next(commands)
            talker.wait()
            refused += sum(isinstance(answer, m.Err) for answer in talker.hear())
        return {
            "count": talker.answered - answered, "sent": talker.sent - sent, "refused": refused, "begun": begun,
            "ended": time.monotonic(), "cpu_before_s": cpu_s,
        }  # fmt: skip
    except zmq.ZMQError as error:
        raise FabricError(f"a connection failed: {error.strerror}") from error
    finally:
        context.destroy(linger=0)
