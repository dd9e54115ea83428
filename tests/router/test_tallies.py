"""The numbers of all topics in INFO, against a plain list of messages, and one case after the other."""

from random import Random
from typing import Any

import pytest

from fabric.router.topics import tallies as tallies_module
from fabric.router.topics import walk as walk_module
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from tests.router.test_topic_table_twin import EVENTS, TOPICS, Life, live, size
from tests.router.world import World
from tests.seeds import seeded

P = b"producer"


@pytest.fixture
def world() -> World:
    world = World()
    world.hello(P)
    return world


def ask(world: World, what: str, **fields: Any) -> dict[str, Any]:
    answer = world.say(P, m.Info(4, {"what": what, **fields}))[-1]
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def admin(world: World, op: str, **fields: Any) -> None:
    assert isinstance(world.say(P, m.Admin(3, {"op": op, **fields}))[-1], m.Ok)


def numbers(row: dict[str, Any]) -> tuple[int, int, int, int]:
    return row["msgs"], row["bytes"], row["first_seq"], row["last_seq"]


def listed(world: World) -> dict[str, tuple[int, int, int, int]]:
    return {row["topic"]: numbers(row) for row in ask(world, "topics")["topics"]}


def trim(world: World, seq: int) -> None:
    """Retention of the journal removes all messages below a seq."""
    world.reader.blocks = [block for block in world.reader.blocks if block.last_seq >= seq]
    world.router.trimmed(seq)
    world.router.take_frames()


def test_topics_without_settings_tell_their_numbers(world: World) -> None:
    world.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode(["a", "b", "a"], [b"1", b"22", b"333"])))
    world.pass_time(5)
    world.pub(P, "b", "4444")
    first, second = (block.ts_us for block in world.reader.blocks)
    assert listed(world) == {"a": (2, 4, 1, 3), "b": (2, 6, 2, 4)}
    row = ask(world, "topic", name="b")
    assert (row["first_us"], row["last_us"], row["counting"], row["configured"]) == (first, second, False, False)
    assert numbers(ask(world, "topic", name="none")) == (0, 0, 0, 0)
    world.pub(P, "c", "x")
    assert listed(world)["c"] == (1, 1, 5, 5)


def test_old_keys_stay(world: World) -> None:
    admin(world, "topic.create", topic="a")
    world.pub(P, ["a", "c"], "1", "2")
    answer = ask(world, "topics")
    assert (answer["others"], answer["complete"], answer["more"]) == (["c"], True, False)
    assert (answer["counting"], answer["overflowed"]) == (False, False)
    assert [(row["topic"], row["configured"]) for row in answer["topics"]] == [("a", True), ("c", False)]


def test_topics_come_in_pages_by_name(world: World) -> None:
    admin(world, "topic.create", topic="t.3x")
    for n in range(7):
        world.pub(P, f"t.{n}", "x")
    names, after = [], ""
    while True:
        page = ask(world, "topics", n=3, **({"after": after} if after else {}))
        names += [row["topic"] for row in page["topics"]]
        if not page["more"]:
            break
        after = page["next"]
    assert names == ["t.0", "t.1", "t.2", "t.3", "t.3x", "t.4", "t.5", "t.6"]


def test_purged_and_deleted_topics_are_gone(world: World) -> None:
    for topic in ("a", "b", "c"):
        world.pub(P, topic, "1", "2")
    assert set(listed(world)) == {"a", "b", "c"}
    admin(world, "topic.purge", topic="a")
    admin(world, "topic.delete", topic="b")
    assert set(listed(world)) == {"c"}
    world.pass_time(5)
    world.pub(P, "a", "3")
    assert listed(world) == {"a": (1, 1, 7, 7), "c": (2, 2, 5, 6)}


def test_a_topic_of_which_a_part_is_removed_is_counted_anew(world: World) -> None:
    for body in ("1", "22", "333"):
        world.pub(P, "a", body)
    assert listed(world) == {"a": (3, 6, 1, 3)}
    admin(world, "topic.purge", topic="a", up_to=1)
    assert ask(world, "topic", name="a")["counting"] is True
    world.pass_time(1)
    row = ask(world, "topic", name="a")
    assert (numbers(row), row["counting"]) == ((2, 5, 2, 3), False)
    trim(world, 3)
    assert ask(world, "topic", name="a")["counting"] is True
    world.pass_time(1)
    assert ask(world, "topic", name="a")["counting"] is True  # once a minute at most
    for _ in range(10):
        world.pass_time(7)
        world.say(P, m.Ping(1))
    row = ask(world, "topic", name="a")
    assert (numbers(row), row["counting"]) == ((1, 3, 3, 3), False)
    world.pub(P, "b", "4")
    trim(world, 4)
    assert listed(world) == {"b": (1, 1, 4, 4)}


def test_a_long_journal_is_counted_in_ticks(world: World) -> None:
    for n in range(400):
        world.pub(P, f"t.{n % 7}", "x")
    assert ask(world, "topic", name="t.0")["counting"] is True
    for _ in range(200):
        world.pass_time(0.0)
    row = ask(world, "topic", name="t.0")
    assert (row["msgs"], row["counting"]) == (58, False)


def test_nothing_is_counted_before_a_question(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.reader, "contents", lambda *_, **__: pytest.fail("a block was counted"))
    world.pub(P, "a", "1")
    world.pass_time(5)
    world.pub(P, "a", "1")


def test_the_number_of_topics_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "TALLIES_MAX", 2)
    for topic in ("a", "b", "c", "a"):
        world.pub(P, topic, "1")
    answer = ask(world, "topics")
    assert (answer["overflowed"], [row["topic"] for row in answer["topics"]]) == (True, ["a", "b"])
    assert listed(world)["a"] == (2, 2, 1, 4)


class Counted(Life):
    """A life with questions. An answer without `counting` has the numbers of the twin."""

    def question(self) -> None:
        self.say(P, m.Info(4, {"what": "topics"}))

    def rows(self) -> dict[str, dict[str, Any]]:
        answer = next(said for said in reversed(self.say(P, m.Info(4, {"what": "topics"}))) if isinstance(said, m.Ok))
        return {row["topic"]: row for row in answer.fields["topics"]}

    def check(self) -> None:
        super().check()
        self.rows()
        self.finish()
        rows = self.rows()
        for topic in TOPICS:
            live, row = self.twin.live(topic), rows.get(topic)
            if row is None:
                assert not live, topic
                continue
            assert row["counting"] is False
            assert live or topic in self.twin.settings, topic
            assert (row["msgs"], row["bytes"]) == (len(live), size(live)), topic
            assert row["last_seq"] == (live[-1].seq if live else 0), topic
            assert row["last_us"] == (live[-1].ts_us if live else 0), topic
            if topic not in ("state", "top"):  # a superseded message may be the first
                assert row["first_seq"] == (live[0].seq if live else 0), topic
                assert row["first_us"] == (live[0].ts_us if live else 0), topic


@pytest.mark.parametrize("part", range(3))
def test_all_numbers_are_those_of_a_plain_list(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies_module, "AGAIN_S", 0.0)
    monkeypatch.setattr(tallies_module, "AGAIN_SHARE", 0)
    rng = seeded(f"tallies {part}")
    events: dict[Any, int] = {**EVENTS, Counted.question: 10}
    for _ in range(8):
        seed = rng.getrandbits(48)
        live(Counted(Random(seed)), events, seed, steps=60, checks=0.3)
