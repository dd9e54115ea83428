"""IdleGroups: groups with the setting `expires_ms` that have no consumer, and when each of them ends.

The wait begins when the last consumer leaves, when a group is created without a consumer, and when `expires_ms` is
changed. The group's row has the time at which the wait began, so a restart does not begin it anew; the time in which
the hub was down counts too. A group that had a consumer when the hub ended waits from the start of the hub.
"""

from collections.abc import Callable

from fabric.router.groups.group import Group
from fabric.router.groups.rows import GroupRows
from fabric.router.part import Part
from fabric.router.shared import Shared
from fabric.router.timers import NEVER, Timers
from fabric.router.turn import Turn


class IdleGroups(Part):
    def __init__(self, shared: Shared, group_rows: GroupRows, expire: Callable[[Group, Turn], None]) -> None:
        self._shared = shared
        self._group_rows = group_rows
        self._expire = expire  # deletes a group
        self._ends: dict[Group, float] = {}
        self._timers: Timers[Group] = Timers(lambda group: group in self._ends)

    def note(self, group: Group, *, anew: bool = False) -> None:
        """A consumer has joined or left, or the group is new; `anew`: `expires_ms` was changed, and the wait begins
        now."""
        clock, expires_ms = self._shared.clock, group.settings.expires_ms
        if group.members or not expires_ms or not group.durable:
            self._ends.pop(group, None)
            group.idle_us = 0
            return
        if anew or not group.idle_us:
            group.idle_us = clock.wall_us(clock.now)
            group.dirty = True
            self._group_rows.note(group)
        began_us = min(group.idle_us, clock.wall_us(clock.now))  # the clock may have been set back
        self._ends[group] = ends = clock.when(began_us + expires_ms * 1000)
        self._timers.set(ends, group)

    def forget(self, group: Group) -> None:
        """A group is deleted."""
        self._ends.pop(group, None)

    def tick(self, now: float, turn: Turn) -> None:
        while (group := self._timers.pop_due(now)) is not None:
            if self._ends.get(group, NEVER) <= now and not self._shared.draining:
                self._expire(group, turn)

    def next_deadline(self) -> float:
        return self._timers.next()
