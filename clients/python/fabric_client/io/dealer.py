"""One DEALER socket and its monitor: everything the client does with ZeroMQ.

The monitor tells how a connection or its handshake ended. After a refused key libzmq does not try again, and after
other failed handshakes it tries for ever; so the driver opens a new socket after each, and the old one is disconnected.

The socket's file descriptor is edge-triggered: it says that something changed, not that something is there. So
`receive` always drains the socket, and after a `send` the driver must receive again before it waits. Only one thread at
a time may call these methods; the drivers ensure that.
"""

import contextlib
import struct
from enum import IntEnum
from typing import Final

import zmq

from fabric_client.keys import CurveKeys
from fabric_protocol.errors import FabricError
from fabric_protocol.wire import FRAME_BYTES_MAX

# Plain numbers: pyzmq's enums cost more than the calls that take them.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
# First and longest pause between attempts to connect: a hub is back within half a second, and an attempt costs little.
RECONNECT_MS: Final = (50, 250)
KEYED_RECONNECT_MS: Final = (100, 1000)  # with keys, so that the handshakes of many clients are spread
CONNECT_TIMEOUT_MS: Final = 3000  # for one of several addresses: a host that is off does not refuse

_EVENT: Final = struct.Struct("=HI")  # the number of an event, and its value
_KEY_REFUSED: Final = 400  # the value of HANDSHAKE_FAILED_AUTH; others say that the hub could not check the key
_FAILED_AUTH: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED_PROTOCOL: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_RETRIED: Final = int(zmq.EVENT_CONNECT_RETRIED)
_EVENTS_WATCHED: Final = int(zmq.EVENT_DISCONNECTED) | _FAILED_AUTH | _FAILED_PROTOCOL | _FAILED


class Ending(IntEnum):
    """How a connection ended. The higher one says more; several events of one connection count as the highest."""

    ABSENT = 1  # no hub accepts connections at the address
    DISCONNECTED = 2
    UNCHECKED = 3  # the hub could not check the key now
    HANDSHAKE = 4  # the peer ended the handshake and did not say why
    PROTOCOL = 5  # the peer does not speak ZeroMQ as a hub does
    UNTRUSTED = 6  # the peer has not proved the key of the hub
    MISMATCH = 7  # one side wants encryption and the other side does not
    KEY_REFUSED = 8  # the hub does not know the key of the client


_PROTOCOL_ENDINGS: Final = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): Ending.MISMATCH,
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): Ending.UNTRUSTED,
}


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
    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        url: str,
        keys: CurveKeys | None = None,
        one_of_several: bool = False,
    ) -> None:
        check_url(url)
        self.url = url
        self._early: Ending | None = None  # a handshake on this machine may fail within microseconds
        self._socket = socket = context.socket(zmq.DEALER)
        self._monitor: zmq.Socket[bytes] | None = None
        socket.setsockopt(zmq.LINGER, 0)  # close() waits for confirms; the session sends the rest on the next socket
        socket.setsockopt(zmq.SNDHWM, 0)  # the windows of the hub bound what is in flight, not the socket
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES_MAX)
        socket.setsockopt(zmq.IPV6, "[" in url)  # with it libzmq leaves out the IPv4 address of a name that has both
        pauses = RECONNECT_MS if keys is None else KEYED_RECONNECT_MS
        socket.setsockopt(zmq.RECONNECT_IVL, pauses[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, pauses[1])
        events = _EVENTS_WATCHED
        if one_of_several:
            socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
            events |= _RETRIED
        try:
            if keys is not None:
                _set_keys(socket, keys)
            if not url.startswith("inproc:"):  # inproc has no events
                self._monitor = socket.get_monitor_socket(events)
            socket.connect(url)
        except (zmq.ZMQError, UnicodeError) as error:  # the latter: bytes of a variable that are no text
            self.close()
            raise FabricError(f"{url!r} is not a usable address: {error}", _HINT) from None
        self.fd = socket.fileno()
        self.monitor_fd = -1 if self._monitor is None else self._monitor.fileno()
        self._early = self.ended()  # arms the monitor's descriptor, which is edge-triggered as well

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

    def ended(self) -> Ending | None:
        """How the connection ended since the last call; None if it did not."""
        if self._monitor is None:
            return None
        found, self._early = self._early, None
        try:
            while True:
                ending = _ending(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
                found = ending if found is None else max(found, ending)
        except zmq.ZMQError:
            return found

    def rest(self) -> None:
        """Do not let libzmq connect again; the descriptors stay."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disconnect(self.url)

    def close(self) -> None:
        """Close both sockets. May be called again, because a first close may have been interrupted."""
        if self._monitor is not None:
            if not self._socket.closed:
                self._socket.disable_monitor()
            self._monitor.close(0)
        self._socket.close(0)


def _set_keys(socket: "zmq.Socket[bytes]", keys: CurveKeys) -> None:
    try:
        socket.setsockopt(zmq.CURVE_SERVERKEY, keys.hub_key.encode("ascii"))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public.encode("ascii"))
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret.encode("ascii"))
    except zmq.ZMQError:
        socket.close(0)
        raise FabricError(
            "this build of pyzmq has no CURVE", "install pyzmq from PyPI: pip install --upgrade pyzmq"
        ) from None


def _ending(event: bytes) -> Ending:
    number, value = _EVENT.unpack(event)
    if number == _FAILED_AUTH:
        return Ending.KEY_REFUSED if value == _KEY_REFUSED else Ending.UNCHECKED
    if number == _FAILED_PROTOCOL:
        return _PROTOCOL_ENDINGS.get(value, Ending.PROTOCOL)
    if number == _FAILED:
        return Ending.HANDSHAKE
    return Ending.ABSENT if number == _RETRIED else Ending.DISCONNECTED
