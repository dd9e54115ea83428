"""Connections counts the open connections of the hub's socket, and names the peers whose connection was closed.

A ROUTER socket does not report which peer is gone. Its monitor reports which descriptor was closed, and each frame has
the descriptor by which it came; together they name the peer. The operating system gives the number of a closed
descriptor to the next connection. So events are read before a new peer is added: they are about earlier connections.

The event of a failed handshake names the hub's own address and no descriptor. The end of its connection is the next
event of the same ZeroMQ thread, and that one has the descriptor, for which the address of the client is known, unless
the connection had ended before its first event was read.
"""

import ctypes
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

import zmq

from fabric.hub.zap import Refusal
from fabric.router.access.identity import GUEST_NAME, LOCAL, REFUSED_NAME, Identity
from fabric_protocol.messages import PeerId

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SRCFD: Final = int(zmq.SRCFD)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_HANDSHAKE_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_EVENT: Final = struct.Struct("=HI")  # event, and descriptor or reason
_shutdown: Final = ctypes.CDLL(None).shutdown
_NOT_TOLD: Final = "the client ended the handshake: it has no key, trusts another key, or is no client of Fabric"
_WHY: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "a client without a key at an encrypted address, or the reverse",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "the client trusts another key than that of this hub",
}
REFUSALS_MAX: Final = 1_000  # that wait for the audit; the oldest are dropped
NO_DESCRIPTOR: Final = -1  # peers in this process (inproc) have no descriptor and no events


class Connections:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", router: "zmq.Socket[bytes]") -> None:
        self.descriptors: dict[PeerId, int] = {}  # descriptor of each peer that has sent a message
        self.identities: dict[PeerId, Identity] = {}  # of each peer, if the hub has keys
        self._counts = Counter[str]()  # of these, by principal
        self.identify: Callable[[PeerId, zmq.Frame], Identity] | None = None  # reads the identity from a frame
        self.refusals: deque[Refusal] = deque(maxlen=REFUSALS_MAX)  # handshakes that failed, if the hub has keys
        self._failed: deque[str] = deque(maxlen=REFUSALS_MAX)  # why handshakes failed whose connections end now
        self._addresses: dict[int, str] = {}  # of clients, by descriptor, if the hub has keys
        self.closed: list[PeerId] = []  # peers whose connection was closed; `RouterSocket.lost` empties this list
        self.accepted = 0  # connections since the start
        self.open = 0  # open connections, with or without a message
        self._opened_at: dict[int, float] = {}  # open descriptors that were not cut, the oldest first
        self._silent: dict[int, None] = {}  # descriptors of these without a whole message, in the same order
        self._peers: dict[int, PeerId] = {}  # peers by descriptor
        self._socket = router
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # with a limit, ZeroMQ's thread would wait for the hub and hold a lock
        self._monitor.setsockopt(zmq.LINGER, 0)
        address = f"inproc://fabric.monitor.{router.FD}.{id(self)}"
        router.monitor(address, _ACCEPTED | _DISCONNECTED | _HANDSHAKE_FAILED)
        self._monitor.connect(address)
        self.fd: int = self._monitor.FD  # edge-triggered: readable when there are events since `read`
        self.read()

    def add(self, peer: PeerId, frame: zmq.Frame) -> None:
        """Add a new peer, with the descriptor by which its first frame came."""
        self.read()
        descriptor = self.descriptors[peer] = _descriptor_of(frame)
        if descriptor != NO_DESCRIPTOR:
            self._peers[descriptor] = peer
            self._silent.pop(descriptor, None)
        if self.identify is not None:
            self.set_identity(peer, self.identify(peer, frame))

    def set_identity(self, peer: PeerId, identity: Identity) -> None:
        """The connection of a peer has this identity from now on."""
        self._drop_identity(peer)
        self.identities[peer] = identity
        self._counts[identity.name] += 1

    def _drop_identity(self, peer: PeerId) -> None:
        if (identity := self.identities.pop(peer, None)) is not None:
            self._counts[identity.name] -= 1
            if not self._counts[identity.name]:
                del self._counts[identity.name]

    def identity_of(self, peer: PeerId) -> Identity:
        """The identity of a connection; without keys all are local."""
        return self.identities.get(peer, LOCAL)

    def count_of(self, name: str) -> int:
        """The connections of a principal that have sent a message."""
        return self._counts[name]

    def refuse(self, frame: zmq.Frame) -> int:
        """Cut the connection by which a frame came; returns 0 if it was cut before."""
        return self.cut([_descriptor_of(frame)])

    def forget(self, peer: PeerId) -> None:
        """Forget a peer that is gone."""
        descriptor = self.descriptors.pop(peer, NO_DESCRIPTOR)
        self._drop_identity(peer)
        if self._peers.get(descriptor) == peer:
            del self._peers[descriptor]

    def read(self) -> None:
        """Read all events of the monitor.

        The address of a client is read after them: a descriptor whose connection has ended may be another's by now.
        """
        accepted = set[int]()
        try:
            while True:
                frame, _ = self._monitor.recv_multipart(_DONTWAIT)
                event, descriptor = _EVENT.unpack(frame)
                if event == _ACCEPTED:
                    self.accepted += 1
                    self.open += 1
                    self._opened_at[descriptor], self._silent[descriptor] = time.monotonic(), None
                    accepted.add(descriptor)
                elif event == _DISCONNECTED:
                    accepted.discard(descriptor)
                    self.open -= 1
                    self._opened_at.pop(descriptor, None)
                    self._silent.pop(descriptor, None)
                    peer = self._peers.pop(descriptor, None)
                    address = self._addresses.pop(descriptor, "")
                    if peer is not None:
                        self.closed.append(peer)
                    elif self._failed:
                        self.refusals.append(Refusal(address, "", self._failed.popleft()))
                elif self.identify is not None:
                    self._failed.append(_WHY.get(descriptor, _NOT_TOLD))
        except zmq.Again:
            if self.identify is not None:
                self._addresses |= {descriptor: _address_of(descriptor) for descriptor in accepted}

    @property
    def excess(self) -> list[int]:
        """All descriptors, in the order in which they are cut when there are too many.

        Connections without a whole message come first, the oldest of them first, because a client says HELLO at once.
        Those of keys that are not known follow, then the others, the newest first.
        """
        others = [descriptor for descriptor in reversed(self._opened_at) if descriptor not in self._silent]
        return [*self._silent, *sorted(others, key=self._is_known)]

    def _is_known(self, descriptor: int) -> bool:
        peer = self._peers.get(descriptor)
        return peer is None or self.identity_of(peer).name not in (GUEST_NAME, REFUSED_NAME)

    def silent_since(self, until: float) -> list[int]:
        """Descriptors of connections that were opened before a time and have sent no whole message."""
        return [descriptor for descriptor in self._silent if self._opened_at[descriptor] < until]

    def peers(self) -> list[tuple[int, PeerId]]:
        """Descriptors and peers of the connections that have sent a whole message."""
        return list(self._peers.items())

    def cut(self, descriptors: Iterable[int]) -> int:
        """Shut connections down from this side, as a network failure would; returns how many."""
        self.read()  # a descriptor may have been closed meanwhile, and its number given to another connection
        chosen = [descriptor for descriptor in descriptors if descriptor in self._opened_at]
        for descriptor in chosen:
            _shutdown(descriptor, socket.SHUT_RDWR)
            del self._opened_at[descriptor]  # ZeroMQ closes it soon and reports that as an event
            self._silent.pop(descriptor, None)
        return len(chosen)

    @property
    def kept(self) -> int:
        """Connections that are open and were not cut."""
        return len(self._opened_at)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()


def _address_of(descriptor: int) -> str:
    """The address of the client of a connection; empty if the connection has ended meanwhile."""
    try:
        connection = socket.socket(fileno=descriptor)
    except OSError:
        return ""
    try:
        return "localhost" if connection.family == socket.AF_UNIX else str(connection.getpeername()[0])
    except OSError:
        return ""
    finally:
        connection.detach()  # it is ZeroMQ's


def _descriptor_of(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(_SRCFD))
    except zmq.ZMQError:
        return NO_DESCRIPTOR
