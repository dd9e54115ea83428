"""HubAccess: the keys of a hub at work. It joins the book, the ZAP handler and the connections.

Each connection has an identity, which is read once, from its first frame. When the book has changed, the handler gets
the new keys, the router the new roles, and connections whose key is another principal's now, or of none, are told and
cut. A connection is cut a moment later, so that the last frames leave.
"""

import logging
import stat
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import zmq

from fabric.access.book import AccessBook, KeyView
from fabric.access.keys import have_keys
from fabric.hub.addresses import admin_address, is_network, place
from fabric.hub.connections import Connections
from fabric.hub.curve import encrypt, require_refusal
from fabric.hub.log import event
from fabric.hub.options import HubOptions
from fabric.hub.router_socket import RouterSocket
from fabric.hub.zap import Refusal, ZapHandler
from fabric.router.access.identity import GUEST_NAME, LOCAL_NAME, REFUSED_NAME, Identity
from fabric.router.router import Router
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import PeerId

CUT_AFTER_S: Final = 0.5
LOCAL_ADDRESS: Final = "localhost"  # what ZeroMQ calls the peer of a Unix socket; one in this process has no address
KEY_CHARS: Final = 8  # of a key in the audit: enough to find it in a list
PERIOD_S: Final = 60.0
REFUSALS_MAX: Final = 5  # of one address in a period that are audited one by one
ADDRESSES_MAX: Final = 1_000  # of a period; further refusals are one source
OTHERS: Final = "(others)"
SPARE_CONNECTIONS: Final = 8  # of a principal, beyond twice its sessions: lost ones end late
GONE: Final = "the key of this connection is not valid any more"


def wants_keys(data: Path, options: HubOptions) -> bool:
    """True if a hub uses keys: an address is of a network, there are keys already, or an access file is given."""
    return options.access is not None or any(map(is_network, options.binds)) or have_keys(data)


def bind_admin(socket: RouterSocket, data: Path, others: Iterable[str]) -> str:
    """Listen at the socket in the data folder, if the hub does not yet. Its address; empty if that is impossible."""
    address, why = admin_address(data), "the path of the data folder is too long for it, or is no text"
    if address and place(address) in map(place, others):
        return address
    try:
        if address:
            return socket.bind(address)
    except FabricError as error:  # such as a file system without sockets
        why = str(error)
    event(logging.WARNING, "no admin socket", why=why)
    return ""


class HubAccess:
    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", data: Path, options: HubOptions) -> None:
        access = Path(options.access) if options.access is not None else None
        self.book = AccessBook(data, access, options.advertise)
        if data.stat().st_mode & stat.S_IWOTH:
            event(logging.WARNING, "data folder open", why=f"every user may replace its files: chmod 700 {data}")
        self._data = data
        self.zap = ZapHandler(context)
        self.admin_bind = ""  # the address for the owner of the data folder
        self._applied = self.book.revision
        self._problem = ""
        self._cuts: deque[tuple[float, PeerId]] = deque()  # connections to cut, and when
        # Guests, and connections of a principal that has many more of them than it may have sessions: after a command
        # without a session they are not heard any more, and cut.
        self.watched: set[PeerId] = set()
        self.turned_away: set[PeerId] = set()  # of these
        self._refusals: dict[str, int] = {}  # of this period, by address
        self._period_end = 0.0
        self._connections: Connections | None = None

    def listen(self, socket: RouterSocket, urls: Iterable[str]) -> list[str]:
        """Bind plain addresses, then encrypted ones. Returns the addresses in the order of the urls."""
        self._connections = socket.connections
        socket.connections.identify = self.identify
        bound = {url: socket.bind(url) for url in urls if not url.startswith("tcp://")}
        self.admin_bind = bind_admin(socket, self._data, bound.values())
        socket.configure(lambda inner: encrypt(inner, self.book.hub_pair))
        self.zap.show(KeyView({}))  # no key is known, and no invitation is open
        socket.configure(lambda inner: require_refusal(inner, self.book.hub_key))
        self.zap.refusals.clear()
        self.zap.show(self.book.view)
        self._report()
        return [bound[url] if url in bound else socket.bind(url) for url in urls]

    # Connections.

    def identify(self, peer: PeerId, frame: zmq.Frame) -> Identity:
        """The identity of the connection by which a frame came. A connection by TCP without a key has no rights."""
        address = _property(frame, "Peer-Address")
        key = self.zap.key_of(_property(frame, "User-Id"))
        if not key:
            is_local = not address or address.startswith(LOCAL_ADDRESS)
            return Identity(LOCAL_NAME if is_local else REFUSED_NAME, "", address)
        identity = self.book.identity_of(key, address)
        if identity.name == REFUSED_NAME:  # the key was removed between the handshake and the first frame
            self._cut_later(peer)
        if identity.name == GUEST_NAME or self._is_crowded(identity.name):
            self.watched.add(peer)
        return identity

    def _is_crowded(self, name: str) -> bool:
        """True if a principal has so many connections that they are not of its sessions and of sessions before."""
        assert self._connections is not None
        most = self.book.roles()[name].limits.sessions if name in self.book.roles() else 0
        return bool(most) and self._connections.count_of(name) >= 2 * most + SPARE_CONNECTIONS

    @property
    def is_changed(self) -> bool:
        """True if the book was changed by a command, and `apply` was not called since."""
        return self.book.revision != self._applied

    def apply(self, router: Router) -> None:
        """The book has changed: use it."""
        assert self._connections is not None
        self._applied = self.book.revision
        self.zap.show(self.book.view)
        router.apply_access()
        for peer, before in list(self._connections.identities.items()):
            if not before.key:
                continue
            identity = self.book.identity_of(before.key, before.address)
            self._connections.set_identity(peer, identity)
            has_joined = before.name == GUEST_NAME and identity.name != REFUSED_NAME
            if identity.name != before.name and not has_joined:
                router.disown(peer, GONE)
                self._cut_later(peer)

    def turn_away(self, peer: PeerId, router: Router) -> None:
        """After a command of a watched peer: if its HELLO was refused, or it has sent none, it is not heard any more.
        So more connections take no more of the hub's time."""
        if peer not in self.turned_away and router.last_heard(peer) is None:
            self.turned_away.add(peer)
            self._cut_later(peer)

    def _cut_later(self, peer: PeerId) -> None:
        self._cuts.append((time.monotonic() + CUT_AFTER_S, peer))

    # Called by the loop.

    def require_handler(self) -> None:
        """Raise if the ZAP handler has ended."""
        if not self.zap.is_alive:
            raise FabricError(
                f"the ZAP handler, which checks keys, has ended: {self.zap.failure or 'it was stopped'}",
                "start the hub again; without the handler no client can connect",
            )

    def tick(self, now: float, router: Router) -> bool:
        """Look at the files each second, cut connections, and audit refused keys. True if rights have changed."""
        if self.book.reload_if_changed(now, time.time_ns() // 1000):
            self._report()
        if has_changed := self.is_changed:
            self.apply(router)
        while self._cuts and self._cuts[0][0] <= now:
            self._cut(self._cuts.popleft()[1])
        self._audit(now, router)
        return has_changed

    def _report(self) -> None:
        """Log that files were read again, or why not."""
        if (problem := self.book.problem) and problem != self._problem:
            event(logging.ERROR, "access file refused", problem=problem)
        elif self.is_changed:
            event(logging.INFO, "access changed", principals=len(self.book.roles()), revision=self.book.revision)
        self._problem = problem

    def _cut(self, peer: PeerId) -> None:
        assert self._connections is not None
        self.watched.discard(peer)
        self.turned_away.discard(peer)
        if peer in self._connections.descriptors:
            self._connections.cut([self._connections.descriptors[peer]])

    def _audit(self, now: float, router: Router) -> None:
        assert self._connections is not None
        if now >= self._period_end:
            for address, count in self._refusals.items():
                if count > REFUSALS_MAX:
                    router.audit("refused_key", principal="", address=address, and_more=count - REFUSALS_MAX)
            self._refusals, self._period_end = {}, now + PERIOD_S
            self.watched.intersection_update(self._connections.identities)
        for refusals in (self.zap.refusals, self._connections.refusals):
            while refusals:
                self._audit_one(refusals.popleft(), router)

    def _audit_one(self, refusal: Refusal, router: Router) -> None:
        address = refusal.address
        if address not in self._refusals and len(self._refusals) >= ADDRESSES_MAX:
            address = OTHERS
        self._refusals[address] = count = self._refusals.get(address, 0) + 1
        if count <= REFUSALS_MAX:
            key = {"key": f"{refusal.key[:KEY_CHARS]}…"} if refusal.key else {}
            router.audit("refused_key", principal="", address=address, **key, code="AUTH_FAILED", why=refusal.why)

    def close(self) -> None:
        self.zap.close()


def _property(frame: zmq.Frame, name: str) -> str:
    try:
        return str(frame.get(name))
    except (zmq.ZMQError, UnicodeDecodeError):  # the connection has no such property
        return ""
