"""ADMIN: a table of operations; each is a small function in the module of its noun.

An operation is done or refused as a whole, and answered after the commit. An unknown field is refused, because an
administrator must not believe that a misspelt setting was made.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.records import GroupSettings
from fabric.router import audit
from fabric.router.admin import dead_letters, groups, keys, queues, rights, topics
from fabric.router.fields import is_number, text
from fabric.router.sessions.session import Session
from fabric.router.sessions.session_table import PRODUCER_CHARS_MAX
from fabric.router.topics.settings import SETTINGS
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.router import Router

Fields = Mapping[str, Any]


def handle(router: "Router", message: m.Admin, session: Session, now: float, turn: Turn) -> None:
    """Run an operation; its answer leaves after the commit. Raises when it is refused."""
    op = message.fields.get("op")
    fields = {name: value for name, value in message.fields.items() if name != "op"}
    operation, allowed = OPERATIONS.get(op, (None, ())) if isinstance(op, str) else (None, ())
    if operation is None:
        raise ProtocolError(Code.NOT_FOUND, f"ADMIN has no op {op!r:.60}; it has {', '.join(OPERATIONS)}")
    op = str(op)
    rights.require(router, op, fields, session)
    refuse_unknown(op, fields, allowed)
    if op in keys.OPERATIONS:
        answer = keys.run(router, op, fields, session, now)
    else:
        answer = operation(router, fields, now, turn)
    router.shared.change.begin()
    router.counters["admin"] += 1
    if op != "dlq.list" and not fields.get("dry_run"):
        told: dict[str, Any] = {name: answer[name] for name in _TOLD if not isinstance(answer.get(name), dict | None)}
        turn.advise("$sys.admin", op=op, **told, **session.identity)
        audit.changed(op, told | {name: answer[name] for name in _AUDITED if name in answer}, session, turn)
    if message.rid:
        turn.answer(session.peer, m.Ok(0, message.rid, answer))


def refuse_unknown(op: str, fields: Fields, allowed: tuple[str, ...]) -> None:
    """Raise when a field is not allowed. ALL: the operation checks its fields itself."""
    unknown = sorted(set(fields) - set(allowed)) if allowed != ALL else []
    if unknown:
        named, known = ", ".join(map(str, unknown)), ", ".join(allowed) or "no fields"
        raise ProtocolError(Code.BAD_OPTION, f"{op} does not know {named}; it knows {known}")


# The hub, its sessions and its producers.


def update_hub(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    router.shared.change.begin()
    for row in router.settings.change(fields):
        turn.write(row)
    router.apply_settings()
    return dict(router.settings.values)


def kick(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """End sessions, by their number or by the name of their client. A client may open a new session at once."""
    number, client = fields.get("session"), fields.get("client")
    if (number is None) == (client is None) or not (number is None or is_number(number)):
        raise ProtocolError(
            Code.BAD_OPTION, "session.kick needs session (a number from INFO) or client (a name): give one of them"
        )
    found = [
        session
        for session in router.session_table.sessions.values()
        if (session.number == number if client is None else session.client == client)
    ]
    if not found:
        what = f"client {client!r}" if number is None else f"number {number!r}"
        raise ProtocolError(Code.NOT_FOUND, f"there is no session of {what}")
    router.shared.change.begin()
    for session in found:
        turn.send(session.peer, m.Notice("kicked", {"reason": "ended by an administrator"}))
        router.end(session, turn, lost=True)
    return {"kicked": len(found)}


def delete_producer(router: "Router", fields: Fields, now: float, turn: Turn) -> dict[str, Any]:
    """Remove a producer or a numbered source that no session has, by its name in the journal. The next claim of its
    name begins at 0."""
    name = text(fields, "name", "", PRODUCER_CHARS_MAX)
    if not name:
        raise ProtocolError(Code.BAD_OPTION, "producer.delete needs name, the name of a producer or a numbered source")
    producer = router.session_table.delete_producer(name)
    return {"name": name, "deleted": True, "last_pseq": producer.last_pseq, "jumps": producer.jumps}


ALL: Final = ("*",)
# Fields of an answer that the advisory has, too: what was changed, and how much.
_TOLD: Final = (
    *("group", "topic", "queue", "created", "before", "cursor", "again", "skipped", "up_to", "settled"),
    *("removed", "redriven", "discarded", "refresh", "kicked", "events", "advisories"),
)
_AUDITED: Final[tuple[str, ...]] = ("name", "role")  # and of the audit
_GROUP_SETTINGS: Final = GroupSettings._fields
_CHOICE: Final = ("group", "seqs", "filter", "all", "max", "after_seq")

OPERATIONS: Final[dict[str, tuple[Callable[..., dict[str, Any]], tuple[str, ...]]]] = {
    "group.create": (groups.create, ("group", "start", *_GROUP_SETTINGS)),
    "group.update": (groups.update, ("group", *_GROUP_SETTINGS)),
    "group.delete": (groups.delete, ("group",)),
    "group.seek": (groups.seek, ("group", "to", "dry_run")),
    "group.settle": (groups.settle, ("group", "up_to", "dry_run")),
    "group.pause": (groups.pause, ("group",)),
    "group.resume": (groups.resume, ("group",)),
    "group.refresh": (groups.refresh, ALL),
    "dlq.list": (dead_letters.listed, ("group", "after_seq", "n")),
    "dlq.redrive": (dead_letters.redrive, _CHOICE),
    "dlq.discard": (dead_letters.discard, _CHOICE),
    "topic.create": (topics.create, ("topic", *SETTINGS)),
    "topic.update": (topics.update, ("topic", *SETTINGS)),
    "topic.delete": (topics.delete, ("topic",)),
    "topic.purge": (topics.purge, ("topic", "up_to", "before_us", "dry_run", "after")),
    "queue.create": (queues.create, ("queue", "start", *queues.OF_TOPIC, *queues.OF_GROUP)),
    "queue.delete": (queues.delete, ("queue",)),
    "queue.purge": (queues.purge, ("queue", "dry_run", "after")),
    "hub.update": (update_hub, ALL),
    "session.kick": (kick, ("session", "client")),
    "producer.delete": (delete_producer, ("name",)),
    **keys.OPERATIONS,
}
