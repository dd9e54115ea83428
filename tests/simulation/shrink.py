"""Delta debugging: make a failing life short, so that a person can read it.

Acts are data, and any of them can be left out. First big chunks go, then smaller ones, then single acts, as long as the
life still fails in the same way.
"""

from collections.abc import Callable

from tests.simulation.plan import Plan

TRIES_MAX = 3_000


def shrink(plan: Plan, fails: Callable[[Plan], str]) -> Plan:
    """The shortest life that could be found and fails as the given one; `fails` says how a life fails, or nothing."""
    why = fails(plan)
    assert why, "this life does not fail"
    acts, tries = plan.acts, 0
    size = max(len(acts) // 2, 1)
    while True:
        at, removed = 0, False
        while at < len(acts) and tries < TRIES_MAX:
            shorter = acts[:at] + acts[at + size :]
            tries += 1
            if fails(plan._replace(acts=shorter)) == why:
                acts, removed = shorter, True
            else:
                at += size
        if size == 1 and (not removed or tries >= TRIES_MAX):
            return plan._replace(acts=acts)
        size = max(size // 2, 1)
