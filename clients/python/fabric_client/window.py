"""Credit: how much the hub may send ahead, as cumulative limits, so that a repeated or lost CREDIT does no harm."""

from typing import Final

# Not below the largest block, so that bytes alone can never stall a subscription.
PREFETCH_BYTES: Final = 16 << 20


class Window:
    """The credit of one generation of a subscription. What is settled, or is not ours any more, makes room."""

    __slots__ = (
        "_count_max", "_fetching", "arrived_bytes", "bytes_max", "ordinal_max", "prefetch", "settled", "settled_bytes",
    )  # fmt: skip

    def __init__(self, prefetch: int, count_max: int | None, fetching: bool) -> None:
        self.prefetch = prefetch
        self._count_max = count_max
        self._fetching = fetching  # credit is given by FETCH, not by us
        self.settled = 0  # messages
        self.settled_bytes = 0
        self.arrived_bytes = 0
        self.ordinal_max = self._target()
        self.bytes_max = 0 if fetching else PREFETCH_BYTES

    def renewed(self) -> "Window":
        """The window of the next generation, which counts from zero again."""
        left = None if self._count_max is None else self._count_max - self.settled
        return Window(self.prefetch, left, self._fetching)

    def lost(self, count: int) -> None:
        """So many deliveries are not ours any more: they make room, and do not count as messages that were had."""
        self.settled += count
        if self._count_max is not None:
            self._count_max += count

    def _target(self) -> int:
        if self._fetching:
            return 0
        target = self.settled + self.prefetch
        return target if self._count_max is None else min(target, self._count_max)

    def used(self, last_ordinal: int) -> bool:
        """Whether half of the credit, in messages or in bytes, has been used by deliveries up to this one."""
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
        """Raise the limits when half the window is free. True when the hub should hear of it."""
        if not self.can_rise:
            return False
        self.ordinal_max, self.bytes_max = self._target(), self.settled_bytes + PREFETCH_BYTES
        return True
