"""A hub with principals: connections have identities, and roles may change."""

import json
from collections.abc import Mapping
from typing import Any

from fabric.router.access.identity import GUEST_NAME, LOCAL, Identity
from fabric.router.access.role import ADMIN_RIGHTS, Role
from fabric.router.router import Router
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.router.world import World, router

ADMIN = b"admin"  # a connection without a key
ANN, ANN2, BOB, BOB2, EVE = b"ann", b"ann2", b"bob", b"bob2", b"eve"
CLIENT = Role("client", ("#",), ("#",), ("*",), ("#",), ("#",))
OPERATOR = CLIENT._replace(name="operator", admin=frozenset(ADMIN_RIGHTS))
ROLES: Mapping[str, Role] = {"ann": CLIENT, "bob": CLIENT, "eve": CLIENT, "oper": OPERATOR}


class Book:
    """The list of principals, in a dictionary."""

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self.principals = dict(roles)
        self.revision = 1

    def roles(self) -> Mapping[str, Role]:
        return self.principals


def identity(name: str, key: str = "") -> Identity:
    return Identity(name, key or f"key-of-{name}", "10.0.0.1")


class People(World):
    """A world in which the name of a connection is that of its principal, without digits at its end."""

    def __init__(self, roles: Mapping[str, Role] | None = ROLES) -> None:
        self.book = Book(roles) if roles is not None else None
        self.advised: list[tuple[str, dict[str, Any]]] = []
        self.identities: dict[bytes, Identity] = {ADMIN: LOCAL}
        super().__init__()
        self.hello(ADMIN, client="admin")

    def _router(self, **given: Any) -> Router:
        return router(self.reader, self._token, book=self.book, log=self._log, **given)

    def _log(self, topic: str, fields: Mapping[str, Any]) -> None:
        self.advised.append((topic, dict(fields)))

    def restart(self) -> None:
        super().restart()
        self.hello(ADMIN, client="admin")

    def identity_of(self, peer: bytes) -> Identity:
        if peer not in self.identities:
            name = peer.decode().rstrip("0123456789")
            self.identities[peer] = Identity(GUEST_NAME, peer.decode()) if name == "guest" else identity(name)
        return self.identities[peer]

    def say(self, peer: bytes, message: m.ToHub, *, commit: bool = True) -> list[m.ToClient]:
        heard = len(self.said.setdefault(peer, []))
        self.router.step(message, peer, self.now, self.identity_of(peer))
        self._hear(self.router.take_frames())
        self.router.tick(self.now)
        self._hear(self.router.take_frames())
        if commit:
            self.commit()
        return self.said[peer][heard:]

    def change(self, **roles: Role | None) -> None:
        """Change roles; None removes a principal."""
        assert self.book is not None
        for name, role in roles.items():
            if role is None:
                del self.book.principals[name]
            else:
                self.book.principals[name] = role
        self.router.apply_access()

    # What is said often.

    def opened(self, peer: bytes, **fields: Any) -> dict[str, Any]:
        """Open a session; returns the fields of its WELCOME."""
        answer = self.hello(peer, client=peer.decode(), **fields)
        assert isinstance(answer, m.Welcome), answer
        return dict(answer.fields)

    def refused(self, peer: bytes, **fields: Any) -> m.Err:
        answer = self.hello(peer, client=peer.decode(), **fields)
        assert isinstance(answer, m.Err), answer
        return answer

    def later(self, peer: bytes, body: str, topic: str = "t", **options: Any) -> Any:
        """The answer to a delayed publish."""
        block = encode(topic, [body.encode()])
        return self.say(peer, m.Publish(7, 0, m.Level.JOURNALED, block, {"delay_ms": 10_000, **options}))[-1]

    def cancel(self, peer: bytes, **fields: Any) -> Any:
        return self.say(peer, m.Cancel(8, fields))[-1]

    def info(self, peer: bytes, what: str, **fields: Any) -> Any:
        answer = self.say(peer, m.Info(6, {"what": what, **fields}))[-1]
        return dict(answer.fields) if isinstance(answer, m.Ok) else answer

    def stored(self) -> list[str]:
        """The bodies of all messages on disk."""
        return [body.decode() for block in self.reader.blocks for body in block.payloads()]

    def audits(self, **wanted: Any) -> list[dict[str, Any]]:
        """The advisories of the audit that have these fields."""
        found = [fields for topic, fields in self.advised if topic == "$sys.audit"]
        json.dumps(found)
        return [fields for fields in found if wanted.items() <= fields.items()]
