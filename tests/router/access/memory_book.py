"""A book in memory: the dumb twin of the hub's book of principals, keys and invitations."""

from typing import Any

from fabric.router.access.identity import Identity
from fabric.router.access.role import EVERYTHING, Role
from fabric_protocol.errors import Code, ProtocolError

HUB_KEY = "H" * 40
READER = Role("reader", subscribe=("#",), groups=("*",))


class MemoryBook:
    def __init__(self, **roles: Role) -> None:
        self.granted: dict[str, Role] = dict(roles)  # by principal
        self.kinds: dict[str, Role] = {"admin": EVERYTHING._replace(name="admin"), "reader": READER}
        self.keys: dict[str, str] = {}  # key -> principal
        self.codes: dict[str, tuple[str, str]] = {}  # code -> (name, role)

    def roles(self) -> dict[str, Role]:
        return dict(self.granted)

    def invite(self, name: str, role: str, ttl_s: int, wall_us: int) -> dict[str, Any]:
        self._role(role)
        code = f"code-{len(self.codes)}"
        self.codes[code] = (name, role)
        expires_us = wall_us + ttl_s * 1_000_000
        return {"name": name, "role": role, "code": code, "hub_key": HUB_KEY, "expires_us": expires_us}

    def enrol(self, code: str, identity: Identity, wall_us: int) -> dict[str, Any]:
        if code not in self.codes:
            raise ProtocolError(Code.AUTH_FAILED, "the code of the invitation is not known")
        name, role = self.codes.pop(code)
        self.granted[name] = self._role(role)
        self.keys[identity.key] = name
        return {"principal": name, "role": role, "key": identity.key}

    def create(self, name: str, role: str, key: str, wall_us: int) -> dict[str, Any]:
        self.granted[name] = self._role(role)
        self.keys[key] = name
        return {"name": name, "role": role, "key": key, "hub_key": HUB_KEY}

    def rotate(self, identity: Identity, key: str, wall_us: int) -> dict[str, Any]:
        self.keys.pop(identity.key, None)
        self.keys[key] = identity.name
        return {"principal": identity.name, "key": key, "before": identity.key}

    def revoke(self, name: str, wall_us: int) -> dict[str, Any]:
        if name not in self.granted:
            raise ProtocolError(Code.NOT_FOUND, f"there is no principal {name!r}")
        del self.granted[name]
        gone = [key for key, owner in self.keys.items() if owner == name]
        for key in gone:
            del self.keys[key]
        return {"name": name, "keys": len(gone), "invitations": 0}

    def listed(self) -> dict[str, Any]:
        rows = [{"principal": name, "role": role.name} for name, role in self.granted.items()]
        return {"principals": rows, "invitations": [], "hub_key": HUB_KEY}

    def _role(self, name: str) -> Role:
        if name not in self.kinds:
            raise ProtocolError(Code.NOT_FOUND, f"there is no role {name!r}")
        return self.kinds[name]
