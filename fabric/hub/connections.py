"""Connections of the hub's socket: how many are open, and which peers have lost theirs.

A ROUTER does not tell which peer has gone. Its monitor tells which descriptor was closed, and every frame tells by
which descriptor it came; together they name the peer. The operating system gives the number of a closed descriptor to
the next connection, so events are read before a new peer is entered: what they close was open before.
"""

import struct
from typing import Final

import zmq

from fabric.messages import PeerId

_DONTWAIT: Final = int(zmq.DONTWAIT)
_SRCFD: Final = int(zmq.SRCFD)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_EVENT: Final = struct.Struct("=HI")  # which event, and the descriptor
NO_DESCRIPTOR: Final = -1  # of peers in this process (inproc), which have no events either


class Connections:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", socket: "zmq.Socket[bytes]") -> None:
        self.descriptors: dict[PeerId, int] = {}  # of peers that have sent something
        self.closed: list[PeerId] = []  # peers whose connection was closed, not yet taken by the reader of this list
        self.accepted = 0  # connections since the start
        self.open = 0  # connections now, also those that have sent nothing
        self._peers: dict[int, PeerId] = {}  # by descriptor
        self._socket = socket
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.setsockopt(zmq.RCVHWM, 0)  # with a limit ZeroMQ's thread would wait for us, holding a lock
        self._monitor.setsockopt(zmq.LINGER, 0)
        address = f"inproc://fabric.monitor.{socket.FD}.{id(self)}"
        socket.monitor(address, _ACCEPTED | _DISCONNECTED)
        self._monitor.connect(address)
        self.fd: int = self._monitor.FD  # edge-triggered: readable when something has changed since `read`
        self.read()

    def enter(self, peer: PeerId, frame: zmq.Frame) -> None:
        """Note by which descriptor the frames of a new peer come."""
        self.read()
        try:
            descriptor = int(frame.get(_SRCFD))
        except zmq.ZMQError:
            descriptor = NO_DESCRIPTOR
        self.descriptors[peer] = descriptor
        if descriptor != NO_DESCRIPTOR:
            self._peers[descriptor] = peer

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
                elif event == _DISCONNECTED:
                    self.open -= 1
                    peer = self._peers.pop(descriptor, None)
                    if peer is not None:
                        self.closed.append(peer)
        except zmq.Again:
            return

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
