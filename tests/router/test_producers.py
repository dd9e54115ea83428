"""Claims of a producer's name are on disk before they have an effect; a resend is recognised by what was stored."""

from typing import Any

import pytest

from fabric.records import SaveProducer
from fabric.router.publish.producers import RECENT_MAX
from fabric.router.publish.sources import restored_producer
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

A, B, C = b"\0a", b"\0b", b"\0c"


def claimed(w: World, peer: bytes, epoch: int | None = None) -> dict[str, Any]:
    wish: dict[str, Any] = {"name": "p"} if epoch is None else {"name": "p", "epoch": epoch}
    answer = w.hello(peer, producer=wish)
    assert isinstance(answer, m.Welcome), answer
    return dict(answer.fields["producer"])


def code_of(answers: list[m.ToClient]) -> int:
    (answer,) = answers
    assert isinstance(answer, m.Err), answer
    return answer.code


def stored(w: World) -> list[bytes]:
    return [body for block in w.reader.blocks for body in block.payloads()]


def say_later(w: World, peer: bytes, message: m.ToHub) -> None:
    assert w.say(peer, message, commit=False) == [], "nothing may be told before it is on disk"


def publish(pseq: int, *bodies: str, rid: int = 9) -> m.Publish:
    return m.Publish(rid, pseq, 0, encode("a", [body.encode() for body in bodies]))


# Claims.


def test_a_message_is_not_lost_when_the_hub_dies_between_a_claim_and_its_first_publish() -> None:
    """A publishes; B claims the name and publishes, the hub dies before the commit; A is back first and publishes."""
    w = World()
    first = claimed(w, A)["epoch"]
    w.pub(A, "a", "from A", pseq=1)
    second = claimed(w, B)["epoch"]
    say_later(w, B, publish(2, "from B"))
    w.restart()
    late = w.hello(A, producer={"name": "p", "epoch": first})
    assert isinstance(late, m.Err)
    assert late.code == Code.FENCED
    assert claimed(w, B, second) == {"epoch": second, "last_pseq": 1, "last_seq": 1}
    assert w.pub(B, "a", "from B", pseq=2) == [m.PubOk(0, ((9, 2, 1, 0),))]
    assert stored(w) == [b"from A", b"from B"]


def test_a_claim_is_on_disk_before_it_is_told() -> None:
    w = World()
    say_later(w, A, m.Hello(1, {"proto": 1, "producer": {"name": "p"}}))
    assert w.router.wants_commit(w.now), "it does not wait for something else to be written"
    turn = w.router.seal(0, w.now)
    w.router.take_frames()
    (row,) = turn.records
    assert isinstance(row, SaveProducer)
    ((peer, welcome),) = turn.sends
    assert isinstance(welcome, m.Welcome)
    assert (peer, welcome.fields["producer"]["epoch"]) == (A, row.epoch)


def test_an_older_session_hears_of_its_fence_when_the_claim_is_on_disk() -> None:
    w = World()
    first = claimed(w, A)["epoch"]
    w.pub(A, "a", "1", pseq=1)
    say_later(w, B, m.Hello(1, {"proto": 1, "producer": {"name": "p"}}))
    say_later(w, A, publish(2, "2"))
    say_later(w, C, m.Hello(1, {"proto": 1, "producer": {"name": "p", "epoch": first}}))
    w.restart()  # nothing of it was on disk or confirmed: A goes on
    assert claimed(w, A, first)["last_pseq"] == 1
    assert w.pub(A, "a", "2", pseq=2) == [m.PubOk(0, ((9, 2, 1, 0),))]
    w.say(B, m.Hello(1, {"proto": 1, "producer": {"name": "p"}}), commit=False)
    say_later(w, A, publish(3, "3", rid=30))
    w.commit()
    assert [(said.rid, said.code) for said in w.said[A] if isinstance(said, m.Err)] == [(30, Code.FENCED)]


def test_a_publish_that_comes_just_before_the_claim_is_counted_in_its_welcome() -> None:
    w = World()
    claimed(w, A)
    say_later(w, A, publish(1, "1"))
    assert claimed(w, B) == {"epoch": w.router.publishing.producers["p"].epoch, "last_pseq": 1, "last_seq": 1}
    assert isinstance(w.said[A][-1], m.PubOk)


def test_a_publish_sent_together_with_the_claim_is_written_with_it() -> None:
    w = World()
    say_later(w, A, m.Hello(1, {"proto": 1, "producer": {"name": "p"}}))
    say_later(w, A, publish(1, "1"))
    w.commit()
    assert [type(said) for said in w.said[A]] == [m.Welcome, m.PubOk]
    row = w.producers["p"]
    assert (row.last_pseq, row.epoch) == (1, w.router.publishing.producers["p"].epoch)
    w.restart()
    assert claimed(w, A, row.epoch)["last_pseq"] == 1
    assert w.pub(A, "a", "1", pseq=1) == [m.PubOk(0, ((9, 1, 0, 1),))]


def test_a_name_that_the_hub_does_not_know_is_taken_with_the_clients_epoch_at_once() -> None:
    w = World()
    answer = w.say(A, m.Hello(1, {"proto": 1, "producer": {"name": "random", "epoch": 1}}), commit=False)
    assert isinstance(answer[0], m.Welcome)
    w.commit()
    assert not w.producers, "a client that never publishes leaves no row"
    w.pub(A, "a", "1", pseq=1)
    assert (w.producers["random"].epoch, w.producers["random"].last_pseq) == (1, 1)


def test_a_newer_epoch_than_the_known_one_is_a_claim() -> None:
    """As after a restore from a backup."""
    w = World()
    first = claimed(w, A)["epoch"]
    w.pub(A, "a", "1", pseq=1)
    say_later(w, B, m.Hello(1, {"proto": 1, "producer": {"name": "p", "epoch": first + 7}}))
    w.commit()
    assert w.producers["p"].epoch == first + 7
    assert code_of(w.pub(A, "a", "2", pseq=2)) == Code.FENCED
    assert code_of(w.pub(B, "a", "1", pseq=1)) == Code.PSEQ_TAKEN, "it was A's message"


@pytest.mark.parametrize("wish", [{"name": "other"}, {"name": "other", "epoch": 5}, {"name": "p", "epoch": 1 << 40}])
def test_a_resumed_session_keeps_its_producer(wish: dict[str, Any]) -> None:
    w = World()
    welcome = w.hello(A, producer={"name": "p"})
    assert isinstance(welcome, m.Welcome)
    w.hello(C, producer={"name": "other"})
    resume = {"session": welcome.fields["session"], "subs": []}
    wrong = w.hello(B, resume=resume, producer=wish)
    assert isinstance(wrong, m.Err)
    assert wrong.code in (Code.BAD_OPTION, Code.FENCED)
    right = w.say(B, m.Hello(1, {"proto": 1, "resume": resume, "producer": {"name": "p"}}), commit=False)
    assert isinstance(right[0], m.Welcome)
    assert right[0].fields["resumed"]
    assert right[0].fields["producer"]["epoch"] == welcome.fields["producer"]["epoch"]
    w.hello(A, producer={"name": "p"})
    fenced = w.hello(b"\0d", resume=resume, producer={"name": "p"})
    assert isinstance(fenced, m.Err)
    assert fenced.code == Code.FENCED


def test_info_shows_which_sessions_share_a_producer_but_not_its_name() -> None:
    w = World()
    w.hello(A, producer={"name": "orders-api"})
    w.hello(B, producer={"name": "orders-api"})
    w.hello(C, producer={"name": "other"})
    (answer,) = w.say(C, m.Info(5, {"what": "sessions"}))
    assert isinstance(answer, m.Ok)
    assert "orders-api" not in repr(answer)
    marks = [row["producer"] for row in answer.fields["sessions"]]
    assert marks[0] == marks[1] != marks[2]


def test_nothing_is_said_before_welcome() -> None:
    w = World()
    for n in range(200):  # so many publishers that each gets a smaller window
        w.hello(b"\0%d" % n, producer={"name": f"p{n}", "epoch": 1})
    say_later(w, A, m.Hello(1, {"proto": 1, "producer": {"name": "p"}}))
    w.pass_time(1.0)
    assert [type(said) for said in w.said[A]] == [m.Welcome, m.Flow]


# Resends.


def test_a_resend_with_other_content_is_refused() -> None:
    w = World()
    claimed(w, A)
    w.pub(A, "a", "1", "2", pseq=1)
    w.pub(A, "a", "3", pseq=3)
    for wrong in (publish(1, "1", "x"), publish(1, "1"), publish(2, "2"), publish(3, "x"), publish(2, "2", "3")):
        assert code_of(w.say(A, wrong)) == Code.PSEQ_TAKEN
    assert w.pub(A, "a", "1", "2", pseq=1) == [m.PubOk(0, ((9, 1, 0, 2),))]
    assert w.pub(A, "a", "3", pseq=3) == [m.PubOk(0, ((9, 3, 0, 1),))]
    assert stored(w) == [b"1", b"2", b"3"]


def test_content_is_compared_after_a_restart_too() -> None:
    w = World()
    epoch = claimed(w, A)["epoch"]
    w.pub(A, "a", "1", pseq=1)
    w.restart()
    claimed(w, A, epoch)
    assert code_of(w.pub(A, "a", "x", pseq=1)) == Code.PSEQ_TAKEN
    assert w.pub(A, "a", "1", pseq=1) == [m.PubOk(0, ((9, 1, 0, 1),))]


def test_equal_messages_of_two_sessions_are_two_messages() -> None:
    w = World()
    claimed(w, A)
    w.pub(A, "a", "tick", pseq=1)
    claimed(w, B)
    assert code_of(w.pub(B, "a", "tick", pseq=1)) == Code.PSEQ_TAKEN
    assert w.pub(B, "a", "tick", pseq=2) == [m.PubOk(0, ((9, 2, 1, 0),))]


def test_as_many_blocks_are_remembered_as_can_be_unconfirmed() -> None:
    w = World()
    claimed(w, A)
    for n in range(1, RECENT_MAX + 2):
        w.pub(A, "a", str(n), pseq=n)
    for n in range(2, RECENT_MAX + 2):
        assert w.pub(A, "a", str(n), pseq=n) == [m.PubOk(0, ((9, n, 0, 1),))]
    assert code_of(w.pub(A, "a", "1", pseq=1)) == Code.BAD_OPTION


def test_rows_of_older_programs_are_compared_by_number() -> None:
    producer = restored_producer(SaveProducer("p", 5, 3, (3, 10), 0))
    assert producer.duplicate_of(2, 2, 1234) == 11
    producer.stored(4, 2, 77, 13)
    assert producer.duplicate_of(1, 1, 1234) == 10
    assert producer.duplicate_of(4, 2, 77) == 13
    again = restored_producer(producer.record(9))
    assert again.duplicate_of(4, 2, 77) == 13
    assert again.record(9) == producer.record(9)
