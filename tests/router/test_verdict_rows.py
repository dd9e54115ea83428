"""Rows of an ACK are merged if that changes only their number, and refused if too many are left."""

import random
from typing import Any, Final

import pytest

from fabric.router.groups import verdict_rows
from fabric.router.groups import verdicts as verdicts_module
from fabric.router.groups.verdict_rows import ROWS_MAX, Row, merged
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World
from tests.seeds import seeded

COUNT: Final = 10_000


def test_rows_that_follow_each_other_become_one() -> None:
    ack, retry, touch = Verdict.ACK, Verdict.RETRY, Verdict.TOUCH
    assert merged([(ack, 1, 1, None), (ack, 2, 5, None), (ack, 6, 6, None)]) == [(ack, 1, 6, None)]
    assert merged([(ack, 1, 1, None), (retry, 2, 2, None), (ack, 3, 3, None)]) == [
        (ack, 1, 1, None),
        (retry, 2, 2, None),
        (ack, 3, 3, None),
    ]
    assert merged([(retry, 1, 1, 5), (retry, 2, 2, 6)]) == [(retry, 1, 1, 5), (retry, 2, 2, 6)]
    assert merged([(touch, 3, 4, None), (touch, 1, 9, None), (touch, 4, 4, None)]) == [(touch, 1, 9, None)]


def test_a_second_verdict_on_an_ordinal_stays_a_row_where_it_is_stale() -> None:
    twice: list[Row] = [(Verdict.ACK, 1, 3, None), (Verdict.ACK, 1, 3, None)]
    assert merged(twice) == twice
    touched: list[Row] = [(Verdict.TOUCH, 1, 3, None), (Verdict.TOUCH, 2, 3, None)]
    assert merged(touched, twice=False) == touched


def test_merged_rows_say_the_same_of_every_ordinal() -> None:
    rng = seeded("merged rows")
    for _ in range(500):
        rows = [_row(rng) for _ in range(rng.randint(1, 12))]
        assert _said(merged(rows)) == _said(rows)


def _row(rng: random.Random) -> Row:
    first = rng.randint(1, 6)
    return rng.choice((Verdict.ACK, Verdict.TOUCH)), first, first + rng.randrange(3), rng.choice((None, None, 5))


def _said(rows: Any) -> dict[int, list[Any]]:
    """The verdicts on each ordinal in their order; a TOUCH that repeats the one before it says nothing new."""
    said: dict[int, list[Any]] = {}
    for verdict, first, last, arg in rows:
        for ordinal in range(first, last + 1):
            words = said.setdefault(ordinal, [])
            if verdict != Verdict.TOUCH or words[-1:] != [(verdict, arg)]:
                words.append((verdict, arg))
    return said


@pytest.fixture
def world() -> World:
    """A consumer that holds many messages."""
    world = World()
    world.hello(b"w", producer={"name": "w"})
    world.pub(b"w", "raw", *["x"] * COUNT)
    world.sub(b"w", 1, "raw", group="work", credit=COUNT)
    for _ in range(100):  # what may be handed out is on disk first, some at a time
        if len(world.delivered(b"w")) == COUNT:
            return world
        world.pass_time(0.01)
    raise AssertionError(f"only {len(world.delivered(b'w'))} came")


def answer(world: World, message: m.ToHub) -> m.ToClient:
    (said,) = [one for one in world.say(b"w", message) if isinstance(one, m.Ok | m.Err)]
    return said


def test_many_rows_that_merge_are_settled_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    settled = []
    settle = verdicts_module.settle

    def counted(*args: Any) -> Any:
        settled.append(args[2:5])
        return settle(*args)

    monkeypatch.setattr(verdicts_module, "settle", counted)
    touches = tuple((Verdict.TOUCH, 1, 1, None) for _ in range(COUNT))
    assert answer(world, m.Settle(1, 7, touches)) == m.Ok(1, 7, {"applied": 1, "stale": []})
    acks = tuple((Verdict.ACK, n, n, None) for n in range(1, COUNT + 1))
    assert answer(world, m.Settle(1, 8, acks)) == m.Ok(1, 8, {"applied": COUNT, "stale": []})
    assert settled == [(Verdict.TOUCH, 1, 1), (Verdict.ACK, 1, COUNT)]


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.TOUCH, Verdict.RETRY])
def test_more_rows_than_the_bound_are_refused_and_change_nothing(world: World, verdict: Verdict) -> None:
    rows = tuple((verdict, n, n, None) for n in range(1, COUNT, 2))
    refusal = answer(world, m.Settle(1, 7, rows))
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.TOO_LARGE
    half = rows[:ROWS_MAX]
    assert answer(world, m.Settle(1, 8, half)) == m.Ok(1, 8, {"applied": len(half), "stale": []})


def test_a_transaction_has_the_same_bound_over_all_its_channels(world: World) -> None:
    rows = tuple((Verdict.ACK, n, n, None) for n in range(1, COUNT, 2))
    split = tuple((1, rows[at : at + 1_000]) for at in range(0, len(rows), 1_000))
    refusal = answer(world, m.Transact(9, 1, split, encode("done", [b"made"])))
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.TOO_LARGE
    done = answer(world, m.Transact(10, 1, split[:4], encode("done", [b"made"])))
    assert isinstance(done, m.Ok)
    assert done.fields["applied"] == 4_000
    twice = ((1, ((Verdict.TOUCH, 9_001, 9_002, None), (Verdict.TOUCH, 9_002, 9_003, None))),)
    refusal = answer(world, m.Transact(11, 2, twice, encode("done", [b"made"])))
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.BAD_OPTION


def test_retries_over_very_many_deliveries_are_one_row_of_a_transaction() -> None:
    """The row is applied delivery by delivery, and that is not counted as rows."""
    world = World()
    world.hello(b"w", producer={"name": "w"})
    world.sub(b"w", 1, "raw", group="work", credit=1 << 20)
    for _ in range(ROWS_MAX + 10):
        world.pub(b"w", "raw", "x")
    row = (Verdict.RETRY, 1, ROWS_MAX + 10, 60_000)
    done = answer(world, m.Transact(9, 1, ((1, (row,)),), encode("done", [b"made"])))
    assert isinstance(done, m.Ok)
    assert done.fields["applied"] == ROWS_MAX + 10


def holding(blocks: int) -> World:
    """A consumer that holds so many blocks of ten messages."""
    w = World()
    w.hello(b"a")
    w.sub(b"a", 1, "t", group="g", lease_ms=600_000)
    for _ in range(blocks):
        w.say(b"a", m.Publish(1, 0, 0, encode("t", [bytes(100)] * 10)))
    return w


@pytest.mark.parametrize("verdict", [Verdict.RETRY, Verdict.REJECT])
@pytest.mark.parametrize(("bound", "value"), [("FAILED_MAX", 30), ("FAILED_BYTES_MAX", 2_500)])
def test_what_fails_by_one_frame_is_bounded(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, bound: str, value: int
) -> None:
    """It may all become dead letters, in one turn."""
    monkeypatch.setattr(verdict_rows, bound, value)
    if bound == "FAILED_MAX":
        monkeypatch.setattr(verdict_rows, "FAILED_WHOLE_MAX", value)
    w = holding(6)
    apart = tuple((verdict, 10 * n + 5, 10 * n + 5, None) for n in range(6))
    for rows in (((verdict, 1, 60, None),), apart if bound == "FAILED_BYTES_MAX" else ((verdict, 1, 40, None),)):
        for frame in (m.Settle(1, 7, rows), m.Transact(7, 0, ((1, rows),), encode("made", [b"x"]))):
            (refusal,) = w.say(b"a", frame)
            assert isinstance(refusal, m.Err)
            assert refusal.code == Code.TOO_LARGE
    assert w.router.groups["g"].members[0].outstanding == 60, "nothing was applied"
    (answer,) = w.settle(b"a", 1, verdict, 1, 20)
    assert isinstance(answer, m.Ok)
    (answer,) = w.settle(b"a", 1, Verdict.ACK, 21, 60)
    assert isinstance(answer, m.Ok)
    assert answer.fields["applied"] == 40, "what is done may be as much as there is"


@pytest.mark.parametrize("verdict", [Verdict.RETRY, Verdict.REJECT])
def test_what_fails_by_a_transaction_is_bounded_more_closely(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    """All of its dead letters are in its turn; those of an ACK are written in steps."""
    monkeypatch.setattr(verdict_rows, "FAILED_WHOLE_MAX", 15)
    w = holding(2)
    for last, kind in ((16, m.Err), (15, m.Ok)):
        rows = ((verdict, 1, last, None),)
        answers = w.say(b"a", m.Transact(7, 0, ((1, rows),), encode("made", [b"x"])))
        assert [type(answer) for answer in answers if isinstance(answer, m.Ok | m.Err)] == [kind]
