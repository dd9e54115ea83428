"""Topics and patterns: the grammar, the canonical spelling, and matches against a plain loop."""

import random
import sys
from collections.abc import Callable
from functools import partial
from itertools import combinations, islice, product
from typing import Final

import pytest

from fabric.router.patterns import trie as trie_module
from fabric.router.patterns.automaton import Automaton
from fabric.router.patterns.trie import Trie
from fabric_protocol.block import TOPIC_BYTES_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import WORDS_MAX, canonical, check_topic
from tests.router.plain_patterns import matches
from tests.seeds import seeded

WORDS = ("a", "b", "c")


@pytest.mark.parametrize(
    "topic", ["a", "orders.eu.created", "ö.ü", "A.a", "1.2", "$dlq.g", "a-b_c:d/e", ".".join(["w"] * WORDS_MAX), "a$"]
)
def test_topic_is_accepted(topic: str) -> None:
    check_topic(topic)
    assert canonical(topic) == topic


@pytest.mark.parametrize(
    "topic",
    [
        *("", ".", "a.", ".a", "a..b", "*", "a.*", "#", "a.#", ">", "a.>", "a*b", "a#", "a>b"),
        *("a b", "a\tb", "a\nb", "a\x00", "a\x7f", "a\x85b", "a b", "a\u2028b"),
        ".".join(["w"] * (WORDS_MAX + 1)),
        "x" * (TOPIC_BYTES_MAX + 1),
        "ö" * (TOPIC_BYTES_MAX // 2 + 1),
    ],
)
def test_topic_is_refused(topic: str) -> None:
    with pytest.raises(ProtocolError) as error:
        check_topic(topic)
    assert error.value.code == Code.BAD_TOPIC
    assert len(str(error.value)) < 300


def test_longest_topic_is_counted_in_bytes() -> None:
    check_topic("x" * TOPIC_BYTES_MAX)
    check_topic("ö" * (TOPIC_BYTES_MAX // 2))


@pytest.mark.parametrize("pattern", ["", "a..b", ".a", "a.", "a*", "a.b#", ">.a", "a.>.b", "a b", "a.\n", "**", "##"])
def test_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ProtocolError) as error:
        canonical(pattern)
    assert error.value.code == Code.BAD_PATTERN


@pytest.mark.parametrize(
    ("pattern", "stored"),
    [
        ("a.*.b", "a.*.b"),
        (">", "*.#"),
        ("a.>", "a.*.#"),
        ("#.#", "#"),
        ("#.*", "*.#"),
        ("*.#.*", "*.*.#"),
        ("a.#.*.#.b.#", "a.*.#.b.#"),
        ("#.>", "*.#"),
    ],
)
def test_equal_patterns_have_one_spelling(pattern: str, stored: str) -> None:
    assert canonical(pattern) == stored


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("*", "a", True),
        ("*", "a.b", False),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("#.c", "c", True),
        ("#.b.#", "a.b.c", True),
        ("*.b", "a.b", True),
        ("#", "$dlq.g", False),
        ("*.g", "$dlq.g", False),
        ("#.g", "$dlq.g", False),
        ("$dlq.*", "$dlq.g", True),
        ("$dlq.#", "$dlq.g.x", True),
        ("a.*", "a.$b", True),  # only a first word is the hub's own
    ],
)
def test_what_a_pattern_matches(pattern: str, topic: str, *, expected: bool) -> None:
    trie: Trie[str] = Trie()
    trie.add(canonical(pattern), "me")
    assert ("me" in trie.match(topic)) is expected
    assert matches(pattern, topic) is expected


def some_pattern(rng: random.Random) -> str:
    words = [rng.choice((*WORDS, "*", "#", "#", "$x")) for _ in range(rng.randint(1, 5))]
    if rng.random() < 0.2:
        words.append(">")
    return ".".join(words)


def some_topic(rng: random.Random) -> str:
    words = [rng.choice(WORDS) for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.2:
        words[0] = "$x"
    return ".".join(words)


def test_canonical_spelling_means_the_same() -> None:
    rng = seeded("canonical patterns")
    for _ in range(3000):
        pattern, topic = some_pattern(rng), some_topic(rng)
        stored = canonical(pattern)
        assert canonical(stored) == stored
        # A pattern such as `#.$x` begins with a wildcard in every spelling.
        assert matches(pattern, topic) == matches(stored, topic), (pattern, stored, topic)


def test_trie_answers_like_a_plain_loop_while_patterns_come_and_go() -> None:
    rng = seeded("trie")
    for _ in range(60):
        trie: Trie[int] = Trie()
        held: list[tuple[str, int]] = []
        for _ in range(60):
            if held and rng.random() < 0.4:
                trie.remove(*held.pop(rng.randrange(len(held))))
            else:
                entry = canonical(some_pattern(rng)), rng.randint(1, 6)
                if entry not in held:
                    held.append(entry)
                    trie.add(*entry)
            names = tuple(some_topic(rng) for _ in range(8))
            expected = [{owner for pattern, owner in held if matches(pattern, topic)} for topic in names]
            distinct = {frozenset(owners) for owners in trie.match_all(names)}  # while none of them is remembered
            assert distinct == {frozenset(owners) for owners in expected}, (held, names)
            assert [set(trie.match(topic)) for topic in names] == expected, (held, names)
        while held:
            trie.remove(*held.pop(rng.randrange(len(held))))
        assert (trie._owners, trie._automata, trie._places) == ({}, {}, {})


def test_an_owner_is_found_once_and_in_an_order_of_the_patterns() -> None:
    trie: Trie[str] = Trie()
    for owner in ("x", "y"):
        for pattern in ("a.*", "#", "a.#", "*.b"):
            trie.add(pattern, owner)
    assert list(trie.match("a.b")) == ["x", "y"]


def test_remembered_topics_are_bounded_and_answers_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trie_module, "CACHE_MAX", 8)
    trie: Trie[int] = Trie()
    for i in range(5):
        trie.add(f"t{i}.#", i)
    for i in range(100):
        assert list(trie.match(f"t{i % 20}.x{i}")) == ([i % 20] if i % 20 < 5 else [])
        assert len(trie._cache) <= 8
        assert len(trie._shared) <= 8


def calls_of(action: Callable[[], object]) -> int:
    """How many functions were called for it: a measure of work that does not depend on the machine."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


LETTERS: Final = "abcdefghijklmno"
MANY: Final = {
    "hashes around one word many times": [".".join(["#", "a"] * (WORDS_MAX // 2))],
    "hashes between some of the words": ["#." + ".#.".join(some) + ".#" for some in combinations(LETTERS, 6)][:2000],
    "stars in place of some words": [".".join(some) + ".#" for some in islice(product("a*", repeat=15), 2000)],
}


@pytest.mark.parametrize("patterns", MANY.values(), ids=MANY)
def test_no_choice_of_patterns_makes_a_topic_cost_much(patterns: list[str]) -> None:
    """The number of ways to match must not matter, or a subscription and a block of many topics hold up the hub."""
    trie: Trie[int] = Trie()
    for pattern in patterns:
        trie.add(canonical(pattern), 1)
    for words in ("a" * 15, LETTERS):
        topic = ".".join(words)
        trie.match(topic)
        assert calls_of(partial(trie.match, topic + ".z")) < 20 * WORDS_MAX


def test_patterns_that_come_and_go_leave_no_waste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trie_module, "SIZE_MAX", 64)
    trie: Trie[int] = Trie()
    trie.add("a.*.stays", 0)
    for i in range(1, 1000):
        trie.add(f"a.*.w{i}", i)
        if i > 10:
            trie.remove(f"a.*.w{i - 10}", i - 10)
        assert list(trie.match(f"a.b.w{i}")) == [i]
        assert list(trie.match("a.b.stays")) == [0]
        assert sum(automaton.size for automaton in trie._automata["a"]) < 4 * 64


def test_the_words_that_topics_of_a_block_have_in_common_are_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trie, followed = Trie[str](), list[str]()
    for pattern in ("#", "a.*.c", "a.b.#", "x.#"):
        trie.add(pattern, pattern)
    names = (*(f"a.b.{n}" for n in range(100)), "a.b.c")
    expected = {frozenset(trie.match(topic)) for topic in names}
    trie.add("forget", "what was matched")
    follow = Automaton.follow

    def counted(automaton: Automaton, places: int, word: str) -> int:
        followed.append(word)
        return follow(automaton, places, word)

    monkeypatch.setattr(Automaton, "follow", counted)
    assert {frozenset(owners) for owners in trie.match_all(names)} == expected
    assert followed.count("a") == followed.count("b") == 2, "once for each automaton that can match"
