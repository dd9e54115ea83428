"""Thousands of simulated lives of a hub, in each of which every promise is kept after every step."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from fabric.router.groups.subscription import Subscription
from fabric_protocol.messages import Verdict
from tests.simulation.plan import Act, Bias, draw
from tests.simulation.run import chunk, explain, play, verdict_on
from tests.simulation.shrink import shrink

PARTS: Final = 20  # which xdist may run side by side
LIVES: Final = 250  # in each part
# `make simulate` draws new seeds; here they are always the same, unless told, so that a test is green or red for all.
FIRST: Final = int(os.environ.get("FABRIC_SEED") or 1_000_000)
ROOT: Final = Path(__file__).parents[2]
# What is drawn since some of these lives were found.
AS_BEFORE: Final = Bias(
    swarm={"sources": False, "watched": False, "tenants": False}, settings={"rate": 0, "rate_ms": 1000, "expires_ms": 0}
)
UNWATCHED: Final = Bias(swarm={"watched": False})
# Lives in which the router or the observer was wrong once, and of which few are drawn.
ONCE_WRONG: Final[dict[int, Bias]] = {
    7200003595: AS_BEFORE,  # a topic is full until what lies before a new group is removed
    966740523725: AS_BEFORE,  # consumers fall silent together
    982748572226: UNWATCHED,  # a schedule supersedes a message before its turn is closed
    985813189173: AS_BEFORE,  # a command fails when its session is about to count as silent
    720065352313: UNWATCHED,  # the last command of a turn is lost on its way, and a group waits from that turn on
    690242075971: Bias(),  # a delivery whose first messages retention has removed is sent again
    938419379654: UNWATCHED,  # more attempts are allowed, so a suspect is none any more
    # An id is over before a clock is set back.
    114443866664776: AS_BEFORE._replace(weights={Act.PUBLISH_LATER: 30, Act.CLOCK: 4}),
    # A crash takes back two schedules that were due together, of which one expires.
    34209222928595: Bias(
        weights={Act.PUBLISH_LATER: 20, Act.SLOW: 14, Act.FAULT: 8, Act.TRANSACT: 10, Act.TRIM: 4},
        swarm={"watched": False},
    ),
    7173: UNWATCHED,  # the position of a group falls
    90293: UNWATCHED,  # what is not for a group expires with a delivery of it
    # A schedule fires, and the one that has taken its name is cancelled in the same turn.
    215359771759137: AS_BEFORE._replace(weights={Act.PUBLISH_LATER: 60, Act.CANCEL: 40, Act.SLOW: 20, Act.VERDICT: 4}),
}
LOOKED_AT: Final = 1_000
# How often things happen in so many lives, at least: a third of what was counted when this was written.
OFTEN: Final = {
    **{f"act {act.name.lower()}": 10 for act in Act},
    **{f"verdict {verdict.name}": 50 for verdict in Verdict if verdict is not Verdict.TOUCH},
    "pulses": 300,
    "pulses that begin anew": 100,
    "pulses of which too little is known": 10,
    "rows that have ended": 20,
    "commits": 5_000,
    "commits failed": 50,
    "confirmed": 1_500,
    "crashes": 150,
    "faults": 100,
    "lies": 10,
    "deliveries": 4_000,
    "deliveries under a rate": 400,
    "blocks of sources": 150,
    "duplicates of sources": 20,
    "groups ended": 50,
    "redeliveries": 1_000,
    "lapsed": 1_000,
    "suspects": 150,
    "taken back": 200,
    "gaps": 80,
    "dead letters": 400,
    "expired to letters": 50,
    "redriven": 5,
    "stale verdicts": 200,
    "sent again": 10,
    "resumed": 100,
    "members lost": 500,
    "passed on": 10,
    "duplicates": 100,
    "fetches": 70,
    "reads": 100,
    "transactions": 70,
    "stale transactions": 15,
    "scheduled": 200,
    "fired": 150,
    "cancelled": 50,
    "scheduled by cron": 25,
    "fired by cron": 5,
    "deliveries by priority": 150,
    "stored until_acked": 100,
    "stored last_per_key": 50,
    "superseded": 10,
    "stored with a limit": 200,
    "duplicate ids": 100,
    "duplicate ids slide": 5,
    "duplicate ids until_ack": 5,
    "topics trimmed": 50,
    "full": 5,
    "group.pause": 20,
    "group.seek": 20,
    "group.delete": 30,
    "patterns changed": 15,
    "group.refresh": 50,
    "refreshes ended": 50,
    "refreshes started over": 25,
    "requests": 200,
    "requests passed on": 150,
    "replies": 30,
    "late replies": 20,
    "requests ended TIMED_OUT": 100,
    "requests ended NO_RESPONDERS": 4,
    "refused NO_RESPONDERS": 20,
    "refused TOPIC_FULL": 5,
    "refused PSEQ_TAKEN": 30,
    "refused STALE": 15,
    "refused GROUP_MISMATCH": 25,
    "refused NO_SESSION": 300,
    "refused SEQUENCE_GAP": 70,
    "refused FENCED": 100,
    "refused BAD_ORDINAL": 40,
    "refused BAD_OPTION": 40,
}


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept_after_every_step(part: int) -> None:
    report = chunk(range(FIRST + part * LIVES, FIRST + (part + 1) * LIVES))
    if report.failed is not None:
        pytest.fail(explain(report.failed), pytrace=False)


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_a_life_that_failed_once(seed: int) -> None:
    assert verdict_on(draw(seed, ONCE_WRONG[seed])) == ""


def test_everything_that_can_happen_happens_often() -> None:
    counts = Counter[str]()
    for seed in range(LOOKED_AT):
        counts.update(play(draw(seed)).counts)
    assert {name: counts[name] for name, least in OFTEN.items() if counts[name] < least} == {}


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
