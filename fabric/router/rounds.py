"""Which groups have something to do, and how much of it is done in one turn.

A runnable group is served soon. A group that has more to do than its share of a turn is served again behind all others,
so that replays of a long history do not delay live messages. The work of a turn is bounded, whatever consumers ask for;
groups that get no share of it are served in the next turn, in the same order.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fabric.router.groups.group import Group

# Work is measured in delivered bytes. Other work counts as the bytes that are delivered in the same time.
TURN_WORK: Final = 2 << 20  # some two milliseconds
AGAIN_WORK: Final = TURN_WORK // 4  # reserved for groups that are served again
GO_WORK_MIN: Final = 256 << 10  # for one group, however many groups there are
LEASE_WORK: Final = 32 << 10  # for each DELIVER, besides its bytes
TOPIC_WORK: Final = 1 << 10  # for each topic of a block but the first: the groups that match are looked up
GROUP_WORK: Final = 4 << 10
LETTER_WORK: Final = 8 << 10  # for each dead letter
SEARCH_WORK: Final = TURN_WORK  # for a search through the journal that has not ended


class Rounds:
    __slots__ = ("_again", "_soon", "_spent_again", "read_bytes", "spent", "until")

    def __init__(self) -> None:
        self._soon: dict[Group, None] = {}
        self._again: dict[Group, None] = {}
        self.spent = 0  # work of this turn
        self._spent_again = 0  # the part of `spent` for groups that are served again
        self.read_bytes = 0  # bytes of the answers to GETs in this turn
        self.until = 0  # the current group stops when `spent` reaches this

    def __bool__(self) -> bool:
        return bool(self._soon or self._again)

    def __contains__(self, group: "Group") -> bool:
        return group in self._soon or group in self._again

    def begin_turn(self) -> None:
        self.spent = self._spent_again = self.read_bytes = 0

    def mark_runnable(self, group: "Group") -> None:
        """Something has happened to a group, so it may have work to do."""
        if group not in self._again:
            self._soon[group] = None

    def again(self, group: "Group") -> None:
        """A group has more to do than its share."""
        self._soon.pop(group, None)
        self._again[group] = None

    def drop(self, group: "Group") -> None:
        self._soon.pop(group, None)
        self._again.pop(group, None)

    def clear(self) -> None:
        self._soon.clear()
        self._again.clear()

    @property
    def is_over(self) -> bool:
        """Whether the current group has to stop."""
        return self.spent >= self.until

    def __iter__(self) -> Iterator["Group"]:
        """The groups to serve now, each once."""
        soon, again = list(self._soon), list(self._again)
        self._soon, self._again = {}, {}
        share = max(TURN_WORK // (len(soon) + len(again) or 1), GO_WORK_MIN)
        for at, group in enumerate(soon):
            if self.spent >= TURN_WORK:
                self._soon = dict.fromkeys(soon[at:]) | self._soon
                break
            self.until = self.spent + share
            yield group
            self.spent += GROUP_WORK
        for at, group in enumerate(again):
            if self.spent >= TURN_WORK and self._spent_again >= AGAIN_WORK:
                self._again = dict.fromkeys(again[at:]) | self._again
                self._soon = {group: None for group in self._soon if group not in self._again}
                break
            spent = self.spent
            self.until = spent + share
            yield group
            self.spent += GROUP_WORK
            self._spent_again += self.spent - spent
