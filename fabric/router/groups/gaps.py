"""Gaps that no consumer of a group was told of: they are kept for the next consumer, a bounded number of them."""

from typing import Final

UNTOLD_MAX: Final = 64  # above this number, the gaps of a group become one gap

UntoldGap = tuple[int, int, str]  # first seq, last seq, why


def with_gap(untold: list[UntoldGap], gap: UntoldGap) -> list[UntoldGap]:
    """The kept gaps and one more."""
    if len(untold) < UNTOLD_MAX:
        return [*untold, gap]
    first, last, why = gap
    first, last = min(first, *(one[0] for one in untold)), max(last, *(one[1] for one in untold))
    return [(first, last, f"{why} (not every message between was)")]


def gaps_before(untold: list[UntoldGap], cursor: int) -> list[UntoldGap]:
    """The kept gaps before a cursor: the group comes to later gaps once more, and reports them then."""
    return [(first, min(last, cursor - 1), why) for first, last, why in untold if first < cursor]
