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
SESSION_RETRY_MS: Final = 1_000  # a session may end at any time
GRAIN_S: Final = 1e-6  # times that differ by less are the same, because sums of numbers are not exact
INFLIGHT_RETRY_MS: Final = 50  # some commits


class Usage:
    __slots__ = ("_bytes_until", "_messages_until", "inflight_bytes", "is_limited", "limits", "sessions")

    def __init__(self) -> None:
        self.limits = Limits()
        self._messages_until = 0.0  # paid until then
        self._bytes_until = 0.0
        self.is_limited = False  # whether `publish` and `spend` have anything to check
        self.sessions = 0
        self.inflight_bytes = 0  # of publishes that are accepted and not yet confirmed

    def limit(self, limits: Limits) -> None:
        """Set the limits. Other limits than before begin without a debt."""
        if limits != self.limits:
            self.limits = limits
            self._messages_until = self._bytes_until = 0.0
            self.is_limited = bool(limits.rate or limits.bytes or limits.inflight)

    def publish(self, count: int, size: int, now: float) -> None:
        """Count a publish, or raise BUSY. The bytes in flight are counted when the publish is stored."""
        most, inflight = self.limits.inflight, self.inflight_bytes
        if most and inflight and inflight + size > most:  # a block alone passes, or it would never pass
            raise ProtocolError(
                Code.BUSY,
                f"this principal may have {most} bytes of unconfirmed publishes, and has {inflight}: wait for "
                "confirmations, then publish again",
                retry_ms=INFLIGHT_RETRY_MS,
            )
        self.spend(count, size, now)

    def spend(self, count: int, size: int, now: float) -> None:
        """Count messages and their bytes, or raise BUSY."""
        rate, byte_rate = self.limits.rate, self.limits.bytes
        ahead = now + BURST_S - GRAIN_S
        wait_s = max(self._messages_until, self._bytes_until) - ahead
        if wait_s >= 0.0:
            limit = f"{rate} messages" if self._messages_until > self._bytes_until else f"{byte_rate} bytes"
            retry_ms = int(wait_s * 1000) + 1
            raise ProtocolError(
                Code.BUSY,
                f"this principal may publish {limit} in a second: publish again in {retry_ms} ms",
                retry_ms=retry_ms,
            )
        if rate:
            self._messages_until = max(self._messages_until, now) + count / rate
        if byte_rate:
            self._bytes_until = max(self._bytes_until, now) + size / byte_rate

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
