"""Ranges of integers against a plain set."""

from collections.abc import Iterable
from itertools import pairwise

from fabric.router.ranges import Ranges
from tests.seeds import seeded


def as_set(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}


def test_neighbours_become_one_range() -> None:
    assert list(Ranges([(1, 2), (5, 6), (3, 4)])) == [(1, 6)]


def test_taking_from_the_middle_leaves_both_ends() -> None:
    ranges = Ranges([(1, 9)])
    assert ranges.remove(4, 6) == [(4, 6)]
    assert list(ranges) == [(1, 3), (7, 9)]


def test_only_what_is_there_is_taken() -> None:
    ranges = Ranges([(1, 3), (7, 9)])
    assert ranges.remove(3, 7) == [(3, 3), (7, 7)]
    assert ranges.remove(3, 7) == []
    assert ranges.remove(20, 30) == []
    assert list(ranges) == [(1, 2), (8, 9)]


def test_an_empty_one_is_false() -> None:
    ranges = Ranges([(5, 5)])
    assert ranges
    assert ranges.first == 5
    ranges.remove(5, 5)
    assert not ranges
    assert ranges.size() == len(ranges) == 0


def test_against_a_set_of_integers() -> None:
    rng = seeded("ranges")
    for _ in range(150):
        ranges, plain = Ranges(), set[int]()
        reach = rng.choice((10, 40, 200))
        for _ in range(60):
            first = rng.randint(1, reach)
            last = first + rng.randint(0, rng.choice((0, 3, reach // 2)))
            if rng.random() < 0.5:
                ranges.add(first, last)
                plain |= set(range(first, last + 1))
            else:
                taken = ranges.remove(first, last)
                assert as_set(taken) == plain & set(range(first, last + 1))
                assert all(a <= b for a, b in taken)
                assert all(b < c for (_, b), (c, _) in pairwise(taken))
                plain -= set(range(first, last + 1))
            rows = list(ranges)
            assert as_set(rows) == plain
            assert all(a <= b for a, b in rows)
            assert all(b + 1 < c for (_, b), (c, _) in pairwise(rows)), "ascending, disjoint, not adjacent"
            assert (bool(ranges), len(ranges), ranges.size()) == (bool(plain), len(rows), len(plain))
            if plain:
                assert ranges.first == min(plain)
