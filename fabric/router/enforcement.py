"""Enforcement: what the router ends when rights have changed while sessions are open.

Sessions of a revoked principal end at once. A subscription or a responder ends when the role of its principal does not
allow it any more, or when an administrator gives its group patterns that the role does not allow.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from fabric.router import audit
from fabric.router.access.principal import Principal
from fabric.router.groups.group import Group
from fabric.router.groups.subscription import Subscription
from fabric.router.requests.services import Responder
from fabric.router.sessions.session import Session
from fabric.router.turn import Turn
from fabric_protocol import messages as m
from fabric_protocol.names import DEAD, REDRIVE

if TYPE_CHECKING:
    from fabric.router.router import Router


def apply(router: "Router", turn: Turn) -> None:
    """Apply the roles of the book to all principals and their sessions."""
    if router.book is None:
        return
    changed = set(router.principals.apply(router.book.roles()))
    if not changed:
        return
    for session in list(router.session_table.sessions.values()):
        if session.principal not in changed:
            continue
        if session.principal.is_revoked:
            end(router, session, f"principal {session.principal.name!r} was revoked", turn)
        else:
            _revise(router, session, turn)


def end(router: "Router", session: Session, reason: str, turn: Turn) -> None:
    """End a session whose key is not valid any more, and tell its client. Its deliveries do not count as failed: the
    messages are not the cause."""
    turn.send(session.peer, m.Notice("kicked", {"reason": reason}))
    for sub in list(session.channels.values()):
        router.leave(sub, turn, lost=False)
    router.end(session, turn, lost=True)
    audit.ended(session, "ended", reason, turn)


def group_changed(router: "Router", group: Group, turn: Turn) -> None:
    """A group has other patterns: end subscriptions to it, and to its dead letters, that are not allowed."""
    if router.book is None:
        return
    found, left = {group: None}, [group]
    while left:  # a group may consume the dead letters of another one
        one = left.pop()
        for prefix in (DEAD, REDRIVE) if one.durable else ():
            for reader in router.shared.trie.match(prefix + one.name):
                if reader not in found:
                    found[reader] = None
                    left.append(reader)
    # All of these read the new patterns, and what else they read has not changed.
    may: dict[Principal, bool] = {}
    for sub in [sub for one in found for sub in one.members]:
        principal = sub.session.principal
        if principal not in may:
            may[principal] = principal.may_subscribe(group.settings.patterns)
        if not may[principal]:
            _end_subscription(router, sub, turn)


def _revise(router: "Router", session: Session, turn: Turn) -> None:
    """End what a session has and its principal may not have."""
    principal = session.principal
    for sub in list(session.channels.values()):
        if not _may_have(principal, sub):
            _end_subscription(router, sub, turn)
    for responder in list(router.requests.services.of(session).values()):
        name = responder.service.name
        has_name = name.startswith("$") or principal.joins(name)  # the hub gives names with $
        if not has_name or not principal.may_respond(responder.service.patterns):
            _tell(session, responder, responder.service.name, turn)
            router.requests.leave(responder, "has lost the right to answer", turn)


def _end_subscription(router: "Router", sub: Subscription, turn: Turn) -> None:
    """Its deliveries are ready again for the group, and do not count as failed."""
    _tell(sub.session, sub, sub.group.name, turn)
    router.leave(sub, turn, lost=False)


def _may_have(principal: Principal, sub: Subscription) -> bool:
    patterns: Collection[str] = sub.group.settings.patterns
    return principal.may_subscribe(patterns) and (not sub.group.durable or principal.joins(sub.group.name))


def _tell(session: Session, ended: Subscription | Responder, group: str, turn: Turn) -> None:
    why = f"role {session.principal.role.name!r} of principal {session.principal.name!r} does not allow it any more"
    turn.send(session.peer, m.Notice("unsubscribed", {"chan": ended.chan, "group": group, "why": why}))
    audit.ended(session, "unsubscribed", why, turn, chan=ended.chan, group=group)
