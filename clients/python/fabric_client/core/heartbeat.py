"""The heartbeat of a session: when it must send a PING, and when the hub counts as gone."""

from typing import Final

SILENCE_MAX: Final = 3  # heartbeats without a frame from the hub


class Heartbeat:
    """Times of the last frame received, the last frame sent and the last PING."""

    __slots__ = ("interval_s", "pinged_at", "received_at", "sent_at")

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self.start(0.0)

    def start(self, now: float) -> None:
        """A new connection begins."""
        self.received_at = self.sent_at = self.pinged_at = now

    @property
    def ping_at(self) -> float:
        return max(min(self.sent_at, self.received_at), self.pinged_at) + self.interval_s

    @property
    def gone_at(self) -> float:
        """When the hub counts as gone, unless a frame arrives before."""
        return self.received_at + SILENCE_MAX * self.interval_s
