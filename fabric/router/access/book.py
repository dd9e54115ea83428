"""Book: what the router asks of the hub's list of principals, keys and invitations.

The hub has the list on disk. The router decides which session may change it; a change is on disk when a method returns.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from fabric.router.access.identity import Identity
from fabric.router.access.role import Role


class Book(Protocol):
    def roles(self) -> Mapping[str, Role]:
        """The role of each principal that exists. `local` has all rights if it is absent."""

    def invite(self, name: str, role: str, ttl_s: int, wall_us: int) -> dict[str, Any]:
        """Open an invitation; returns its fields for the answer, with `code` and `hub_key`."""

    def enrol(self, code: str, identity: Identity, wall_us: int) -> dict[str, Any]:
        """Make the key of a connection known by the code of an invitation; returns the fields of the answer."""

    def create(self, name: str, role: str, key: str, wall_us: int) -> dict[str, Any]:
        """Make a key known whose pair was made elsewhere."""

    def rotate(self, identity: Identity, key: str, wall_us: int) -> dict[str, Any]:
        """Replace the key of a connection by another one."""

    def revoke(self, name: str, wall_us: int) -> dict[str, Any]:
        """Remove a principal with its keys and invitations."""

    def listed(self) -> dict[str, Any]:
        """The fields of INFO keys: `principals`, `invitations` and `hub_key`; no secrets."""
