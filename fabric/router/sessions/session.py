"""A session: what the hub keeps for one client. It outlives a lost connection for its time to live."""

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

from fabric_protocol.messages import PeerId

if TYPE_CHECKING:
    from fabric.router.access.identity import Identity
    from fabric.router.access.principal import Principal
    from fabric.router.groups.subscription import Subscription
    from fabric.router.publish.producers import Producer

CHANNELS_MAX: Final = 1_024  # subscriptions of one session
SILENT_BEATS: Final = 3  # missed heartbeats until a session is suspect: others get what it has not begun
# How long a client keeps begun deliveries after its connection was closed. With the first backoff of half a second,
# another consumer gets them within two seconds.
GRACE_S: Final = 1.4


class Session:
    __slots__ = (
        "blocked",
        "bytes_in",
        "bytes_out",
        "channels",
        "client",
        "connected_as",
        "grace_until",
        "hb_s",
        "id",
        "inflight_blocks",
        "inflight_bytes",
        "last_seen",
        "messages_in",
        "messages_out",
        "number",
        "peer",
        "principal",
        "producer",
        "producer_epoch",
        "suspect",
        "ttl_s",
    )

    def __init__(self, session_id: bytes, peer: PeerId, client: str, hb_s: float, ttl_s: float, now: float) -> None:
        self.id = session_id
        self.number = 0  # the public number of the session; the id is a secret
        self.peer: PeerId = peer
        self.client = client
        self.principal: Principal  # set by the session table, and
        self.connected_as: Identity  # of the connection that has the session now
        self.hb_s = hb_s
        self.ttl_s = ttl_s
        self.last_seen = now
        self.suspect = False  # no heartbeat for SILENT_BEATS intervals, or its connection was closed
        # Until when the subscriptions of a suspect session are kept. NEVER: its connection is open, so they are kept.
        self.grace_until = 0.0
        self.blocked = False  # the send queue of its connection is full
        self.channels: dict[int, Subscription] = {}
        self.producer: Producer | None = None
        self.producer_epoch = 0
        self.inflight_blocks = 0  # publishes that are accepted and not yet confirmed
        self.inflight_bytes = 0
        self.messages_in = self.bytes_in = 0  # published, in this life of the hub
        self.messages_out = self.bytes_out = 0  # delivered

    @property
    def reachable(self) -> bool:
        return not (self.suspect or self.blocked)

    @property
    def fenced(self) -> bool:
        return self.producer is not None and self.producer.epoch != self.producer_epoch

    @property
    def identity(self) -> dict[str, Any]:
        """For advisories."""
        return {"session": self.number, "client": self.client}

    def describe(self) -> dict[str, Any]:
        """For INFO."""
        return {
            "client": self.client,
            "principal": self.principal.name,
            "channels": len(self.channels),
            "outstanding": sum(sub.outstanding for sub in self.channels.values()),
            "unconfirmed": self.inflight_blocks,
            "suspect": self.suspect,
            "blocked": self.blocked,
            "messages_in": self.messages_in,
            "bytes_in": self.bytes_in,
            "messages_out": self.messages_out,
            "bytes_out": self.bytes_out,
            "producer": _mark(self.producer.name) if self.producer else "",
        }


def _mark(producer: str) -> str:
    """What INFO shows of a producer: a short hash of its name in the journal, because the name would let every session
    of the same principal claim it."""
    return blake2b(producer.encode(), digest_size=4).hexdigest()
