"""Connections of the hub's socket: how many are open, and which peers have lost theirs.

A ROUTER does not tell which peer has gone. Its monitor tells which descriptor was closed, and every frame tells by
which descriptor it came; together they name the peer. The operating system gives the number of a closed descriptor to
the next connection, so events are read before a new peer is entered: what they close was open before.
"""

import ctypes
import socket
import struct
import time
from collections.abc import Iterable
from typing import Final

import zmq

from fabric_protocol.messages import PeerId

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SRCFD: Final = int(zmq.SRCFD)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_EVENT: Final = struct.Struct("=HI")  # which event, and the descriptor
_shutdown: Final = ctypes.CDLL(None).shutdown
NO_DESCRIPTOR: Final = -1  # of peers in this process (inproc), which have no events either


class Connections:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", router: "zmq.Socket[bytes]") -> None:
        self.descriptors: dict[PeerId, int] = {}  # of peers that have sent something
        self.closed: list[PeerId] = []  # peers whose connection was closed, not yet taken by the reader of this list
        self.accepted = 0  # connections since the start
        self.open = 0  # connections now, also those that have sent nothing
        self._order: dict[int, float] = {}  # open descriptors and since when, the oldest first
        self._silent: dict[int, None] = {}  # those of them that have sent no whole message, in the same order
        self._peers: dict[int, PeerId] = {}  # by descriptor
        self._socket = router
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # with a limit ZeroMQ's thread would wait for us, holding a lock
        self._monitor.setsockopt(zmq.LINGER, 0)
        address = f"inproc://fabric.monitor.{router.FD}.{id(self)}"
        router.monitor(address, _ACCEPTED | _DISCONNECTED)
        self._monitor.connect(address)
        self.fd: int = self._monitor.FD  # edge-triggered: readable when something has changed since `read`
        self.read()

    def enter(self, peer: PeerId, frame: zmq.Frame) -> None:
        """Note by which descriptor the frames of a new peer come."""
        self.read()
        descriptor = self.descriptors[peer] = _descriptor_of(frame)
        if descriptor != NO_DESCRIPTOR:
            self._peers[descriptor] = peer
            self._silent.pop(descriptor, None)

    def refuse(self, frame: zmq.Frame) -> int:
        """Cut the connection that a frame came by; returns 0 when that was done before."""
        return self.cut([_descriptor_of(frame)])

    def forget(self, peer: PeerId) -> None:
        """A peer is gone for good."""
        descriptor = self.descriptors.pop(peer, NO_DESCRIPTOR)
        if self._peers.get(descriptor) == peer:
            del self._peers[descriptor]

    def read(self) -> None:
        """Take in all events so far."""
        try:
            while True:
                event, descriptor = _EVENT.unpack(self._monitor.recv_multipart(_DONTWAIT)[0])
                if event == _ACCEPTED:
                    self.accepted += 1
                    self.open += 1
                    self._order[descriptor], self._silent[descriptor] = time.monotonic(), None
                elif event == _DISCONNECTED:
                    self.open -= 1
                    self._order.pop(descriptor, None)
                    self._silent.pop(descriptor, None)
                    peer = self._peers.pop(descriptor, None)
                    if peer is not None:
                        self.closed.append(peer)
        except zmq.Again:
            return

    @property
    def excess(self) -> list[int]:
        """Descriptors in the order in which they are to be closed when there are too many: those that have sent no
        whole message, the oldest first, since a client says HELLO at once; then the others, the newest first."""
        return [*self._silent, *(descriptor for descriptor in reversed(self._order) if descriptor not in self._silent)]

    def silent_since(self, until: float) -> list[int]:
        """Descriptors of connections that were opened before a time and have sent no whole message."""
        return [descriptor for descriptor in self._silent if self._order[descriptor] < until]

    def speakers(self) -> list[tuple[int, PeerId]]:
        """Descriptors of the peers that have sent something."""
        return list(self._peers.items())

    def cut(self, descriptors: Iterable[int]) -> int:
        """Close connections from this side, as if the network had; returns how many."""
        self.read()  # a number that was closed and given away meanwhile is not meant
        chosen = [descriptor for descriptor in descriptors if descriptor in self._order]
        for descriptor in chosen:
            _shutdown(descriptor, socket.SHUT_RDWR)
            del self._order[descriptor]  # ZeroMQ closes it soon, and says so
            self._silent.pop(descriptor, None)
        return len(chosen)

    @property
    def kept(self) -> int:
        """Connections that are open and were not cut."""
        return len(self._order)

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()


def _descriptor_of(frame: zmq.Frame) -> int:
    try:
        return int(frame.get(_SRCFD))
    except zmq.ZMQError:
        return NO_DESCRIPTOR
