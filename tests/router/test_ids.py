"""Idempotency keys through the whole router: what is stored, what is answered, and for how long a key counts."""

from typing import Any

import pytest

from fabric.records import TopicSettings
from fabric.router.publish.producers import RECENT_MAX
from fabric.router.publish.publishing import LOOKUPS_MAX
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from tests.router.world import World

P = b"producer"
WINDOW_S = TopicSettings().dedupe_ms / 1000


class IdWorld(World):
    """A world in which topics have settings that a test writes down."""

    def __init__(self) -> None:
        self.topic_settings: dict[str, TopicSettings] = {}
        self.settled: set[tuple[str, int]] = set()
        super().__init__()
        self.hello(P, producer={"name": "p"})

    def _router(self, **restored: Any) -> Any:
        router = super()._router(**restored)
        router.ids._settings_of = lambda topic: self.topic_settings.get(topic, TopicSettings())
        router.ids._is_over = lambda topic, seq: (topic, seq) in self.settled
        return router

    def restart(self) -> None:
        super().restart()
        self.hello(P, producer={"name": "p"})

    def put(
        self,
        topic: str | list[str],
        *ids: str,
        pseq: int = 0,
        level: int = m.Level.JOURNALED,
        rid: int = 9,
        commit: bool = True,
    ) -> list[m.ToClient]:
        raw = [i.encode() for i in ids]
        block = encode(topic, [b"body " + i for i in raw], ids=raw)
        return self.say(P, m.Publish(rid, pseq, level, block), commit=commit)

    def row(self, topic: str | list[str], *ids: str, **rest: Any) -> tuple[Any, ...]:
        """The confirmation of one publish, without its rid."""
        (answer,) = self.put(topic, *ids, **rest)
        assert isinstance(answer, m.PubOk), answer
        return answer.confirms[0][1:]

    def stored(self) -> list[tuple[str, bytes]]:
        return [row for b in self.reader.blocks for row in zip(b.topic_names(), b.ids(), strict=True)]


@pytest.fixture
def world() -> IdWorld:
    return IdWorld()


def test_a_known_id_is_not_stored_and_has_its_first_seq(world: IdWorld) -> None:
    assert world.row("a", "x") == (1, 1, 0)
    assert world.row("a", "y") == (2, 1, 0)
    assert world.row("a", "x") == (1, 0, 1, ((0, 1),))
    assert world.stored() == [("a", b"x"), ("a", b"y")]


def test_an_id_is_known_on_its_topic_only(world: IdWorld) -> None:
    assert world.row("a", "x") == (1, 1, 0)
    assert world.row("b", "x") == (2, 1, 0)
    assert world.row(["a", "b", "c"], "x", "x", "x") == (3, 1, 2, ((0, 1), (1, 2)))


def test_topic_and_id_cannot_be_taken_for_another_pair(world: IdWorld) -> None:
    assert world.row("a", "b.c") == (1, 1, 0)
    assert world.row("a.b", "c") == (2, 1, 0)
    assert world.row("a.b", ".c") == (3, 1, 0)


def test_messages_without_an_id_are_always_stored(world: IdWorld) -> None:
    assert world.row("a", "", "x", "") == (1, 3, 0)
    assert world.row("a", "", "x", "") == (4, 2, 1, ((1, 2),))
    assert world.row("a", "", "") == (6, 2, 0)
    assert [i for _, i in world.stored()] == [b"", b"x", b"", b"", b"", b"", b""]


def test_duplicates_within_a_block_are_found(world: IdWorld) -> None:
    assert world.row("a", "x", "y", "x", "z", "y") == (1, 3, 2, ((2, 1), (4, 2)))
    assert [i for _, i in world.stored()] == [b"x", b"y", b"z"]
    assert [b.payloads() for b in world.reader.blocks] == [[b"body x", b"body y", b"body z"]]


def test_known_ones_and_twins_in_one_block(world: IdWorld) -> None:
    world.put("a", "k")
    assert world.row("a", "n", "k", "n", "", "k") == (2, 2, 3, ((1, 1), (2, 2), (4, 1)))


def test_duplicates_across_blocks_of_one_turn_are_found(world: IdWorld) -> None:
    world.put("a", "x", "y", commit=False)
    world.put("a", "y", "z", rid=10, commit=False)
    world.commit()
    answer = world.said[P][-1]
    assert answer == m.PubOk(0, ((9, 1, 2, 0), (10, 3, 1, 1, ((0, 2),))))
    assert len(world.stored()) == 3


def test_a_duplicate_is_confirmed_after_the_first_one_is_on_disk(world: IdWorld) -> None:
    world.put("a", "x", level=m.Level.RECEIVED, commit=False)
    heard = len(world.said[P])
    world.put("a", "x", rid=10, commit=False)
    assert len(world.said[P]) == heard
    world.commit()
    assert m.PubOk(0, ((10, 1, 0, 1, ((0, 1),)),)) in world.said[P]


def test_what_remains_of_a_block_keeps_its_columns(world: IdWorld) -> None:
    world.put("a", "2")
    raw = encode(
        ["a", "b", "a", "b"], [b"p1", b"p2", b"p3", b"p4"], ids=[b"1", b"2", b"2", b"4"], keys=[b"k", b"", b"l", b"m"],
        headers=[{"h": "1"}, None, {"h": "3"}, {"i": b"4"}], priority=7, expires_us=5_000_000_000,
    )  # fmt: skip
    world.say(P, m.Publish(9, 0, m.Level.JOURNALED, raw))
    block = world.reader.blocks[-1]
    block.verify()
    block.verify_stamp()
    assert (block.base_seq, block.count, block.priority, block.expires_us) == (2, 3, 7, 5_000_000_000)
    assert block.topic_names() == ["a", "b", "b"]
    assert (block.ids(), block.keys()) == ([b"1", b"2", b"4"], [b"k", b"", b"m"])
    assert block.headers() == [{"h": "1"}, {}, {"i": b"4"}]
    assert block.payloads() == [b"p1", b"p2", b"p4"]
    assert not block.flags & 8


# How long a key counts.


def test_the_window_ends_to_the_microsecond(world: IdWorld) -> None:
    world.put("a", "x")
    world.now += WINDOW_S - 0.001
    assert world.row("a", "x") == (1, 0, 1, ((0, 1),))
    world.now += 0.001
    assert world.row("a", "x") == (2, 1, 0)
    assert world.row("a", "x") == (2, 0, 1, ((0, 2),))


def test_a_duplicate_does_not_prolong_a_plain_window(world: IdWorld) -> None:
    world.put("a", "x")
    world.now += WINDOW_S / 2
    world.put("a", "x")
    world.now += WINDOW_S / 2
    assert world.row("a", "x") == (2, 1, 0)


@pytest.mark.parametrize("crash", [False, True])
def test_a_duplicate_starts_a_sliding_window_anew(world: IdWorld, crash: bool) -> None:
    world.topic_settings["s"] = TopicSettings(dedupe="slide", dedupe_ms=10_000)
    assert world.row("s", "x") == (1, 1, 0)
    for _ in range(5):
        world.now += 9.9
        if crash:
            world.restart()
        assert world.row("s", "x") == (1, 0, 1, ((0, 1),))
    world.now += 10
    assert world.row("s", "x") == (2, 1, 0)


def test_a_sliding_duplicate_is_written_without_a_request_for_an_answer(world: IdWorld) -> None:
    world.topic_settings["s"] = TopicSettings(dedupe="slide", dedupe_ms=10_000)
    world.put("s", "x")
    world.now += 9
    world.put("s", "x", rid=0, commit=False)
    assert world.router.wants_commit(world.now)
    world.commit()
    assert not world.router.wants_commit(world.now)
    world.restart()
    world.now += 9
    assert world.row("s", "x") == (1, 0, 1, ((0, 1),))


def test_until_ack_ends_with_the_last_ack(world: IdWorld) -> None:
    world.topic_settings["q"] = TopicSettings(dedupe="until_ack", dedupe_ms=60_000)
    assert world.row("q", "x") == (1, 1, 0)
    assert world.row("q", "x") == (1, 0, 1, ((0, 1),))
    world.settled.add(("q", 1))
    assert world.row("q", "x") == (2, 1, 0)
    assert world.row("q", "x") == (2, 0, 1, ((0, 2),))
    world.now += 60
    assert world.row("q", "x") == (3, 1, 0)


def queue_world(**settings: str) -> World:
    """A world with real settings of topics: `q`, which a group wants."""
    world = World()
    for peer in (P, b"consumer"):
        world.hello(peer)
    answers = world.say(P, m.Admin(3, {"op": "topic.create", "topic": "q", **settings}))
    assert isinstance(answers[-1], m.Ok), answers
    world.sub(b"consumer", 1, "q", group="g")
    return world


def put(world: World, name: bytes) -> tuple[Any, ...]:
    answer = world.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("q", [b"job"], ids=[name])))[-1]
    assert isinstance(answer, m.PubOk)
    return answer.confirms[0][1:]


def test_until_ack_asks_the_groups() -> None:
    world = queue_world(dedupe="until_ack")
    put(world, b"x")
    assert put(world, b"x") == (1, 0, 1, ((0, 1),))
    world.settle(b"consumer", 1, m.Verdict.ACK, 1, 1)
    assert put(world, b"x") == (2, 1, 0)
    assert put(world, b"x") == (2, 0, 1, ((0, 2),))


@pytest.mark.parametrize("settings", [{}, {"dedupe": "until_ack"}])
@pytest.mark.parametrize("op", ["topic.purge", "topic.delete"])
def test_what_is_purged_may_be_published_again(op: str, settings: dict[str, str]) -> None:
    world = queue_world(**settings)
    put(world, b"x")
    world.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("other", [b"1"], ids=[b"x"])))
    answers = world.say(P, m.Admin(4, {"op": op, "topic": "q"}))
    assert isinstance(answers[-1], m.Ok), answers
    assert put(world, b"x") == (3, 1, 0)
    for _ in range(2):
        assert put(world, b"x") == (3, 0, 1, ((0, 3),))
        world.restart()
        world.hello(P)
        world.say(P, m.Admin(3, {"op": "topic.create", "topic": "q", **settings}))
        world.hello(b"consumer")
        world.sub(b"consumer", 1, "q", group="g")


def test_what_was_forgotten_is_forgotten_when_its_eras_are_gone() -> None:
    world = queue_world()
    put(world, b"x")
    world.say(P, m.Admin(4, {"op": "topic.purge", "topic": "q"}))
    assert "ids.q" in world.settings
    world.restart()
    world.hello(P)
    assert put(world, b"x") == (2, 1, 0)
    world.now += WINDOW_S
    for _ in range(4):
        world.pass_time(1)
    assert world.router.ids.count == 0
    assert "ids.q" not in world.settings


def test_no_window_means_for_ever(world: IdWorld) -> None:
    world.topic_settings["f"] = TopicSettings(dedupe_ms=0)
    world.put("f", "x")
    world.now += 1e9
    world.pass_time(1)
    world.restart()
    assert world.row("f", "x") == (1, 0, 1, ((0, 1),))


def test_a_clock_that_is_set_back_forgets_nothing(world: IdWorld) -> None:
    world.put("a", "x")
    world.router.begin(1, world.now)
    assert world.row("a", "x") == (1, 0, 1, ((0, 1),))


def test_the_message_may_be_gone(world: IdWorld) -> None:
    world.put("a", "x")
    world.reader.blocks[:] = world.reader.blocks[-1:]
    world.put("a", "y")
    del world.reader.blocks[0]
    world.restart()
    assert world.row("a", "x") == (1, 0, 1, ((0, 1),))


# Crashes.


def test_a_crash_before_the_commit_forgets_message_and_key(world: IdWorld) -> None:
    world.put("a", "x")
    world.put("a", "y", commit=False)
    world.restart()
    assert world.row("a", "x", "y") == (2, 1, 1, ((0, 1),))


def test_keys_outlive_restarts(world: IdWorld) -> None:
    for i in range(700):
        world.put("a", f"{i}", f"{i}b")
        if i % 100 == 99:
            world.restart()
    for i in (0, 1, 299, 300, 699):
        assert world.row("a", f"{i}b", f"{i}") == (2 * i + 2, 0, 2, ((0, 2 * i + 2), (1, 2 * i + 1)))


# Numbered publishes.


def test_a_resend_of_a_block_with_duplicates_is_answered_as_the_first_time(world: IdWorld) -> None:
    world.put("a", "x")  # seq 1
    first = world.row("a", "n", "x", "n", "", "m", pseq=1)
    assert first == (2, 3, 2, ((1, 1), (2, 2)))
    assert world.row("a", "n", "x", "n", "", "m", pseq=1) == (2, 0, 5, ((1, 1), (2, 2)))
    assert world.row("a", "later", pseq=6) == (5, 1, 0)
    assert world.row("a", "n", "x", "n", "", "m", pseq=1) == (2, 0, 5, ((1, 1), (2, 2)))
    assert world.row("a", "later", pseq=6) == (5, 0, 1)
    assert len(world.stored()) == 5


def test_a_block_of_duplicates_alone_uses_up_its_numbers(world: IdWorld) -> None:
    world.put("a", "x", "y", "z")
    assert world.row("a", "z", "x", pseq=1) == (3, 0, 2, ((0, 3), (1, 1)))
    assert world.row("a", "z", "x", pseq=1) == (3, 0, 2, ((1, 1),))
    assert world.row("a", "n", pseq=3) == (4, 1, 0)
    assert RECENT_MAX >= 2


def test_the_window_of_the_session_is_free_again(world: IdWorld) -> None:
    world.put("a", "x")
    for _ in range(200):
        assert world.row("a", "x") == (1, 0, 1, ((0, 1),))
    session = world.router.session_table.session_of(P)
    assert (session.inflight_blocks, session.inflight_bytes, world.router.publishing.pending_bytes) == (0, 0, 0)


def test_very_many_duplicates_are_confirmed_in_several_frames(world: IdWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.router.publish.publishing.REPEATS_MAX", 5)
    ids = [str(i) for i in range(7)]
    world.put("a", *ids)
    heard = len(world.said[P])
    for rid in (20, 21, 22):
        world.put("a", *ids[:2], rid=rid, commit=False)
    world.put("a", *ids, rid=23, commit=False)
    world.commit()
    answers = [a for a in world.said[P][heard:] if isinstance(a, m.PubOk)]
    assert [[row[0] for row in a.confirms] for a in answers] == [[20, 21], [22], [23]]


def test_a_refused_publish_leaves_no_key(world: IdWorld) -> None:
    (answer,) = world.put("$own", "x")
    assert isinstance(answer, m.Err)
    assert world.router.ids.count == 0
    raw = encode("a", [b"1"], ids=[b"x"])
    (answer,) = world.say(P, m.Publish(9, 5, 0, raw))  # this number is not the next one
    assert isinstance(answer, m.Err)
    assert world.router.ids.count == 0


def test_blocks_of_the_hub_itself_are_not_looked_at(world: IdWorld) -> None:
    world.put("a", "x")
    world.router.publishing.append(Block(encode("a", [b"1"], ids=[b"x"])), world.router.turn)
    world.commit()
    assert len(world.stored()) == 2


def test_a_block_with_more_lookups_than_are_done_at_once_is_refused() -> None:
    w = World()
    w.hello(b"p")
    many = LOOKUPS_MAX + 1
    bodies, ids, topics = [b""] * many, [b"%d" % n for n in range(many)], [f"t.{n}" for n in range(many)]
    for block in (encode("a", bodies, ids=ids), encode(topics, bodies)):
        (refusal,) = w.say(b"p", m.Publish(3, 0, m.Level.JOURNALED, block))
        assert isinstance(refusal, m.Err)
        assert (refusal.code, str(LOOKUPS_MAX) in refusal.text) == (Code.TOO_LARGE, True)
    assert not w.reader.blocks
    for block in (encode("a", bodies), encode("a", bodies[1:], ids=ids[1:])):
        w.say(b"p", m.Publish(4, 0, m.Level.JOURNALED, block))
    assert len(w.reader.blocks) == 2
