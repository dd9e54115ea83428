"""Origins: where a block was born is stored with it, and told of each of its messages."""

from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code
from fabric_protocol.origin import Origin
from tests.router.world import World

A = b"\0a"
BORN = Origin(b"j" * 16, 3, 700, 1_600_000_000_000_000)
Told = list[tuple[int, Origin | None]]


@pytest.fixture
def w() -> World:
    w = World()
    w.hello(A, producer={"name": "p"})
    return w


def publish(w: World, *bodies: str, origin: Any = None, ids: list[bytes] | None = None, **more: Any) -> Any:
    block = encode(more.pop("topic", "a"), [body.encode() for body in bodies], ids=ids)
    options = {**more, **({} if origin is None else {"origin": origin})}
    answer = w.say(A, m.Publish(9, 0, 0, block, options))[0]
    return Code(answer.code) if isinstance(answer, m.Err) else answer


def told(frames: list[Any]) -> Told:
    """(seq, origin) of each message in DELIVERs or GOTs, by the rule of PROTOCOL.md."""
    rows: Told = []
    for frame in frames:
        if not isinstance(frame, m.Deliver | m.Got):
            continue
        block, seqs = Block(frame.block), frame.seqs
        runs = list(zip(seqs[::2], seqs[1::2], strict=True)) or [(block.base_seq, block.count)]
        for first, count in runs:
            for seq in range(first, first + count):
                rows.append((seq, frame.origin and frame.origin.shifted(seq - block.base_seq)))
    return rows


def got(w: World, **fields: Any) -> Told:
    return told(w.say(A, m.Get(5, {"n": 1000, **fields})))


def at(by: int) -> Origin:
    return BORN.shifted(by)


def test_each_message_of_a_block_has_its_own_seq_at_the_origin(w: World) -> None:
    publish(w, "local")
    publish(w, "a", "b", "c", origin=tuple(BORN))
    publish(w, "local")
    expected = [(1, None), (2, at(0)), (3, at(1)), (4, at(2)), (5, None)]
    assert got(w) == expected
    assert got(w, seq=3, n=2) == expected[2:4]
    w.restart()
    w.hello(A, producer={"name": "p"})
    assert got(w) == expected


def test_blocks_of_different_origin_are_not_joined(w: World) -> None:
    for origin in (None, None, BORN, BORN._replace(seq=900), None, None):
        options = {} if origin is None else {"origin": tuple(origin)}
        w.say(A, m.Publish(0, 0, 0, encode("a", [b"x"]), options), commit=False)
    w.commit()
    assert [block.count for block in w.reader.blocks] == [2, 1, 1, 2]
    assert got(w)[2:4] == [(3, at(0)), (4, at(200))]


def test_a_part_of_a_block_tells_the_origin_of_its_first_message(w: World) -> None:
    topics = ["a", "b", "a", "a", "b"]
    block = encode(topics, [b"%d" % n for n in range(5)])
    w.say(A, m.Publish(9, 0, 0, block, {"origin": tuple(BORN)}))
    w.sub(A, 1, "b", group="g", start="first", credit=1)
    delivered = [frame for frame in w.said[A] if isinstance(frame, m.Deliver)]
    assert told(delivered) == [(2, at(1))]
    w.sub(A, 2, "b", group="h", start="first")
    delivered = [frame for frame in w.said[A] if isinstance(frame, m.Deliver) and frame.chan == 2]
    assert told(delivered) == [(2, at(1)), (5, at(4))]
    assert delivered[0].seqs == (2, 1, 5, 1)


def test_a_redelivery_tells_the_origin_also_after_a_restart(w: World) -> None:
    w.sub(A, 1, "a", group="g", start="first")
    publish(w, "a", "b", origin=tuple(BORN))
    first = [frame for frame in w.said[A] if isinstance(frame, m.Deliver)]
    assert told(first) == [(1, at(0)), (2, at(1))]
    w.say(A, m.Settle(1, 0, ((m.Verdict.ACK, 1, 1, None), (m.Verdict.RELEASE, 2, 2, None))))
    again = [frame for frame in w.said[A] if isinstance(frame, m.Deliver)][1:]
    assert told(again) == [(2, at(1))]
    w.restart()
    w.said[A] = []
    w.hello(A, producer={"name": "p"})
    w.sub(A, 1, "a", group="g")
    assert told([frame for frame in w.said[A] if isinstance(frame, m.Deliver)]) == [(2, at(1))]


def test_a_resumed_session_is_told_the_origin_again(w: World) -> None:
    welcome = w.hello(b"\0b")
    assert isinstance(welcome, m.Welcome)
    w.sub(b"\0b", 1, "a", group="g")
    publish(w, "a", "b", origin=tuple(BORN))
    resume = {"session": welcome.fields["session"], "subs": [[1, 0]]}
    answers = w.say(b"\0c", m.Hello(1, {"proto": 1, "resume": resume}))
    assert told(answers) == [(1, at(0)), (2, at(1))]


def test_duplicates_by_id_leave_the_origins_of_the_others_right(w: World) -> None:
    publish(w, "x", ids=[b"2"])
    answer = publish(w, "1", "2", "3", "4", ids=[b"1", b"2", b"3", b"1"], origin=tuple(BORN))
    assert answer.confirms[0][1:] == (2, 2, 2, ((1, 1), (3, 2)))
    assert got(w) == [(1, None), (2, at(0)), (3, at(2))]


def test_a_dead_letter_is_born_here(w: World) -> None:
    w.sub(A, 1, "a", group="g")
    publish(w, "a", origin=tuple(BORN))
    w.say(A, m.Settle(1, 0, ((m.Verdict.REJECT, 1, 1, "bad"),)))
    assert got(w, topic="$dlq.g") == [(2, None)]
    w.say(A, m.Admin(7, {"op": "dlq.redrive", "group": "g", "all": True}))
    again = [frame for frame in w.said[A] if isinstance(frame, m.Deliver)][-1:]
    assert told(again) == [(3, None)]


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        "text",
        7,
        [b"j" * 15, 1, 1, 1],
        ["j" * 16, 1, 1, 1],
        [b"j" * 16, 0, 1, 1],
        [b"j" * 16, 1, 0, 1],
        [b"j" * 16, 1, NUMBER_MAX + 1, 1],
        [b"j" * 16, 1, NUMBER_MAX, 1],
        [b"j" * 16, 1, 1, -1],
        [b"j" * 16, 1, 1, 1.0],
        [b"j" * 16, True, 1, 1],
        [b"j" * 16, 1, 1],
    ],
)
def test_a_wrong_origin_is_refused_and_nothing_is_stored(w: World, wrong: Any) -> None:
    assert publish(w, "a", "b", origin=wrong) is Code.BAD_OPTION
    assert not w.reader.blocks


def test_a_delayed_publish_has_no_origin(w: World) -> None:
    assert publish(w, "a", origin=tuple(BORN), delay_ms=1000) is Code.BAD_OPTION
    assert isinstance(publish(w, "a", origin=tuple(BORN), ttl_ms=1000), m.PubOk)
    assert got(w) == [(1, at(0))]


def test_a_later_program_may_say_more_in_an_origin(w: World) -> None:
    assert isinstance(publish(w, "a", origin=[*BORN, "more"]), m.PubOk)
    assert got(w) == [(1, at(0))]


def test_a_message_of_this_hubs_own_journal_is_refused() -> None:
    """It went in a circle: two hubs that copy from each other would store it again and again."""
    w = World(place={"journal": BORN.journal.hex()})
    w.hello(A)
    block = encode("a", [b"x"])
    for origin in (BORN, BORN._replace(epoch=9)):
        (answer,) = w.say(A, m.Publish(9, 0, 0, block, {"origin": tuple(origin)}))
        assert isinstance(answer, m.Err)
        assert answer.code == Code.BAD_OPTION
        assert "own journal (6a6a6a6a6a6a6a6a6a6a6a6a6a6a6a6a), at seq 700" in answer.text
    assert isinstance(publish(w, "x", origin=tuple(BORN._replace(journal=b"k" * 16))), m.PubOk)
    assert [origin and origin.journal for _, origin in got(w)] == [b"k" * 16]
