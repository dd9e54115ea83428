"""Numbered sources: numbers that jump, a cursor that is stored with the messages, and resends that are recognised."""

from typing import Any, Final

import pytest

from fabric.journal.rows import decode_producer, encode_producer
from fabric.router.publish.producers import RECENT_MAX
from fabric.router.publish.sources import Source, restored_producer
from fabric.router.sessions import session_table
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code
from tests.router.world import World

A, B = b"\0a", b"\0b"
NAME: Final = "kafka:cluster:topic:0"


def claimed(w: World, peer: bytes = A, **more: Any) -> dict[str, Any]:
    answer = w.hello(peer, producer={"name": NAME, "jumps": True, **more})
    assert isinstance(answer, m.Welcome), answer
    return dict(answer.fields["producer"])


def refused_hello(w: World, peer: bytes, **wish: Any) -> Code:
    answer = w.hello(peer, producer={"name": NAME, **wish})
    assert isinstance(answer, m.Err), answer
    return Code(answer.code)


def said(w: World, pseq: int, *bodies: str, peer: bytes = A, **options: Any) -> Any:
    """(first seq, stored, duplicates) of a publish, or the code of its refusal."""
    block = encode("a", [body.encode() for body in bodies])
    (answer,) = w.say(peer, m.Publish(9, pseq, 0, block, options))
    if isinstance(answer, m.Err):
        return Code(answer.code)
    assert isinstance(answer, m.PubOk)
    return answer.confirms[0][1:]


def stored(w: World) -> list[bytes]:
    return [body for block in w.reader.blocks for body in block.payloads()]


def test_numbers_may_jump_and_the_last_one_is_the_cursor() -> None:
    w = World()
    assert claimed(w)["last_pseq"] == 0
    assert claimed(w, B)["jumps"] is True
    assert said(w, 17, "a", peer=B) == (1, 1, 0)
    assert said(w, 40, "b", "c", peer=B) == (2, 2, 0), "dense without last"
    assert said(w, 50, "d", "e", peer=B, last=90) == (4, 2, 0)
    assert said(w, 91, "f", "g", "h", peer=B, last=91) == (6, 3, 0), "several messages of one position"
    w.restart()
    told = claimed(w)
    assert (told["last_pseq"], told["last_seq"]) == (91, 8)
    assert said(w, 1 << 40, "i") == (9, 1, 0)


def test_a_resend_is_a_duplicate_with_its_first_seq_and_is_compared_with_what_was_stored() -> None:
    w = World()
    epoch = claimed(w)["epoch"]
    assert said(w, 10, "a", "b", last=19) == (1, 2, 0)
    assert said(w, 20, "c") == (3, 1, 0)
    w.restart()
    claimed(w, epoch=epoch)
    assert said(w, 10, "a", "b", last=19) == (1, 0, 2)
    assert said(w, 20, "c") == (3, 0, 1)
    assert said(w, 10, "a", "x", last=19) is Code.PSEQ_TAKEN
    assert said(w, 10, "a", "b", last=18) is Code.PSEQ_TAKEN
    assert said(w, 10, "a") is Code.PSEQ_TAKEN
    assert said(w, 11, "b", last=19) is Code.PSEQ_TAKEN
    assert said(w, 15, "between") is Code.PSEQ_TAKEN
    assert said(w, 5, "below") is Code.BAD_OPTION, "older than all blocks that are remembered"
    assert stored(w) == [b"a", b"b", b"c"]


def test_a_block_that_is_partly_below_the_cursor_is_refused() -> None:
    w = World()
    claimed(w)
    said(w, 10, "a", "b", last=19)
    block = encode("a", [b"b", b"c"])
    (answer,) = w.say(A, m.Publish(9, 19, 0, block, {"last": 30}))
    assert isinstance(answer, m.Err)
    assert (answer.code, answer.fields["cursor"]) == (Code.PSEQ_TAKEN, 19)
    assert "in part" in answer.text
    assert said(w, 20, "c", last=30) == (3, 1, 0)
    assert stored(w) == [b"a", b"b", b"c"]


def test_a_block_says_what_it_follows_so_that_nothing_is_passed_over() -> None:
    """A block is refused for now; the block behind it was on its way and must not move the cursor."""
    w = World()
    claimed(w)
    assert said(w, 10, "a", after=0) == (1, 1, 0)
    block = encode("a", [b"c"])
    (answer,) = w.say(A, m.Publish(9, 30, 0, block, {"after": 20}))
    assert isinstance(answer, m.Err)
    assert (answer.code, answer.fields["expected"], answer.fields["retry_ms"]) == (Code.SEQUENCE_GAP, 11, 1)
    assert said(w, 20, "b", after=10) == (2, 1, 0)
    assert said(w, 30, "c", after=20) == (3, 1, 0)
    assert said(w, 30, "c", after=20) == (3, 0, 1), "a resend says the same"
    assert said(w, 40, "d", after=40) is Code.BAD_OPTION
    assert stored(w) == [b"a", b"b", b"c"]


def test_a_later_session_of_the_name_cannot_resend_blocks_of_an_earlier_one() -> None:
    w = World()
    claimed(w)
    said(w, 10, "a")
    assert claimed(w, B)["last_pseq"] == 10
    assert said(w, 10, "a", peer=B) is Code.PSEQ_TAKEN
    w.say(A, m.Publish(9, 11, 0, encode("a", [b"b"])))
    assert [answer.code for answer in w.said[A] if isinstance(answer, m.Err)] == [Code.FENCED]
    assert said(w, 11, "b", peer=B) == (2, 1, 0)


@pytest.mark.parametrize("first", [True, False])
def test_a_producer_keeps_its_kind(first: bool) -> None:
    w = World()
    assert isinstance(w.hello(A, producer={"name": NAME, "jumps": first}), m.Welcome)
    assert refused_hello(w, B, jumps=not first) is Code.CONFLICT
    w.restart()
    assert refused_hello(w, B, jumps=not first) is Code.CONFLICT
    assert isinstance(w.hello(A, producer={"name": NAME, "jumps": first}), m.Welcome)


def test_a_resumed_session_keeps_its_kind() -> None:
    w = World()
    welcome = w.hello(A, producer={"name": NAME, "jumps": True})
    assert isinstance(welcome, m.Welcome)
    resume = {"session": welcome.fields["session"], "subs": []}
    (answer,) = w.say(B, m.Hello(1, {"proto": 1, "producer": {"name": NAME}, "resume": resume}))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.CONFLICT
    more = {"name": NAME, "jumps": True}
    (answer,) = w.say(B, m.Hello(1, {"proto": 1, "producer": more, "resume": resume}))
    assert isinstance(answer, m.Welcome)


def test_a_dense_producer_keeps_its_rule() -> None:
    w = World()
    assert isinstance(w.hello(A, producer={"name": "p"}), m.Welcome)
    assert said(w, 2, "a") is Code.SEQUENCE_GAP
    assert said(w, 1, "a", last=1) is Code.BAD_OPTION
    assert said(w, 1, "a", after=0) is Code.BAD_OPTION
    assert said(w, 1, "a") == (1, 1, 0)
    assert said(w, 0, "b", last=7) is Code.BAD_OPTION
    assert "jumps" not in w.hello(B, producer={"name": "q"}).fields["producer"]  # type: ignore[union-attr]


def test_numbers_at_the_edges() -> None:
    w = World()
    claimed(w)
    assert said(w, NUMBER_MAX, "a", "b") is Code.BAD_OPTION, "the second would be 2^63"
    assert said(w, 5, "a", last=4) is Code.BAD_OPTION
    for junk in (-1, NUMBER_MAX + 1, "7", 7.0, True, [7]):
        assert said(w, 5, "a", last=junk) is Code.BAD_OPTION
        assert said(w, 5, "a", after=junk) is Code.BAD_OPTION
    assert said(w, 5, "a", last=NUMBER_MAX - 1) == (1, 1, 0)
    assert said(w, NUMBER_MAX, "b", after=NUMBER_MAX - 1) == (2, 1, 0)
    assert said(w, NUMBER_MAX, "b", after=NUMBER_MAX - 1) == (2, 0, 1)
    w.restart()
    assert claimed(w)["last_pseq"] == NUMBER_MAX
    wishes: tuple[Any, ...] = (0, 1, "yes", None, [])
    for wish in wishes:
        assert refused_hello(w, B, jumps=wish) is Code.BAD_OPTION


def test_the_last_blocks_are_remembered_as_many_as_can_be_unconfirmed() -> None:
    source = Source("s")
    for number in range(1, 1000):
        source.stored(number * 10, 2, number, number * 2, {"last": number * 10 + 5})
        if number % 7 == 0:
            again = restored_producer(decode_producer(*encode_producer(source.record(1))))
            assert isinstance(again, Source)
            source = again
        for back in range(min(number, RECENT_MAX)):
            at = number - back
            assert source.duplicate_of(at * 10, 2, at, {"last": at * 10 + 5}) == at * 2
    assert len(source.spans) == len(source.blocks) <= 4 * RECENT_MAX


def test_a_delayed_publish_of_a_source_moves_the_cursor() -> None:
    w = World()
    epoch = claimed(w)["epoch"]
    block = encode("a", [b"later"])
    (answer,) = w.say(A, m.Publish(9, 70, 0, block, {"delay_ms": 1000, "last": 75}))
    assert isinstance(answer, m.Ok)
    w.restart()
    assert claimed(w, epoch=epoch)["last_pseq"] == 75
    (answer,) = w.say(A, m.Publish(9, 70, 0, block, {"delay_ms": 1000, "last": 75}))
    assert isinstance(answer, m.Ok)
    assert answer.fields["dup"] is True


def test_the_number_of_sources_is_bounded_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SOURCES_MAX", 2)
    monkeypatch.setattr(session_table, "PRODUCERS_MAX", 3)
    w = World()
    claimed(w)
    said(w, 5, "a")
    for peer, wish in ((b"1", {"name": "other", "jumps": True}), *((b"%d" % n, {"name": f"{n}"}) for n in range(2, 9))):
        assert isinstance(w.hello(peer, producer=wish), m.Welcome)
        w.say(peer, m.Publish(9, 1, 0, encode("a", [b"x"])))
        w.say(peer, m.Goodbye(1))
    assert isinstance(w.hello(b"x", producer={"name": "third", "jumps": True}), m.Err)
    w.say(A, m.Goodbye(1))
    w.router.session_table.forget_producers()
    assert len(w.router.publishing.producers) <= 4
    assert claimed(w, B)["last_pseq"] == 5


def test_a_name_of_a_source_may_be_longer() -> None:
    w = World()
    long = "k" * session_table.SOURCE_CHARS_MAX
    assert isinstance(w.hello(A, producer={"name": long, "jumps": True}), m.Welcome)
    assert isinstance(w.hello(B, producer={"name": long}), m.Err)
    assert isinstance(w.hello(b"c", producer={"name": long + "k", "jumps": True}), m.Err)


# Deleted sources.


def deleted(w: World, name: str = NAME, **more: Any) -> Any:
    """The answer to producer.delete, or the code of its refusal."""
    answer = w.say(B, m.Admin(7, {"op": "producer.delete", "name": name, **more}))[-1]
    if isinstance(answer, m.Err):
        return Code(answer.code)
    assert isinstance(answer, m.Ok)
    return dict(answer.fields)


def test_a_deleted_source_begins_at_0_also_after_a_restart() -> None:
    w = World()
    w.hello(B)
    claimed(w)
    said(w, 40, "x", last=50)
    assert deleted(w) == Code.CONFLICT
    w.say(A, m.Goodbye(1))
    assert NAME in w.producers
    assert deleted(w) == {"name": NAME, "deleted": True, "last_pseq": 50, "jumps": True}
    assert NAME not in w.producers
    assert deleted(w) == Code.NOT_FOUND
    w.restart()
    w.hello(B)
    assert deleted(w) == Code.NOT_FOUND
    assert claimed(w)["last_pseq"] == 0
    assert said(w, 1, "again") == (2, 1, 0)


def test_a_deleted_source_may_become_an_ordinary_producer() -> None:
    w = World()
    w.hello(B)
    claimed(w)
    w.say(A, m.Goodbye(1))
    assert refused_hello(w, A) == Code.CONFLICT
    deleted(w)
    assert isinstance(w.hello(A, producer={"name": NAME}), m.Welcome)


def test_a_source_whose_session_is_silent_is_not_deleted() -> None:
    """The session may come back, and its unconfirmed blocks are resends."""
    w = World()
    w.hello(A, ttl_ms=60_000, producer={"name": NAME, "jumps": True})
    w.pass_time(30)
    w.hello(B)
    assert deleted(w) == Code.CONFLICT


def test_a_delete_makes_room_for_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "SOURCES_MAX", 1)
    w = World()
    w.hello(B)
    claimed(w)
    w.say(A, m.Goodbye(1))
    other = {"name": "other", "jumps": True}
    answer = w.hello(A, producer=other)
    assert isinstance(answer, m.Err)
    assert "producer.delete" in answer.text
    deleted(w)
    assert isinstance(w.hello(A, producer=other), m.Welcome)
    assert refused_hello(w, b"\0c", jumps=True) == Code.BAD_OPTION


def test_a_claim_in_the_turn_of_the_delete_is_on_disk() -> None:
    w = World()
    w.hello(B)
    claimed(w)
    said(w, 40, "x")
    w.say(A, m.Goodbye(1))
    w.say(B, m.Admin(7, {"op": "producer.delete", "name": NAME}), commit=False)
    w.say(A, m.Hello(8, {"proto": 1, "producer": {"name": NAME, "jumps": True}}), commit=False)
    w.commit()
    assert w.producers[NAME].last_pseq == 0
    w.restart()
    assert claimed(w, B)["last_pseq"] == 0


@pytest.mark.parametrize("name", ["", 5, "x" * 366])
def test_a_wrong_name_is_refused(name: Any) -> None:
    w = World()
    w.hello(B)
    assert deleted(w, name) == Code.BAD_OPTION
    assert deleted(w, NAME, force=True) == Code.BAD_OPTION
