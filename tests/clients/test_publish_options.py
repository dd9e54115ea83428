"""Options of a publish: priority, expiry, schedules, ids. No sockets; time is a number."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fabric_client.core.outgoing import PLAIN, Options
from fabric_client.core.receipt import Receipt, Scheduled, total
from fabric_client.core.requests import request_fields
from fabric_client.core.schedules import Schedule, check_one_schedule, schedule_choice, schedule_page
from fabric_client.core.ticket import Ticket
from fabric_client.core.verdict_exceptions import Retry, retry_argument
from fabric_client.errors import BadMessage, TopicFull
from fabric_client.options import block_options, message_of, pack
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.bounds import HORIZON_MS
from fabric_protocol.errors import Code, FabricError
from tests.clients.talk import Desk, bodies

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "when"),
    [
        ({"ttl": 1.5}, {"ttl_ms": 1500}),
        ({"ttl": timedelta(hours=1)}, {"ttl_ms": 3_600_000}),
        ({"ttl": 0.0001}, {"ttl_ms": 1}),
        ({"delay": 30}, {"delay_ms": 30_000}),
        ({"delay": 0}, {"delay_ms": 0}),
        ({"delay": timedelta(days=1), "ttl": 5}, {"ttl_ms": 5000, "delay_ms": 86_400_000}),
        ({"at": NOON}, {"at_us": 1_794_830_400_000_000}),
        ({"at": 1_794_830_400.5}, {"at_us": 1_794_830_400_500_000}),
        ({"every": 60, "name": "tick"}, {"every_ms": 60_000, "name": "tick"}),
        ({"cron": "0 3 * * *", "name": "night"}, {"cron": "0 3 * * *", "name": "night"}),
    ],
)
def test_times_become_options_of_the_publish(said: dict[str, Any], when: dict[str, Any]) -> None:
    options = block_options(**said)
    assert dict(options.when) == when
    assert options.scheduled == bool(when.keys() - {"ttl_ms"})


def test_priority_and_expiry_go_into_the_block() -> None:
    assert PLAIN.priority == block.PRIORITY_DEFAULT == 4
    options = block_options(priority=9, expires_at=NOON, level="received")
    assert options == Options(m.Level.RECEIVED, 9, 1_794_830_400_000_000)
    ((raw, count),) = pack("t", [b"a", b"b"], options)
    parsed = block.Block(raw)
    assert (count, parsed.priority, parsed.expires_us) == (2, 9, 1_794_830_400_000_000)
    assert block_options(priority=0).priority == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": True},
        {"ttl": 0},
        {"ttl": -1},
        {"every": 0},
        {"delay": 1, "at": 1.0},
        {"every": 1, "cron": "* * * * *"},
        {"name": "n"},
        {"level": "eternal"},
    ],
)
def test_what_no_hub_would_accept_is_found_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessage) as caught:
        block_options(**wrong)
    assert caught.value.hint


def test_a_misspelt_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="prio"):
        message_of("t", b"x", prio=3)
    with pytest.raises(TypeError, match="dealy"):
        block_options(dealy=3)  # type: ignore[call-arg]


def test_a_delay_below_zero_is_refused() -> None:
    with pytest.raises(Exception, match="delay"):
        block_options(delay=-1)


def test_equal_options_share_a_block_and_others_do_not() -> None:
    desk = Desk()
    desk.put("0")
    (first,) = desk.pump()
    for body, options in (("a", block_options(ttl=5)), ("b", block_options(ttl=5)), ("c", block_options(ttl=6))):
        desk.put(body, options=options)
    desk.confirm(first)
    one, other = desk.pump()
    assert (bodies(one), one.options) == ([b"a", b"b"], {"ttl_ms": 5000})
    assert (bodies(other), other.options) == ([b"c"], {"ttl_ms": 6000})


def test_a_delayed_publish_is_confirmed_by_its_schedule() -> None:
    desk = Desk()
    ticket = desk.put("a", options=block_options(delay=5))
    (sent,) = desk.pump()
    assert sent.options == {"delay_ms": 5000}
    assert desk.publisher.answered(m.Ok(0, sent.rid, {"schedule": 7, "due_us": 1_794_830_400_000_000}))
    receipt = ticket.result()
    assert isinstance(receipt, Scheduled)
    assert (receipt.id, receipt.due, receipt.seq, receipt.duplicate) == (7, NOON, 0, False)
    assert desk.publisher.settled
    assert not desk.publisher.answered(m.Ok(0, sent.rid, {}))


def test_a_delayed_publish_is_sent_again_under_its_number_and_known_by_it() -> None:
    desk = Desk()
    ticket = desk.put("a", options=block_options(delay=5))
    (sent,) = desk.pump()
    desk.publisher.disconnected()
    desk.welcome(last_pseq=1)
    (again,) = desk.pump()
    assert (again.pseq, again.options, again.block) == (sent.pseq, sent.options, sent.block)
    desk.publisher.answered(m.Ok(0, again.rid, {"schedule": 0, "dup": True}))
    assert (ticket.result().schedule, ticket.result().duplicate, ticket.result().due) == (0, True, None)


def test_duplicates_by_id_have_the_seq_of_the_first_time() -> None:
    desk = Desk()
    desk.put("0")
    (first,) = desk.pump()
    tickets = [desk.put(body, id=body) for body in "abcd"]
    desk.confirm(first)
    (sent,) = desk.pump()
    assert block.Block(sent.block).ids() == [b"a", b"b", b"c", b"d"]
    desk.publisher.confirmed(m.PubOk(0, ((sent.rid, 100, 2, 2, ((0, 7), (2, 9))),)))
    assert [(t.result().seq, t.result().duplicate) for t in tickets] == [
        (7, True), (100, False), (9, True), (101, False)
    ]  # fmt: skip


def test_a_packed_block_with_ids_tells_the_seq_of_each() -> None:
    desk = Desk()
    ticket = Ticket()
    ((raw, count),) = pack("t", [b"a", b"b", b"c"], PLAIN, ids=["1", "2", "3"], keys=["k", "l", "m"])
    assert block.Block(raw).keys() == [b"k", b"l", b"m"]
    desk.publisher.put_block(raw, count, PLAIN, "t", ticket, each=True)
    (sent,) = desk.pump()
    desk.publisher.confirmed(m.PubOk(0, ((sent.rid, 50, 2, 1, ((1, 5),)),)))
    assert ticket.result() == Receipt(50, 3, 1, [50, 5, 51], [1])


def test_receipts_of_several_blocks_are_summed() -> None:
    one, other = Receipt(50, 2, 1, [50, 5], [1]), Receipt(90, 2, 1, [6, 90], [0])
    assert total([one, other]) == Receipt(50, 4, 2, [50, 5, 6, 90], [1, 2])
    assert total([Receipt(1, 3), Receipt(8, 2)]) == Receipt(1, 5, 0, [], [])


def test_columns_must_fit_the_payloads() -> None:
    with pytest.raises(BadMessage, match="2 ids for 1"):
        pack("t", [b"a"], PLAIN, ids=["1", "2"])
    with pytest.raises(BadMessage, match="nothing"):
        pack("t", [], PLAIN)


def test_a_full_topic_is_an_error_of_its_own() -> None:
    desk = Desk()
    ticket = desk.put("a")
    (sent,) = desk.pump()
    desk.refuse(sent, Code.TOPIC_FULL)
    with pytest.raises(TopicFull) as caught:
        ticket.result()
    assert caught.value.refusals[0].payloads == (b"a",)
    assert "admin.topics" in caught.value.hint


def test_a_schedule_is_chosen_by_id_or_by_name() -> None:
    assert schedule_choice(3, None) == {"id": 3}
    assert schedule_choice(Scheduled(0, 1, 0, (), (), 4, 0), None) == {"id": 4}
    assert schedule_choice(None, "n") == {"name": "n"}
    for wrong in ((None, None), (1, "n")):
        with pytest.raises(Exception, match="id or a name"):
            schedule_choice(*wrong)


def test_a_row_of_the_list_is_read() -> None:
    row = {"id": 1, "due_us": 1_794_830_400_000_000, "topic": "t", "topics": 1, "count": 2, "bytes": 9, "every_ms": 500}
    assert Schedule.of(row) == Schedule(1, NOON, "t", 2, 9, every=timedelta(milliseconds=500))
    assert schedule_page(None, 5) == {"what": "schedules", "n": 5}
    assert schedule_page([1, 2], 5)["after"] == [1, 2]
    with pytest.raises(BadMessage, match="one schedule"):
        check_one_schedule(block_options(delay=1), 2)


@pytest.mark.parametrize(
    "said",
    [
        {"delay": timedelta.max},
        {"ttl": timedelta.max},
        {"every": timedelta(days=3661)},
        {"delay": float("inf")},
        {"delay": float("nan")},
        {"at": float("nan")},
        {"at": 1e18},
        {"at": -1.0},
        {"expires_at": float("inf")},
    ],
)
def test_a_time_that_no_hub_takes_is_refused_at_the_call(said: dict[str, Any]) -> None:
    with pytest.raises(FabricError):
        block_options(**said)


@pytest.mark.parametrize(("what", "instead"), [("at", "delay="), ("expires_at", "ttl=")])
@pytest.mark.parametrize("moment", [0, 5, 86_400.0, datetime(1999, 12, 31, tzinfo=UTC)])
def test_a_time_of_long_ago_is_refused_and_the_hint_says_what_was_meant(what: str, instead: str, moment: Any) -> None:
    with pytest.raises(BadMessage, match=f"{what} is .*, a time before 2000") as caught:
        block_options(**{what: moment})
    assert instead in str(caught.value.hint)


def test_a_wait_that_no_hub_takes_is_refused_at_the_call() -> None:
    for wait in (timedelta.max, 1e300, float("inf"), float("nan"), -1.0):
        with pytest.raises(FabricError, match="delay is"):
            retry_argument(wait, None)
        with pytest.raises(FabricError, match="delay is"):
            Retry(wait, "closed").decide()
    assert retry_argument(timedelta(days=3660), None) == HORIZON_MS


def test_a_request_that_no_hub_takes_is_refused_at_the_call() -> None:
    for wait in (timedelta.max, 601.0, float("inf"), float("nan"), -1.0):
        with pytest.raises(FabricError, match="timeout is"):
            request_fields(wait, None)  # type: ignore[arg-type]
    for replies in (0, 65_537, 1 << 70, True):
        with pytest.raises(FabricError, match="replies_max is"):
            request_fields(1.0, replies)
    assert request_fields(0.0, None) == {"timeout_ms": 1, "replies_max": 1}


def test_a_time_without_a_date_is_shown_as_the_last_date() -> None:
    far = {"id": 1, "due_us": 1 << 62}
    assert Schedule.of(far).due == Receipt(0, due_us=1 << 62).due == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
