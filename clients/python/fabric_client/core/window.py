"""Credit: how much the hub may send ahead, as cumulative limits, so that a repeated or lost CREDIT does no harm.

Without a `prefetch` of the program the window follows the pace of the consumer: it holds about a tenth of a second of
work. So messages for slow handlers stay in the hub for other consumers, and fast consumers keep the line full: the
window reaches its full size a few round trips after the first message.
"""

from typing import Final

# Not below the largest block, so that bytes alone can never stall a subscription.
PREFETCH_BYTES: Final = 16 << 20
WORK_AHEAD_S: Final = 0.1  # of work that the window holds
GROWTH_MAX: Final = 4  # times, from one measurement to the next


class Window:
    """The credit of one generation of a subscription. A message that is settled, or that the hub took back, makes
    room."""

    __slots__ = (
        "_busy_s", "_busy_since", "_count_max", "_fetching", "_least", "_measured", "_most", "arrived_bytes",
        "bytes_max", "ordinal_max", "prefetch", "settled", "settled_bytes",
    )  # fmt: skip

    def __init__(self, prefetch: int, count_max: int | None, fetching: bool, least: int | None = None) -> None:
        """With `least` the window is between that and `prefetch`, otherwise it is `prefetch`."""
        self._least, self._most = prefetch if least is None else least, prefetch
        self.prefetch = self._least  # messages
        self._busy_since: float | None = None  # since when the consumer has messages; None: it has none
        self._busy_s = 0.0  # since the last measurement
        self._measured = 0  # `settled` at the last measurement
        self._count_max = count_max
        self._fetching = fetching  # FETCH gives the credit
        self.settled = 0  # messages
        self.settled_bytes = 0
        self.arrived_bytes = 0
        self.ordinal_max = self._target()
        self.bytes_max = 0 if fetching else PREFETCH_BYTES

    def renewed(self) -> "Window":
        """The window of the next generation, which counts from zero again."""
        left = None if self._count_max is None else self._count_max - self.settled
        return Window(self._most, left, self._fetching, self._least)

    def lost(self, count: int) -> None:
        """This consumer no longer holds `count` deliveries: they make room, and do not count for `count_max`."""
        self.settled += count
        if self._count_max is not None:
            self._count_max += count

    def began(self, now: float) -> None:
        """The first message arrives at a consumer that had none."""
        self._busy_since = now

    def measure(self, now: float, idle: bool) -> None:
        """Follow the pace of the consumer, once it has settled half a window."""
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
            self._busy_since = None if idle else now
        count = self.settled - self._measured
        if self._least < self._most and count >= max(1, self.prefetch // 2):
            size = 1 << (int(count * WORK_AHEAD_S / max(self._busy_s, 1e-6)) - 1).bit_length()  # blocks have such sizes
            size = min(max(size, self.prefetch // 2), self.prefetch * GROWTH_MAX)
            self.prefetch = min(max(size, self._least), self._most)
            self._measured, self._busy_s = self.settled, 0.0

    def _target(self) -> int:
        if self._fetching:
            return 0
        target = self.settled + self.prefetch
        return target if self._count_max is None else min(target, self._count_max)

    def used(self, last_ordinal: int) -> bool:
        """Whether deliveries up to this ordinal have used half of the credit, in messages or in bytes."""
        return not self._fetching and (
            self.ordinal_max - last_ordinal <= self.prefetch // 2
            or self.bytes_max - self.arrived_bytes <= PREFETCH_BYTES // 2
        )

    @property
    def can_rise(self) -> bool:
        """Whether half the window, in messages or in bytes, is free again."""
        if self._fetching:
            return False
        target = self._target()
        return (
            target - self.ordinal_max >= max(1, self.prefetch // 2)
            or (target == self._count_max and target > self.ordinal_max)
            or self.settled_bytes + PREFETCH_BYTES - self.bytes_max >= PREFETCH_BYTES // 2
        )

    def rise(self) -> bool:
        """Raise the limits if half the window is free. True if a CREDIT must be sent."""
        if not self.can_rise:
            return False
        self.ordinal_max, self.bytes_max = self._target(), self.settled_bytes + PREFETCH_BYTES
        return True
