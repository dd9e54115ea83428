"""Hub, producers and consumers are killed with -9 again and again, and every promise is checked afterwards."""

from pathlib import Path

import pytest

from tests.crash.run import run
from tests.seeds import seeded

SECONDS = 18.0


def test_nothing_confirmed_is_lost_when_hub_and_clients_are_killed(tmp_path: Path) -> None:
    outcome = run(tmp_path / "run", SECONDS, seeded("crash").getrandbits(32))
    print(outcome)
    assert outcome.violations == []
    assert outcome.deaths["hub"] >= 3, "the machine is too slow to say anything"
    assert outcome.totals.confirmed > 0
    assert outcome.totals.redelivered > 0


def test_hub_that_confirms_too_soon_is_found_out(tmp_path: Path) -> None:
    """Without this, a test that finds nothing says nothing."""
    rng = seeded("bad hub")
    for attempt in range(6):
        outcome = run(tmp_path / str(attempt), 5.0, rng.getrandbits(32), hub=("-m", "tests.crash.bad_hub"))
        print(outcome)
        if outcome.violations:
            break
    else:
        pytest.fail("a hub that confirms before the commit was not noticed")
    assert {v.kind for v in outcome.violations} & {"lost", "forgotten", "two seqs", "settled twice", "again"}
