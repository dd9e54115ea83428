"""CURVE: the options that encrypt an address, and the test that a key which is not known is refused.

ZeroMQ copies the options of a socket when an address is bound. So one socket has plain addresses, bound first, and
encrypted ones, bound after `encrypt`.
"""

import contextlib
import struct
import time
from typing import Final

import zmq

from fabric.access.keys import KeyPair, make_pair
from fabric.hub.zap import DOMAIN, REFUSED
from fabric_protocol import wire
from fabric_protocol.errors import FabricError

IO_THREADS: Final = 2  # encryption is done by ZeroMQ's threads
FRAME_OVERHEAD_BYTES: Final = 33  # of an encrypted frame: its command, nonce, authenticator and flags
HANDSHAKE_MS: Final = 30_000  # after a restart thousands of handshakes wait for each other
TEST_S: Final = 15.0  # for one handshake; the machine may be busy
_EVENT: Final = struct.Struct("=HI")  # of a monitor: event and value; zmq.utils.monitor would import asyncio
_KNOWN: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


def encrypt(socket: "zmq.Socket[bytes]", pair: KeyPair) -> None:
    """Set the options for all addresses that are bound from now on."""
    socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES)
    for option, value in ((zmq.ZAP_ENFORCE_DOMAIN, 1), (zmq.CURVE_SERVER, 1), (zmq.HANDSHAKE_IVL, HANDSHAKE_MS)):
        if socket.getsockopt(option) != value:
            raise FabricError(f"socket option {option!r} did not take the value {value}: refusing to listen")


def require_refusal(socket: "zmq.Socket[bytes]", hub_key: str) -> None:
    """Raise unless a random key is refused by the ZAP handler. The socket listens on loopback for this test."""
    url = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
    try:
        with zmq.Context() as context, contextlib.closing(context.socket(zmq.DEALER)) as client:
            seen = _handshake(client, url, hub_key)
    finally:
        socket.unbind(url)
    if seen != (int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(REFUSED)):
        raise FabricError(
            f"a random key was not refused as it must be ({_described(seen)}): the hub does not start",
            "is another ZAP handler in this process? does pyzmq have libsodium? see: python -m zmq.utils.diag",
        )


def _handshake(client: "zmq.Socket[bytes]", url: str, hub_key: str) -> tuple[int, int]:
    """Connect with a random key; the event that ends the handshake, and its value. (0, 0): there was none."""
    pair = make_pair()
    client.setsockopt(zmq.LINGER, 0)
    client.setsockopt(zmq.CURVE_SERVERKEY, hub_key.encode())
    client.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    client.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    monitor = client.get_monitor_socket(_KNOWN | _FAILED)
    try:
        client.connect(url)
        until = time.monotonic() + TEST_S
        while monitor.poll(max(int((until - time.monotonic()) * 1000), 0)):
            event, value = _EVENT.unpack(monitor.recv_multipart()[0])
            if event & _KNOWN:
                return event, value
        return 0, 0
    finally:
        client.disable_monitor()
        monitor.close()


def _described(seen: tuple[int, int]) -> str:
    if seen[0] == int(zmq.EVENT_HANDSHAKE_SUCCEEDED):
        return "it was let in"
    return f"status {seen[1]}" if seen[0] else f"no answer in {TEST_S:.0f} s"
