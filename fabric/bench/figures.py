"""A measured figure: its value and unit, its durability, its runs, and how much other programs disturbed them."""

import statistics
from typing import Any, Final, NamedTuple

JOURNALED: Final = "journaled: every publish confirmed after its fsync"
RECEIVED: Final = "received: confirmed on receipt, before the fsync (unsafe)"
MIB: Final = 1 << 20
NO_JOURNAL: Final = "no journal"
NO_HUB: Final = "LMDB alone, every commit synced"


class Figure(NamedTuple):
    """`value` is the median of `runs`."""

    part: str
    what: str
    value: float
    unit: str
    durability: str
    runs: tuple[float, ...] = ()
    note: str = ""
    foreign: float = 0.0  # largest share of the CPU that other programs used during a run

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "runs": list(self.runs)}


def median_figure(
    part: str, what: str, unit: str, durability: str, runs: list[float], *, note: str = "", foreign: float = 0.0
) -> Figure:
    return Figure(part, what, statistics.median(runs), unit, durability, tuple(runs), note, foreign)


def percentile(ascending: list[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(len(ascending) * share))]
