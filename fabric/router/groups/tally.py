"""Tally: what a group has done since the hub started, in messages. The numbers only rise, and cost nothing for each
message: each rises by a delivery, by a verdict or by an expired block."""

from collections import Counter
from typing import Final

from fabric_protocol.messages import Verdict

COUNTED: Final = ("delivered", "acked", "retried", "released", "rejected", "lapsed", "expired", "dead")
SETTLING: Final = (Verdict.ACK, Verdict.REJECT)  # a retry settles a message too when it is the last, and counts as dead


class Tally:
    __slots__ = (*COUNTED, "since_us")

    def __init__(self, since_us: int) -> None:
        self.since_us = since_us  # when the group was created, or when the hub started
        self.delivered = 0  # first deliveries and redeliveries
        self.acked = 0
        self.retried = 0
        self.released = 0
        self.rejected = 0
        self.lapsed = 0  # leases that ended without a verdict
        self.expired = 0  # messages that were too old to be delivered
        self.dead = 0  # messages that were given up

    def note(self, verdict: int, messages: int, hub: Counter[str]) -> None:
        """Count messages with a verdict, also for the hub as a whole. A touch is no end of a delivery."""
        if verdict == Verdict.ACK:
            self.acked += messages
            hub["acked"] += messages
        elif verdict == Verdict.RETRY:
            self.retried += messages
            hub["retried"] += messages
        elif verdict == Verdict.RELEASE:
            self.released += messages
            hub["released"] += messages
        elif verdict == Verdict.REJECT:
            self.rejected += messages
            hub["rejected"] += messages
        if verdict in SETTLING:
            hub["settled"] += messages

    def as_map(self) -> dict[str, int]:
        """The fields of INFO."""
        counted = (self.delivered, self.acked, self.retried, self.released)
        rest = (self.rejected, self.lapsed, self.expired, self.dead)
        return {"since_us": self.since_us, **dict(zip(COUNTED, counted + rest, strict=True))}
