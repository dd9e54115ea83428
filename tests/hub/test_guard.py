"""Connections that send nothing, send an unfinished message, or claim the routing ids of others: the hub goes on."""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from subprocess import run
from typing import Any, Final

import pytest
import zmq

import fabric_client
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.router_socket import seed_routing_ids
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code
from tests.hub.hostile import ROOT, Canary, HubProcess, Peer
from tests.hub.kit import eventually, sockets
from tests.hub.test_hostile import GREETING, HANDSHAKE, READY
from tests.patience import PATIENCE_S

FIRST_ID: Final = 0x6B8B4567  # what an unseeded rand() gives first
MORE_FRAME_BYTES: Final = 8 << 20
MIB: Final = 1 << 20


class Stage:
    """A hub that is started with limits of its own, and ways to connect to it."""

    def __init__(self, folder: Path, open_files: ExitStack) -> None:
        self._folder = folder
        self._open_files = open_files
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        open_files.callback(self._context.destroy, linger=0)

    def start(self, **limits: Any) -> None:
        self.hub = HubProcess(self._folder, **limits)
        self._open_files.callback(self.hub.stop)

    def peer(self) -> Peer:
        return self._open_files.enter_context(Peer(self._context, self.hub.url))

    def canary(self) -> Canary:
        canary = Canary(self.peer())
        canary.round_trip()
        return canary

    def client(self) -> fabric_client.Client:
        """A client as applications have it."""
        return self._open_files.enter_context(fabric_client.connect(self.hub.url))

    def connect(self, greeting: bytes = HANDSHAKE) -> socket.socket:
        """A connection that speaks ZMTP, and nothing of the protocol."""
        connection = self._open_files.enter_context(socket.create_connection(("127.0.0.1", self.hub.port)))
        connection.settimeout(PATIENCE_S)
        with suppress(ConnectionError):  # refused already
            connection.sendall(greeting)
        return connection

    def introduced(self, greeting: bytes = HANDSHAKE) -> socket.socket:
        """A connection whose handshake the hub has answered: its routing id is taken, and messages may follow."""
        connection = self.connect(greeting)
        heard = b""
        while b"READY" not in heard:
            part = connection.recv(1_000)
            assert part, "the handshake was not accepted"
            heard += part
        return connection


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as open_files:
        yield Stage(tmp_path, open_files)


def claim(routing_id: bytes) -> bytes:
    """The handshake of a peer that chooses its routing id."""
    body = READY + b"\x08Identity" + struct.pack(">I", len(routing_id)) + routing_id
    return GREETING + b"\x04" + bytes([len(body)]) + body


def test_a_peer_that_claims_the_next_routing_id_does_not_end_the_hub(stage: Stage) -> None:
    stage.start()
    for ahead in range(16):
        stage.introduced(claim(b"\x00" + struct.pack(">I", FIRST_ID + ahead)))
    canary = stage.canary()
    for _ in range(20):
        stage.peer().hello()
    canary.round_trip()
    stage.hub.assert_alive()


def test_the_ids_of_two_hubs_do_not_begin_alike() -> None:
    """ZeroMQ draws the first one when the socket is made; it names the first connection."""
    first = set()
    for n in range(4):
        ctypes.CDLL(None).srand(1)  # as in a process that has just begun
        seed_routing_ids()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
            router.bind(f"inproc://ids-{n}")
            dealer.connect(f"inproc://ids-{n}")
            dealer.send(b"x")
            first.add(router.recv_multipart()[0])
        context.term()
    assert len(first) == 4


def test_a_connection_with_a_chosen_id_is_closed(stage: Stage) -> None:
    stage.start()
    canary = stage.canary()
    connection = stage.introduced(claim(b"mine"))
    connection.sendall(b"\x00\x01x")
    _read_to_the_end(connection)
    canary.wait_for("dropped_chosen_id", 0)
    canary.wait_for("connections_refused", 0)


def test_an_ipc_socket_is_for_its_user_alone(tmp_path: Path) -> None:
    with sockets() as folder, Hub(tmp_path / "journal", HubOptions(binds=[f"ipc://{folder}/hub"])):
        assert (folder / "hub").stat().st_mode & 0o777 == 0o600
        (tmp_path / "other").touch()
        assert (tmp_path / "other").stat().st_mode & 0o777 != 0o600, "other files are made as before"


def test_idle_connections_beyond_the_descriptors_are_refused(stage: Stage) -> None:
    """The hub lives, its clients are served, and a new client is accepted though the idle connections stay."""
    stage.start(descriptors_max=120, limits={"max_messages": 200})
    canary = stage.canary()
    idle = [stage.connect() for _ in range(300)]
    for _ in range(20):
        canary.round_trip()
    canary.wait_for("connections_refused", 150)
    stage.peer().hello()
    for connection in idle:
        connection.close()
    for _ in range(20):
        stage.peer().hello()
        canary.round_trip()
    stage.hub.assert_alive()
    assert "connections refused" in stage.hub.log()
    assert stage.hub.log().count("connections refused") < 10


def test_an_unfinished_message_is_named_and_its_connection_closed(stage: Stage) -> None:
    stage.start(memory_bytes=256 * MIB)
    canary = stage.canary()
    frame = b"\x03" + struct.pack(">Q", MORE_FRAME_BYTES) + bytes(MORE_FRAME_BYTES)
    connections = [stage.introduced() for _ in range(2)]
    closed = 0
    for connection in connections:
        try:
            for _ in range(100):
                connection.sendall(frame)
        except OSError:
            closed += 1
    assert closed
    canary.wait_for("memory_over_budget", 0)
    canary.round_trip()
    assert "memory above its budget" in stage.hub.log()
    eventually(lambda: stage.hub.rss_mb() < 256, "the memory is given back")


def test_an_unfinished_message_of_a_client_is_ended_too(stage: Stage) -> None:
    """Of a client with a session: all that say nothing meanwhile are closed, and honest ones resume."""
    stage.start(memory_bytes=256 * MIB)
    canary, idle = stage.canary(), stage.client()
    connection = stage.introduced()
    connection.sendall(framed(wire.encode(m.Hello(1, {"proto": 1, "hb_ms": 60_000, "ttl_ms": 600_000}))))
    canary.wait_for("sessions_opened", 2)
    unfinished = b"\x03" + struct.pack(">Q", MORE_FRAME_BYTES) + bytes(MORE_FRAME_BYTES)
    with suppress(ConnectionError):
        while True:
            connection.sendall(unfinished)
            canary.round_trip()
    canary.wait_for("connections_quiet", 0)
    assert "quiet connections closed" in stage.hub.log()
    eventually(lambda: stage.hub.rss_mb() < 256, "the memory is given back")
    idle.publish("t", b"still here", timeout=PATIENCE_S)


def _read_to_the_end(connection: socket.socket) -> None:
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass


def test_connections_that_stay_silent_are_closed(tmp_path: Path) -> None:
    """In this process, so that time can pass faster."""
    with (
        Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"])) as hub,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as silent,
    ):
        silent.connect(hub.binds[0])
        with Peer(context, hub.binds[0]) as speaking:
            speaking.hello(hb_ms=60_000, ttl_ms=600_000)
            eventually(lambda: hub._socket.connections.kept == 2, "both are connected")
            hub._guard.silent_max_s = 0.0
            eventually(lambda: hub.counters["connections_silent"] >= 1, "the silent one was closed")
            speaking.still_served()


def test_connections_without_a_session_are_closed(tmp_path: Path) -> None:
    with (
        Hub(tmp_path / "journal", HubOptions(binds=["tcp://127.0.0.1:*"])) as hub,
        zmq.Context() as context,
        Peer(context, hub.binds[0]) as stranger,
        Peer(context, hub.binds[0]) as speaking,
    ):
        speaking.hello(hb_ms=60_000, ttl_ms=600_000)
        stranger.send(m.Ping(1))
        assert stranger.until(m.Err).code == Code.NO_SESSION
        hub._guard.silent_max_s = 0.0
        eventually(lambda: hub.counters["connections_without_session"] == 1, "the stranger was closed")
        speaking.still_served()


STALLED: Final = """
import sys, time
from collections import Counter
import zmq
from fabric.hub.router_socket import SOCKET_OPTIONS, RouterSocket
from tests.hub.test_guard import flood_and_vanish

context = zmq.Context()
port = RouterSocket(context, Counter(), lambda error, message: None)
flood_and_vanish(port.bind(sys.argv[1]))
time.sleep(1.5 * SOCKET_OPTIONS[zmq.HEARTBEAT_IVL] / 1000)  # in which ZeroMQ would send one to it
while not port.receive(1_000, 1 << 30):
    pass
port.close()
context.term()
print("well")
"""


def flood_and_vanish(url: str) -> None:
    """A peer sends more than ZeroMQ keeps for a hub that is busy, and is killed."""
    address = url.removeprefix("tcp://").split(":")
    family = socket.AF_INET if url.startswith("tcp") else socket.AF_UNIX
    with socket.socket(family) as peer:
        peer.connect((address[0], int(address[1])) if family == socket.AF_INET else url.removeprefix("ipc://"))
        peer.settimeout(PATIENCE_S)
        peer.sendall(HANDSHAKE)
        while b"READY" not in peer.recv(1_000):
            pass
        peer.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                peer.send(b"\x00\xff" + bytes(255))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not finished


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_peer_that_floods_the_hub_and_is_killed_does_not_end_it(transport: str) -> None:
    """ZeroMQ would send a heartbeat to its connection, which is broken and not read to its end, and assert that it is
    sound: an assertion that ends the process, so this is another one."""
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}
    with sockets() as folder:
        command = [sys.executable, "-c", STALLED, "tcp://127.0.0.1:*" if transport == "tcp" else f"ipc://{folder}/hub"]
        done = run(command, env=os.environ | paths, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout) == (0, "well\n"), done.stderr


def framed(frames: Sequence[bytes]) -> bytes:
    """A message of several frames, as ZMTP writes it."""
    flags = [1] * (len(frames) - 1) + [0]
    return b"".join(bytes([2 | flag]) + struct.pack(">Q", len(f)) + f for flag, f in zip(flags, frames, strict=True))


def test_peers_that_ask_for_much_and_read_nothing_do_not_fill_the_memory(stage: Stage) -> None:
    """Each grants as much credit as there are numbers; ZeroMQ would keep 256 blocks for each of them."""
    stage.start()
    canary, publisher = stage.canary(), stage.peer()
    publisher.hello(hb_ms=60_000, ttl_ms=600_000)
    for rid in range(1, 61):
        publisher.send(m.Publish(rid, 0, 0, b.encode("much", [bytes(4 * MIB)])))
        publisher.until(m.PubOk)
    for _ in range(5):
        deaf = stage.introduced()
        deaf.sendall(framed(wire.encode(m.Hello(1, {"proto": 1, "hb_ms": 60_000, "ttl_ms": 600_000}))))
        for chan in (1, 2):
            fields = {"patterns": ["much"], "start": "first", "credit": [1 << 40, 1 << 50]}
            deaf.sendall(framed(wire.encode(m.Subscribe(chan, chan, fields))))
    canary.wait_for("send_queue_full", 4)
    for _ in range(20):
        canary.round_trip()
    assert stage.hub.rss_mb() < 500, "one alone would take 480 MB, and all five two gigabytes"
