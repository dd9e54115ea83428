"""The table in fabric/router/groups/lifecycle.py agrees with the groups: random commands show each of its transitions,
and no other."""

import random
from collections.abc import Set
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from docs import lifecycle
from fabric.router.groups.lifecycle import FIRST, STATES, TRANSITIONS, Event, State, Transition
from tests.router.state_observer import Change, Observer
from tests.router.talk import Talk
from tests.seeds import seeded

SEEDS: Final = range(30)
STEPS: Final = 300
pytestmark = pytest.mark.xdist_group("lifecycle")  # its talk is made once

Table = dict[tuple[State, Event], Transition]


def talk(chance: random.Random) -> set[Change]:
    observer = Observer()
    with pytest.MonkeyPatch.context() as patch:
        observer.install(patch)
        world = Talk(chance, observer)
        for _ in range(STEPS):
            world.act()
    return observer.seen


@cache
def seen() -> frozenset[Change]:
    """All changes in the talk of the fixed seeds."""
    return frozenset(change for seed in SEEDS for change in talk(random.Random(seed)))


def changes(table: Table) -> set[Change]:
    return {(state, event, to) for (state, event), transition in table.items() for to in transition.to}


def faults(table: Table, happened: Set[Change]) -> list[str]:
    """What is not in the table, and what never happens."""
    wrong = [f"not in the table: {', '.join(change)}" for change in sorted(happened - changes(table))]
    return wrong + [f"never happens: {', '.join(change)}" for change in sorted(changes(table) - happened)]


def test_the_table_is_what_groups_do() -> None:
    assert faults(TRANSITIONS, seen()) == []


def test_talk_with_a_new_seed_keeps_to_the_table() -> None:
    assert talk(seeded("lifecycle")) <= changes(TRANSITIONS)


@pytest.mark.parametrize("key", TRANSITIONS, ids=" ".join)
def test_a_state_that_is_missing_or_added_is_noticed(key: tuple[State, Event]) -> None:
    before = TRANSITIONS[key]
    for state in State:
        is_missing = state in before.to
        to = tuple(one for one in before.to if one is not state) if is_missing else (*before.to, state)
        fault = "not in the table" if is_missing else "never happens"
        planted = {**TRANSITIONS, key: before._replace(to=to)}
        assert faults(planted, seen()) == [f"{fault}: {', '.join((*key, state))}"]


def test_a_row_that_is_missing_or_added_is_noticed() -> None:
    key = (State.LEASED, Event.ACK)
    assert faults({k: row for k, row in TRANSITIONS.items() if k != key}, seen())
    assert faults({**TRANSITIONS, (State.DEAD, Event.ACK): TRANSITIONS[key]}, seen())


def test_the_table_has_all_states_and_events() -> None:
    assert list(STATES) == list(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {FIRST} | {to for _, _, to in changes(TRANSITIONS)} == set(State)


@pytest.mark.parametrize("page", lifecycle.PAGES, ids=lambda page: page.name)
def test_the_documents_are_fresh(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert lifecycle.renewed(text) == text, "run python docs/lifecycle.py"
    assert "picture" in lifecycle.SLOT.findall(text)


def test_every_part_is_in_the_protocol() -> None:
    assert sorted(lifecycle.SLOT.findall(lifecycle.PAGES[0].read_text(encoding="utf-8"))) == sorted(lifecycle.PARTS)
