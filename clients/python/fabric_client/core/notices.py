"""NOTICEs of the hub: deliveries that it took back, subscriptions and sessions that it ended."""

import logging
from typing import TYPE_CHECKING

from fabric_client.errors import NotFound, from_wire
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError

if TYPE_CHECKING:
    from fabric_client.core.session import Session

log = logging.getLogger("fabric_client")


def heed(session: "Session", message: m.Notice) -> None:
    """Do what a NOTICE demands. A kind that is not known is logged."""
    fields = message.fields
    sub = session.subscriptions.get(fields.get("chan", 0))
    if message.kind == "lease_lost" and sub is not None:
        sub.take_back(fields.get("ordinals", ()))
        log.info("%s: deliveries were taken back: %s", sub.group, fields.get("why", "no reason given"))
    elif message.kind == "unsubscribed" and sub is not None:
        sub.error = _ended(message)
        del session.subscriptions[sub.chan]
        sub.acks.fail(sub.error)
        session.calls.fail_channel(sub.chan, sub.error)
    elif message.kind == "kicked":
        log.warning("the hub ended the session: %s", fields.get("reason", "no reason given"))
        if session.live:
            session.send(m.Ping(0))  # the answer is that there is no session, after all that the hub has sent before
    else:
        log.info("the hub says %s: %s", message.kind, dict(fields))


def _ended(message: m.Notice) -> FabricError:
    """Why a subscription ended: its group is gone, or its right."""
    why = str(message.fields.get("why", "unsubscribed"))
    code = message.fields.get("code", 0)
    if isinstance(code, int) and code:
        return from_wire(m.Err(0, 0, code, why, {}))
    return NotFound(why, "subscribe again to create it again")
