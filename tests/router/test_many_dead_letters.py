"""Very many dead letters at once are written in steps, and none of them is lost."""

from typing import Any

import pytest

from fabric.router.groups.dead_letter_writer import DEAD_LETTERS_PER_GO
from fabric.router.publish.publishing import Refusal
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A = b"P", b"A"
COUNT = 5 * DEAD_LETTERS_PER_GO + 7


def world(**fields: Any) -> World:
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, "a", group="g", credit=2 * COUNT, **fields)
    return w


def letters(w: World) -> list[str]:
    blocks = [block for block in w.reader.blocks if block.topics[0] == "$dlq.g"]
    return [payload.decode() for block in blocks for payload in block.payloads()]


def turn(w: World) -> list[m.ToClient]:
    """Write down what there is, without time passing before it; what the consumer is told then."""
    sealed = w.router.seal(w.wall_us(), w.now)
    w.router.take_frames()
    w.write(sealed.records)
    out = list(sealed.sends)
    w.router.committed(w.now)
    out += w.router.take_frames()
    return [message for peer, message in out if peer == A]


def tick(w: World) -> None:
    w.router.tick(w.now)
    w.router.take_frames()


def bodies() -> list[str]:
    return [str(n) for n in range(COUNT)]


def hand_out(w: World, count: int = COUNT) -> None:
    """A group hands out as far as its row on disk says, so this takes several turns."""
    while len(w.bodies(A)) < count:
        before = len(w.bodies(A))
        w.commit()
        w.commit()
        assert len(w.bodies(A)) > before


def publish(w: World) -> None:
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("a", [body.encode() for body in bodies()])))
    hand_out(w)
    assert w.bodies(A) == bodies()


def reject(w: World) -> None:
    publish(w)
    w.router.step(m.Settle(1, 7, ((Verdict.REJECT, 1, COUNT, None),)), A, w.now)
    w.router.take_frames()


def test_a_step_writes_a_few_and_the_answer_comes_with_the_last() -> None:
    w = world()
    reject(w)
    written, answers = 0, list[m.ToClient]()
    while not answers:
        answers = [message for message in turn(w) if isinstance(message, m.Ok)]
        assert 0 < len(letters(w)) - written <= 2 * DEAD_LETTERS_PER_GO
        assert bool(answers) == (len(letters(w)) == COUNT), "the answer says that all is on disk"
        written = len(letters(w))
        tick(w)
    assert letters(w) == bodies()
    assert answers == [m.Ok(1, 7, {"applied": COUNT, "stale": []})]
    assert not w.router.groups["g"].open


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_after_a_crash_between_two_steps_each_message_is_a_letter_or_comes_again(turns: int) -> None:
    w = world()
    reject(w)
    for _ in range(turns):
        turn(w)
        tick(w)
    dead = letters(w)
    assert len(dead) < COUNT
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g", credit=2 * COUNT)
    hand_out(w, COUNT - len(dead))
    assert sorted(dead + w.bodies(A), key=int) == bodies()


def test_messages_that_expire_together_become_letters_in_steps() -> None:
    w = world(on_expire="dead")
    w.say(A, m.Unsubscribe(1, 8))
    block = encode("a", [body.encode() for body in bodies()])
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, block, {"ttl_ms": 1_000}))
    w.now += 2.0
    w.sub(A, 1, group="g", credit=2 * COUNT)
    written = -1
    while len(letters(w)) > written:
        written = len(letters(w))
        tick(w)
        turn(w)
    assert letters(w) == bodies()
    assert w.bodies(A) == []


@pytest.mark.parametrize("op", ["group.seek", "group.delete"])
def test_a_group_that_is_moved_or_deleted_has_written_its_letters(op: str) -> None:
    w = world()
    reject(w)
    w.say(P, m.Admin(3, {"op": op, "group": "g"} | ({"to": "new"} if op == "group.seek" else {})))
    assert letters(w) == bodies()


def test_a_hub_that_stops_has_written_its_letters() -> None:
    w = world()
    reject(w)
    w.router.drain(Refusal(Code.SHUTTING_DOWN, "the hub is stopping", 500))
    w.router.take_frames()
    turn(w)
    assert letters(w) == bodies()


def test_a_transaction_is_written_as_a_whole() -> None:
    w = world()
    publish(w)
    settles = ((1, ((Verdict.REJECT, 1, COUNT, None),)),)
    w.router.step(m.Transact(7, 0, settles, encode("b", [b"x"])), A, w.now)
    w.router.take_frames()
    turn(w)
    assert letters(w) == bodies()
