"""Competing consumers: which consumer gets which message, and what verdicts do."""

from typing import Any

import pytest

from fabric.records import Append, SaveGroup, SaveSetting
from fabric_protocol import messages as m
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import Code
from tests.router.world import World

P, A, B, C, D = b"\0p", b"\0a", b"\0b", b"\0c", b"\0d"


def world(*consumers: bytes, **fields: Any) -> World:
    w = World()
    w.hello(P)
    for peer in consumers:
        w.hello(peer)
        w.sub(peer, 1, "job.#", group="g", **fields)
    return w


def test_confirmed_only_when_on_disk() -> None:
    w = world(A)
    block = encode("job.x", [b"one", b"two"])
    assert w.say(P, m.Publish(3, 0, 0, block), commit=False) == []
    assert w.bodies(A) == []
    w.commit()
    assert w.said[P][-1] == m.PubOk(0, ((3, 1, 2, 0),))
    assert w.bodies(A) == ["one", "two"]


def test_seqs_are_gapless_over_publishes_and_restarts() -> None:
    w = world()
    w.pub(P, "a", "1", "2")
    w.pub(P, "b", "3")
    w.restart()
    w.hello(P)
    assert w.pub(P, "c", "4") == [m.PubOk(0, ((9, 4, 1, 0),))]


def test_four_idle_workers_and_four_jobs_in_one_block_get_one_each() -> None:
    w = world(A, B, C, D, credit=1)
    w.pub(P, "job.x", "1", "2", "3", "4")
    assert sorted(len(w.bodies(peer)) for peer in (A, B, C, D)) == [1, 1, 1, 1]


def test_two_equal_members_share_a_stream_of_blocks() -> None:
    w = world(A, B)
    for i in range(20):
        w.pub(P, "job.x", *[f"{i}.{k}" for k in range(10)])
    assert len(w.bodies(A)) == len(w.bodies(B)) == 100


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("looks", [0, 1, 2, 3])
def test_the_next_member_does_not_depend_on_looks_that_find_no_message(looks: int, order: str) -> None:
    w = world(A, B, credit=8, order=order)
    for _ in range(looks):
        w.say(A, m.Credit(1, 8, 1 << 20))
    w.pub(P, "job.x", "1")
    assert (w.bodies(A), w.bodies(B)) == (["1"], [])
    w.pub(P, "job.x", "2")
    assert w.bodies(B) == ["2"]


def test_a_member_without_credit_stalls_no_other() -> None:
    w = world(A, credit=0)
    w.hello(B)
    w.sub(B, 1, group="g")
    w.pub(P, "job.x", "1", "2", "3")
    assert w.bodies(A) == []
    assert w.bodies(B) == ["1", "2", "3"]


def test_credit_is_cumulative_and_never_overrun() -> None:
    w = world(A, credit=2)
    w.pub(P, "job.x", "1", "2", "3", "4")
    assert w.bodies(A) == ["1", "2"]
    w.say(A, m.Credit(1, 3, 1 << 40))
    w.say(A, m.Credit(1, 3, 1 << 40))  # said twice, meant once
    assert w.bodies(A) == ["1", "2", "3"]


def test_byte_credit_stops_but_a_large_message_passes_alone() -> None:
    w = World()
    w.hello(P)
    w.hello(A)
    w.say(A, m.Subscribe(1, 5, {"group": "g", "patterns": ["#"], "credit": [100, 10]}))
    w.pub(P, "x", "a" * 1000)
    w.pub(P, "x", "b" * 1000)
    assert len(w.bodies(A)) == 1
    w.settle(A, 1, m.Verdict.ACK, 1, 1)
    assert len(w.bodies(A)) == 2


def test_groups_get_their_own_copies() -> None:
    w = world(A)
    w.hello(B)
    w.sub(B, 4, "*.x", group="other")
    w.pub(P, "job.x", "1")
    assert w.bodies(A) == w.bodies(B) == ["1"]


def test_two_matching_patterns_deliver_once() -> None:
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, "job.*", "*.x", "#", group="g")
    w.pub(P, "job.x", "1")
    assert w.bodies(A) == ["1"]


def test_narrow_pattern_gets_its_messages_of_a_mixed_block() -> None:
    w = World()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, "a.*", group="g")
    w.pub(P, ["a.1", "b.1", "a.2", "a.3", "c", "a.4"], "0", "1", "2", "3", "4", "5")
    assert w.delivered(A) == [(1, 1, 1, "0"), (2, 3, 1, "2"), (3, 4, 1, "3"), (4, 6, 1, "5")]
    assert w.settle(A, 1, m.Verdict.ACK, 1, 4) == [m.Ok(1, 7, {"applied": 4, "stale": []})]
    assert w.groups["g"].open == ()
    assert w.groups["g"].cursor == 7


def test_acked_messages_stay_settled_after_a_crash_and_the_rest_comes_again() -> None:
    w = world(A)
    w.pub(P, "job.x", "1", "2", "3", "4")
    w.settle(A, 1, m.Verdict.ACK, 1, 1)
    w.settle(A, 1, m.Verdict.ACK, 3, 3)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert [(seq, attempt) for _, seq, attempt, _ in w.delivered(A)] == [(2, 2), (4, 2)]


def test_lapsed_lease_is_offered_again_at_30_s_not_before() -> None:
    w = world(A, backoff_ms=0)
    w.pub(P, "job.x", "1")
    for _ in range(29):
        w.pass_time(1.0)
        w.say(A, m.Ping(0))
    assert len(w.bodies(A)) == 1
    w.pass_time(1.0)
    assert w.delivered(A)[1:] == [(2, 1, 2, "1")]


def test_touch_extends_the_lease() -> None:
    w = world(A, backoff_ms=0)
    w.pub(P, "job.x", "1")
    w.pass_time(20)
    w.settle(A, 1, m.Verdict.TOUCH, 1, 1)
    w.pass_time(20)
    assert len(w.bodies(A)) == 1
    w.say(A, m.Ping(0))
    w.pass_time(10)
    assert len(w.bodies(A)) == 2


def test_verdict_on_a_lapsed_ordinal_is_stale_and_the_new_lease_stands() -> None:
    w = world(A, lease_ms=10_000, backoff_ms=0)
    w.pub(P, "job.x", "1")
    w.pass_time(10)
    assert w.settle(A, 1, m.Verdict.ACK, 1, 1) == [m.Ok(1, 7, {"applied": 0, "stale": [[1, 1]]})]
    assert w.router.groups["g"].open
    assert w.settle(A, 1, m.Verdict.ACK, 2, 2) == [m.Ok(1, 7, {"applied": 1, "stale": []})]
    assert not w.router.groups["g"].open


def test_verdict_on_an_ordinal_never_sent_is_refused_whole() -> None:
    w = world(A)
    w.pub(P, "job.x", "1")
    answer = w.say(A, m.Settle(1, 7, ((m.Verdict.ACK, 1, 1, None), (m.Verdict.ACK, 2, 2, None))))
    assert isinstance(answer[0], m.Err)
    assert answer[0].code == Code.BAD_ORDINAL
    assert w.router.groups["g"].open


def test_retry_waits_for_its_delay_and_counts() -> None:
    w = world(A)
    w.pub(P, "job.x", "1")
    w.settle(A, 1, m.Verdict.RETRY, 1, 1, 2500)
    w.pass_time(2.4)
    assert len(w.bodies(A)) == 1
    w.pass_time(0.1)
    assert w.delivered(A)[1:] == [(2, 1, 2, "1")]


def test_release_goes_to_another_member_uncounted() -> None:
    w = world(A, credit=1)
    w.pub(P, "job.x", "1")
    w.hello(B)
    w.sub(B, 1, group="g")
    w.settle(A, 1, m.Verdict.RELEASE, 1, 1)
    assert w.delivered(B) == [(1, 1, 1, "1")]


def test_rejected_message_becomes_a_dead_letter_in_the_same_turn() -> None:
    w = world(A)
    w.pub(P, "job.x", "1", "2")
    w.say(A, m.Settle(1, 0, ((m.Verdict.REJECT, 1, 1, "bad currency"),)), commit=False)
    turn = w.router.seal(0, w.now)
    w.router.take_frames()
    kinds = [type(record) for record in turn.records]
    assert kinds == [Append, SaveGroup, SaveSetting]
    assert isinstance(turn.records[0], Append)
    letter = Block(turn.records[0].block)
    assert letter.topics == ("$dlq.g",)
    assert letter.payloads() == [b"1"]
    assert letter.headers() == [
        {
            "fabric-reason": "rejected",
            "fabric-error": "bad currency",
            "fabric-group": "g",
            "fabric-topic": "job.x",
            "fabric-seq": "1",
            "fabric-attempts": "1",
            "fabric-time": "1000000000",
            "fabric-hops": "1",
        }
    ]


def test_message_that_fails_every_attempt_becomes_a_dead_letter() -> None:
    w = world(A, attempts_max=3, backoff_ms=0)
    w.pub(P, "job.x", "poison")
    for ordinal in (1, 2, 3):
        w.settle(A, 1, m.Verdict.RETRY, ordinal, ordinal)
    assert len(w.bodies(A)) == 3
    assert w.reader.blocks[-1].topics == ("$dlq.g",)
    assert not w.router.groups["g"].open


def test_dead_letters_are_not_caught_by_wildcards() -> None:
    w = world(A)
    w.hello(B)
    w.sub(B, 1, "#", group="all")
    w.hello(C)
    w.sub(C, 1, "$dlq.*", group="desk")
    w.pub(P, "job.x", "1")
    w.settle(A, 1, m.Verdict.REJECT, 1, 1)
    assert w.bodies(B) == ["1"]
    assert w.bodies(C) == ["1"]


def test_goodbye_gives_back_at_once() -> None:
    w = world(A, credit=2)
    w.pub(P, "job.x", "1", "2")
    w.hello(B)
    w.sub(B, 1, group="g")
    w.say(A, m.Goodbye(8))
    assert w.delivered(B) == [(1, 1, 1, "1"), (2, 2, 1, "2")]


def test_silent_member_gets_nothing_more_and_is_lost_after_its_ttl() -> None:
    w = world(A)
    w.pub(P, "job.x", "1")
    for _ in range(16):
        w.pass_time(1)
        w.say(P, m.Ping(0))
    w.pub(P, "job.x", "2")
    assert w.bodies(A) == ["1"]
    w.hello(B)
    w.sub(B, 1, group="g")
    assert w.bodies(B) == ["2"]
    for _ in range(15):
        w.pass_time(1)
        w.say(B, m.Ping(0))
    assert w.bodies(B) == ["2", "1"]


def test_ephemeral_subscriber_starts_with_what_is_new_and_leaves_no_trace() -> None:
    w = World()
    w.hello(P)
    w.pub(P, "a", "old")
    w.hello(A)
    w.sub(A, 1, "#")
    w.pub(P, "a", "new")
    assert w.bodies(A) == ["new"]
    w.say(A, m.Unsubscribe(1, 6))
    assert w.router.groups == {}
    assert w.groups == {}


def test_start_positions() -> None:
    w = World()
    w.hello(P)
    for i in range(1, 6):
        w.pub(P, "a" if i % 2 else "b", str(i))
        w.now += 1
    w.hello(A)
    starts = {1: "first", 2: "new", 3: "last", 4: {"seq": 4}, 5: {"time_us": w.reader.blocks[2].ts_us}}
    for chan, start in starts.items():
        w.sub(A, chan, "#", start=start)
    w.pub(P, "a", "6")
    got: dict[int, list[bytes]] = {chan: [] for chan in starts}
    for message in w.said[A]:
        if isinstance(message, m.Deliver):
            got[message.chan] += Block(message.block).payloads()
    assert {chan: b"".join(bodies).decode() for chan, bodies in got.items()} == {
        1: "123456",
        2: "6",
        3: "56",
        4: "456",
        5: "3456",
    }


def test_group_opened_with_other_settings_is_refused_with_the_difference() -> None:
    w = world(A)
    w.hello(B)
    answer = w.sub(B, 1, "other.#", group="g")[0]
    assert isinstance(answer, m.Err)
    assert answer.code == Code.GROUP_MISMATCH
    assert "patterns" in answer.text


def test_what_retention_took_is_told_as_a_gap() -> None:
    w = world(A, credit=1)
    w.pub(P, "job.x", "1", "2", "3")
    w.pub(P, "job.x", "4")
    del w.reader.blocks[0]
    out: list[tuple[bytes, m.ToClient]] = []
    w.router.trimmed(4)
    out += w.router.take_frames()
    assert out == [(A, m.Gap(1, 1, 3, "removed by retention"))]


def test_fetch_ends_when_filled_and_when_time_is_over() -> None:
    w = world(A, credit=0)
    w.pub(P, "job.x", "1", "2", "3")
    assert [type(x) for x in w.say(A, m.Fetch(1, 11, 2, 5000))] == [m.Deliver, m.End]
    assert w.said[A][-1] == m.End(1, 11, 2)
    w.say(A, m.Fetch(1, 12, 5, 5000))
    assert w.bodies(A) == ["1", "2", "3"]
    w.pass_time(4.9)
    assert not isinstance(w.said[A][-1], m.End)
    w.pass_time(0.1)
    assert w.said[A][-1] == m.End(1, 12, 1)


def test_fetch_without_waiting_ends_at_once() -> None:
    w = world(A, credit=0)
    assert w.say(A, m.Fetch(1, 11, 2, 0)) == [m.End(1, 11, 0)]


def test_fetch_ends_when_enough_was_sent_and_no_more_is_ready() -> None:
    w = world(A, credit=0)
    w.pub(P, "job.x", "1", "2", "3")
    assert [type(x) for x in w.say(A, m.Fetch(1, 11, 10, 5000, 1))] == [m.Deliver, m.End]
    assert w.said[A][-1] == m.End(1, 11, 3)
    assert w.say(A, m.Fetch(1, 12, 10, 5000, 2)) == []
    w.pub(P, "job.x", "4")
    assert not isinstance(w.said[A][-1], m.End)
    w.pub(P, "job.x", "5")
    assert w.said[A][-1] == m.End(1, 12, 2)
    assert w.say(A, m.Fetch(1, 13, 10, 5000, 1)) == []
    w.pass_time(5.0)
    assert w.said[A][-1] == m.End(1, 13, 0)
    assert w.bodies(A) == ["1", "2", "3", "4", "5"]


def test_fetch_of_much_ends_after_all_that_is_ready() -> None:
    w = world(A, credit=0)
    for number in range(200):  # more than a group hands out in one go
        w.pub(P, "job.x", f"{number}")
    w.say(A, m.Fetch(1, 11, 1000, 5000, 1))
    w.pass_time(0.001)
    assert w.said[A][-1] == m.End(1, 11, 200)
