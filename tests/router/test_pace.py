"""A pass over the journal pauses between blocks of many topics, so that other work of the hub goes on."""

from typing import Any

import pytest

from fabric.router.pace import TOPICS_PER_STEP
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.router.world import CONTENTS_MAX, World

OPS = b"ops"
BLOCKS = 4 * CONTENTS_MAX
STEPS_MAX = 100


class Reads:
    """Counts what the router reads: calls that had a block to return."""

    def __init__(self, w: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self._contents = 0, w.reader.contents
        monkeypatch.setattr(w.reader, "contents", self.contents)

    def contents(self, seq: int, *, sizes: bool = False) -> Any:
        found, cursor = self._contents(seq, sizes=sizes)
        self.calls += bool(found)
        return found, cursor


def stored(topics: int) -> World:
    """A world with blocks of so many topics in its journal, after a crash."""
    w = World()
    w.hello(OPS)
    for _ in range(BLOCKS):
        names = [f"t.{number}" for number in range(topics)]
        w.say(OPS, m.Publish(9, 0, m.Level.JOURNALED, encode(names, [b"x"] * topics)))
    w.restart()
    w.hello(OPS)
    return w


def ask(w: World, what: str, **fields: Any) -> Any:
    return w.say(OPS, m.Info(3, {"what": what, **fields}))[-1].fields  # type: ignore[union-attr]


def create_group(w: World) -> None:
    w.say(OPS, m.Admin(4, {"op": "group.create", "group": "g", "patterns": ["t.#"], "start": "first"}))


def ask_topics(w: World) -> None:
    ask(w, "topics", n=1)


def step(w: World, seconds: float) -> None:
    w.now += seconds
    w.router.tick(w.now)


@pytest.mark.parametrize("begin", [create_group, ask_topics])
def test_a_pass_over_blocks_of_many_topics_pauses_while_commands_arrive(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = stored(TOPICS_PER_STEP)
    reads = Reads(w, monkeypatch)
    begin(w)
    assert reads.calls == 1
    for _ in range(5):
        ask(w, "hub")
        step(w, 0.001)
    assert reads.calls == 1
    step(w, 1.0)
    assert reads.calls == 2


@pytest.mark.parametrize("begin", [create_group, ask_topics])
def test_a_pass_over_blocks_of_many_topics_goes_on_in_each_turn_without_commands(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = stored(TOPICS_PER_STEP)
    reads = Reads(w, monkeypatch)
    begin(w)
    step(w, 1.0)  # after the pause for the command itself
    before = reads.calls
    step(w, 0.001)
    w.router.tick(w.now)  # the same turn
    assert reads.calls == before + 1


def test_each_question_of_a_flood_reads_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    w = stored(TOPICS_PER_STEP)
    reads = Reads(w, monkeypatch)
    for _ in range(10):
        ask_topics(w)
        w.now += 0.0001
    assert reads.calls == 1


@pytest.mark.parametrize("begin", [create_group, ask_topics])
def test_a_pass_over_blocks_of_one_topic_does_not_pause(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    w = stored(1)
    reads = Reads(w, monkeypatch)
    begin(w)
    assert reads.calls == BLOCKS // CONTENTS_MAX


def test_a_pass_with_pauses_counts_all_messages() -> None:
    w = stored(TOPICS_PER_STEP)
    create_group(w)
    ask_topics(w)
    steps = 0
    while not ask(w, "group", group="g")["ready_exact"] or ask(w, "topic", name="t.7")["counting"]:
        w.pass_time(0.05)
        steps += 1
        assert steps < STEPS_MAX
    assert steps > 1
    assert ask(w, "group", group="g")["ready"] == BLOCKS * TOPICS_PER_STEP
    assert ask(w, "topic", name="t.7")["msgs"] == BLOCKS
    assert len(ask(w, "topics")["topics"]) == TOPICS_PER_STEP


def test_topics_are_listed_in_order_though_they_come_and_go() -> None:
    w = World()
    w.hello(OPS)
    names: set[str] = set()
    for number, name in enumerate(["m", "c", "z", "a", "m", "k"]):
        w.say(OPS, m.Publish(9, 0, m.Level.JOURNALED, encode(name, [b"x"])))
        names.add(name)
        if number == 3:
            w.say(OPS, m.Admin(4, {"op": "topic.delete", "topic": "c"}))
            names.remove("c")
        assert [row["topic"] for row in ask(w, "topics")["topics"]] == sorted(names)
    w.say(OPS, m.Publish(9, 0, m.Level.JOURNALED, encode("c", [b"x"])))
    assert [row["topic"] for row in ask(w, "topics")["topics"]] == sorted({*names, "c"})
