"""TXN: verdicts and a publish in one commit or not at all."""

from typing import Any

import pytest

from fabric.records import Append, SaveGroup, SaveProducer
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.world import World

ACK, RETRY, RELEASE, REJECT, TOUCH = m.Verdict


class Factory(World):
    """A worker that takes from `raw` on channel 1 and makes `done`."""

    def __init__(self) -> None:
        super().__init__()
        welcome = self.hello(b"worker", client="worker", ttl_ms=600_000, producer={"name": "worker"})
        assert isinstance(welcome, m.Welcome)
        self.epoch = welcome.fields["producer"]["epoch"]
        self.hello(b"boss")
        self.sub(b"worker", 1, "raw", group="work")

    def transact(
        self, *verdicts: tuple[int, int, int, Any], chan: int = 1, pseq: int = 1, rid: int = 9, bodies: str = "made"
    ) -> m.ToClient:
        block = encode("done", [body.encode() for body in bodies.split()])
        settles = ((chan, verdicts),) if verdicts else ()
        (answer,) = [
            message
            for message in self.say(b"worker", m.Transact(rid, pseq, settles, block))
            if isinstance(message, m.Ok | m.Err)
        ]
        return answer

    def journal(self) -> list[tuple[str, str]]:
        return [
            (topic, body.decode())
            for block in self.reader.blocks
            for topic, body in zip(block.topic_names(), block.payloads(), strict=True)
        ]


def test_verdicts_and_publish_are_one_turn() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2")
    said = len(factory.said[b"worker"])
    out: list[tuple[bytes, m.ToClient]] = []
    message = m.Transact(9, 1, ((1, ((ACK, 1, 2, None),)),), encode("done", [b"made"]))
    factory.router.step(message, b"worker", factory.now)
    out += factory.router.take_frames()
    assert not out, "nothing is said before it is on disk"
    turn = factory.router.seal(1_000, factory.now)
    out += factory.router.take_frames()
    assert [type(record) for record in turn.records] == [Append, SaveProducer, SaveGroup]
    assert not turn.records[2].open  # type: ignore[union-attr]
    answer = m.Ok(0, 9, {"first_seq": 3, "stored": 1, "dups": 0, "applied": 2})
    assert turn.sends == [(b"worker", answer)]
    assert len(factory.said[b"worker"]) == said


def test_a_stale_ordinal_undoes_all() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2", "3", "4")
    factory.settle(b"worker", 1, ACK, 2, 2)
    answer = factory.transact((ACK, 1, 4, None))
    assert isinstance(answer, m.Err)
    assert (answer.code, answer.fields) == (Code.STALE, {"chan": 1, "ordinals": [[2, 2]]})
    assert "done" not in [topic for topic, _ in factory.journal()]
    assert factory.settle(b"worker", 1, ACK, 1, 4)[0].fields == {  # type: ignore[union-attr]
        "applied": 3,
        "stale": [[2, 2]],
    }, "the other ordinals are still open"
    (answer,) = [factory.transact(pseq=1)]
    assert isinstance(answer, m.Ok), "and the pseq was not used up"


def test_a_lapsed_lease_refuses_the_work_that_was_done_under_it() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1")
    factory.pass_time(31)
    answer = factory.transact((ACK, 1, 1, None))
    assert isinstance(answer, m.Err)
    assert answer.code == Code.STALE


def test_a_resend_is_answered_as_the_first_time_and_looks_at_no_verdict() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1")
    first = factory.transact((ACK, 1, 1, None), bodies="a b")
    assert isinstance(first, m.Ok)
    again = factory.transact((ACK, 1, 1, None), bodies="a b", rid=10)
    assert again == m.Ok(0, 10, {"first_seq": first.fields["first_seq"], "stored": 0, "dups": 2, "applied": 0})
    assert factory.journal() == [("raw", "1"), ("done", "a"), ("done", "b")]


def test_a_resend_after_a_restart_is_recognised() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1")
    factory.transact((ACK, 1, 1, None))
    factory.restart()
    factory.hello(b"worker", producer={"name": "worker", "epoch": factory.epoch})
    again = factory.transact((ACK, 1, 1, None))
    assert isinstance(again, m.Ok)
    assert again.fields == {"first_seq": 2, "stored": 0, "dups": 1, "applied": 0}, "though channel 1 is gone"
    other = factory.transact((ACK, 1, 1, None), bodies="different")
    assert isinstance(other, m.Err)
    assert other.code == Code.PSEQ_TAKEN


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pseq": 7}, Code.SEQUENCE_GAP),
        ({"chan": 2}, Code.NOT_FOUND),
        ({"verdicts": ((ACK, 1, 9, None),)}, Code.BAD_ORDINAL),
        ({"verdicts": ((ACK, 1, 2, None), (RETRY, 2, 2, None))}, Code.BAD_OPTION),
        ({"block": encode("$dlq.x", [b"x"])}, Code.FORBIDDEN),
        ({"block": b"junk"}, Code.BAD_BLOCK),
    ],
)
def test_whatever_is_wrong_nothing_is_done(change: dict[str, Any], code: Code) -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2")
    verdicts = change.get("verdicts", ((ACK, 1, 2, None),))
    settles = ((change.get("chan", 1), verdicts),)
    block = change.get("block", encode("done", [b"made"]))
    (answer,) = factory.say(b"worker", m.Transact(9, change.get("pseq", 1), settles, block))
    assert isinstance(answer, m.Err)
    assert answer.code == code
    assert factory.journal() == [("raw", "1"), ("raw", "2")]
    assert factory.router.outstanding() == 2
    assert factory.router.publishing.producers["worker"].last_pseq == 0


def test_all_channels_or_none() -> None:
    factory = Factory()
    factory.sub(b"worker", 2, "side", group="side")
    factory.pub(b"boss", "raw", "1")
    factory.pub(b"boss", "side", "2")
    block = encode("done", [b"made"])
    wrong = m.Transact(9, 1, ((1, ((ACK, 1, 1, None),)), (2, ((ACK, 1, 2, None),))), block)
    assert isinstance(factory.say(b"worker", wrong)[0], m.Err)
    assert factory.router.outstanding() == 2
    right = m.Transact(9, 1, ((1, ((ACK, 1, 1, None),)), (2, ((REJECT, 1, 1, "no"),))), block)
    (answer,) = factory.say(b"worker", right)
    assert answer == m.Ok(0, 9, {"first_seq": 3, "stored": 1, "dups": 0, "applied": 2})
    assert factory.router.outstanding() == 0
    assert [topic for topic, _ in factory.journal()] == ["raw", "side", "done", "$dlq.side"]


def test_the_same_channel_may_be_named_twice_but_not_the_same_ordinal() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2")
    block = encode("done", [b"made"])
    (answer,) = factory.say(b"worker", m.Transact(9, 1, ((1, ((ACK, 1, 1, None),)), (1, ((ACK, 1, 1, None),))), block))
    assert isinstance(answer, m.Err)
    (answer,) = factory.say(b"worker", m.Transact(9, 1, ((1, ((ACK, 1, 1, None),)), (1, ((ACK, 2, 2, None),))), block))
    assert isinstance(answer, m.Ok)


def test_other_verdicts_go_along() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2", "3")
    answer = factory.transact((ACK, 1, 1, None), (RELEASE, 2, 2, None), (TOUCH, 3, 3, 60_000))
    assert isinstance(answer, m.Ok)
    assert answer.fields["applied"] == 3
    factory.pass_time(0.1)
    assert factory.delivered(b"worker")[-1][1:] == (2, 1, "2"), "what was released came again"


def test_a_transaction_without_verdicts_is_a_publish() -> None:
    factory = Factory()
    assert factory.transact() == m.Ok(0, 9, {"first_seq": 1, "stored": 1, "dups": 0, "applied": 0})


def test_without_a_number_a_resend_is_stale() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1")
    assert isinstance(factory.transact((ACK, 1, 1, None), pseq=0), m.Ok)
    assert isinstance(factory.transact((ACK, 1, 1, None), pseq=0), m.Err)
    assert factory.journal() == [("raw", "1"), ("done", "made")]


def test_it_counts_for_the_window_until_it_is_on_disk() -> None:
    factory = Factory()
    (session,) = [s for s in factory.router.session_table.sessions.values() if s.client == "worker"]
    factory.say(b"worker", m.Transact(9, 1, (), encode("done", [b"made"])), commit=False)
    assert session.inflight_blocks == 1
    factory.commit()
    assert session.inflight_blocks == 0


def test_what_settles_comes_before_what_gives_back() -> None:
    """In an ordered group giving back takes back what follows, and must not meet another verdict of the same TXN."""
    factory = Factory()
    factory.sub(b"worker", 2, "row", group="row", order="strict")
    factory.pub(b"boss", "row", "1", "2", "3")
    factory.pub(b"boss", "row", "4")
    answer = factory.transact((RETRY, 1, 1, None), (ACK, 2, 2, None), (RELEASE, 3, 4, None), chan=2)
    assert isinstance(answer, m.Ok)
    assert answer.fields["applied"] == 4
    assert factory.router.groups["row"].floor == 0
    assert list(factory.router.groups["row"].open) in ([(1, 1), (3, 4)], [(1, 4)])


@pytest.mark.parametrize("order", ["none", "key", "strict"])
def test_giving_back_over_several_deliveries_is_not_stale(order: str) -> None:
    factory = Factory()
    factory.sub(b"worker", 2, "row", group="row", order=order)
    for _ in range(3):
        block = encode("row", [b"x", b"y"], keys=[b"k", b"k"])
        factory.say(b"boss", m.Publish(9, 0, 0, block))
    held = len(factory.delivered(b"worker"))
    answer = factory.transact((RETRY, 1, held, None), chan=2)
    assert isinstance(answer, m.Ok)
    assert answer.fields["applied"] == held


def test_known_ids_are_left_out_and_the_verdicts_hold() -> None:
    factory = Factory()
    factory.pub(b"boss", "raw", "1", "2")
    first = encode("done", [b"a"], ids=[b"id-a"])
    factory.say(b"boss", m.Publish(9, 0, 0, first))
    both = encode("done", [b"a", b"b"], ids=[b"id-a", b"id-b"])
    (answer,) = factory.say(b"worker", m.Transact(9, 1, ((1, ((ACK, 1, 1, None),)),), both))
    assert isinstance(answer, m.Ok)
    assert {**answer.fields, "dup_rows": [list(row) for row in answer.fields["dup_rows"]]} == {
        "first_seq": 4,
        "stored": 1,
        "dups": 1,
        "applied": 1,
        "dup_rows": [[0, 3]],
    }
    (answer,) = factory.say(b"worker", m.Transact(9, 3, ((1, ((ACK, 2, 2, None),)),), first))
    assert isinstance(answer, m.Ok)
    assert (answer.fields["stored"], answer.fields["dups"], answer.fields["applied"]) == (0, 1, 1)
    assert [body for topic, body in factory.journal() if topic == "done"] == ["a", "b"]


def test_a_full_topic_refuses_the_verdicts_too() -> None:
    factory = Factory()
    made = factory.say(b"boss", m.Admin(8, {"op": "topic.create", "topic": "done", "max_msgs": 1}))[-1]
    assert isinstance(made, m.Ok), made
    factory.pub(b"boss", "raw", "1", "2")
    assert isinstance(factory.transact((ACK, 1, 1, None)), m.Ok)
    answer = factory.transact((ACK, 2, 2, None), pseq=2)
    assert isinstance(answer, m.Err)
    assert answer.code == Code.TOPIC_FULL
    assert factory.router.outstanding() == 1
