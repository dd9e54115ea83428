"""Rights of ADMIN: which rights each operation needs, beside those to the topic or the group that it names.

An operation on a group needs the right to the group's name, and new patterns need the right to read them, as for SUB:
otherwise an administrator of groups could read every topic.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.fields import patterns_of
from fabric.router.sessions.session import Session
from fabric.router.topics.settings import topic_name
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import DEAD, dead_letter_group

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]
Check = Callable[["Router", str, Fields, Session], None]


def require(router: "Router", op: str, fields: Fields, session: Session) -> None:
    """Raise unless the principal of a session may run an operation."""
    if session.principal.is_free:
        return
    rights, check = RIGHTS[op]
    for right in rights:
        session.principal.require_admin(right, f"run {op}")
    if check is not None:
        check(router, op, fields, session)


def _group(router: "Router", op: str, fields: Fields, session: Session) -> None:
    """The right to the group. A name that is no text is left to the operation, which refuses it."""
    name = fields.get("group")
    if isinstance(name, str):
        session.principal.require_group(name, f"run {op} for the group")


def _create_group(router: "Router", op: str, fields: Fields, session: Session) -> None:
    _group(router, op, fields, session)
    name = fields.get("group")
    if isinstance(name, str) and name not in router.groups:
        session.principal.require_new_group()
    _require_stored(router, name, session)
    _new_patterns(fields, session)


def _update_group(router: "Router", op: str, fields: Fields, session: Session) -> None:
    _group(router, op, fields, session)
    if fields.get("patterns"):
        _require_stored(router, fields.get("group"), session)
        _new_patterns(fields, session)


def _delete_group(router: "Router", op: str, fields: Fields, session: Session) -> None:
    _group(router, op, fields, session)
    _require_stored(router, fields.get("group"), session)


def _require_stored(router: "Router", name: Any, session: Session) -> None:
    """The right to the patterns that an existing group has. The dead letters of a group belong to its name: with other
    patterns, or as those of a new group, a principal could read them that may not read these."""
    if isinstance(name, str) and (group := router.groups.get(name)) is not None:
        session.principal.require_stored(group)


def _new_patterns(fields: Fields, session: Session) -> None:
    session.principal.require_subscribe(patterns_of(fields), "give a group the pattern {!r:.120}")


def _topic(router: "Router", op: str, fields: Fields, session: Session) -> None:
    session.principal.require_topic(topic_name(fields), f"run {op} for the topic")


def _queue(router: "Router", op: str, fields: Fields, session: Session) -> None:
    """A queue is a topic, and a group of the same name that gets all of it."""
    name = topic_name(fields, "queue")
    session.principal.require_group(name, f"run {op} for the queue, which has the group")
    session.principal.require_subscribe([name], f"run {op} for the queue {{!r:.120}}")
    if op == "queue.create" and name not in router.groups:
        session.principal.require_new_group()
    _require_stored(router, name, session)


def _letters(router: "Router", op: str, fields: Fields, session: Session) -> None:
    name = fields.get("group")
    if isinstance(name, str):
        session.principal.require_group(dead_letter_group(name), f"run {op} for the group")


def _list_letters(router: "Router", op: str, fields: Fields, session: Session) -> None:
    """A list has the topics and the errors of dead letters: as a subscription to them."""
    _letters(router, op, fields, session)
    name = fields.get("group")
    if isinstance(name, str):
        session.principal.require_subscribe([DEAD + dead_letter_group(name)])


def _guest(router: "Router", op: str, fields: Fields, session: Session) -> None:
    if not session.principal.is_guest:
        raise ProtocolError(
            Code.CONFLICT,
            f"the key of this connection is known as principal {session.principal.name!r}: it needs no invitation",
        )


RIGHTS: Final[dict[str, tuple[tuple[str, ...], Check | None]]] = {
    "group.create": (("groups",), _create_group),
    "group.update": (("groups",), _update_group),
    "group.delete": (("groups",), _delete_group),
    "group.seek": (("groups",), _group),
    "group.settle": (("groups",), _group),
    "group.pause": (("groups",), _group),
    "group.resume": (("groups",), _group),
    "group.refresh": (("groups",), _group),
    "dlq.list": (("dlq",), _list_letters),
    "dlq.redrive": (("dlq",), _letters),
    "dlq.discard": (("dlq",), _letters),
    "topic.create": (("topics",), _topic),
    "topic.update": (("topics",), _topic),
    "topic.delete": (("topics",), _topic),
    "topic.purge": (("topics",), _topic),
    "queue.create": (("topics", "groups"), _queue),
    "queue.delete": (("topics", "groups"), _queue),
    "queue.purge": (("topics",), _queue),
    "hub.update": (("hub",), None),
    "session.kick": (("sessions",), None),
    "producer.delete": (("hub",), None),
    "keys.invite": (("keys",), None),
    "keys.enrol": ((), _guest),
    "keys.create": (("keys",), None),
    "keys.rotate": ((), None),
    "keys.revoke": (("keys",), None),
}
