"""Runs: ascending whole numbers as (start, stop) pairs."""

from collections.abc import Iterable, Sequence

Runs = list[tuple[int, int]]


def runs_of(numbers: Iterable[int]) -> Runs:
    """Ascending numbers, none below zero, as runs."""
    runs: Runs = []
    start = stop = -1
    for number in numbers:
        if number != stop:
            if stop >= 0:
                runs.append((start, stop))
            start = number
        stop = number + 1
    if stop >= 0:
        runs.append((start, stop))
    return runs


def split(runs: Sequence[tuple[int, int]], count: int) -> tuple[Runs, Runs]:
    """The first `count` numbers of the runs, and the rest."""
    taken: Runs = []
    for i, (a, b) in enumerate(runs):
        if b - a > count:
            if count:
                taken.append((a, a + count))
            return taken, [(a + count, b), *runs[i + 1 :]]
        taken.append((a, b))
        count -= b - a
    return taken, []
