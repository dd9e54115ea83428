"""The core without publishing and consuming: requests, replies, refreshes, reading. No sockets."""

from typing import Any

import pytest

from fabric_client.core.batch import Batch
from fabric_client.core.calls import Call
from fabric_client.core.inbox import Inbox, addressed, inbox_topic
from fabric_client.core.reading import Reading
from fabric_client.core.refresh import Refresh
from fabric_client.core.requests import Responder, next_reply, request_fields, single_block
from fabric_client.core.session import Session
from fabric_client.core.subscription import Subscription
from fabric_client.core.ticket import Ticket
from fabric_client.errors import ConnectionLost, NoResponders, NotFound, RemoteError, TimedOut
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.errors import Code, FabricError
from fabric_protocol.messages import Verdict
from tests.clients.talk import deliver, live_session, said, take, welcome


def ask(session: Session) -> Call:
    raw = single_block("quote.get", {"sku": "A1"}, None, None)
    return session.ask(lambda rid: m.Request(0, rid, request_fields(2.0, 3), raw), Ticket())


def reply(call: Call, body: bytes, **fields: Any) -> m.Reply:
    return m.Reply(0, call.rid, {"final": True, "from": "shop", **fields}, single_block("quote.get", body, None, None))


def test_a_request_says_how_long_and_how_many() -> None:
    session = live_session()
    call = ask(session)
    (sent,) = said(session)
    assert isinstance(sent, m.Request)
    assert (sent.chan, sent.rid, dict(sent.fields)) == (0, call.rid, {"timeout_ms": 2000, "replies_max": 3})
    assert block.Block(sent.block).headers() == [{"content-type": "application/json"}]
    assert request_fields(0.0001, None) == {"timeout_ms": 1, "replies_max": 1}


def test_replies_come_one_by_one_until_the_final_one() -> None:
    session = live_session()
    call = ask(session)
    session.receive(reply(call, b"1", final=False), 0.0)
    first = next_reply(call, 9)
    assert first is not None
    assert (first.body, first.final, first.sender, call.ticket.done) == (b"1", False, "shop", False)
    assert next_reply(call, 9) is None
    session.receive(reply(call, b"2"), 0.0)
    assert call.ticket.done
    second = next_reply(call, 9)
    assert second is not None
    assert (second.body, second.final) == (b"2", True)
    session.receive(reply(call, b"late"), 0.0)
    assert next_reply(call, 9) is None


@pytest.mark.parametrize(("code", "error"), [(Code.NO_RESPONDERS, NoResponders), (Code.TIMED_OUT, TimedOut)])
def test_a_request_without_an_answer_is_an_error(code: Code, error: type[Exception]) -> None:
    session = live_session()
    call = ask(session)
    session.receive(m.Err(0, call.rid, code, "nobody", {"sent": False}), 0.0)
    with pytest.raises(error, match="nobody"):
        call.ticket.result()


def test_the_failure_of_a_responder_is_a_remote_error() -> None:
    session = live_session()
    call = ask(session)
    session.receive(reply(call, b"", error="ValueError: no such sku"), 0.0)
    with pytest.raises(RemoteError, match="no such sku"):
        next_reply(call, 9)


def test_a_busy_hub_is_asked_again() -> None:
    session = live_session()
    call = ask(session)
    said(session)
    session.receive(m.Err(0, call.rid, Code.BUSY, "busy", {"retry_ms": 50}), 0.0)
    session.tick(0.05)
    assert [type(s) for s in said(session)] == [m.Request]
    assert not call.ticket.done


def reconnect(session: Session, *, resumed: bool, subs: tuple[int, ...] = ()) -> None:
    session.lost(0.0, "test")
    session.opened(1.0)
    welcome(session, resumed=resumed, subs=subs)


def test_a_request_is_never_said_twice() -> None:
    session = live_session()
    call = ask(session)
    reconnect(session, resumed=True)
    assert not [s for s in said(session) if isinstance(s, m.Request)]
    assert not call.ticket.done, "the hub still has it"
    reconnect(session, resumed=False)
    assert isinstance(call.ticket.error, ConnectionLost)


def test_a_request_made_without_a_connection_is_said_when_there_is_one() -> None:
    session = live_session()
    session.lost(0.0, "test")
    ask(session)
    session.opened(1.0)
    welcome(session, resumed=False)
    assert [type(s) for s in said(session)] == [m.Request]


# Responders.


def responder(session: Session) -> Responder:
    request = {"patterns": ["quote.*"], "respond": True, "concurrency": 2}
    sub = session.subscribe(lambda chan: Responder(chan, request, hook=lambda s, _: session.flush(s)), Ticket())
    (sent,) = said(session)
    assert isinstance(sent, m.Subscribe)
    assert dict(sent.fields) == request
    session.receive(m.Ok(sent.chan, sent.rid, {"group": "", "concurrency": 2}), 0.0)
    assert isinstance(sub, Responder)
    return sub


def test_requests_are_answered_on_their_channel() -> None:
    session = live_session()
    sub = responder(session)
    session.receive(
        m.Request(sub.chan, 77, {"timeout_ms": 1500}, single_block("quote.get", {"sku": 1}, None, None)), 0.0
    )
    request = sub.requests.popleft()
    assert (request.topic, request.data, request.timeout_s) == ("quote.get", {"sku": 1}, 1.5)
    request.reply(b"part", final=False)
    request.reply({"price": 5})
    request.reply(b"too late")
    request.fail("too late")
    first, second = said(session)
    assert isinstance(first, m.Reply)
    assert isinstance(second, m.Reply)
    assert (first.chan, first.rid, dict(first.fields)) == (sub.chan, 77, {"final": False})
    assert (dict(second.fields), block.Block(second.block).payloads()) == ({"final": True}, [b'{"price":5}'])


def test_a_failure_and_an_end_are_final() -> None:
    session = live_session()
    sub = responder(session)
    for rid in (1, 2):
        session.receive(m.Request(sub.chan, rid, {}, single_block("quote.get", b"", None, None)), 0.0)
    sub.requests.popleft().fail("broken")
    sub.requests.popleft().end()
    failed, ended = said(session)
    assert isinstance(failed, m.Reply)
    assert isinstance(ended, m.Reply)
    assert dict(failed.fields) == {"final": True, "error": "broken"}
    assert dict(ended.fields) == {"final": True}
    call = Call(m.Ping(0), 1, Ticket())
    call.parts.append(ended)
    assert next_reply(call, 9) is None, "an end says nothing to the caller"


def test_a_responder_subscribes_again_and_forgets_old_requests() -> None:
    session = live_session()
    sub = responder(session)
    session.receive(m.Request(sub.chan, 1, {}, single_block("quote.get", b"", None, None)), 0.0)
    reconnect(session, resumed=True)
    assert not sub.requests
    assert [type(s) for s in said(session)] == [m.Subscribe]


# Refreshes.


def consuming(session: Session) -> Subscription:
    sub = session.subscribe(lambda chan: Subscription(chan, {"patterns": ["#"], "group": "g"}), Ticket())
    (sent,) = said(session)
    assert isinstance(sent, m.Subscribe)
    session.receive(m.Ok(sent.chan, sent.rid, {"group": "g", "lease_ms": 30_000}), 0.0)
    return sub


def test_a_refresh_takes_its_place_among_the_messages() -> None:
    session = live_session()
    sub = consuming(session)
    session.receive(deliver(sub.chan, 1, b"old"), 0.0)
    session.receive(m.Reset(sub.chan, {"refresh": 4, "phase": "begin", "target": 9}), 0.0)
    session.receive(deliver(sub.chan, 2, b"again"), 0.0)
    session.receive(m.Reset(sub.chan, {"refresh": 4, "phase": "end", "target": 9}), 0.0)
    first, begin, second, end = iter(sub.take, None)
    assert isinstance(first, Batch)
    assert isinstance(second, Batch)
    assert isinstance(begin, Refresh)
    assert isinstance(end, Refresh)
    assert (begin.number, begin.begins, begin.target, end.begins) == (4, True, 9, False)
    end.ready()
    session.flush(sub)
    (sent,) = (s for s in said(session) if isinstance(s, m.Ready))
    assert (sent.chan, sent.refresh) == (sub.chan, 4)


def test_an_application_that_does_not_care_is_ready_at_the_end() -> None:
    session = live_session()
    sub = consuming(session)
    for phase in ("begin", "end"):
        session.receive(m.Reset(sub.chan, {"refresh": 1, "phase": phase, "target": 1}), 0.0)
    for refresh in iter(sub.take, None):
        assert isinstance(refresh, Refresh)
        refresh.tell(None)
    session.flush(sub)
    assert [type(s) for s in said(session)] == [m.Ready]
    heard: list[Refresh] = []
    session.receive(m.Reset(sub.chan, {"refresh": 2, "phase": "end", "target": 1}), 0.0)
    refresh = sub.take()
    assert isinstance(refresh, Refresh)
    refresh.tell(heard.append)
    assert heard == [refresh]
    session.flush(sub)
    assert not said(session), "one that has a hook says it itself"


# What the hub says of its own accord.


def test_lost_leases_are_taken_back() -> None:
    session = live_session()
    sub = consuming(session)
    session.receive(deliver(sub.chan, 1, b"1", b"2", b"3"), 0.0)
    session.receive(m.Notice("lease_lost", {"chan": sub.chan, "ordinals": [[1, 2]], "why": "lapsed"}), 0.0)
    assert [message.body for message in take(sub)] == [b"3"]


def test_a_deleted_group_ends_its_subscriptions() -> None:
    session = live_session()
    sub = consuming(session)
    session.receive(m.Notice("unsubscribed", {"chan": sub.chan, "group": "g", "why": "the group was deleted"}), 0.0)
    assert isinstance(sub.error, NotFound)
    with pytest.raises(NotFound, match="deleted"):
        sub.raise_error()


def test_refused_verdicts_reach_the_application() -> None:
    session = live_session()
    sub = consuming(session)
    session.receive(deliver(sub.chan, 1, b"1"), 0.0)
    take(sub).ack()
    session.flush(sub)
    (sent,) = (s for s in said(session) if isinstance(s, m.Settle))
    session.receive(m.Err(sub.chan, sent.rid, Code.BAD_ORDINAL, "never sent", {}), 0.0)
    assert sub.awake
    with pytest.raises(FabricError, match="never sent"):
        sub.raise_error()
    sub.raise_error()
    assert session.settled


# Reading.


def got(rid: int, seq: int, *payloads: bytes, keys: list[bytes] | None = None) -> m.Got:
    return m.Got(rid, (), block.stamp(block.encode("t", payloads, keys=keys), seq, 0))


def test_reading_goes_on_where_the_page_ended() -> None:
    reading = Reading("a.*", None, 12.5, 5, False, False)
    assert dict(reading.ask(1).fields) == {"pattern": "a.*", "time_us": 12_500_000, "n": 5}
    found = reading.page({"count": 2, "next": 9, "more": True}, [got(1, 7, b"x", b"y")])
    assert [message.seq for message in found] == [7, 8]
    assert dict(reading.ask(2).fields) == {"pattern": "a.*", "seq": 9, "n": 3}
    assert not reading.done
    assert list(reading.page({"count": 0, "next": 9, "more": True}, [])) == []
    assert not reading.done, "an empty page is not the end"
    list(reading.page({"count": 3, "next": 12, "more": True}, [got(1, 9, b"a", b"b", b"c")]))
    assert reading.done


def test_reading_one_topic_and_the_last() -> None:
    reading = Reading("a.b", None, None, None, True, False)
    assert dict(reading.ask(1).fields) == {"topic": "a.b", "last": True, "n": 1}
    list(reading.page({"count": 1, "next": 9, "more": False}, [got(1, 7, b"x")]))
    assert reading.done
    assert dict(Reading(None, 5, None, 2, False, False).ask(1).fields) == {"seq": 5, "n": 2}
    with pytest.raises(FabricError, match="n is 1"):
        Reading("a", None, None, 0, False, False)


def test_the_latest_of_each_key_is_known_at_the_end() -> None:
    reading = Reading("t", None, None, None, False, True)
    assert reading.ask(1).fields["n"] == 1000
    first = reading.page({"next": 4, "more": True}, [got(1, 1, b"a1", b"b1", b"-", keys=[b"a", b"b", b""])])
    assert list(first) == []
    rest = reading.page({"next": 6, "more": False}, [got(1, 4, b"b2", b"c1", keys=[b"b", b"c"])])
    assert [message.body for message in rest] == [b"a1", b"-", b"b2", b"c1"]


def test_an_answer_in_parts_is_collected_until_its_end() -> None:
    session = live_session()
    call = session.ask(lambda rid: m.Get(rid, {"topic": "t"}), Ticket())
    session.receive(got(call.rid, 1, b"x"), 0.0)
    assert not call.ticket.done
    reconnect(session, resumed=True)
    assert not call.parts, "what came before the connection broke comes again"
    session.receive(got(call.rid, 1, b"x"), 0.0)
    session.receive(m.Ok(0, call.rid, {"count": 1, "next": 2, "more": False}), 0.0)
    assert (len(call.parts), call.ticket.result()["next"]) == (1, 2)


# Durable requests.


def letter(*correlations: str | None) -> m.Deliver:
    headers = [None if name is None else {"correlation": name} for name in correlations]
    raw = block.encode("inbox.me", [b"answer"] * len(correlations), headers=headers)
    return m.Deliver(1, 1, 1, (), block.stamp(raw, 1, 0))


def test_answers_wait_in_the_mailbox_until_they_are_asked_for() -> None:
    sub = Subscription(1, {"patterns": ["inbox.me"], "group": "inbox.me"})
    box = Inbox(sub)
    assert not box.look("a")
    sub.deliver(letter("b", None, "a"), 0.0)
    assert box.look("a")
    answer = box.take("a")
    assert answer.body == b"answer"
    settles = [s for s in sub.collect(lambda: 1) if isinstance(s, m.Settle)]
    assert [row[:3] for row in settles[0].verdicts] == [(Verdict.ACK, 3, 3), (Verdict.REJECT, 2, 2)]
    with pytest.raises(TimedOut, match="no answer to 'c'"):
        box.take("c")
    assert box.look("b")
    sub.take_back([[1, 1]])
    assert not box.look("b"), "it will come again"


def test_a_durable_request_tells_where_to_answer() -> None:
    assert addressed("inbox.me", "c1", {"h": "v"}) == ("c1", {"h": "v", "reply-to": "inbox.me", "correlation": "c1"})
    assert addressed("inbox.me", None, None)[0]
    assert inbox_topic("me", True) == "inbox.me"
    with pytest.raises(FabricError, match="name"):
        inbox_topic("client-123", False)
