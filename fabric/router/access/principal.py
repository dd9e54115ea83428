"""Principal: a name that connections have proved, with its rights. All sessions of the name share one object."""

from fabric.router.access.identity import GUEST_NAME, LOCAL_NAME
from fabric.router.access.role import EVERYTHING, NOTHING, Role


class Principal:
    __slots__ = ("is_revoked", "name", "role")

    def __init__(self, name: str, role: Role = EVERYTHING) -> None:
        self.name = name
        self.role = role
        self.is_revoked = False  # its sessions have ended, and a command of a session that was not told is refused

    @property
    def is_guest(self) -> bool:
        return self.name == GUEST_NAME


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
