"""RouterSocket is the hub's ROUTER socket: it receives without waiting and sends without blocking.

A full connection never blocks the hub and never loses a frame silently: frames that the connection cannot take wait in
an outbox, and the router delivers nothing to that peer meanwhile.
"""

import contextlib
import ctypes
import errno
import os
import resource
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

import zmq

from fabric.hub.addresses import private_files, require_free
from fabric.hub.arrivals import Arrival
from fabric.hub.connections import Connections
from fabric.hub.unread import LARGE_BYTES, Unread
from fabric_protocol import wire
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Err, PeerId, Pong, ToClient

_EVENTS: Final = int(zmq.EVENTS)  # plain numbers: arithmetic with enums is slow, and every message passes here
_POLLIN: Final = int(zmq.POLLIN)
_DONTWAIT: Final = int(zmq.DONTWAIT)

# Options that can be set and not read.
ROUTER_OPTIONS: Final = {
    zmq.ROUTER_MANDATORY: 1,  # without it ZeroMQ drops frames to a full or unknown peer silently
    zmq.ROUTER_HANDOVER: 0,  # a new connection must not take the routing id, and so the messages, of another peer
}
# Set before any bind, and read back, because a wrong value would show only when it is needed.
SOCKET_OPTIONS: Final = {
    zmq.SNDHWM: 256,  # frames to each peer; `Unread` bounds the bytes
    zmq.RCVHWM: 64,  # frames from each peer that wait while the hub is busy
    zmq.MAXMSGSIZE: wire.FRAME_BYTES_MAX,
    zmq.LINGER: 0,  # nothing to flush: the journal is durable; `close` lingers LINGER_MS for NOTICE and PUBOK
    # ZeroMQ's own heartbeats can end the process: ZeroMQ asserts that the connection is sound, and it is not when a
    # peer floods the hub and is closed before all of it was read. Sessions have heartbeats of their own.
    zmq.HEARTBEAT_IVL: 0,
    zmq.TCP_KEEPALIVE: 1,  # half-open connections are found after IDLE + CNT * INTVL seconds
    zmq.TCP_KEEPALIVE_IDLE: 5,
    zmq.TCP_KEEPALIVE_INTVL: 2,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.HANDSHAKE_IVL: 5_000,  # bounds the handshake of a connection
    zmq.BACKLOG: 1_024,
}
FOREIGN: Final = "write an IP address of this machine, or 0.0.0.0 for all networks"
BIND_HINTS: Final = {
    errno.EADDRINUSE: "is another hub running there? choose another --bind",
    errno.EADDRNOTAVAIL: FOREIGN,
    errno.ENODEV: FOREIGN,
    errno.EAFNOSUPPORT: FOREIGN,
    errno.EACCES: "ports below 1024 are for root, and a socket needs a folder that this user may write",
    errno.ENOENT: "make the folder of the socket",
    errno.ENOTDIR: "make the folder of the socket",
}
LINGER_MS: Final = 500
ASSIGNED_ID: Final = 0x00  # routing ids that ZeroMQ assigns start with this byte; others were chosen by the client
OUTBOX_FRAMES_MAX: Final = 4_096
OUTBOX_BYTES_MAX: Final = 64 << 20  # answers above it are dropped; the deliveries of one turn are fewer
DESCRIPTORS_SPARE: Final = 256
PROBE: Final = wire.encode(Pong(0))  # answers no PING, so clients ignore it
PROBE_S: Final = 5.0  # if the peer takes frames for longer than this, another connection was closed


Failed = Callable[[Exception, ToClient], None]


class _Outbox:
    """Frames that wait until a peer can take them."""

    __slots__ = ("bytes", "frames")

    def __init__(self) -> None:
        self.frames: deque[list[bytes]] = deque()
        self.bytes = 0

    def put(self, frames: list[bytes]) -> bool:
        """Add frames; False if there is no room."""
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
        self._closing: dict[PeerId, float] = {}  # peers whose connection was closed, and until when to probe them
        self._unreachable: dict[PeerId, None] = {}  # peers that take no frames; frames from them may be unread
        self._drained = False  # the last `receive` has read all frames
        self.binds: list[str] = []

    def bind(self, url: str) -> str:
        """Listen at a url that `check_addresses` has accepted; returns it, with a number in place of port *."""
        require_free(url)
        try:
            with private_files() if url.startswith("ipc://") else contextlib.nullcontext():
                self._socket.setsockopt(zmq.IPV6, "[" in url)  # copied when an address is bound, as all options
                self._socket.bind(url)
        except zmq.ZMQError as error:
            raise FabricError(
                f"cannot listen at {url}: {zmq.strerror(error.errno or 0)}",
                BIND_HINTS.get(error.errno or 0, "choose another --bind"),
            ) from error
        bound = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.binds.append(bound)
        return bound

    def configure(self, change: "Callable[[zmq.Socket[bytes]], None]") -> None:
        """Change or test the socket inside; addresses that are bound already keep their options."""
        change(self._socket)

    def register(self, poller: zmq.Poller) -> None:
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self.connections.fd, zmq.POLLIN)

    def receive(self, frames_max: int, bytes_max: int) -> list[Arrival]:
        """The frames that have arrived, up to a bound. Does not wait."""
        arrivals: list[Arrival] = []
        receive, size, known = self._socket.recv, 0, self.connections.descriptors
        self._drained = False
        try:
            while len(arrivals) < frames_max and size < bytes_max and is_readable(self._socket):
                # A frame has a flag for the next one; asking the socket, as recv_multipart does, costs more.
                peer = receive(_DONTWAIT, copy=False)
                frames, last = [], peer
                while last.more:
                    last = receive(_DONTWAIT, copy=False)
                    frames.append(last.bytes)
                if peer.buffer[0] != ASSIGNED_ID:
                    self._counters["dropped_chosen_id"] += 1
                    self._counters["connections_refused"] += self.connections.refuse(peer)
                    continue
                size += len(frames[-1]) if frames else 0
                name = peer.bytes
                if name not in known:
                    self.connections.add(name, peer)
                arrivals.append((name, frames))
            self._drained = len(arrivals) < frames_max and size < bytes_max
        except zmq.ZMQError as error:
            raise FabricError(f"the socket failed: {error.strerror}") from error
        return arrivals

    def send(self, sends: Iterable[tuple[PeerId, ToClient]]) -> list[PeerId]:
        """Send without blocking. Returns the peers that have become full; `lost` returns the peers that are gone."""
        full: list[PeerId] = []
        for peer, message in sends:
            try:
                frames = [peer, *wire.encode(message)]
            except Exception as error:
                frames = [peer, *wire.encode(self._fault(message, error))]
            outbox = self._outboxes.get(peer)
            if outbox is not None:
                if not outbox.put(frames):  # happens only with answers to a peer that floods and never reads
                    self._counters["dropped_outbox_full"] += 1
            elif not self._offer(peer, frames):
                self._counters["send_queue_full"] += 1
                self._outboxes[peer] = outbox = _Outbox()
                outbox.put(frames)
                full.append(peer)
        return full

    def _offer(self, peer: PeerId, frames: list[bytes]) -> bool:
        """Send frames; False if the peer has to read earlier frames first."""
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
        """The error that is sent in place of a message that cannot be encoded."""
        self._counters["internal_errors"] += 1
        self._failed(error, message)
        text = f"the hub failed to encode its {type(message).__name__}; see the log of the hub"
        return Err(getattr(message, "chan", 0), getattr(message, "rid", 0), Code.INTERNAL, text, {})

    def flush(self) -> list[PeerId]:
        """Send from the outboxes. Returns the peers whose outbox is empty now: they can take more, or are gone."""
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
        """Peers that are gone, and whose frames were all received. To be called after each `receive`.

        A peer that takes no more frames may have sent frames before. These can be received by then, so they are all
        received when a later `receive` finds no more frames.
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
        """True if `lost` has to be called again soon."""
        return bool(self._unreachable or self._closing)

    @property
    def has_outboxes(self) -> bool:
        return bool(self._outboxes)

    def close(self) -> None:
        self.connections.close()
        self._socket.close(linger=LINGER_MS)
        for url in self.binds:
            if url.startswith("ipc://") and os.path.exists(url[6:]):
                os.unlink(url[6:])


def seed_routing_ids() -> None:
    """Make the routing ids that ZeroMQ assigns unpredictable. To be called before a ROUTER socket is made.

    ZeroMQ counts them upward from a `rand()` that it does not seed. A peer that chooses the next id as its own would
    end the process: ZeroMQ asserts that the id is free, and the hub cannot see the choice before.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4)))


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """True if a message can be received. Costs less than a `recv` that raises, or than a poller."""
    events = socket.get(_EVENTS)
    assert isinstance(events, int)
    return bool(events & _POLLIN)


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors to what the system allows, since each connection needs one.

    Returns the number of connections that fit.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - DESCRIPTORS_SPARE, 0)
