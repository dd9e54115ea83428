"""Usage: what all sessions of one principal use together, and the limits of it.

The rate of messages and the rate of bytes are one number each: the time at which the principal has paid for all that it
has published. It is less than BURST_S ahead of now when a block is accepted, and the block moves it on by its whole
cost. So a block that is larger than the burst passes, and the next block waits until it is paid for.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from fabric.router.access.globs import matches_any
from fabric.router.access.role import Limits
from fabric_protocol.errors import Code, ProtocolError

if TYPE_CHECKING:
    from fabric.router.access.principal import Principal

BURST_S: Final = 1.0  # the limits are for one second, so a principal that was silent may use a second's worth at once
_AHEAD_S: Final = BURST_S - 1e-6  # a microsecond less, because sums of times are not exact
# A schedule that repeats misses a time when its owner is so far behind its rate: schedules must not multiply the rate,
# and a principal that uses its rate must not miss its nightly schedule.
SCHEDULES_AHEAD_S: Final = 60.0
SESSION_RETRY_MS: Final = 1_000  # a session may end at any time
INFLIGHT_RETRY_MS: Final = 50  # some commits
# Subscriptions without a group: a quarter of the groups of a hub, because one principal must not take the room of all.
SUBSCRIPTIONS_MAX: Final = 2_500


class Usage:
    __slots__ = (
        "_byte_s",
        "_bytes_until",
        "_message_s",
        "_messages_until",
        "inflight_bytes",
        "is_limited",
        "limits",
        "sessions",
        "subscriptions",
    )

    def __init__(self) -> None:
        self.limits = Limits()
        self._message_s = self._byte_s = 0.0  # what one of them costs; 0: nothing
        self._messages_until = self._bytes_until = 0.0  # paid until then
        self.is_limited = False  # whether `publish` and `spend` have anything to check
        self.sessions = 0
        self.subscriptions = 0  # without a group
        self.inflight_bytes = 0  # of publishes that are not confirmed yet, and of requests that wait for a responder

    def limit(self, limits: Limits) -> None:
        """Set the limits. Other limits than before begin without a debt."""
        if limits != self.limits:
            self.limits = limits
            self._message_s = 1 / limits.rate if limits.rate else 0.0
            self._byte_s = 1 / limits.bytes if limits.bytes else 0.0
            self._messages_until = self._bytes_until = 0.0
            self.is_limited = bool(limits.rate or limits.bytes or limits.inflight)

    def publish(self, count: int, size: int, now: float) -> None:
        """Count a publish or a request, or raise BUSY. The bytes in flight are counted when it is accepted."""
        inflight = self.inflight_bytes
        if inflight and 0 < self.limits.inflight < inflight + size:  # a block alone passes, or it would never pass
            raise ProtocolError(
                Code.BUSY,
                f"this principal may have {self.limits.inflight} bytes of unconfirmed publishes and waiting requests, "
                f"and has {inflight}: wait for answers, then send it again",
                retry_ms=INFLIGHT_RETRY_MS,
            )
        self.spend(count, size, now)

    def spend(self, count: int, size: int, now: float, ahead_s: float = _AHEAD_S) -> None:
        """Count messages and their bytes, or raise BUSY when more is paid for than a time ahead."""
        messages_until, bytes_until = self._messages_until, self._bytes_until
        ahead = now + ahead_s
        if messages_until >= ahead or bytes_until >= ahead:
            raise self._busy(ahead)
        self._messages_until = (messages_until if messages_until > now else now) + count * self._message_s
        self._bytes_until = (bytes_until if bytes_until > now else now) + size * self._byte_s

    def _busy(self, ahead: float) -> ProtocolError:
        messages_until, bytes_until = self._messages_until, self._bytes_until
        limit = f"{self.limits.rate} messages" if messages_until > bytes_until else f"{self.limits.bytes} bytes"
        retry_ms = int((max(messages_until, bytes_until) - ahead) * 1000) + 1
        return ProtocolError(
            Code.BUSY,
            f"this principal may publish {limit} in a second: publish again in {retry_ms} ms",
            retry_ms=retry_ms,
        )

    def require_session(self) -> None:
        """Raise when the principal has as many sessions as it may have."""
        most = self.limits.sessions
        if most and self.sessions >= most:
            raise ProtocolError(
                Code.BUSY,
                f"this principal may have {most} sessions, and has {self.sessions}: close one, or connect again when "
                "one has ended",
                retry_ms=SESSION_RETRY_MS,
            )

    def require_subscription(self) -> None:
        """Raise when the principal has as many subscriptions without a group as it may have."""
        if self.subscriptions >= SUBSCRIPTIONS_MAX:
            raise ProtocolError(
                Code.BUSY,
                f"a principal may have {SUBSCRIPTIONS_MAX} subscriptions without a group: end one, or use a group",
                retry_ms=SESSION_RETRY_MS,
            )


class _Group(Protocol):
    durable: bool


def require_room_for_group(principal: "Principal", groups: Mapping[str, _Group]) -> None:
    """Raise when a principal may not create one more durable group.

    A group has no owner on disk. So the limit counts the durable groups of the hub whose names the principal may use,
    also those that another principal has created.
    """
    most = principal.role.limits.groups
    if not most:
        return
    allowed = principal.role.groups
    count = sum(group.durable and matches_any(allowed, name) for name, group in groups.items())
    if count >= most:
        raise ProtocolError(
            Code.FORBIDDEN,
            f"principal {principal.name!r} may create a group while there are fewer than {most} groups with names "
            f"that it may use ({', '.join(allowed)}), and there are {count}: delete one, or raise limits.groups of "
            f"role {principal.role.name!r}",
        )
