"""Inclusion of patterns, compared with all topics over a small alphabet; and its cost for bad patterns."""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from fabric.router.access import inclusion
from fabric.router.access.inclusion import SETS_MAX, Meeting, includes, shortest
from fabric_protocol.names import WORDS_MAX, canonical
from tests.router.plain_patterns import matches
from tests.seeds import seeded

DEPTH = 5
TOPICS = [".".join(words) for n in range(1, DEPTH + 1) for words in product(["a", "b", "c", "$s"], repeat=n)]


@pytest.fixture
def short_topics(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Topics have at most DEPTH words, so that TOPICS has all of them, with `c` for all words that no pattern names."""
    monkeypatch.setattr(inclusion, "WORDS_MAX", DEPTH)
    includes.cache_clear()
    yield
    includes.cache_clear()


def meets(one: str, other: str) -> bool:
    return Meeting([one])(other)


def topics_of(pattern: str) -> int:
    return sum(1 << at for at, topic in enumerate(TOPICS) if matches(pattern, topic))


def compare(patterns: list[str]) -> None:
    found = {pattern: topics_of(pattern) for pattern in patterns}
    for one in patterns:
        for other in patterns:
            assert includes(one, other) == (found[one] & found[other] == found[other]), (one, other)
            assert meets(one, other) == bool(found[one] & found[other]), (one, other)


@pytest.mark.usefixtures("short_topics")
def test_all_short_patterns_agree_with_all_topics() -> None:
    words = ["a", "b", "*", "#", "$s"]
    compare(sorted({canonical(".".join(p)) for n in (1, 2, 3) for p in product(words, repeat=n)}))


@pytest.mark.usefixtures("short_topics")
def test_long_patterns_agree_with_all_topics() -> None:
    chance = seeded("long patterns")
    words = ["a", "a", "b", "*", "*", "#", "#", "$s"]
    compare(sorted({canonical(".".join(chance.choices(words, k=chance.randrange(3, DEPTH + 1)))) for _ in range(140)}))


@pytest.mark.parametrize(
    ("allowed", "asked", "expected"),
    [
        ("orders.*", "orders.>", False),
        ("orders.>", "orders.*", True),
        ("a.#", "#", False),
        ("#", "a.#", True),
        ("a.x", "*.x", False),
        ("a.#", "a", True),
        ("a.>", "a", False),
        ("#", "$sys.#", False),
        ("$sys.#", "$sys.health", True),
        ("$sys.#", "#", False),
        ("#.$s", "$s", False),
        ("$s", "#.$s", False),
        ("*.#", "#", True),  # a topic has a word
        ("#", "*.#", True),
    ],
)
def test_inclusion_by_example(allowed: str, asked: str, expected: bool) -> None:
    assert includes(canonical(allowed), canonical(asked)) is expected


def test_a_topic_has_no_more_words_than_topics_can_have() -> None:
    long = ".".join(["a"] * (WORDS_MAX - 1))
    assert includes(f"{long}.*", canonical(f"{long}.>"))
    assert not includes(long, canonical(f"{long}.>"))
    assert not meets(canonical(f"{long}.>"), canonical(f"{long[2:]}.b.#"))
    assert meets(canonical(f"{long}.>"), canonical(f"{long}.b"))


def bad_patterns(chance: random.Random) -> Iterator[str]:
    for k in range(WORDS_MAX):
        yield ".".join(["#", *["a"] * bool(k), *["*"] * (WORDS_MAX - 2 - k), *["#", "a"] * (k // 2)][:WORDS_MAX])
    for words in (["#", "a"], ["#", "*", "a"], ["a", "#", "*"], ["#", "a", "#", "b"]):
        yield ".".join((words * WORDS_MAX)[:WORDS_MAX])
    for _ in range(20):
        yield ".".join(chance.choices(["a", "b", "*", "#", "#"], k=WORDS_MAX))


def test_no_pattern_needs_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns = [canonical(pattern) for pattern in bad_patterns(seeded("bad patterns"))]
    steps, sizes = [0], [0]
    follow, step = inclusion._Places.follow, inclusion._step

    def counted(places: Any, *given: Any) -> int:
        steps[-1] += 1
        return follow(places, *given)

    def sized(*given: Any, **named: Any) -> Any:
        sets = step(*given, **named)
        sizes.append(sum(map(len, sets)))
        return sets

    monkeypatch.setattr(inclusion._Places, "follow", counted)
    monkeypatch.setattr(inclusion, "_step", sized)
    for one in patterns:
        for other in patterns:
            includes.cache_clear()
            steps.append(0)
            includes(one, other)
    assert max(sizes) > SETS_MAX, "the bound was needed"
    assert max(steps) <= 2 * SETS_MAX * WORDS_MAX


def test_many_patterns_are_met_at_once_as_one_by_one() -> None:
    chance = seeded("many patterns")
    patterns = [
        canonical(".".join(chance.choices(["a", "b", "*", "#", "$s"], k=chance.randint(1, 6)))) for _ in range(60)
    ]
    for _ in range(200):
        some, asked = chance.sample(patterns, 5), chance.choice(patterns)
        assert Meeting(some)(asked) == any(meets(one, asked) for one in some), (some, asked)


def test_an_allowed_pattern_matches_the_shortest_topic_of_what_it_includes() -> None:
    chance = seeded("shortest topics")
    patterns = [canonical(".".join(chance.choices(["a", "*", "#"], k=chance.randint(1, 5)))) for _ in range(80)]
    for one in patterns:
        for other in patterns:
            assert not includes(one, other) or matches(one, shortest(other)), (one, other)
