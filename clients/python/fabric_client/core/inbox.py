"""Durable requests: replies are published on a topic of the requesting client, and stay there until it takes them.

A request is an ordinary message with the headers `reply-to` (the topic `inbox.<client>`) and `correlation`; its handler
publishes the reply on that topic with the same correlation. So requester, responder and hub may all be down in between.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Reply
from fabric_client.core.subscription import Subscription
from fabric_client.errors import TimedOut
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError

PREFETCH: Final = 256  # replies that no call waits for yet
REPLY_TO: Final = "reply-to"
CORRELATION: Final = "correlation"


def inbox_topic(client: str, is_named: bool) -> str:
    """The topic, and the group, of a client's replies."""
    if not is_named:
        raise FabricError(
            "a durable request needs a client with a name of its own", "connect(name=…): its inbox outlives the program"
        )
    return f"inbox.{client}"


def addressed(
    topic: str, correlation: str | None, headers: Mapping[str, HeaderValue] | None
) -> tuple[str, dict[str, HeaderValue]]:
    """The correlation, and the headers of the request."""
    name = correlation or uuid.uuid4().hex
    return name, {**(headers or {}), REPLY_TO: topic, CORRELATION: name}


class Inbox:
    """Replies that have arrived, by correlation. A reply that no call takes stays unacked in its group."""

    def __init__(self, sub: Subscription) -> None:
        self.sub = sub
        self._replies: dict[str, Message] = {}

    def look(self, correlation: str) -> bool:
        """Sort the arrived replies; True if the reply is there, or the subscription has failed. The caller holds the
        client's lock."""
        while (item := self.sub.take()) is not None:
            if isinstance(item, Refresh):
                item.tell(None)
            elif isinstance(item, Batch):
                for message in item:
                    name = message.headers.get(CORRELATION)
                    if isinstance(name, str):
                        self._replies[name] = message
                    else:
                        message.reject("the reply has no header correlation")
        found = self._replies.get(correlation)
        if found is not None and found.lost:  # it is delivered again
            del self._replies[correlation]
            found = None
        return found is not None or self.sub.error is not None

    def take(self, correlation: str) -> Reply:
        """Take a reply that has arrived, and ack it."""
        if self.sub.error is not None:
            raise self.sub.error
        reply = self._replies.pop(correlation, None)
        if reply is None:
            raise TimedOut(
                f"no answer to {correlation!r} yet",
                f"ask again with correlation={correlation!r} to go on waiting: the request is not repeated",
            )
        reply.ack()
        return Reply(reply.batch, reply.index, {})


def inbox_settings(name: str) -> dict[str, Any]:
    """Settings of the subscription to an inbox."""
    return {"group": name, "start": "first", "prefetch": PREFETCH, "concurrency": PREFETCH}
