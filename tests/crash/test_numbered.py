"""A numbered source and its hub are killed with -9: each position is stored once. Without numbers, some are not."""

from itertools import pairwise
from pathlib import Path

import pytest

from tests.crash.numbered import index_of, position, run
from tests.seeds import seeded

KILLS = 14  # the long run is `python -m tests.crash.numbered`


def test_positions_and_their_index_agree() -> None:
    positions = [position(k) for k in range(1, 2000)]
    assert positions == sorted(set(positions))
    assert {b - a for a, b in pairwise(positions)} > {7}, "they jump"
    for k, at in enumerate(positions, 1):
        assert index_of(at) == index_of(at + 1) == k
    assert index_of(0) == 0


def test_each_position_is_stored_once_when_source_and_hub_are_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path, KILLS, seeded("numbered").getrandbits(32))
    print(outcome)
    assert outcome.is_good, outcome


def test_a_source_without_numbers_stores_some_positions_twice(tmp_path: Path) -> None:
    rng = seeded("without numbers")
    for attempt in range(6):
        outcome = run(tmp_path / str(attempt), KILLS, rng.getrandbits(32), control=True)
        print(outcome)
        if outcome.twice:
            return
    pytest.fail("a source without numbers was never caught with a position that is stored twice")
