"""The count of a topic is right at every moment: also when it begins anew, and when messages are not on disk yet."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from fabric.router.block_store import BlockStore, Found
from fabric.router.topics import compaction, retention
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

P = b"producer"


class Damage(NamedTuple):
    first_seq: int
    last_seq: int
    why: str = "damaged"


@pytest.fixture
def world() -> World:
    world = World()
    world.hello(P)
    return world


def publish(*bodies: str, topic: str = "a") -> m.Publish:
    """Each body is a payload, or `key=payload`."""
    pairs = [body.rpartition("=")[::2] for body in bodies]
    keys = [key.encode() for key, _ in pairs]
    return m.Publish(9, 0, m.Level.JOURNALED, encode(topic, [payload.encode() for _, payload in pairs], keys=keys))


def take(world: World, message: m.ToHub) -> list[m.ToClient]:
    """A command, before the tick and the commit that follow it."""
    world.router.step(message, P, world.now)
    return [said for _, said in world.router.take_frames()]


def admin(world: World, op: str, **fields: Any) -> None:
    take(world, m.Admin(3, {"op": op, **fields}))


def full(world: World, *bodies: str) -> str:
    """Why a publish is refused; nothing when it is taken."""
    for said in take(world, publish(*bodies)):
        if isinstance(said, m.Err):
            assert said.code == Code.TOPIC_FULL, said
            return said.text
    return ""


def counts(world: World) -> tuple[int, int, bool]:
    row = world.router.topics.info({"what": "topic", "name": "a"}, world.router.principals.local)
    return row["msgs"], row["bytes"], row["counting"]


def seal(world: World) -> list[Any]:
    """Close the turn; it is not on disk."""
    return world.router.seal(world.wall_us(), world.now).records


def test_what_is_not_on_disk_counts_when_a_topic_gets_its_settings(world: World) -> None:
    world.pub(P, "a", "1")
    take(world, publish("2"))
    sealed = seal(world)
    take(world, publish("b", topic="b"))
    take(world, publish("3"))
    admin(world, "topic.create", topic="a", max_msgs=4)
    assert "has 3 of max_msgs 4 messages, and 2 more" in full(world, "4", "5")
    assert not full(world, "4")
    assert "has 4 of max_msgs 4 messages" in full(world, "5")
    assert counts(world) == (4, 4, False)
    world.write(sealed)
    world.router.committed(world.now)
    world.commit()
    assert counts(world) == (4, 4, False)
    assert world.topic_rows["a"].msgs == 4


def test_what_is_not_on_disk_counts_when_a_topic_keeps_something_else(world: World) -> None:
    admin(world, "topic.create", topic="a", max_bytes=10, keep="last_per_key")
    take(world, publish("k=1111", "k=2222"))
    world.router.tick(world.now)
    assert counts(world) == (1, 4, False)
    admin(world, "topic.update", topic="a", keep="limits")
    assert "has 8 of max_bytes 10 bytes, and 4 more" in full(world, "k=3333")
    admin(world, "topic.update", topic="a", keep="last_per_key")
    assert not full(world, "k=333333")
    assert counts(world) == (1, 6, False)
    world.commit()
    assert counts(world) == (1, 6, False)


def test_what_is_not_on_disk_counts_when_a_topic_has_too_many_keys(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LATEST_KEYS_MAX", 2)
    admin(world, "topic.create", topic="a", max_msgs=4, keep="last_per_key")
    take(world, publish("k=1", "l=2", "k=3"))
    assert not full(world, "m=4")
    assert "has 4 of max_msgs 4 messages" in full(world, "m=5")
    assert counts(world) == (4, 4, False)
    world.commit()
    assert counts(world) == (4, 4, False)


def test_what_is_not_on_disk_counts_when_retention_meets_a_damaged_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3, max_age_ms=1000)
    world.pub(P, "a", "1")
    world.restart()
    found = world.reader.next_block
    monkeypatch.setattr(
        world.reader, "next_block", lambda seq, wanted: (Damage(1, 1), 2) if seq <= 1 else found(seq, wanted)
    )
    take(world, m.Hello(1, {"proto": 1}))
    take(world, publish("2", "3"))
    world.router.tick(world.now)
    assert "has 2 of max_msgs 3 messages, and 2 more" in full(world, "4", "5")
    assert counts(world) == (2, 2, False)
    world.commit()
    assert counts(world) == (2, 2, False)


def test_what_is_not_on_disk_counts_when_the_start_of_the_journal_moves(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=4)
    for body in "12":
        world.pub(P, "a", body)
    take(world, publish("3"))
    world.reader.blocks = world.reader.blocks[1:]
    world.router.trimmed(2)
    world.router.take_frames()
    assert "has 2 of max_msgs 4 messages, and 3 more" in full(world, "4", "5", "6")
    assert not full(world, "4", "5")
    assert "has 4 of max_msgs 4 messages" in full(world, "6")
    world.commit()
    assert counts(world) == (4, 4, False)


def test_what_retention_removes_from_a_block_does_not_count_when_the_count_has_just_begun(world: World) -> None:
    world.pub(P, "a", "1", "2", "3")
    admin(world, "topic.create", topic="a", max_msgs=4)
    world.router.trimmed(2)
    assert "has 2 of max_msgs 4 messages" in full(world, "4", "5", "6")


def test_no_count_begins_anew_when_the_journal_has_less_of_what_was_removed_before(world: World) -> None:
    world.pub(P, "b", "b")
    admin(world, "topic.create", topic="a", max_msgs=3)
    admin(world, "topic.create", topic="b")
    world.pub(P, "a", "1")
    admin(world, "topic.purge", topic="b")
    world.commit()
    world.commit()
    assert [block.base_seq for block in world.reader.blocks] == [2]
    take(world, publish("2"))
    world.router.begins_at(2)
    assert counts(world) == (2, 2, False)
    assert "has 2 of max_msgs 3 messages" in full(world, "3", "4")


def test_messages_of_before_count_for_the_first_publish_after_a_restart(world: World) -> None:
    admin(world, "topic.create", topic="a", max_msgs=3)
    for body in "123":
        world.pub(P, "a", body)
    world.restart_at(2)
    take(world, m.Hello(1, {"proto": 1}))
    assert "has 2 of max_msgs 3 messages" in full(world, "4", "5")
    assert not full(world, "4")


def test_a_publish_counts_no_more_blocks_than_a_tick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = retention.STEPS_PER_TICK
    for n in range(2 * steps):
        world.pub(P, "a", f"{n % 10}")
    admin(world, "topic.create", topic="a", max_msgs=2 * steps + 1)
    store, found = world.router.shared.block_store, list[Found]()

    def find(cursor: int, horizon: int, wanted: Callable[[str], bool]) -> Found:
        found.append(BlockStore.find(store, cursor, horizon, wanted))
        return found[-1]

    monkeypatch.setattr(store, "find", find)
    assert not full(world, "x")
    assert len(found) == steps
    assert counts(world) == (steps + 1, steps + 1, True)
    assert "of max_msgs" in full(world, "y")
    assert len(found) == 2 * steps
