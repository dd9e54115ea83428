"""One DEALER socket and its monitor: everything the client does with ZeroMQ.

The socket's file descriptor is edge-triggered: it says that something changed, not that something is there. So
`receive` always drains the socket, and after a `send` the driver must receive again before it waits. Only one thread at
a time may call these methods; the drivers ensure that.
"""

from typing import Final

import zmq

from fabric_protocol.errors import FabricError
from fabric_protocol.wire import FRAME_BYTES_MAX

# Plain numbers: pyzmq's enums cost more than the calls that take them.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
# First and longest pause between attempts to connect: a hub is back within half a second, and an attempt costs little.
RECONNECT_MS: Final = (50, 250)


PORT_MAX: Final = 65_535
_HINT: Final = "it looks like tcp://HOST:PORT or ipc://PATH"


def check_url(url: str) -> None:
    """Raise for an address that ZeroMQ accepts but can never reach."""
    if not isinstance(url, str):
        raise FabricError(f"{url!r} is not an address", _HINT)
    port = url.rpartition(":")[2] if url.startswith("tcp://") else ""
    if port.isdecimal() and not 1 <= int(port) <= PORT_MAX:
        raise FabricError(f"{url!r} is not a usable address: a port is 1..{PORT_MAX}", _HINT)


class Dealer:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", url: str) -> None:
        check_url(url)
        self._socket = socket = context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        socket.setsockopt(zmq.LINGER, 0)  # close() waits for confirms; the session sends the rest on the next socket
        socket.setsockopt(zmq.SNDHWM, 0)  # the windows of the hub bound what is in flight, not the socket
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        try:
            if not url.startswith("inproc:"):  # inproc has no events
                self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            socket.connect(url)
        except zmq.ZMQError as error:
            self.close()
            raise FabricError(f"{url!r} is not a usable address: {error}", _HINT) from None
        self.fd = socket.fileno()
        self.monitor_fd = -1 if self._monitor is None else self._monitor.fileno()
        self.broken()  # arms the monitor's descriptor, which is edge-triggered as well

    def send(self, frames: list[bytes]) -> bool:
        """False if there is no connection."""
        try:
            self._socket.send_multipart(frames, _NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def receive(self) -> list[list[bytes]]:
        """All messages that have arrived."""
        arrived: list[list[bytes]] = []
        socket = self._socket
        try:
            # Reading EVENTS costs less than the exception of a receive without a message, and re-arms the descriptor.
            while int(socket.get(_EVENTS)) & _POLLIN:
                arrived.append(socket.recv_multipart(_NOBLOCK))
        except zmq.ZMQError:
            return arrived
        return arrived

    def broken(self) -> bool:
        """Whether the connection broke since the last call."""
        if self._monitor is None:
            return False
        broken = False
        try:
            while True:
                self._monitor.recv_multipart(zmq.NOBLOCK)
                broken = True
        except zmq.ZMQError:
            return broken

    def close(self) -> None:
        """Close both sockets. May be called again, because a first close may have been interrupted."""
        if self._monitor is not None:
            if not self._socket.closed:
                self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(0)
