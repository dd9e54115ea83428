"""Health: HEALTHY, DEGRADED or UNHEALTHY, with the reasons. The hub measures, this module judges.

The hub gives its measurements once a second, so health costs nothing for each message. A reason has a code, a sentence,
the value and the threshold that the value has passed. Each change of the word or of the reasons is an advisory.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fabric.router.groups.description import oldest
from fabric.router.shared import Shared

if TYPE_CHECKING:
    from fabric.router.groups.group import Group
    from fabric.router.turn import Turn

WINDOW_S: Final = 60.0  # refused publishes and internal errors count for this long
GROUPS_MAX: Final = 256  # groups whose oldest message is looked at in one examination; the others follow in the next
REASONS_MAX: Final = 64  # of one answer
REFUSED: Final = ("refused_disk_full", "refused_topic_full")  # counters of publishes that clients lose or must hold
ERRORS: Final = ("internal_errors",)


class Word(IntEnum):
    HEALTHY = 0
    DEGRADED = 1  # the hub works, and a person should look at it
    UNHEALTHY = 2  # the hub does not do its work, or will soon not do it


class Vitals(NamedTuple):
    """What the hub measures."""

    disk_free_bytes: int = 1 << 62
    disk_floor_bytes: int = 0  # publishes are refused when less is free
    commit_p99_s: float = 0.0  # of the latest commits
    loop_lag_s: float = 0.0  # the longest turn of the loop since the last measurement
    memory_bytes: int = 0
    memory_budget_bytes: int = 0
    refusing: str = ""  # why publishes are refused
    access_problem: str = ""  # why a file with rights does not count


class Thresholds(NamedTuple):
    """(degraded, unhealthy) for each value; 0: the value is not judged."""

    disk_floors: tuple[float, float] = (2.0, 1.0)  # free bytes, in multiples of the floor: publishes stop at one
    commit_s: tuple[float, float] = (0.5, 5.0)  # a longer commit is logged; clients give up waiting after ten seconds
    lag_s: tuple[float, float] = (0.5, 5.0)  # heartbeats are late by it; sessions end after some ten seconds
    refused: tuple[float, float] = (1, 0)  # a refused publish is not lost, the client is told
    memory: tuple[float, float] = (0.8, 1.0)  # of the budget, at which silent connections are cut
    errors: tuple[float, float] = (1, 10)  # in a minute; each one is a bug, and the hub restores itself
    oldest_s: tuple[float, float] = (0, 0)  # age of the oldest unsettled message of a group: only a user knows


class Reason(NamedTuple):
    word: Word
    code: str
    text: str
    value: float
    threshold: float
    group: str = ""

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = {"health": self.word.name, "code": self.code, "text": self.text}
        row |= {"value": self.value, "threshold": self.threshold}
        return {**row, "group": self.group} if self.group else row


def above(value: float, bounds: tuple[float, float]) -> tuple[Word, float]:
    """The judgement of a value that is worse when it is higher, and the threshold that it has reached."""
    for word, bound in ((Word.UNHEALTHY, bounds[1]), (Word.DEGRADED, bounds[0])):
        if bound and value >= bound:
            return word, bound
    return Word.HEALTHY, 0.0


def judge(
    vitals: Vitals, refused: int, errors: int, ages: Iterable[tuple[str, float]], limits: Thresholds
) -> list[Reason]:
    """The reasons why a hub is not healthy, the worst first. `ages` has groups with the ages of their oldest
    unsettled messages in seconds."""
    floor, found = vitals.disk_floor_bytes, list[Reason]()

    def note(code: str, text: str, value: float, bounds: tuple[float, float], group: str = "") -> None:
        word, bound = above(value, bounds)
        if word:
            found.append(Reason(word, code, text, value, bound, group))

    if vitals.refusing:
        found.append(Reason(Word.UNHEALTHY, "refusing", f"publishes are refused: {vitals.refusing}", 1, 1))
    for word, share in ((Word.UNHEALTHY, limits.disk_floors[1]), (Word.DEGRADED, limits.disk_floors[0])):
        if share and vitals.disk_free_bytes < share * floor:
            text = f"the disk has {vitals.disk_free_bytes:,} bytes free, and publishes stop at {floor:,}"
            found.append(Reason(word, "disk", text, vitals.disk_free_bytes, int(share * floor)))
            break
    if vitals.access_problem:
        found.append(Reason(Word.DEGRADED, "access", vitals.access_problem, 1, 1))
    commit, lag = vitals.commit_p99_s, vitals.loop_lag_s
    note("commit", f"one of a hundred commits takes {commit:.3f} s or longer", commit, limits.commit_s)
    note("lag", f"a turn of the hub's loop took {lag:.3f} s", lag, limits.lag_s)
    note("refused", f"{refused} publishes were refused in the last minute", refused, limits.refused)
    if budget := vitals.memory_budget_bytes:
        bounds = limits.memory[0] * budget, limits.memory[1] * budget
        text = f"the hub uses {vitals.memory_bytes:,} bytes of memory, and its budget is {budget:,}"
        note("memory", text, vitals.memory_bytes, bounds)
    note("errors", f"{errors} internal errors in the last minute; the log of the hub has them", errors, limits.errors)
    for group, age_s in ages:
        text = f"the oldest unsettled message of group {group} is {age_s:.0f} s old"
        note("oldest", text, round(age_s), limits.oldest_s, group)
    return sorted(found, key=lambda reason: -reason.word)


class Health:
    """The latest judgement."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.vitals = Vitals()
        self.word = Word.HEALTHY
        self.reasons: Sequence[Reason] = ()
        self._samples: deque[tuple[float, int, int]] = deque()  # (time, refused publishes, internal errors)
        self._known: dict[str, tuple[float, float]] = {}  # group -> (age of its oldest message, when it was measured)
        self._next_group = 0

    def examine(self, vitals: Vitals, limits: Thresholds, groups: "Sequence[Group]", now: float, turn: "Turn") -> None:
        """Judge anew. A change is an advisory."""
        refused, errors = self._counted(now)
        ages = self._ages(groups, now) if any(limits.oldest_s) else ()
        reasons = judge(vitals, refused, errors, ages, limits)[:REASONS_MAX]
        word = reasons[0].word if reasons else Word.HEALTHY
        before, self.vitals = [(one.word, one.code, one.group) for one in self.reasons], vitals
        self.word, self.reasons = word, reasons
        if before != [(one.word, one.code, one.group) for one in reasons]:
            turn.advise("$sys.health", health=word.name, reasons=[reason.row() for reason in reasons])

    def describe(self) -> dict[str, Any]:
        """The fields of INFO."""
        return {
            "health": self.word.name,
            "reasons": [reason.row() for reason in self.reasons],
            "measured": self.vitals._asdict(),
        }

    def _counted(self, now: float) -> tuple[int, int]:
        """Refused publishes and internal errors in the last minute."""
        counters, samples = self._shared.counters, self._samples
        refused, errors = sum(counters[name] for name in REFUSED), sum(counters[name] for name in ERRORS)
        if not samples:  # counters may be of the router that this one replaces
            samples.append((now, refused, errors))
        samples.append((now, refused, errors))
        while samples[1][0] < now - WINDOW_S:
            samples.popleft()
        return refused - samples[0][1], errors - samples[0][2]

    def _ages(self, groups: "Sequence[Group]", now: float) -> list[tuple[str, float]]:
        """Groups with the age of their oldest unsettled message; some groups are measured anew in each examination."""
        wall_us = self._shared.clock.wall_us(now)
        start = self._next_group if self._next_group < len(groups) else 0
        for group in groups[start : start + GROUPS_MAX]:
            oldest_us = oldest(group)
            self._known[group.name] = (max(wall_us - oldest_us, 1) / 1e6 if oldest_us else 0.0, now)
        self._next_group = start + GROUPS_MAX
        names = {group.name for group in groups if group.durable}
        self._known = {name: known for name, known in self._known.items() if name in names}
        return [(name, age_s + now - at) for name, (age_s, at) in self._known.items() if age_s]
