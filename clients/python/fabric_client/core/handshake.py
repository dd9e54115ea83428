"""HELLO and WELCOME: how a client introduces itself, and what lets it resume its session on another connection."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from fabric_client.core import wire_values
from fabric_client.core.source_names import Enrolling, SourceName
from fabric_client.errors import BadMessage
from fabric_protocol import messages as m
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import PROTOCOL_VERSION

JOURNALS_MAX: Final = 64  # journals whose epochs are remembered; a client sees one or two


class Handshake:
    """The names of client and producer, and what the last WELCOME said of the session."""

    __slots__ = ("_epoch", "_epochs", "_token", "hello_rid", "hub", "jumps", "name", "producer")

    def __init__(self, name: str, producer: str | None) -> None:
        self.name = wire_values.text(name, "name")
        if producer is not None and not wire_values.text(producer, "producer"):
            raise BadMessage("producer is a name, not an empty text", "leave it out for a producer without a name")
        self.producer = producer or f"producer-{uuid.uuid4().hex}"
        self.jumps = isinstance(producer, SourceName)
        # A given name must be claimed from an earlier program; a random name has no earlier epoch.
        self._epoch: int | None = None if producer else 1
        self._epochs: dict[bytes, int] = {}  # journal -> the highest epoch that a hub said
        self._token = b""  # the hub's name for this session; a secret
        self.hello_rid = 0
        self.hub: Mapping[str, Any] = {}  # the fields of the last WELCOME

    def hello(self, rid: int, heartbeat_s: float, ttl_s: float, seen: list[list[int]]) -> m.Hello:
        """The HELLO of a new connection. `seen` has each channel with the last ordinal that arrived."""
        self.hello_rid = rid
        fields: dict[str, Any] = {
            "proto": PROTOCOL_VERSION,
            "client": self.name,
            "hb_ms": round(heartbeat_s * 1000),
            "ttl_ms": round(ttl_s * 1000),
        }
        if isinstance(self.producer, Enrolling):
            fields["enrol"] = True
        else:
            fields["producer"] = {"name": self.producer}
            if self._epoch is not None:
                fields["producer"]["epoch"] = self._epoch
            if self.jumps:
                fields["producer"]["jumps"] = True
        if self._token:
            fields["resume"] = {"session": self._token, "subs": seen}
        return m.Hello(rid, fields)

    def unfit(self, fields: Mapping[str, Any]) -> FabricError | None:
        """Why this client cannot work with the hub that sent a WELCOME."""
        if self.jumps and not fields.get("producer", {}).get("jumps"):
            return FabricError("this hub does not know numbered sources", "upgrade the hub")
        return None

    def outdated(self, fields: Mapping[str, Any]) -> FabricError | None:
        """Why a hub has an older copy of a journal that this client has seen: it lacks messages, and gives their seqs
        to others."""
        journal, epoch = fields.get("journal", b""), fields.get("epoch", 0)
        seen = self._epochs.get(journal, 0)
        if epoch < seen:
            return FabricError(
                f"the hub has epoch {epoch} of its journal, and this client has seen epoch {seen}: an older copy",
                "stop that hub, or connect to the hub with the newer epoch; a new client accepts either",
            )
        if len(self._epochs) >= JOURNALS_MAX and journal not in self._epochs:
            del self._epochs[next(iter(self._epochs))]
        self._epochs[journal] = epoch
        return None

    def terms(self, same_journal: bool) -> tuple[int, bool, tuple[int, int], int]:
        """For the publisher: the last number that the hub has stored, whether in the same journal as before, the
        window, and the bytes of a block."""
        producer = self.hub.get("producer") or {}
        blocks, size = self.hub.get("flow", (1, 1 << 20))
        limit = self.hub.get("limits", {}).get("block_bytes", 1 << 20)
        return producer.get("last_pseq", 0), same_journal, (blocks, size), limit

    def welcomed(self, fields: Mapping[str, Any]) -> bool:
        """Take over the fields of a WELCOME. True if the hub has the same journal as before."""
        same_journal = not self.hub or self.hub.get("journal") == fields.get("journal")
        self.hub = fields
        self._token = fields["session"]
        producer = fields.get("producer") or {}
        self._epoch = producer.get("epoch", self._epoch)
        return same_journal
