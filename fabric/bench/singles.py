"""Many connections that publish single messages, pipelined: each block has one message.

The client would gather such messages into blocks; here the wire is spoken directly, so that the hub really gets
single messages, as it does from many small programs.
"""

import time
import uuid
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import zmq

from fabric.bench.crew import Line
from fabric.hub.router_socket import is_readable
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import encode
from fabric_protocol.errors import FabricError

WINDOW: Final = 64  # unconfirmed messages of a connection, if the hub allows so many
POLL_MS: Final = 30_000


class _Speaker:
    """A connection: its sent and its confirmed messages."""

    __slots__ = ("confirmed", "sent", "socket", "window")

    def __init__(self, socket: "zmq.Socket[bytes]", window: int) -> None:
        self.socket = socket
        self.window = window
        self.sent = 0
        self.confirmed = 0


def speak(line: Line, *, url: str, topic: str, connections: int, count: int, size: int) -> dict[str, Any]:
    """Publish `count` single messages over `connections` connections, and wait for all confirms."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        return _speak(context, line, url, encode(topic, [bytes(size)]), connections, count)
    except zmq.ZMQError as error:
        raise FabricError(f"a connection failed: {error.strerror}") from error
    finally:
        context.destroy(linger=0)


def _speak(
    context: "zmq.Context[zmq.Socket[bytes]]", line: Line, url: str, block: bytes, connections: int, count: int
) -> dict[str, Any]:
    speakers = {s.socket: s for s in (connect(context, url) for _ in range(connections))}
    poller = zmq.Poller()
    for socket in speakers:
        poller.register(socket, zmq.POLLIN)
    per_connection = -(-count // connections)
    line.ready()
    cpu_s, begun = time.process_time(), time.monotonic()
    for speaker in speakers.values():
        _fill(speaker, block, per_connection)
    open_speakers = len(speakers)
    while open_speakers:
        events = poller.poll(POLL_MS)
        if not events:
            raise FabricError("the hub stopped confirming")
        for socket, _ in events:
            speaker = speakers[socket]
            _hear(speaker)
            _fill(speaker, block, per_connection)
            if speaker.confirmed >= per_connection:
                poller.unregister(socket)
                open_speakers -= 1
    return {
        "count": per_connection * connections,
        "begun": begun,
        "ended": time.monotonic(),
        "cpu_before_s": cpu_s,
    }


def connect(context: "zmq.Context[zmq.Socket[bytes]]", url: str) -> _Speaker:
    socket = context.socket(zmq.DEALER)
    socket.connect(url)
    name = f"single-{uuid.uuid4().hex}"  # a new name: the hub knows the numbers of an earlier producer
    hello = m.Hello(1, {"proto": m.PROTOCOL_VERSION, "client": "bench", "producer": {"name": name}})
    socket.send_multipart(wire.encode(hello))
    if not socket.poll(POLL_MS):
        raise FabricError("the hub does not answer")
    welcome = wire.decode(socket.recv_multipart())
    if not isinstance(welcome, m.Welcome):
        raise FabricError(f"the hub answered {welcome!r}")
    return _Speaker(socket, min(WINDOW, welcome.fields["flow"][0]))


def _fill(speaker: _Speaker, block: bytes, count: int) -> None:
    send = speaker.socket.send_multipart
    while speaker.sent < count and speaker.sent - speaker.confirmed < speaker.window:
        speaker.sent += 1
        send(wire.encode(m.Publish(speaker.sent, speaker.sent, m.Level.JOURNALED, block)))


def _hear(speaker: _Speaker) -> None:
    for answer in _answers(speaker.socket):
        match answer:
            case m.PubOk():
                speaker.confirmed += sum(row[2] for row in answer.confirms)
            case m.Flow():
                speaker.window = min(WINDOW, max(1, answer.blocks_max))
            case m.Err():
                raise FabricError(f"the hub refused a message: {answer.text}")


def _answers(socket: "zmq.Socket[bytes]") -> "Iterator[m.ToHub | m.ToClient]":
    while is_readable(socket):
        yield wire.decode(socket.recv_multipart())


class GroupMaker(NamedTuple):
    """Creates many groups at once. They stay, without consumers."""

    url: str

    def make(self, names: list[str], pattern: str, per_session: int) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            for start in range(0, len(names), per_session):
                self._session(context, names[start : start + per_session], pattern)
        finally:
            context.destroy(linger=0)

    def _session(self, context: "zmq.Context[zmq.Socket[bytes]]", names: list[str], pattern: str) -> None:
        socket = connect(context, self.url).socket
        for chan, name in enumerate(names, start=1):
            fields = {"group": name, "patterns": [pattern], "start": "first", "credit": [0, 0]}
            socket.send_multipart(wire.encode(m.Subscribe(chan, chan, fields)))
        for _ in names:
            if not socket.poll(POLL_MS):
                raise FabricError("the hub did not create a group")
            answer = wire.decode(socket.recv_multipart())
            if not isinstance(answer, m.Ok):
                raise FabricError(f"the hub did not create a group: {answer!r}")
        socket.send_multipart(wire.encode(m.Goodbye(0)))
        socket.close(linger=1000)
