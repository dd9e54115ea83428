"""The hub's ROUTER socket: every option in one table, receiving without waiting, sending without blocking.

A full connection never blocks the hub and never loses a frame silently: what does not fit waits in an outbox, and
the router is told not to hand out more to that peer meanwhile.
"""

import contextlib
import ctypes
import ipaddress
import os
import resource
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

import zmq

from fabric.hub.arrivals import Arrival
from fabric.hub.connections import Connections
from fabric.hub.unread import LARGE_BYTES, Unread
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Err, PeerId, Pong, ToClient

PORT_MAX: Final = 65_535  # of a larger number ZeroMQ takes the lower bits, and listens elsewhere
_EVENTS: Final = int(zmq.EVENTS)  # plain numbers: enum arithmetic is dear where every message passes
_POLLIN: Final = int(zmq.POLLIN)
_DONTWAIT: Final = int(zmq.DONTWAIT)

# Options that ZeroMQ lets us set and not read.
ROUTER_OPTIONS: Final = {
    zmq.ROUTER_MANDATORY: 1,  # without it a full or unknown peer swallows frames silently
    zmq.ROUTER_HANDOVER: 0,  # a newcomer must not take over the routing id, and so the messages, of somebody else
}
# Set before any bind, and read back, because a wrong one fails only when it is needed.
SOCKET_OPTIONS: Final = {
    zmq.SNDHWM: 256,  # frames for each peer; credit bounds the bytes
    zmq.RCVHWM: 64,  # frames from each peer that wait while the hub is busy
    zmq.MAXMSGSIZE: wire.FRAME_BYTES_MAX,
    zmq.LINGER: 0,  # the journal is the truth; `close` grants the last words a moment
    # ZeroMQ's own heartbeats end the process: they are sent by an assertion that the connection is sound, which it is
    # not when a peer floods the hub and is closed before all of it was read. Sessions have heartbeats of ours.
    zmq.HEARTBEAT_IVL: 0,
    zmq.TCP_KEEPALIVE: 1,  # half-open connections: noticed after IDLE + CNT * INTVL seconds
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.HANDSHAKE_IVL: 5_000,  # connections that never speak
    zmq.BACKLOG: 1_024,
}
FAREWELL_MS: Final = 500
HUB_MADE_ID: Final = 0x00  # routing ids that ZeroMQ assigns start with this byte; others were chosen by the client
OUTBOX_FRAMES_MAX: Final = 4_096
OUTBOX_BYTES_MAX: Final = 64 << 20  # answers are dropped above it; what groups hand out in one turn is less
DESCRIPTORS_SPARE: Final = 256
PROBE: Final = wire.encode(Pong(0))  # answers nothing, so clients ignore it
PROBE_S: Final = 5.0  # a closed connection that takes frames for longer than this was not that peer's


Failed = Callable[[Exception, ToClient], None]


class _Outbox:
    """What waits until a peer can take it."""

    __slots__ = ("bytes", "frames")

    def __init__(self) -> None:
        self.frames: deque[list[bytes]] = deque()
        self.bytes = 0

    def put(self, frames: list[bytes]) -> bool:
        """False when there is no room."""
        if self.frames and (len(self.frames) >= OUTBOX_FRAMES_MAX or self.bytes >= OUTBOX_BYTES_MAX):
            return False
        self.frames.append(frames)
        self.bytes += len(frames[-1])
        return True

    def pop(self) -> None:
        self.bytes -= len(self.frames.popleft()[-1])


class RouterSocket:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", counters: Counter[str], failed: Failed) -> None:
        seed_routing_ids()
        self._socket = context.socket(zmq.ROUTER)
        for option, value in ROUTER_OPTIONS.items():
            self._socket.setsockopt(option, value)
        for option, value in SOCKET_OPTIONS.items():
            self._socket.setsockopt(option, value)
            if self._socket.getsockopt(option) != value:
                raise FabricError(f"socket option {option} did not take the value {value}")
        self._counters = counters
        self._failed = failed
        self._outboxes: dict[PeerId, _Outbox] = {}
        self.connections = Connections(context, self._socket)
        self._unread = Unread(self.connections.descriptors)
        self._closing: dict[PeerId, float] = {}  # closed connections that may still take frames, and how long to try
        self._unreachable: dict[PeerId, None] = {}  # take no frames any more; frames of theirs may be unread
        self._drained = False  # the last `receive` has read all there was
        self.binds: list[str] = []

    def bind(self, url: str) -> str:
        """Listen at url, which `check_address` has passed; returns where, with a wildcard port filled in."""
        require_free(url)
        try:
            with private_files() if url.startswith("ipc://") else contextlib.nullcontext():
                self._socket.bind(url)
        except zmq.ZMQError as error:
            raise FabricError(
                f"cannot listen at {url}: {zmq.strerror(error.errno or 0)}",
                "is another hub running there? choose another --bind",
            ) from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.binds.append(bound)
        return bound

    def register(self, poller: zmq.Poller) -> None:
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self.connections.fd, zmq.POLLIN)

    def receive(self, frames_max: int, bytes_max: int) -> list[Arrival]:
        """What has arrived, without waiting, up to a bound."""
        arrivals: list[Arrival] = []
        receive, size, known = self._socket.recv, 0, self.connections.descriptors
        self._drained = False
        try:
            while len(arrivals) < frames_max and size < bytes_max and is_readable(self._socket):
                # Frames know whether another one follows; asking the socket, as recv_multipart does, costs more.
                peer = receive(_DONTWAIT, copy=False)
                frames, last = [], peer
                while last.more:
                    last = receive(_DONTWAIT, copy=False)
                    frames.append(last.bytes)
                if peer.buffer[0] != HUB_MADE_ID:
                    self._counters["dropped_chosen_id"] += 1
                    self._counters["connections_refused"] += self.connections.refuse(peer)
                    continue
                size += len(frames[-1]) if frames else 0
                name = peer.bytes
                if name not in known:
                    self.connections.enter(name, peer)
                arrivals.append((name, frames))
            self._drained = len(arrivals) < frames_max and size < bytes_max
        except zmq.ZMQError as error:
            raise FabricError(f"the socket failed: {error.strerror}") from error
        return arrivals

    def send(self, sends: Iterable[tuple[PeerId, ToClient]]) -> list[PeerId]:
        """Send without blocking. Returns peers that are full now; those that are gone are for `lost`."""
        full: list[PeerId] = []
        for peer, message in sends:
            try:
                frames = [peer, *wire.encode(message)]
            except Exception as error:
                frames = [peer, *wire.encode(self._fault(message, error))]
            outbox = self._outboxes.get(peer)
            if outbox is not None:
                if not outbox.put(frames):  # only answers to a peer that floods and never reads come this far
                    self._counters["dropped_outbox_full"] += 1
            elif not self._offer(peer, frames):
                self._counters["send_queue_full"] += 1
                self._outboxes[peer] = outbox = _Outbox()
                outbox.put(frames)
                full.append(peer)
        return full

    def _offer(self, peer: PeerId, frames: list[bytes]) -> bool:
        """Send frames; False when the peer has to read others first."""
        size = len(frames[-1])
        if size >= LARGE_BYTES and not self._unread.admits(peer, size, len(self._outboxes)):
            return False
        try:
            self._socket.send_multipart(frames, _DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            self._counters["send_unreachable"] += 1
            self._unreachable[peer] = None
        return True

    def _fault(self, message: ToClient, error: Exception) -> Err:
        """What is said in place of a message that cannot be encoded."""
        self._counters["internal_errors"] += 1
        self._failed(error, message)
        text = f"the hub failed at encoding its {type(message).__name__}; its log says how"
        return Err(getattr(message, "chan", 0), getattr(message, "rid", 0), Code.INTERNAL, text, {})

    def flush(self) -> list[PeerId]:
        """Try the outboxes again. Returns peers that can take more now, or that are gone."""
        freed: list[PeerId] = []
        for peer, outbox in list(self._outboxes.items()):
            while outbox.frames and self._offer(peer, outbox.frames[0]):
                outbox.pop()
                if peer in self._unreachable:
                    outbox.frames.clear()
            if not outbox.frames:
                del self._outboxes[peer]
                freed.append(peer)
        return freed

    def lost(self) -> list[PeerId]:
        """Peers that are surely gone, and of whose frames none is unread. To be called after each `receive`.

        A peer that takes no more frames may have said something before it went; all of it can be read by then, so it
        is read when a later `receive` finds nothing more.
        """
        if not (self.connections.closed or self.is_losing):
            return []
        lost = list(self._unreachable) if self._drained else []
        for peer in lost:
            del self._unreachable[peer]
            self.connections.forget(peer)
            self._unread.forget(peer)
        if self.connections.closed:
            until = time.monotonic() + PROBE_S
            self._closing |= dict.fromkeys(self.connections.closed, until)
            self.connections.closed = []
        for peer, until in list(self._closing.items()):
            unreachable = self._is_unreachable(peer)
            if unreachable or time.monotonic() > until:
                del self._closing[peer]
            if unreachable:
                self._unreachable[peer] = None
        return lost

    def _is_unreachable(self, peer: PeerId) -> bool:
        try:
            self._socket.send_multipart([peer, *PROBE], _DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError:
            return True
        return False

    @property
    def is_losing(self) -> bool:
        """Whether `lost` should be asked again soon."""
        return bool(self._unreachable or self._closing)

    @property
    def has_outboxes(self) -> bool:
        return bool(self._outboxes)

    def close(self) -> None:
        self.connections.close()
        self._socket.close(linger=FAREWELL_MS)
        for url in self.binds:
            if url.startswith("ipc://") and os.path.exists(url[6:]):
                os.unlink(url[6:])


def seed_routing_ids() -> None:
    """Make the routing ids that ZeroMQ gives to connections unpredictable. To be called before a ROUTER is made.

    They are counted upward from a `rand()` that ZeroMQ does not seed. A peer that claims the id which comes next ends
    the process: ZeroMQ asserts that an id of its own is free, and nothing tells the hub of the claim.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files that are made meanwhile are for this user alone, from the beginning."""
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Asking is cheaper than being told "nothing there" by an exception, or than a poller for one look."""
    events = socket.get(_EVENTS)
    assert isinstance(events, int)
    return bool(events & _POLLIN)


def check_address(url: str) -> None:
    """Refuse what this hub must not listen on: unknown transports, and networks without encryption."""
    parts = urlsplit(url)
    if parts.scheme in ("ipc", "inproc"):
        return
    if parts.scheme != "tcp":
        raise FabricError(f"cannot listen at {url}", "use tcp://127.0.0.1:PORT, ipc://PATH or inproc://NAME")
    port = url.rpartition(":")[2]
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise FabricError(
            f"cannot listen at {url}: it has no port of 0..{PORT_MAX}",
            "write tcp://127.0.0.1:PORT, or * for any free port",
        )
    host = (parts.hostname or "").strip("[]")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise FabricError(
            f"refusing to listen at {url}: without encryption the hub serves this machine only",
            "bind tcp://127.0.0.1:PORT or ipc://PATH, and reach it from elsewhere through a tunnel",
        )


def require_free(url: str) -> None:
    """Refuse an ipc socket that somebody listens on: ZeroMQ would remove its file and take its place in silence."""
    path = url.removeprefix("ipc://")
    if path == url or path.startswith(("@", "*")):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return  # nobody: there is no file, or it was left by a hub that was killed
    raise FabricError(f"cannot listen at {url}: somebody does", "is another hub running there? choose another --bind")


def raise_descriptor_limit() -> int:
    """One connection costs one descriptor: take all that the system grants. Returns how many peers fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - DESCRIPTORS_SPARE, 0)
