"""Rows of an ACK: verdicts on ranges of ordinals."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final

VERDICT_ROWS_MAX: Final = 4_096  # of one ACK or TXN: the hub refuses more
Row = tuple[int, int, int, Any]  # verdict, first ordinal, last ordinal, argument


def extend(rows: list[Row], verdict: int, ordinals: Iterable[int]) -> None:
    """Add ascending ordinals to rows of ranges."""
    first = last = -2
    for ordinal in ordinals:
        if ordinal != last + 1:
            if last > 0:
                extend_range(rows, verdict, first, last)
            first = ordinal
        last = ordinal
    if last > 0:
        extend_range(rows, verdict, first, last)


def extend_range(rows: list[Row], verdict: int, first: int, last: int, arg: Any = None) -> None:
    if rows and rows[-1][2] == first - 1 and rows[-1][0] == verdict and rows[-1][3] == arg:
        rows[-1] = (verdict, rows[-1][1], last, arg)
    else:
        rows.append((verdict, first, last, arg))


def drained(rows: "deque[Row]") -> list[Row]:
    """All rows of a queue, with adjacent ranges merged. Another thread may add to the queue meanwhile."""
    found: list[Row] = []
    while rows:
        extend_range(found, *rows.popleft())
    return found
