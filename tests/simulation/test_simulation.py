"""Thousands of simulated lives of a hub, in each of which every promise is kept after every step."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from fabric.messages import Verdict
from fabric.router.members import Subscription
from tests.simulation.plan import Act, draw
from tests.simulation.run import chunk, explain, play, verdict_on
from tests.simulation.shrink import shrink

PARTS: Final = 20  # which xdist may run side by side
LIVES: Final = 250  # in each part
# `make simulate` draws new seeds; here they are always the same, unless told, so that a test is green or red for all.
FIRST: Final = int(os.environ.get("FABRIC_SEED") or 1_000_000)
ROOT: Final = Path(__file__).parents[2]
MUST_OCCUR: Final = (
    *(f"act {act.name.lower()}" for act in Act),
    *(f"verdict {verdict.name}" for verdict in Verdict if verdict is not Verdict.TOUCH),
    *(
        "commits",
        "commits failed",
        "confirmed",
        "crashes",
        "dead letters",
        "deliveries",
        "duplicates",
        "fetches",
        "gaps",
    ),
    *("lapsed", "members lost", "redeliveries", "resumed", "sent again", "stale verdicts", "suspects", "taken back"),
    *("duplicate ids", "transactions", "stale transactions", "refused STALE", "refused GROUP_MISMATCH"),
    *(
        "scheduled",
        "fired",
        "cancelled",
        "expired to letters",
        "topics trimmed",
        "redriven",
        "group.pause",
        "group.seek",
        "group.delete",
    ),
    *("reads", "refreshes ended", "refreshes started over"),
    *("faults", "full", "lies", "passed on", "refused TOPIC_FULL", "refused PSEQ_TAKEN"),
    *("refused NO_SESSION", "refused SEQUENCE_GAP", "refused FENCED", "refused BAD_ORDINAL", "refused BAD_OPTION"),
)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept_after_every_step(part: int) -> None:
    report = chunk(range(FIRST + part * LIVES, FIRST + (part + 1) * LIVES))
    if report.failed is not None:
        pytest.fail(explain(report.failed), pytrace=False)


def test_everything_that_can_happen_does_happen() -> None:
    counts = Counter[str]()
    for seed in range(500):
        counts.update(play(draw(seed)).counts)
    assert [name for name in MUST_OCCUR if not counts[name]] == []


PRINT_TRACES: Final = """
import zlib
from tests.simulation.plan import draw
from tests.simulation.run import play
for seed in range(40):
    trace = []
    play(draw(seed), trace)
    print(seed, len(trace), zlib.crc32("\\n".join(trace).encode()))
"""


def test_one_seed_is_one_life() -> None:
    """In any process, whatever it has done before and whatever its hashes are."""
    seen = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", PRINT_TRACES], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
        )
        seen.add(done.stdout)
    assert len(seen) == 1
    assert len(seen.pop().splitlines()) == 40


def test_a_failing_life_is_made_short(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Subscription.room
    monkeypatch.setattr(Subscription, "room", lambda self: room(self) + 1)
    seed = next(seed for seed in range(100) if verdict_on(draw(seed)))
    plan = draw(seed)
    short = shrink(plan, verdict_on)
    assert verdict_on(short) == verdict_on(plan)
    assert len(short.acts) < 15
    assert f"seed {seed}" in explain(seed)
