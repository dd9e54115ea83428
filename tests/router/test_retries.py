"""Failures: what counts, the backoff, the next consumer, and that a restart keeps the counts."""

from typing import Any

import pytest

from fabric.records import GroupSettings
from fabric.router.groups.backoff import wait_ms
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B = b"\0prod", b"\0aaaa", b"\0bbbb"


def world(*peers: bytes, credit: int = 1000, **fields: Any) -> World:
    w = World()
    w.hello(P)
    for peer in peers:
        w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
        w.sub(peer, 1, "job.#", group="g", credit=credit, **fields)
    return w


def rows(w: World, peer: bytes) -> list[tuple[int, int, str]]:
    return [(ordinal, attempt, body) for ordinal, _, attempt, body in w.delivered(peer)]


@pytest.mark.parametrize(
    ("backoff", "waits"),
    [
        ("fixed", [500, 500, 500, 500]),
        ("linear", [500, 1000, 1500, 2000]),
        ("exponential", [500, 1000, 2000, 4000]),
    ],
)
def test_the_wait_grows_as_the_settings_say(backoff: str, waits: list[int]) -> None:
    settings = GroupSettings((), backoff=backoff, jitter_pct=0)
    assert [wait_ms(settings, n, "x") for n in (1, 2, 3, 4)] == waits


def test_the_cap_holds_however_many_failures_there_were() -> None:
    settings = GroupSettings((), jitter_pct=0)
    assert wait_ms(settings, 1000, "x") == 300_000


def test_jitter_stays_within_its_bounds_and_differs_between_messages() -> None:
    settings = GroupSettings((), backoff="fixed", backoff_ms=1000, jitter_pct=10)
    waits = {wait_ms(settings, 1, f"g {seq}") for seq in range(500)}
    assert min(waits) >= 900
    assert max(waits) <= 1100
    assert len(waits) > 100
    assert wait_ms(settings, 1, "g 7") == wait_ms(settings, 1, "g 7")


def test_a_retry_waits_for_its_backoff_and_others_overtake_it() -> None:
    w = world(A, backoff_ms=1000, jitter_pct=0)
    w.pub(P, "job.x", "1")
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    w.pub(P, "job.x", "2")
    assert rows(w, A) == [(1, 1, "1"), (2, 1, "2")]
    w.pass_time(0.9)
    assert len(rows(w, A)) == 2
    w.pass_time(0.2)
    assert rows(w, A)[2:] == [(3, 2, "1")]


def test_a_consumer_may_say_how_long_to_wait() -> None:
    w = world(A)
    w.pub(P, "job.x", "1")
    w.settle(A, 1, Verdict.RETRY, 1, 1, 0)
    assert rows(w, A)[1:] == [(2, 2, "1")]
    w.settle(A, 1, Verdict.RETRY, 2, 2, (60_000, "the bank is closed"))
    w.pass_time(59)
    assert len(rows(w, A)) == 2
    w.pass_time(2)
    assert rows(w, A)[2:] == [(3, 3, "1")]


def test_failures_and_their_wait_survive_a_restart() -> None:
    w = world(A, attempts_max=3, backoff="fixed", backoff_ms=10_000, jitter_pct=0)
    w.pub(P, "job.x", "1", "2")
    w.settle(A, 1, Verdict.RETRY, 1, 1, "broken")
    w.settle(A, 1, Verdict.ACK, 2, 2)
    assert [row[2:] for row in w.failures.values()] == [(1, 1, w.wall_us() + 10_000_000, "broken")]
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert rows(w, A) == []
    w.pass_time(10.1)
    assert rows(w, A) == [(1, 2, "1")]
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    w.restart()
    w.pass_time(11)
    w.hello(A)
    w.sub(A, 1, group="g")
    assert rows(w, A) == [(1, 3, "1")]
    w.settle(A, 1, Verdict.RETRY, 1, 1, "again")
    assert w.failures == {}
    letter = w.reader.blocks[-1]
    assert letter.topics == ("$dlq.g",)
    assert letter.headers()[0]["fabric-error"] == "again"
    assert letter.headers()[0]["fabric-attempts"] == "3"


def test_endless_attempts() -> None:
    w = world(A, attempts_max=0, backoff_ms=0)
    w.pub(P, "job.x", "1")
    for ordinal in range(1, 50):
        w.settle(A, 1, Verdict.RETRY, ordinal, ordinal)
    assert len(w.bodies(A)) == 50


def test_of_a_lost_consumer_only_what_it_can_have_begun_counts() -> None:
    w = world(A, concurrency=2, backoff_ms=1000, jitter_pct=0)
    w.pub(P, "job.x", *"12345")
    w.settle(A, 1, Verdict.ACK, 2, 2)
    w.router.peer_gone(A)
    w.pass_time(601)
    w.hello(B)
    w.sub(B, 1, group="g", credit=10)
    failed = {seq: row.failures for (_, seq), row in w.failures.items()}
    assert failed == {1: 1, 3: 1}
    w.pass_time(1.1)
    assert sorted(w.bodies(B)) == ["1", "3", "4", "5"]


def test_what_was_prefetched_is_not_counted_when_leases_lapse_one_after_the_other() -> None:
    w = world(A, lease_ms=1000, backoff_ms=1000, jitter_pct=0)
    for body in "123":
        w.pub(P, "job.x", body)
    w.pass_time(1.0)
    assert {seq for _, seq in w.failures} == {1}
    w.say(A, m.Settle(1, 0, ((Verdict.ACK, 1, 1, None),)))  # stale, but the handler is free again
    w.pass_time(1.0)
    assert {seq for _, seq in w.failures} == {1, 2}


def test_goodbye_counts_nothing() -> None:
    w = world(A)
    w.pub(P, "job.x", "1", "2")
    w.say(A, m.Goodbye(1))
    assert w.failures == {}
    w.hello(B)
    w.sub(B, 1, group="g")
    assert rows(w, B) == [(1, 1, "1"), (2, 1, "2")]


def test_a_suspect_is_delivered_alone_to_a_consumer_that_holds_nothing() -> None:
    w = world(A, backoff_ms=0)
    w.pub(P, "job.x", "poison")
    for ordinal in (1, 2):
        w.settle(A, 1, Verdict.RETRY, ordinal, ordinal)
    assert rows(w, A)[2:] == [(3, 3, "poison")]
    w.pub(P, "job.x", "good")
    assert len(rows(w, A)) == 3, "nothing else while it is at work"
    w.settle(A, 1, Verdict.ACK, 3, 3)
    assert rows(w, A)[3:] == [(4, 1, "good")]


def test_a_busy_member_is_kept_free_for_a_suspect_while_others_go_on() -> None:
    w = world(A, B, backoff_ms=0, credit=3)
    w.pub(P, "job.x", "poison")
    holder = A if w.bodies(A) else B
    w.settle(holder, 1, Verdict.RETRY, 1, 1)
    holder2 = next(peer for peer in (A, B) if any(row[1] == 2 for row in rows(w, peer)))
    ordinal = next(row[0] for row in rows(w, holder2) if row[1] == 2)
    w.pub(P, "job.x", *"abcdef")
    w.settle(holder2, 1, Verdict.RETRY, ordinal, ordinal)
    taken = [row for peer in (A, B) for row in rows(w, peer) if row[1] == 3]
    assert taken == [], "both hold something"
    for peer in (A, B):
        w.say(peer, m.Credit(1, 100, 1 << 40))
    reserved = w.router.groups["g"].reserved
    assert reserved is not None
    for row in rows(w, reserved.session.peer):
        w.settle(reserved.session.peer, 1, Verdict.ACK, row[0], row[0])
    assert [row[1] for row in rows(w, reserved.session.peer)][-1] == 3


def test_lowering_the_limit_takes_effect_with_the_next_failure() -> None:
    w = world(A, attempts_max=5, backoff_ms=0)
    w.pub(P, "job.x", "1")
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    group = w.router.groups["g"]
    w.say(P, m.Admin(3, {"op": "group.update", "group": "g", "attempts_max": 2}))
    w.settle(A, 1, Verdict.RETRY, 2, 2)
    assert w.reader.blocks[-1].topics == ("$dlq.g",)
    assert not group.open


def test_touch_cannot_hold_a_lease_for_ever() -> None:
    w = world(A, lease_ms=1000, lease_max_ms=2500, backoff_ms=0)
    w.pub(P, "job.x", "1")
    for _ in range(4):
        w.pass_time(0.8)
        w.settle(A, 1, Verdict.TOUCH, 1, 1)
    assert rows(w, A)[1:] == [(2, 2, "1")]


def test_a_lapse_tells_the_consumer_what_it_has_lost() -> None:
    w = world(A, lease_ms=1000)
    w.pub(P, "job.x", "1", "2")
    w.pass_time(1.0)
    notices = [message for message in w.said[A] if isinstance(message, m.Notice)]
    assert [(n.kind, n.fields["ordinals"]) for n in notices] == [("lease_lost", [[1, 2]])]


def test_auto_ack_is_settled_when_sent() -> None:
    w = world(A, ack="auto")
    w.pub(P, "job.x", "1", "2")
    w.commit()
    assert w.bodies(A) == ["1", "2"]
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == []
    w.hello(P)
    w.pub(P, "job.x", "3")
    assert w.bodies(A) == ["3"]


def test_a_gap_is_reported_to_the_next_consumer() -> None:
    w = world(A)
    w.say(A, m.Goodbye(1))
    w.pub(P, "job.x", "1")
    w.pub(P, "job.x", "2")
    out: list[Any] = []
    w.reader.blocks.pop(0)
    w.router.shared.block_store._blocks.clear()
    w.router.shared.block_store._bases.clear()
    w.router.trimmed(2)
    out += w.router.take_frames()
    w.hello(B)
    answers = w.sub(B, 1, group="g")
    assert [a for a in answers if isinstance(a, m.Gap)] == [m.Gap(1, 1, 1, "removed by retention")]


@pytest.mark.parametrize("order", ["none", "key"])
def test_a_consumer_that_is_kept_free_for_a_suspect_goes_on_when_the_suspect_expires(order: str) -> None:
    w = world(A, backoff_ms=0, order=order)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("job.x", [b"1"], keys=[b"a"]), {"ttl_ms": 10_000}))
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("job.x", [b"2"], keys=[b"b"])))
    w.settle(A, 1, Verdict.RETRY, 2, 2)
    assert w.router.groups["g"].pending.suspects, "2 is with the consumer, so 1 waits"
    w.pass_time(11)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("job.x", [b"3"], keys=[b"c"])))
    assert w.bodies(A)[-1] == "3"


@pytest.mark.parametrize("order", ["none", "key"])
def test_more_attempts_make_a_suspect_a_message_like_others(order: str) -> None:
    w = world(A, B, attempts_max=1, lease_ms=1_000, backoff_ms=0, jitter_pct=0, concurrency=4, order=order, credit=0)
    w.say(A, m.Credit(1, 1_000, 1 << 40))
    w.say(
        P,
        m.Publish(9, 0, m.Level.JOURNALED, encode("job.x", [b"1", b"2", b"3", b"4"], keys=[*map(str.encode, "abcd")])),
    )
    w.pass_time(1.1)
    assert rows(w, A)[4:] == [(5, 2, "1")], "which of the four is at fault is not known, so each is alone"
    w.say(P, m.Admin(3, {"op": "group.update", "group": "g", "attempts_max": 3}))
    w.settle(A, 1, Verdict.ACK, 5, 5)
    assert sorted(w.bodies(A)[5:]) == ["2", "3", "4"]
    w.settle(A, 1, Verdict.ACK, 6, 8)
    assert not w.router.groups["g"].open
