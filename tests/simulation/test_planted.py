"""The simulator must find bugs: each of these, planted in the router, has to be noticed within some hundred lives."""

import random
import traceback
from typing import Final

import pytest

from tests.simulation.counting_mutants import COUNTING
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Plan, draw
from tests.simulation.run import play
from tests.simulation.tenant_mutants import TENANCY
from tests.simulation.viewing_mutants import VIEWING

LIVES_MAX: Final = 1_500
BUGS: Final = MUTANTS | COUNTING | VIEWING | TENANCY


def breaks_a_promise(plan: Plan) -> bool:
    """Whether the observer notices, and not merely some assertion in the code that was mutilated."""
    try:
        play(plan)
    except AssertionError as error:
        return "tests/simulation" in traceback.extract_tb(error.__traceback__)[-1].filename
    except Exception:  # the mutilated router falls over
        return False
    return False


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = BUGS[bug]
    rng = random.Random(bug)
    for _ in range(LIVES_MAX):
        plan = draw(rng.getrandbits(48), bias=mutant.bias)
        with monkeypatch.context() as patch:
            patch.setattr(mutant.where, mutant.name, mutant.instead)
            found = breaks_a_promise(plan)
        if found:
            play(plan)  # the router as it is lives the same life without fault
            return
    pytest.fail(f"{LIVES_MAX} lives did not notice: {bug}")
