"""Patterns of a GET: the bits agree with the trie of the groups, and no pattern takes long."""

import random

from fabric.router.block_store import SCAN_TOPICS_MAX
from fabric.router.patterns.trie import Trie
from fabric.router.patterns.view import View
from fabric.router.read.get import TOPICS_MAX
from fabric_protocol import messages as m
from fabric_protocol.names import canonical
from tests.router.world import World
from tests.seeds import seeded


def test_a_view_and_the_trie_agree() -> None:
    rng = seeded("views")
    for _ in range(2_000):
        patterns = sorted({canonical(_pattern(rng)) for _ in range(rng.randint(1, 6))})
        view, trie = View(patterns), Trie[str]()
        for pattern in patterns:
            trie.add(pattern, pattern)
        for _ in range(8):
            topic = ".".join(rng.choice(("a", "b", "ab")) for _ in range(rng.randint(1, 6)))
            topic = rng.choice(("", "", "$")) + topic
            assert view(topic) == bool(trie.match(topic)), (patterns, topic)


def _pattern(rng: random.Random) -> str:
    words = [rng.choice(("a", "b", "ab", "*", "#", "#")) for _ in range(rng.randint(1, 6))]
    if words[0] in ("a", "b") and rng.random() < 0.3:
        words[0] = "$" + words[0]
    return ".".join(words)


def test_a_get_ends_after_so_many_topics_and_says_where_to_go_on() -> None:
    world = World()
    world.hello(b"w")
    blocks, each = 30, 1_000
    for k in range(blocks):
        world.pub(b"w", [f"t.{k}.{n}" for n in range(each)], *["x"] * each)
    seq, asked = 1, 0
    while seq <= blocks * each:
        (answer,) = world.say(b"w", m.Get(5, {"pattern": ["nothing.*", "nor.this"], "seq": seq}))
        assert isinstance(answer, m.Ok)
        assert answer.fields["next"] > seq
        assert answer.fields["more"] == (answer.fields["next"] <= blocks * each)
        seq, asked = answer.fields["next"], asked + 1
        (view,) = world.router.reading._views.values()
        assert view.looked <= asked * (TOPICS_MAX + SCAN_TOPICS_MAX + each)
    assert asked > 1


def test_many_wildcards_of_any_length_are_a_matter_of_words() -> None:
    """An expression would try some 10^5 ways for each pattern and topic, and this test would take hours."""
    view = View([f"#.a.#.b.#.a.#.b.#.a.#.b.#.z{n}" for n in range(64)])
    topics = [".".join("ab"[(n >> bit) & 1] for bit in range(15)) + f".y{n}" for n in range(1_000)]
    assert not any(map(view, topics))
    assert view("a.b.a.b.a.b.z63")
    assert view.looked == 1_001
