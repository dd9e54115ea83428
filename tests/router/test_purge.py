"""The dry run of a purge: it counts what the purge would remove, in steps, and changes nothing."""

from typing import Any

import pytest

from fabric.router.topics import removal
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World
from tests.seeds import seeded

P = b"p"
TOPICS = ("a", "b", "limited")


def world() -> World:
    w = World()
    w.hello(P)
    ask(w, op="topic.create", topic="limited", max_msgs=1_000)
    return w


def ask(w: World, **fields: Any) -> dict[str, Any]:
    answer = w.say(P, m.Admin(4, fields))[-1]
    assert isinstance(answer, m.Ok), answer
    return dict(answer.fields)


def plan(w: World, topic: str, **part: int) -> dict[str, Any]:
    """The dry run of all steps."""
    answer = ask(w, op="topic.purge", topic=topic, dry_run=True, **part)
    whole, steps = {**answer, "steps": 1}, 1
    while answer["more"]:
        more = {"up_to": whole["up_to"], "after": answer["next"]}
        answer = ask(w, op="topic.purge", topic=topic, dry_run=True, **more)
        whole["removed"] += answer["removed"]
        whole["bytes"] += answer["bytes"]
        steps += 1
    return {**whole, "steps": steps}


def naive(w: World, topic: str, last_seq: int) -> tuple[int, int]:
    """Messages and bytes of a topic from its floor to a seq."""
    floor = max(w.router.shared.first_seq, w.router.shared.removed.get(topic, 0))
    found = [
        len(payload)
        for block in w.reader.blocks
        for seq, name, payload in zip(
            range(block.base_seq, block.last_seq + 1), block.topic_names(), block.payloads(), strict=True
        )
        if name == topic and floor <= seq <= last_seq
    ]
    return len(found), sum(found)


def test_a_dry_run_counts_messages_and_bytes_and_changes_nothing() -> None:
    w = world()
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode(["a", "b", "a"], [b"1", b"22", b"333"])))
    w.pub(P, "a", "4444")
    answer = plan(w, "a", up_to=3)
    assert (answer["removed"], answer["bytes"], answer["up_to"], answer["purged"]) == (2, 4, 3, False)
    assert (plan(w, "a")["removed"], plan(w, "a")["bytes"], plan(w, "a")["up_to"]) == (3, 8, 4)
    assert plan(w, "a", before_us=w.wall_us() + 10**9)["removed"] == 3
    assert plan(w, "a", up_to=99)["up_to"] == 4
    assert plan(w, "unknown")["removed"] == 0
    assert not w.router.shared.removed
    assert ask(w, op="topic.purge", topic="a", up_to=3)["floor"] == 4
    assert plan(w, "a")["removed"] == 1


def test_a_queue_can_be_asked_too() -> None:
    w = world()
    ask(w, op="queue.create", queue="q")
    w.pub(P, "q", "1", "22")
    answer = ask(w, op="queue.purge", queue="q", dry_run=True)
    assert (answer["queue"], answer["removed"], answer["bytes"], answer["more"]) == ("q", 2, 3, False)
    assert ask(w, op="queue.purge", queue="q")["removed"] == 2


@pytest.mark.parametrize("fields", [{"after": 3}, {"dry_run": 1}, {"dry_run": True, "after": -1}])
def test_wrong_fields_are_refused(fields: dict[str, Any]) -> None:
    w = world()
    answer = w.say(P, m.Admin(4, {"op": "topic.purge", "topic": "a", **fields}))[-1]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.BAD_OPTION


@pytest.mark.parametrize("bound", ["READS_MAX", "TOPICS_MAX"])
def test_a_random_dry_run_agrees_with_a_naive_count(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(removal, bound, 1)
    rng, steps = seeded("purges"), 0
    for _ in range(5):
        w = world()
        for _ in range(40):
            topics = rng.choices(TOPICS, k=rng.randint(1, 6))
            block = encode(topics, [b"x" * rng.randrange(9) for _ in topics])
            w.say(P, m.Publish(9, 0, m.Level.JOURNALED, block))
            w.now += 1
            topic, last_seq = rng.choice(TOPICS), w.router.shared.committed_seq
            part = rng.choice(({}, {"up_to": rng.randint(0, last_seq + 3)}, {"before_us": rng.randint(1, w.wall_us())}))
            answer = plan(w, topic, **part)
            assert answer["up_to"] == min(part.get("up_to", answer["up_to"]), last_seq)
            assert (answer["removed"], answer["bytes"]) == naive(w, topic, answer["up_to"])
            steps = max(steps, answer["steps"])
            if rng.random() < 0.2:
                left = naive(w, topic, last_seq)[0] - answer["removed"]
                ask(w, op="topic.purge", topic=topic, **part)
                assert naive(w, topic, last_seq)[0] == left
    assert steps > 2, "a long journal is counted in steps"
