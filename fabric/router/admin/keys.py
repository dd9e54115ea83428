"""ADMIN of keys: invite, enrol, create, rotate and revoke.

The hub's book has the list on disk; the router decides which session may change it. What an operation has changed is on
disk when the book returns, before the answer.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.access.book import Book
from fabric.router.fields import bounded, text
from fabric.router.sessions.session import Session
from fabric_protocol.bounds import INVITATION_MS
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

NAME_CHARS_MAX: Final = 64
KEY_CHARS_MAX: Final = 64  # Z85 has 40, base64url 43
CODE_CHARS_MAX: Final = 128

Fields = Mapping[str, Any]
KeysOperation = Callable[["Router", Fields, Session, int], dict[str, Any]]


def run(router: "Router", op: str, fields: Fields, session: Session, now: float) -> dict[str, Any]:
    """Run an operation. The roles of the book apply from then on."""
    answer = OPERATIONS[op][0](router, fields, session, router.shared.clock.wall_us(now))
    router.apply_access()
    return answer


def book_of(router: "Router") -> Book:
    if router.book is None:
        raise ProtocolError(
            Code.NOT_FOUND,
            "this hub has no keys: start it with a --bind that other machines can reach, and it makes its keys",
        )
    return router.book


def _invite(router: "Router", fields: Fields, session: Session, wall_us: int) -> dict[str, Any]:
    ttl_ms, book = bounded(fields, "ttl_ms", *INVITATION_MS), book_of(router)
    name, role = _needed(fields, "name", NAME_CHARS_MAX), _needed(fields, "role", NAME_CHARS_MAX)
    router.shared.change.begin()
    answer = book.invite(name, role, ttl_ms // 1000, wall_us)
    return {**answer, "journal": router.place.get("journal", "")}


def _enrol(router: "Router", fields: Fields, session: Session, wall_us: int) -> dict[str, Any]:
    book, code = book_of(router), _needed(fields, "code", CODE_CHARS_MAX)
    router.shared.change.begin()
    answer = book.enrol(code, session.connected_as, wall_us)
    return {**answer, "name": answer.get("principal", ""), "journal": router.place.get("journal", "")}


def _create(router: "Router", fields: Fields, session: Session, wall_us: int) -> dict[str, Any]:
    book, key = book_of(router), _needed(fields, "key", KEY_CHARS_MAX)
    name, role = _needed(fields, "name", NAME_CHARS_MAX), _needed(fields, "role", NAME_CHARS_MAX)
    router.shared.change.begin()
    return book.create(name, role, key, wall_us)


def _rotate(router: "Router", fields: Fields, session: Session, wall_us: int) -> dict[str, Any]:
    book, key = book_of(router), _needed(fields, "key", KEY_CHARS_MAX)
    if not session.connected_as.key:
        raise ProtocolError(Code.CONFLICT, "this connection has no key that another one could replace")
    router.shared.change.begin()
    return book.rotate(session.connected_as, key, wall_us)


def _revoke(router: "Router", fields: Fields, session: Session, wall_us: int) -> dict[str, Any]:
    book, name = book_of(router), _needed(fields, "name", NAME_CHARS_MAX)
    router.shared.change.begin()
    return book.revoke(name, wall_us)


def _needed(fields: Fields, name: str, chars_max: int) -> str:
    value = text(fields, name, "", chars_max)
    if not value:
        raise ProtocolError(Code.BAD_OPTION, f"{name} is missing: text of at most {chars_max} characters")
    return value


OPERATIONS: Final[dict[str, tuple[KeysOperation, tuple[str, ...]]]] = {
    "keys.invite": (_invite, ("name", "role", "ttl_ms")),
    "keys.enrol": (_enrol, ("code",)),
    "keys.create": (_create, ("name", "role", "key")),
    "keys.rotate": (_rotate, ("key",)),
    "keys.revoke": (_revoke, ("name",)),
}
