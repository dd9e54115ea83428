"""Principal: a name that connections have proved, with its rights. All sessions of the name share one object."""

from collections.abc import Collection, Mapping

from fabric.router.access.identity import GUEST_NAME, LOCAL_NAME
from fabric.router.access.role import EVERYTHING, NOTHING, Role
from fabric.router.access.usage import Usage
from fabric.router.patterns.trie import Trie
from fabric_protocol.errors import Code, ProtocolError


class Principal:
    __slots__ = ("_publish", "is_revoked", "name", "role", "usage")

    def __init__(self, name: str, role: Role = EVERYTHING) -> None:
        self.name = name
        self.is_revoked = False  # its sessions have ended, and a command of a session that was not told is refused
        self.usage = Usage()
        self.set_role(role)

    def set_role(self, role: Role) -> None:
        self.role = role
        self.usage.limit(role.limits)
        self._publish: Trie[bool] | None = None if role.publish == ("#",) and not role.deny else _trie(role.publish)

    @property
    def is_guest(self) -> bool:
        return self.name == GUEST_NAME

    def may_publish(self, topics: Collection[str]) -> bool:
        return self._publish is None or all(self._publish.match(topic) for topic in topics)

    def require_publish(self, topics: Collection[str]) -> None:
        if self._publish is not None and not self.may_publish(topics):
            raise ProtocolError(Code.FORBIDDEN, f"principal {self.name!r} may not publish to {topics!r}")

    def require_request(self, topic: str) -> None:
        if not _trie(self.role.request).match(topic):
            raise ProtocolError(Code.FORBIDDEN, f"principal {self.name!r} may not send requests to {topic!r}")

    def require_respond(self, patterns: Collection[str]) -> None:
        if self.role.respond != ("#",) and not set(patterns) <= set(self.role.respond):
            raise ProtocolError(Code.FORBIDDEN, f"principal {self.name!r} may not respond to {patterns!r}")

    def may_administer(self, right: str) -> bool:
        return right in self.role.admin


class Principals:
    """All principals by name, each one object for the life of the hub."""

    def __init__(self) -> None:
        self._by_name = {LOCAL_NAME: Principal(LOCAL_NAME), GUEST_NAME: Principal(GUEST_NAME, NOTHING)}

    @property
    def local(self) -> Principal:
        return self._by_name[LOCAL_NAME]

    def find(self, name: str) -> Principal | None:
        """The principal of a name; None when there is none, or it was revoked."""
        principal = self._by_name.get(name)
        return None if principal is None or principal.is_revoked else principal

    def apply(self, roles: Mapping[str, Role]) -> None:
        for name, principal in self._by_name.items():
            principal.is_revoked = name not in (LOCAL_NAME, GUEST_NAME, *roles)
        for name, role in roles.items():
            self._by_name.setdefault(name, Principal(name)).set_role(role)


def _trie(patterns: Collection[str]) -> "Trie[bool]":
    trie: Trie[bool] = Trie()
    for pattern in patterns:
        trie.add(pattern, True)
    return trie
