"""The publishing core: batching, window, resends, numbering. No sockets; time is a number."""

import pytest

from fabric_client.core.outgoing import BLOCK_ROOM, FAST_PATH_COUNT_MAX, Options, prepare
from fabric_client.core.receipt import Receipt
from fabric_client.errors import BadMessage, Fenced, PublishRefused
from fabric_protocol import block
from fabric_protocol.errors import Code
from fabric_protocol.messages import Flow, Level
from tests.clients.talk import Desk, bodies


def test_idle_message_leaves_at_once_as_a_block_of_one() -> None:
    desk = Desk()
    desk.put("a")
    (sent,) = desk.pump()
    assert bodies(sent) == [b"a"]
    assert (sent.pseq, sent.level) == (1, Level.JOURNALED)


def test_messages_gather_while_something_is_in_flight() -> None:
    desk = Desk()
    desk.put("a")
    (first,) = desk.pump()
    desk.put("b")
    desk.put("c")
    assert desk.pump() == []
    desk.confirm(first)
    (second,) = desk.pump()
    assert bodies(second) == [b"b", b"c"]
    assert second.pseq == 2


def test_a_full_block_does_not_wait_for_a_confirm() -> None:
    desk = Desk()
    desk.put("a")
    desk.pump()
    desk.put(bytes(BLOCK_ROOM))
    (full,) = desk.pump()
    assert len(bodies(full)[0]) == BLOCK_ROOM


def test_messages_with_other_options_go_into_another_block() -> None:
    desk = Desk()
    desk.put("a")
    desk.pump()
    desk.put("b")
    desk.put("c", options=Options(priority=5))
    desk.put("d", options=Options(level=Level.RECEIVED))
    sent = desk.pump()
    assert [bodies(s) for s in sent] == [[b"b"], [b"c"]]
    assert block.Block(sent[1].block).priority == 5
    assert [s.pseq for s in sent] == [2, 3]


def test_one_block_holds_several_topics_keys_and_headers() -> None:
    desk = Desk()
    desk.put("0")
    (first,) = desk.pump()
    desk.put("a", "x")
    desk.put("b", "y", key="k", headers={"h": "v"})
    desk.put("c", "x", id="i")
    desk.confirm(first)
    (sent,) = desk.pump()
    parsed = block.Block(sent.block)
    parsed.verify()
    assert parsed.topic_names() == ["x", "y", "x"]
    assert parsed.keys() == [b"", b"k", b""]
    assert parsed.ids() == [b"", b"", b"i"]
    assert parsed.headers() == [{}, {"h": "v"}, {}]


def test_lane_is_open_only_while_something_is_gathered_and_keeps_order() -> None:
    desk = Desk()
    publisher = desk.publisher
    message = prepare("t", "b", None, None, None)
    desk.put("a")
    (first,) = desk.pump()
    publisher.open_fast_path(message)
    assert publisher.fast_path.topic is None
    publisher.put(message, Options())
    publisher.open_fast_path(message)
    assert publisher.fast_path.topic == "t"
    publisher.fast_path.items += [b"c", b"d"]
    assert publisher.unconfirmed == 4
    desk.put("e", key="k")
    desk.confirm(first)
    (second,) = desk.pump()
    assert bodies(second) == [b"b", b"c", b"d", b"e"]
    assert publisher.fast_path.topic is None


def test_a_block_of_several_topics_has_a_lane_for_all_that_are_known() -> None:
    desk = Desk()
    publisher = desk.publisher
    desk.put("0", "x")
    (first,) = desk.pump()
    for topic in ("x", "y"):
        message = prepare(topic, topic, None, None, None)
        publisher.put(message, Options())
        publisher.open_fast_path(message)
    fast_path = publisher.fast_path
    assert fast_path.topic is None
    assert ("x" in fast_path.topics, "y" in fast_path.topics, "z" in fast_path.topics) == (True, True, False)
    fast_path.items += [("x", b"1"), ("y", b"2")]
    desk.confirm(first)
    (second,) = desk.pump()
    fast_path.items.append(("y", b"late"))
    publisher.absorb(fast_path)
    desk.confirm(second)
    (third,) = desk.pump()
    assert [block.Block(s.block).topic_names() for s in (second, third)] == [["x", "y", "x", "y"], ["y"]]
    assert [bodies(s) for s in (second, third)] == [[b"x", b"y", b"1", b"2"], [b"late"]]


def test_an_item_that_enters_a_closed_lane_late_is_not_lost() -> None:
    desk = Desk()
    publisher = desk.publisher
    desk.put("a")
    (first,) = desk.pump()
    message = prepare("t", "b", None, None, None)
    publisher.put(message, Options())
    publisher.open_fast_path(message)
    fast_path = publisher.fast_path
    desk.confirm(first)
    (second,) = desk.pump()
    fast_path.items.append(b"late")
    publisher.absorb(fast_path)
    desk.confirm(second)
    (third,) = desk.pump()
    assert (bodies(second), bodies(third)) == ([b"b"], [b"late"])


def test_a_full_lane_becomes_a_block() -> None:
    desk = Desk()
    publisher = desk.publisher
    desk.put("a")
    desk.pump()
    message = prepare("t", "b", None, None, None)
    publisher.put(message, Options())
    publisher.open_fast_path(message)
    fast_path = publisher.fast_path
    fast_path.items += [b"x"] * fast_path.limit
    publisher.absorb(fast_path)
    (full,) = desk.pump()
    assert len(bodies(full)) == FAST_PATH_COUNT_MAX


def test_window_of_blocks_is_kept() -> None:
    desk = Desk(flow=(2, 1 << 20))
    for body in "abc":
        desk.put(body)
        desk.publisher.seal()
    sent = desk.pump()
    assert len(sent) == 2
    assert desk.pump() == []
    desk.confirm(sent[0])
    (third,) = desk.pump()
    assert (bodies(third), third.pseq) == ([b"c"], 3)


def test_window_of_bytes_is_kept_but_a_single_block_may_always_go() -> None:
    desk = Desk(flow=(10, 100))
    desk.put(bytes(1000))
    desk.publisher.seal()
    desk.put("b")
    (first,) = desk.pump()
    desk.confirm(first)
    (second,) = desk.pump()
    assert bodies(second) == [b"b"]


def test_flow_of_zero_stops_until_the_next_flow() -> None:
    desk = Desk()
    desk.publisher.flow(Flow(0, 0))
    desk.put("a")
    assert desk.pump() == []
    desk.publisher.flow(Flow(1, 1000))
    assert len(desk.pump()) == 1


def test_receipts_name_each_messages_seq() -> None:
    desk = Desk()
    desk.put("a")
    (first,) = desk.pump()
    tickets = [desk.put("b"), desk.put("c")]
    desk.confirm(first, seq=10)
    (second,) = desk.pump()
    desk.confirm(second, seq=41)
    assert [t.result() for t in tickets] == [Receipt(41), Receipt(42)]
    assert desk.publisher.settled


def test_busy_goes_back_and_sends_all_again_with_the_same_numbers() -> None:
    desk = Desk()
    for body in "abc":
        desk.put(body)
        desk.publisher.seal()
    a, b, c = desk.pump()
    desk.confirm(a)
    desk.refuse(b, Code.BUSY, now=1.0, retry_ms=200)
    assert not desk.refuse(c, Code.SEQUENCE_GAP, now=1.0, expected=2, retry_ms=10), "an answer to an earlier sending"
    assert desk.pump(1.19) == []
    (first,) = desk.pump(1.2)
    desk.confirm(first)
    (second,) = desk.pump(1.2)
    assert [(s.pseq, bodies(s)) for s in (first, second)] == [(2, [b"b"]), (3, [b"c"])]
    assert {first.rid, second.rid}.isdisjoint({a.rid, b.rid, c.rid})


def test_after_busy_one_block_tries_first_and_each_confirm_lets_two_go() -> None:
    desk = Desk(flow=(4, 1 << 20))
    for body in "abcdefghijklm":
        desk.put(body)
        desk.publisher.seal()
    first = desk.pump()
    assert len(first) == 4
    desk.refuse(first[0], Code.BUSY, now=1.0, retry_ms=200)
    in_flight = desk.pump(1.2)
    sizes = [len(in_flight)]
    while in_flight and len(sizes) < 6:
        desk.confirm(in_flight.pop(0))
        in_flight += desk.pump(1.2)
        sizes.append(len(in_flight))
    assert sizes == [1, 2, 3, 4, 4, 4], "one more after each confirm, until the whole window is in use"
    desk.refuse(in_flight[0], Code.BUSY, now=2.0, retry_ms=200)
    assert len(desk.pump(2.2)) == 1


def test_a_new_session_has_its_whole_window_at_once() -> None:
    desk = Desk(flow=(4, 1 << 20))
    for body in "abcd":
        desk.put(body)
        desk.publisher.seal()
    desk.refuse(desk.pump()[0], Code.BUSY, now=1.0, retry_ms=200)
    desk.publisher.disconnected()
    desk.publisher.welcomed(0, True, (4, 1 << 20), 1 << 20)
    assert len(desk.pump(1.0)) == 4


def test_busy_without_a_time_waits_a_moment() -> None:
    desk = Desk()
    desk.put("a")
    (a,) = desk.pump(1.0)
    desk.refuse(a, Code.SHUTTING_DOWN, now=1.0)
    assert desk.pump(1.0) == []
    assert desk.publisher.hold_until > 1.0
    assert len(desk.pump(desk.publisher.hold_until)) == 1


def test_gap_goes_back_to_what_the_hub_expects() -> None:
    desk = Desk()
    for body in "abc":
        desk.put(body)
        desk.publisher.seal()
    _, _, c = desk.pump()
    desk.refuse(c, Code.SEQUENCE_GAP, now=1.0, expected=2, retry_ms=10)
    again = desk.pump(2.0)
    assert [(s.pseq, bodies(s)) for s in again] == [(2, [b"b"]), (3, [b"c"])]


def test_refused_block_is_reported_and_later_ones_move_up() -> None:
    desk = Desk(flow=(4, 1 << 20), last_pseq=6)
    tickets = []
    for body in ("a", "b", "c"):
        tickets.append(desk.put(body))
        desk.publisher.seal()
    a, b, c = desk.pump()
    assert [s.pseq for s in (a, b, c)] == [7, 8, 9]
    desk.refuse(a, Code.BAD_TOPIC)
    assert not desk.refuse(b, Code.SEQUENCE_GAP, expected=7)
    again = desk.pump()
    assert [(s.pseq, bodies(s)) for s in again] == [(7, [b"b"]), (8, [b"c"])]
    with pytest.raises(PublishRefused) as refused:
        tickets[0].result()
    assert refused.value.refusals[0].payloads == (b"a",)
    assert refused.value.hint
    assert not desk.publisher.refusals, "the one who waits has heard it"


def test_a_refusal_is_kept_until_a_call_waits_for_it() -> None:
    desk = Desk()
    desk.publisher.put(prepare("t", "a", None, None, None), Options())
    (a,) = desk.pump()
    desk.refuse(a, Code.TOO_LARGE)
    (refusal,) = desk.publisher.take_refusals()
    assert (refusal.topics, refusal.payloads, refusal.code) == (("t",), (b"a",), Code.TOO_LARGE)
    assert desk.publisher.settled


def test_fenced_is_an_error_of_its_own() -> None:
    desk = Desk()
    ticket = desk.put("a")
    (a,) = desk.pump()
    desk.refuse(a, Code.FENCED)
    with pytest.raises(Fenced):
        ticket.result()


def test_reconnect_sends_unconfirmed_again_in_order_with_the_same_numbers() -> None:
    desk = Desk()
    for body in "abc":
        desk.put(body)
        desk.publisher.seal()
    a, b, c = desk.pump()
    desk.confirm(a)
    desk.publisher.disconnected()
    desk.put("d")
    assert desk.pump() == []
    desk.welcome(last_pseq=2)  # b was stored, its confirm was lost
    again = desk.pump()
    assert [(s.pseq, bodies(s)) for s in again] == [(2, [b"b"]), (3, [b"c"])]
    assert b.rid not in {s.rid for s in again}
    desk.confirm(*again, seq=2)
    (d,) = desk.pump()
    assert (d.pseq, bodies(d)) == (4, [b"d"])
    assert c.pseq == 3


def test_duplicate_answer_gives_the_first_seq() -> None:
    desk = Desk()
    ticket = desk.put("a")
    desk.pump()
    desk.welcome(last_pseq=1)
    (again,) = desk.pump()
    desk.confirm(again, seq=77, dups=1)
    assert ticket.result() == Receipt(77, 1, 1)
    assert ticket.result().duplicate


def test_confirm_that_comes_twice_counts_once() -> None:
    desk = Desk()
    ticket = desk.put("a")
    (a,) = desk.pump()
    desk.confirm(a, seq=5)
    desk.confirm(a, seq=9)
    assert ticket.result().seq == 5
    assert desk.publisher.settled


@pytest.mark.parametrize("code", [Code.BAD_OPTION, Code.PSEQ_TAKEN])
def test_a_resend_that_the_hub_does_not_recognise_is_not_called_stored(code: Code) -> None:
    desk = Desk()
    ticket = desk.put("a")
    desk.pump()
    later = desk.put("b")
    desk.welcome(last_pseq=1)
    (again,) = desk.pump()
    desk.refuse(again, code)
    with pytest.raises(PublishRefused) as caught:
        ticket.result()
    assert caught.value.refusals[0].payloads == (b"a",)
    (b,) = desk.pump()
    assert (b.pseq, later.done) == (2, False)


def test_a_hub_with_another_journal_gets_new_numbers() -> None:
    desk = Desk(last_pseq=100)
    desk.put("a")
    (a,) = desk.pump()
    assert a.pseq == 101
    desk.welcome(last_pseq=0, same_journal=False)
    (again,) = desk.pump()
    assert (again.pseq, bodies(again)) == (1, [b"a"])


def test_a_stored_block_that_is_refused_does_not_shift_the_numbers_of_others() -> None:
    desk = Desk()
    desk.put("a")
    desk.publisher.seal()
    desk.put("b")
    desk.publisher.seal()
    desk.pump()
    desk.welcome(last_pseq=2)
    a, _ = desk.pump()
    desk.refuse(a, Code.FORBIDDEN)
    (b,) = desk.pump()
    assert (b.pseq, bodies(b)) == (2, [b"b"])
    desk.confirm(b, seq=2)
    desk.put("c")
    (c,) = desk.pump()
    assert c.pseq == 3


def test_message_with_an_id_can_have_a_block_of_its_own() -> None:
    desk = Desk()
    desk.put("0")
    desk.pump()
    desk.put("a")
    desk.publisher.put_alone(prepare("t", "b", None, "id-1", None), Options(), None)
    desk.put("c")
    assert [bodies(s) for s in desk.pump()] == [[b"a"], [b"b"]]


def test_bad_messages_are_found_before_they_share_a_block() -> None:
    desk = Desk()
    desk.put("good")
    for topic in ("", "a..b", "a.*", "$dlq.g", "a b", ".".join("x" * 17), "x" * 256):
        with pytest.raises(BadMessage) as error:
            desk.put("bad", topic)
        assert error.value.hint
    with pytest.raises(BadMessage):
        desk.put(bytes(1 << 21))
    with pytest.raises(BadMessage):
        desk.put("x", key="k" * 256)
    with pytest.raises(BadMessage):
        desk.put("x", headers={"n": 1})
    (sent,) = desk.pump()
    assert bodies(sent) == [b"good"]
