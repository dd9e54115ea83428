"""Measures the hub for its health: commits, turns of the loop, disk and memory.

A commit or a turn costs one call; the percentile is computed once a second, over the latest commits.
"""

from collections import deque
from typing import Final

from fabric.router.health import Vitals
from fabric.router.timers import NEVER

EVERY_S: Final = 1.0  # how often the hub's health is judged
COMMITS: Final = 512  # latest commits that the percentile is of: some seconds of a busy hub
COMMITS_S: Final = 60.0  # older commits do not count: one slow commit does not degrade an idle hub for hours
PERCENTILE: Final = 0.99


class VitalSigns:
    def __init__(self) -> None:
        self._commits: deque[tuple[float, float]] = deque(maxlen=COMMITS)  # (time, seconds)
        self._longest_turn_s = 0.0
        self._submitted_at = NEVER  # when the commit began that is under way; NEVER: none is
        self._due_at = 0.0

    def submitted(self, now: float) -> None:
        """A commit begins."""
        self._submitted_at = now

    def committed(self, seconds: float, now: float) -> None:
        self._commits.append((now, seconds))
        self._submitted_at = NEVER

    def restored(self) -> None:
        """The hub has restored itself: no commit is under way."""
        self._submitted_at = NEVER

    def turned(self, seconds: float) -> None:
        """A turn of the loop took so long, without its wait for frames."""
        if seconds > self._longest_turn_s:
            self._longest_turn_s = seconds

    def is_due(self, now: float) -> bool:
        return now >= self._due_at

    def take(self, now: float, space: tuple[int, int], memory_bytes: int) -> Vitals:
        """The measurements since the last call. A commit that is under way counts with the time that it took so far.
        `space` is the free bytes of the disk, and those below which publishes are refused."""
        self._due_at = now + EVERY_S
        recent = sorted(seconds for at, seconds in self._commits if at >= now - COMMITS_S)
        p99_s = recent[int((len(recent) - 1) * PERCENTILE)] if recent else 0.0
        lag_s, self._longest_turn_s = self._longest_turn_s, 0.0
        return Vitals(*space, max(p99_s, now - self._submitted_at), lag_s, memory_bytes)
