"""ERRs of the hub: to which publish, call, subscription or HELLO a refusal belongs, and what ends with it."""

import logging
from typing import TYPE_CHECKING, Final

from fabric_client.core.state import State
from fabric_client.errors import from_wire
from fabric_protocol import messages as m
from fabric_protocol.errors import Code

if TYPE_CHECKING:
    from fabric_client.core.session import Session

log = logging.getLogger("fabric_client")

_AGAIN: Final = (Code.BUSY, Code.SHUTTING_DOWN)  # a HELLO that is refused so may be accepted later


def heed(session: "Session", message: m.Err, now: float) -> None:
    """Do what an ERR demands. AUTH_FAILED is about the connection and not about a publish or a verdict: everything is
    kept for a connection with a key that the hub knows. A call, such as an enrolment, gets it as its answer."""
    if message.code == Code.NO_SESSION:
        session.lost(now, "the hub does not know this session")
    elif message.code == Code.AUTH_FAILED and session.calls.get(message.rid) is None:
        if session.several and not session.handshake.hub:
            session.lost(now, from_wire(message))  # another address may accept this client
        else:
            session.refused(now, from_wire(message))
    elif session.publisher.refused(message, now):
        pass
    elif message.rid == session.handshake.hello_rid and session.state is State.OPENING:
        if message.fields.get("retry_ms", 0) or message.code in _AGAIN:
            session.lost(now, message.text)
        else:
            session.fail(from_wire(message))
    else:
        _call_refused(session, message, now)


def _call_refused(session: "Session", message: m.Err, now: float) -> None:
    sub = session.subscriptions.get(message.chan)
    if sub is not None and sub.refuse(message.rid, from_wire(message)):
        log.error("the hub refused verdicts on %s: %s", sub.group, message.text)
        session.subscriptions.remove_ended(sub)
        return
    call = session.calls.refused(message, now)
    if call is None or sub is None:
        return
    if isinstance(call.message, m.Subscribe):
        sub.error = call.ticket.error or from_wire(message)
        del session.subscriptions[sub.chan]
        session.calls.fail_channel(sub.chan, sub.error)
    elif isinstance(call.message, m.Unsubscribe):
        session.subscriptions.ended(sub)  # the hub has no such subscription
