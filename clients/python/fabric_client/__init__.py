"""The Python client of Fabric: durable messaging over ZeroMQ.

    with fabric_client.connect() as fab:
        fab.publish("orders.created", {"id": 101})          # returned: it is on disk

    with fabric_client.connect() as fab:
        for msg in fab.consume("orders.*", group="billing"):
            with msg:                                       # ack on leaving, retry when the body raised
                charge(msg.data["id"])

`connect` gives the blocking `Client`, `aconnect` its asyncio twin, with the same words.
"""

from fabric.errors import FabricError
from fabric_client.aio import AsyncClient, aconnect
from fabric_client.async_consumer import AsyncConsumer
from fabric_client.consumer import Consumer
from fabric_client.errors import (
    BadMessage,
    BadPattern,
    BufferFull,
    Closed,
    ConnectionLost,
    Fenced,
    Forbidden,
    Forked,
    GroupMismatch,
    HubError,
    NotFound,
    PublishRefused,
    Refusal,
    Timeout,
)
from fabric_client.message import Batch, Message
from fabric_client.publisher import Receipt
from fabric_client.sync import Client, connect

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "BadMessage",
    "BadPattern",
    "Batch",
    "BufferFull",
    "Client",
    "Closed",
    "ConnectionLost",
    "Consumer",
    "FabricError",
    "Fenced",
    "Forbidden",
    "Forked",
    "GroupMismatch",
    "HubError",
    "Message",
    "NotFound",
    "PublishRefused",
    "Receipt",
    "Refusal",
    "Timeout",
    "aconnect",
    "connect",
]
