"""Audit: advisories of topic `$sys.audit` about refused commands and about changes by administrators.

Each has the source of the command: its principal, and the address of its connection. Refusals by mistakes, such as a
wrong option, are not here: `$sys.refused` has them.
"""

from typing import Any, Final

from fabric.router.access.identity import GUEST_NAME, Identity
from fabric.router.access.sources import AUDIT
from fabric.router.sessions.session import Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, ProtocolError

_VERBS: Final = {
    "Publish": "PUB", "Subscribe": "SUB", "Unsubscribe": "UNSUB", "Settle": "ACK", "Transact": "TXN", "Request": "REQ",
}  # fmt: skip
_AUDITED: Final = frozenset((Code.FORBIDDEN, Code.AUTH_FAILED))


def concerns(error: ProtocolError, identity: Identity) -> bool:
    """Whether a refusal is audited: one for a missing right, and each one of a key that is not known."""
    return error.code in _AUDITED or identity.name == GUEST_NAME


def refused(
    error: ProtocolError, message: m.ToHub | m.ToClient, session: Session | None, identity: Identity, turn: Turn
) -> None:
    """A command was refused, and `concerns` says that it is audited."""
    source = source_of(session) if session is not None else _source(identity)
    kind = type(message).__name__
    fields: dict[str, Any] = {"verb": _VERBS.get(kind, kind.upper())}
    if isinstance(message, m.Admin):
        fields["op"] = str(message.fields.get("op"))[:60]
    elif isinstance(message, m.Info):
        fields["what"] = str(message.fields.get("what", "hub"))[:60]
    turn.advise(AUDIT, kind="refused", **source, **fields, code=error.code.name, why=str(error))


def changed(op: str, told: dict[str, Any], session: Session, turn: Turn) -> None:
    """An operation of ADMIN has changed something."""
    kind = "enrolled" if session.principal.is_guest else "admin"
    turn.advise(AUDIT, kind=kind, op=op, **source_of(session), **told)


def ended(session: Session, kind: str, why: str, turn: Turn, **fields: Any) -> None:
    """The hub has ended a session or a subscription, because its principal has lost a right."""
    turn.advise(AUDIT, kind=kind, **source_of(session), **fields, why=why)


def source_of(session: Session) -> dict[str, Any]:
    return {"principal": session.principal.name, "address": session.connected_as.address, **session.identity}


def _source(identity: Identity) -> dict[str, Any]:
    return {"principal": identity.name, "address": identity.address}
