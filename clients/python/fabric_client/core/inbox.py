"""Durable requests: the answers come to a topic of the asking client, and wait there until they are picked up.

A request is an ordinary message with the headers `reply-to` (the topic `inbox.<client>`) and `correlation`; whoever
handles it publishes the answer there with the same correlation. So asker, answerer and hub may all be away in between.
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

PREFETCH: Final = 256  # answers that nobody has asked for yet
REPLY_TO: Final = "reply-to"
CORRELATION: Final = "correlation"


def inbox_topic(client: str, is_named: bool) -> str:
    """The topic, and the group, of a client's answers."""
    if not is_named:
        raise FabricError(
            "a durable request needs a client with a name of its own", "connect(name=…): its inbox outlives the program"
        )
    return f"inbox.{client}"


def addressed(
    topic: str, correlation: str | None, headers: Mapping[str, HeaderValue] | None
) -> tuple[str, dict[str, HeaderValue]]:
    """The correlation, and the headers that tell where to answer."""
    name = correlation or uuid.uuid4().hex
    return name, {**(headers or {}), REPLY_TO: topic, CORRELATION: name}


class Inbox:
    """The answers that have come, by correlation. One that nobody waits for stays in the hub's group, unacked."""

    def __init__(self, sub: Subscription) -> None:
        self.sub = sub
        self._replies: dict[str, Message] = {}

    def look(self, correlation: str) -> bool:
        """Sort what has come; whether the answer is among it. Wants the client's lock held."""
        while (item := self.sub.take()) is not None:
            if isinstance(item, Refresh):
                item.tell(None)
            elif isinstance(item, Batch):
                for message in item:
                    name = message.headers.get(CORRELATION)
                    if isinstance(name, str):
                        self._replies[name] = message
                    else:
                        message.reject("it answers nothing: there is no header correlation")
        found = self._replies.get(correlation)
        if found is not None and found.lost:  # it comes again
            del self._replies[correlation]
            found = None
        return found is not None or self.sub.error is not None

    def take(self, correlation: str) -> Reply:
        """Pick up an answer that has come, and ack it."""
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
    """How the subscription to an inbox is made."""
    return {"group": name, "start": "first", "prefetch": PREFETCH, "concurrency": PREFETCH}
