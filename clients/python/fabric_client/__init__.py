"""The Python client of Fabric: durable messaging over ZeroMQ.

    with fabric_client.connect() as fab:
        fab.publish("orders.created", {"id": 101})          # returned: it is on disk

    with fabric_client.connect() as fab:
        for msg in fab.consume("orders.*", group="billing"):
            with msg:                                       # ack on leaving, retry when the body raised
                charge(msg.data["id"])

`connect` gives the blocking `Client`, `aconnect` the `AsyncClient` with the same methods. The asyncio half is imported
when it is first used, because the import of asyncio takes long.
"""

from typing import TYPE_CHECKING

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.receipt import Receipt, Scheduled
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Reply, Request
from fabric_client.core.schedules import Schedule
from fabric_client.core.transaction import Transaction
from fabric_client.core.verdict_exceptions import Reject, Release, Retry
from fabric_client.credentials import Credentials
from fabric_client.errors import (
    AuthFailed,
    BadMessage,
    BadPattern,
    BufferFull,
    Closed,
    Conflict,
    ConnectionLost,
    Fenced,
    Forbidden,
    Forked,
    GroupMismatch,
    HubError,
    NoResponders,
    NotFound,
    PublishRefused,
    Refusal,
    RemoteError,
    Stale,
    TimedOut,
    Timeout,
    TopicFull,
    Unconfirmed,
    VerdictsUnconfirmed,
)
from fabric_client.options import GroupOptions, PublishOptions, QueueOptions, TopicOptions
from fabric_client.sync.client import Client, connect
from fabric_client.sync.consumer import Consumer
from fabric_protocol.errors import FabricError
from fabric_protocol.origin import Origin

if TYPE_CHECKING:
    from fabric_client.aio.client import AsyncClient, aconnect
    from fabric_client.aio.consumer import AsyncConsumer

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AuthFailed",
    "BadMessage",
    "BadPattern",
    "Batch",
    "BufferFull",
    "Client",
    "Closed",
    "Conflict",
    "ConnectionLost",
    "Consumer",
    "Credentials",
    "FabricError",
    "Fenced",
    "Forbidden",
    "Forked",
    "GroupMismatch",
    "GroupOptions",
    "HubError",
    "Message",
    "NoResponders",
    "NotFound",
    "Origin",
    "PublishOptions",
    "PublishRefused",
    "QueueOptions",
    "Receipt",
    "Refresh",
    "Refusal",
    "Reject",
    "Release",
    "RemoteError",
    "Reply",
    "Request",
    "Retry",
    "Schedule",
    "Scheduled",
    "Stale",
    "TimedOut",
    "Timeout",
    "TopicFull",
    "TopicOptions",
    "Transaction",
    "Unconfirmed",
    "VerdictsUnconfirmed",
    "aconnect",
    "connect",
]


def __getattr__(name: str) -> object:
    if name in ("AsyncClient", "AsyncConsumer", "aconnect"):
        from fabric_client.aio import client, consumer

        found = {
            "AsyncClient": client.AsyncClient,
            "AsyncConsumer": consumer.AsyncConsumer,
            "aconnect": client.aconnect,
        }
        globals().update(found)
        return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
