"""The observer's knowledge of groups that end by themselves when they had no consumer for a while."""

from math import inf
from typing import Final

from tests.simulation.administration import Administration
from tests.simulation.disk import Disk
from tests.simulation.ledgers import GroupBook

LATE_S: Final = 3.0  # by so much a group may end later: a session whose time is over ends with the next sweep
ROUNDING_S: Final = 1e-5  # times are floating point here, and whole microseconds in the hub


class Ending(Administration):
    watches = False  # whether there are such groups

    def joined(self, group: GroupBook) -> None:
        super().joined(group)
        group.begin_wait(inf, self.turn)

    def updated(self, code: int) -> None:
        update = self._update
        before = update[0].settings.expires_ms if update is not None else 0
        super().updated(code)
        if update is not None and update[0].settings.expires_ms != before:
            update[0].begin_wait(inf, self.turn)

    def look_at_ended(self, names: list[str], now: float) -> None:
        """The hub has looked at the clock, and these groups are gone."""
        for group in self.groups.values():
            if group.subs or not group.settings.expires_ms:
                group.idle_from = group.idle_to = inf
            elif group.idle_to == inf:
                group.begin_wait(now, self.turn)
        for name in names:
            self._group_ended(self.groups[name], now)
        for group in self.groups.values() if not self.clock_was_set else ():
            ends = group.idle_to + group.settings.expires_ms / 1000
            assert now <= ends + LATE_S, f"G2: {group.name} had no consumer since {group.idle_to}, and does not end"

    def _group_ended(self, group: GroupBook, now: float) -> None:
        assert group.durable, "G1: a group ends that nobody can join"
        assert group.settings.expires_ms, f"G1: {group.name} ends, and it was to stay"
        assert not group.subs, f"G1: {group.name} ends although a consumer is there"
        ends = group.idle_from + group.settings.expires_ms / 1000
        assert now >= ends - ROUNDING_S or self.clock_was_set, f"G1: {group.name} ends at {now}, before {ends}"
        self.counts["groups ended"] += 1
        self.remove(group)

    def crashed(self, disk: Disk, *, clean: bool) -> None:
        """What a group's row says of its wait goes on; a group that had a consumer waits from now on."""
        super().crashed(disk, clean=clean)
        for group in self.groups.values():
            if group.wait_turn >= self.landed_turns:  # its row may say what was before
                group.idle_from, group.idle_to = -inf, inf
