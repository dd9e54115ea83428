"""Transactions in the core: frames, answers, and the effects of a lost connection. No sockets."""

import pytest

from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.session import Session
from fabric_client.core.settle import settle
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.core.transaction import Transaction, send
from fabric_client.core.verdict_exceptions import Decision, Reject
from fabric_client.errors import BadMessage, Closed, Fenced, Stale, TopicFull, Unconfirmed
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.clients.talk import deliver, live_session, said, take, welcome


class Desk:
    """A session with one subscription in a group, and transactions that are sent without waiting."""

    def __init__(self) -> None:
        self.session = live_session()
        self.outcomes: list[Ticket] = []
        self.sub = self.session.subscribe(
            lambda chan: Subscription(chan, {"patterns": ["#"], "group": "g"}, driver=self), Ticket()
        )
        (sub,) = said(self.session)
        assert isinstance(sub, m.Subscribe)
        self.session.receive(m.Ok(sub.chan, sub.rid, {"group": "g", "lease_ms": 30_000}), 0.0)

    def verdicts(self, sub: Subscription, urgent: bool) -> None: ...

    def commit(self, txn: Transaction) -> None:
        if not txn.publishes:
            self.settle(txn.batch, txn.index, (Verdict.ACK, None), None)
            return
        self.outcomes.append(Ticket())
        send(txn, self.session.publisher, self.session.flush, self.outcomes[-1])

    def settle(self, batch: Batch, index: int | None, decision: Decision, timeout: float | None) -> None:
        self.outcomes.append(Ticket())
        settle(batch, index, decision, self.session.flush, self.outcomes[-1])

    def deliver(self, *payloads: bytes) -> Batch:
        self.session.receive(deliver(self.sub.chan, self.sub.last_ordinal + 1, *payloads), 0.0)
        return take(self.sub)

    def said(self) -> list[m.ToHub]:
        self.session.tick(0.0)
        for sub in self.session.subscriptions.values():
            self.session.flush(sub)
        return [message for message in said(self.session) if not isinstance(message, m.Credit)]

    def transaction(self) -> m.Transact:
        (sent,) = (message for message in self.said() if isinstance(message, m.Transact))
        return sent

    def answer(self, sent: m.Transact, **fields: object) -> None:
        self.session.receive(m.Ok(0, sent.rid, {"stored": 1, "dups": 0, "applied": 1, **fields}), 0.0)

    def refuse(self, sent: m.Transact, code: Code, **fields: object) -> None:
        self.session.receive(m.Err(0, sent.rid, code, "no", fields), 0.0)


def rows(messages: list[m.ToHub]) -> list[tuple[int, int, int, object]]:
    return [row for message in messages if isinstance(message, m.Settle) for row in message.verdicts]


def test_the_ack_travels_with_the_publishes() -> None:
    desk = Desk()
    first, second = desk.deliver(b"1", b"2")
    with second.transaction() as txn:
        txn.publish("out.a", {"n": 1}, key="k")
        txn.publish("out.b", b"x", id="i", headers={"h": "v"})
    sent = desk.transaction()
    assert (sent.pseq, sent.settles) == (1, ((desk.sub.chan, ((Verdict.ACK, 2, 2, None),)),))
    parsed = block.Block(sent.block)
    parsed.verify()
    assert (parsed.topic_names(), parsed.keys(), parsed.ids()) == (["out.a", "out.b"], [b"k", b""], [b"", b"i"])
    desk.answer(sent, first_seq=70, stored=2)
    assert desk.outcomes[0].result().seqs == [70, 71]
    first.ack()
    second.ack()
    assert rows(desk.said()) == [(Verdict.ACK, 1, 1, None)]
    assert not desk.sub.deliveries.held


def test_a_message_in_an_open_transaction_keeps_its_lease() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", b"x")
    desk.transaction()
    assert rows([desk.sub.renew(10.0)]) == [(Verdict.TOUCH, 1, 1, None)]  # type: ignore[list-item]


def test_an_exception_publishes_nothing_and_asks_for_a_retry() -> None:
    desk = Desk()
    one, other = desk.deliver(b"1", b"2")
    with pytest.raises(ZeroDivisionError), one.transaction() as txn:
        txn.publish("out", 1 // 0)
    with other.transaction() as txn:
        txn.publish("out", b"x")
        raise Reject("bad")
    why = "ZeroDivisionError: integer division or modulo by zero"
    assert rows(desk.said()) == [(Verdict.RETRY, 1, 1, why), (Verdict.REJECT, 2, 2, "bad")]
    assert not desk.outcomes


def test_without_publishes_it_is_an_ack() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with message.transaction():
        pass
    assert rows(desk.said()) == [(Verdict.ACK, 1, 1, None)]


def test_the_context_of_a_message_goes_out_with_its_ack() -> None:
    desk = Desk()
    one, other, third = desk.deliver(b"1", b"2", b"3")
    with one:
        one.context.publish("out", b"x")
        one.context.publish("out", b"y")
    other.context.publish("out", b"z")
    with pytest.raises(ValueError, match="no"), other:
        raise ValueError("no")
    with third:
        assert third.context.publishes == 0
    everything = desk.said()
    (sent,) = (message for message in everything if isinstance(message, m.Transact))
    assert block.Block(sent.block).payloads() == [b"x", b"y"]
    assert rows(everything) == [(Verdict.ACK, 3, 3, None), (Verdict.RETRY, 2, 2, "ValueError: no")]


def test_a_batch_is_acked_as_far_as_it_has_no_verdicts() -> None:
    desk = Desk()
    batch = desk.deliver(b"1", b"2", b"3", b"4")
    batch.message(1).reject("bad")
    with batch.transaction() as txn:
        txn.publish("out", b"x")
    sent = desk.transaction()
    assert sent.settles == ((desk.sub.chan, ((Verdict.ACK, 1, 1, None), (Verdict.ACK, 3, 4, None))),)
    desk.answer(sent, first_seq=9)
    assert not desk.sub.deliveries.held


def test_stale_means_that_nothing_was_done() -> None:
    desk = Desk()
    batch = desk.deliver(b"1", b"2")
    with batch.transaction() as txn:
        txn.publish("out", b"x")
    sent = desk.transaction()
    desk.refuse(sent, Code.STALE, chan=desk.sub.chan, ordinals=[[1, 1]])
    with pytest.raises(Stale) as caught:
        desk.outcomes[0].result()
    assert caught.value.hint
    assert rows(desk.said()) == [(Verdict.RELEASE, 1, 2, None)], "what is still ours goes back, the rest is stale"
    assert not desk.sub.deliveries.held
    assert not desk.session.publisher.refusals


def test_a_number_that_was_refused_is_used_again() -> None:
    desk = Desk()
    one, other = desk.deliver(b"1", b"2")
    for message in (one, other):
        with message.transaction() as txn:
            txn.publish("out", message.body)
    first, second = (s for s in desk.said() if isinstance(s, m.Transact))
    assert (first.pseq, second.pseq) == (1, 2)
    desk.refuse(first, Code.STALE, chan=desk.sub.chan, ordinals=[[1, 1]])
    desk.refuse(second, Code.SEQUENCE_GAP, expected=1)
    desk.session.tick(1.0)
    (again,) = (s for s in said(desk.session) if isinstance(s, m.Transact))
    assert (again.pseq, block.Block(again.block).payloads()) == (1, [b"2"])


def test_refused_publishes_ask_for_a_retry_of_the_message() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", b"x")
    desk.refuse(desk.transaction(), Code.TOPIC_FULL)
    with pytest.raises(TopicFull):
        desk.outcomes[0].result()
    ((verdict, first, _, reason),) = rows(desk.said())
    assert (verdict, first) == (Verdict.RETRY, 1)
    assert "refused" in str(reason)


def test_what_was_taken_back_before_is_stale_without_asking() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    desk.sub.take_back([[1, 1]])
    with message.transaction() as txn:
        txn.publish("out", b"x")
    assert isinstance(desk.outcomes[0].error, Stale)
    assert not desk.said()


def reconnect(session: Session, *, resumed: bool, subs: tuple[int, ...] = (), last_pseq: int = 0) -> None:
    session.lost(0.0, "test")
    session.opened(1.0)
    welcome(session, resumed=resumed, subs=subs, producer={"epoch": 1, "last_pseq": last_pseq, "last_seq": 0})


def begun(desk: Desk) -> tuple[Message, m.Transact]:
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", b"x")
    return message, desk.transaction()


def test_it_is_sent_again_after_a_resume() -> None:
    desk = Desk()
    _, sent = begun(desk)
    reconnect(desk.session, resumed=True, subs=(desk.sub.chan,))
    (again,) = (s for s in said(desk.session) if isinstance(s, m.Transact))
    assert (again.pseq, again.settles, again.block) == (sent.pseq, sent.settles, sent.block)
    desk.answer(again, first_seq=5)
    assert desk.outcomes[0].result().seq == 5


def test_if_only_the_answer_was_lost_it_is_known_by_its_number() -> None:
    desk = Desk()
    _, sent = begun(desk)
    reconnect(desk.session, resumed=False, last_pseq=1)
    (again,) = (s for s in said(desk.session) if isinstance(s, m.Transact))
    assert again.pseq == sent.pseq
    desk.answer(again, first_seq=5, stored=0, dups=1, applied=0)
    assert desk.outcomes[0].result().seq == 5


def test_if_the_session_is_gone_nothing_was_done() -> None:
    desk = Desk()
    begun(desk)
    reconnect(desk.session, resumed=False)
    assert isinstance(desk.outcomes[0].error, Stale)
    assert not [s for s in said(desk.session) if isinstance(s, m.Transact)]
    assert desk.session.publisher.settled


def test_a_closed_client_fails_the_calls_that_wait() -> None:
    desk = Desk()
    begun(desk)
    desk.session.fail(Closed("closed"))
    assert isinstance(desk.outcomes[0].error, Unconfirmed), "it was sent, so the hub may have done it"


def test_a_transaction_of_a_producer_that_was_fenced_may_have_been_done() -> None:
    """The hub did it and died before it said so; another program has claimed the name meanwhile."""
    desk = Desk()
    begun(desk)
    desk.session.lost(1.0, "test")
    desk.session.opened(2.0)
    (hello,) = said(desk.session)
    assert isinstance(hello, m.Hello)
    desk.session.receive(m.Err(0, hello.rid, Code.FENCED, "a newer session", {}), 2.0)
    assert isinstance(desk.session.error, Fenced)
    assert isinstance(desk.outcomes[0].error, Unconfirmed)


def test_a_transaction_that_is_over_takes_no_more() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", b"x")
    with pytest.raises(Exception, match="over"):
        txn.publish("out", b"y")


def test_bad_messages_are_found_before_anything_is_sent() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with pytest.raises(BadMessage), message.transaction() as txn:
        txn.publish("out..x", b"x")
    assert [row[0] for row in rows(desk.said())] == [Verdict.RETRY]


def test_too_much_for_a_block_is_refused_here_and_the_message_retried() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", bytes(2 << 20))
    assert isinstance(desk.outcomes[0].error, BadMessage)
    assert [row[0] for row in rows(desk.said())] == [Verdict.RETRY]


async def _committed() -> None: ...


def test_the_wrong_kind_of_with_is_an_error() -> None:
    desk = Desk()
    (message,) = desk.deliver(b"1")
    desk.commit = lambda txn: _committed()  # type: ignore[assignment,method-assign]
    with pytest.raises(Exception, match="asyncio"), message.transaction() as txn:
        txn.publish("out", b"x")


def test_a_message_without_a_group_has_nothing_to_ack() -> None:
    desk = Desk()
    desk.sub.settles = False
    (message,) = desk.deliver(b"1")
    with message.transaction() as txn:
        txn.publish("out", b"x")
    assert "group" in desk.outcomes[0].error.hint  # type: ignore[union-attr]


def test_a_refused_transaction_bars_its_key() -> None:
    desk = Desk()
    desk.sub.waiting_keys.order = "strict"
    one, other = desk.deliver(b"1", b"2")
    with one.transaction() as txn:
        txn.publish("out", b"x")
    desk.refuse(desk.transaction(), Code.TOPIC_FULL)
    assert other.lost
    assert [row[:3] for row in rows(desk.said())] == [(Verdict.RETRY, 1, 1), (Verdict.RELEASE, 2, 2)]
