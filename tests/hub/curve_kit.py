"""Hubs with keys for tests, and clients that have some."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from fabric.access.keys import KeyPair, make_pair
from fabric.hub import Hub, HubOptions
from tests.hub.kit import Talker, eventually
from tests.patience import PATIENCE_S

ROLES: Final = """
[role.client]
publish = ["#"]
subscribe = ["#"]
groups = ["*"]
[role.reader]
subscribe = ["#"]
"""


def access_text(**keys: str) -> str:
    """An access file in which each of these keys is a client."""
    return ROLES + "".join(f'[principal.{name}]\nrole = "client"\nkey = "{key}"\n' for name, key in keys.items())


class Keyed:
    """A hub with keys in a thread, on loopback, and the contexts of its clients."""

    def __init__(self, data: Path, stack: ExitStack, binds: tuple[str, ...], **options: Any) -> None:
        self.hub = Hub(data, HubOptions(binds=binds, access=data.parent / "access.toml", drain_s=0.1, **options))
        stack.callback(self.hub.stop)
        self.hub.start()
        self.context: zmq.Context[zmq.Socket[bytes]] = stack.enter_context(zmq.Context())
        self._stack = stack
        self.url = self.hub.binds[0]
        assert self.hub.access is not None
        self.access = self.hub.access
        self.key = self.access.book.hub_key
        self.admin = self.talker(url=self.access.admin_bind)
        self.admin.hello(hb_ms=60_000, ttl_ms=600_000)
        # Otherwise the end of that connection could be taken for the end of another one.
        eventually(lambda: self.hub._socket.connections.open == 1, "the connection of the hub's own test has ended")

    def talker(self, pair: KeyPair | None = None, url: str = "", hub_key: str = "") -> Talker:
        """A client with a key, or without one."""
        keys = (pair.public, pair.secret, hub_key or self.key) if pair is not None else None
        return self._stack.enter_context(Talker(self.context, url or self.url, keys))

    def joined(self, name: str = "billing", url: str = "") -> tuple[Talker, KeyPair]:
        """A client with a session as a principal that was enrolled now."""
        pair = make_pair()
        self.admin.admin("keys.create", name=name, role="client", key=pair.public)
        talker = self.talker(pair, url)
        talker.hello(hb_ms=60_000, ttl_ms=600_000)
        return talker, pair

    def refusal(self, pair: KeyPair | None, hub_key: str = "", url: str = "") -> tuple[str, int]:
        """The event by which a client learns that its handshake has failed, and its value."""
        with self.context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            if pair is not None:
                dealer.curve_publickey, dealer.curve_secretkey = pair.public.encode(), pair.secret.encode()
                dealer.curve_serverkey = (hub_key or self.key).encode()
            wanted = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.HANDSHAKE_FAILED_AUTH
            wanted |= zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
            monitor = dealer.get_monitor_socket(wanted)
            dealer.connect(url or self.url)
            assert monitor.poll(int(PATIENCE_S * 1000)), "no handshake"
            found = recv_monitor_message(monitor)
            dealer.disable_monitor()
            monitor.close()
            return str(zmq.Event(found["event"]).name), found["value"]


@contextmanager
def keyed(tmp_path: Path, *binds: str, text: str = ROLES, **options: Any) -> Iterator[Keyed]:
    (tmp_path / "access.toml").write_text(text)
    with ExitStack() as stack:
        yield Keyed(tmp_path / "j", stack, binds or ("tcp://127.0.0.1:*",), **options)


def forged_hello(port: int, hello: list[bytes], **properties: str) -> socket.socket:
    """A plain client of our own that claims properties of its connection, as ZeroMQ's API does not let a client do."""
    peer = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    peer.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
    greeting = b""
    while len(greeting) < 64:
        greeting += peer.recv(64 - len(greeting))
    claims = {"Socket-Type": "DEALER", **{name.replace("_", "-"): value for name, value in properties.items()}}
    ready = b"\x05READY" + b"".join(
        bytes([len(name)]) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        for name, value in claims.items()
    )
    peer.sendall(bytes([4, len(ready)]) + ready)
    for number, frame in enumerate(hello, 1):
        peer.sendall(bytes([number < len(hello), len(frame)]) + frame)
    return peer
