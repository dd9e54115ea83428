"""Priorities, expiry, pausing and moving a group."""

from typing import Any

import pytest

from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B = b"\0prod", b"\0aaaa", b"\0bbbb"


def world(credit: int = 1000, **fields: Any) -> World:
    w = World()
    w.hello(P)
    w.hello(A, ttl_ms=600_000)
    w.sub(A, 1, "job", group="g", credit=credit, **fields)
    return w


def pub(w: World, priority: int, *bodies: str, expires_us: int = 0) -> None:
    raw = encode("job", [body.encode() for body in bodies], priority=priority, expires_us=expires_us)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, raw))


def more(w: World, count: int) -> list[str]:
    """Let the consumer have some more; returns what it gets."""
    before = len(w.bodies(A))
    sub = w.router.groups["g"].members[0]
    w.say(A, m.Credit(1, sub.sent + count, 1 << 40))
    return w.bodies(A)[before:]


def test_the_most_urgent_goes_first() -> None:
    w = world(credit=0)
    pub(w, 4, "n1", "n2")
    pub(w, 9, "u1")
    pub(w, 0, "l1")
    pub(w, 7, "h1")
    pub(w, 9, "u2")
    assert more(w, 2) == ["u1", "u2"]
    assert more(w, 1) == ["h1"]
    assert more(w, 9) == ["n1", "n2", "l1"]


def test_priorities_survive_a_restart() -> None:
    w = world(credit=0)
    pub(w, 4, "n1")
    pub(w, 9, "u1", "u2")
    assert more(w, 1) == ["u1"]
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.restart()
    w.hello(P)
    w.hello(A)
    w.sub(A, 1, group="g", credit=0)
    pub(w, 9, "u3")
    assert more(w, 1) == ["u2"]
    assert more(w, 1) == ["u3"]
    assert more(w, 5) == ["n1"]


def test_a_priority_is_kept_over_redelivery() -> None:
    w = world(credit=0, backoff_ms=0)
    pub(w, 9, "u1")
    assert more(w, 1) == ["u1"]
    pub(w, 4, "n1")
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    pub(w, 8, "h1")
    assert more(w, 1) == ["u1"]
    assert more(w, 2) == ["h1", "n1"]


def test_lower_priorities_are_not_starved() -> None:
    w = world(credit=0)
    pub(w, 1, *[f"l{n}" for n in range(5)])
    pub(w, 4, *[f"n{n}" for n in range(5)])
    pub(w, 9, *[f"u{n}" for n in range(200)])
    got = more(w, 210)
    assert len(got) == 210
    assert got.index("l0") <= 65
    assert got.index("l1") <= 130


def test_a_group_made_later_knows_all_priorities() -> None:
    w = world()
    pub(w, 9, "u1")
    pub(w, 4, "n1")
    w.hello(B)
    w.sub(B, 1, "job", group="late")
    assert w.bodies(B) == ["u1", "n1"]
    w.settle(B, 1, Verdict.ACK, 1, 2)
    assert w.router.groups["late"].floor == 2


def test_order_comes_before_priority() -> None:
    w = world(credit=0, order="strict")
    pub(w, 4, "n1")
    pub(w, 9, "u1")
    assert more(w, 5) == ["n1", "u1"]


def test_an_expired_message_is_never_delivered() -> None:
    w = world(credit=0)
    pub(w, 4, "old", expires_us=w.wall_us() + 1_000_000)
    pub(w, 4, "new")
    w.pass_time(1.0)
    assert more(w, 5) == ["new"]
    w.settle(A, 1, Verdict.ACK, 1, 1)
    assert w.router.groups["g"].floor == 2
    assert w.router.groups["g"].tally.expired == 1


def test_what_expires_between_two_attempts_is_not_delivered_again() -> None:
    w = world(backoff_ms=0)
    pub(w, 4, "old", expires_us=w.wall_us() + 1_000_000)
    w.pass_time(1.5)
    w.settle(A, 1, Verdict.RETRY, 1, 1)
    assert w.bodies(A) == ["old"]
    assert not w.router.groups["g"].open
    assert w.failures == {}


def test_expired_messages_become_dead_letters_when_asked_for() -> None:
    w = world(credit=0, on_expire="dead")
    pub(w, 4, "old", expires_us=w.wall_us() + 1_000_000)
    w.pass_time(1.0)
    assert more(w, 5) == []
    w.commit()
    assert w.reader.blocks[-1].topics == ("$dlq.g",)
    assert w.reader.blocks[-1].headers()[0]["fabric-reason"] == "expired"


def test_a_paused_group_keeps_its_leases_and_gets_nothing_new() -> None:
    w = world()
    pub(w, 4, "1")
    group = w.router.groups["g"]
    w.router.dispatcher.pause(group, True)
    w.commit()
    pub(w, 4, "2")
    assert w.bodies(A) == ["1"]
    w.settle(A, 1, Verdict.ACK, 1, 1)
    w.restart()
    w.hello(A)
    w.sub(A, 1, group="g")
    assert w.bodies(A) == []
    w.router.dispatcher.pause(w.router.groups["g"], False)
    w.pass_time(0.1)
    assert w.bodies(A) == ["2"]


def test_a_group_moved_back_reads_again_and_its_old_ordinals_are_stale() -> None:
    w = world(credit=3)
    pub(w, 4, "1", "2", "3")
    w.settle(A, 1, Verdict.ACK, 1, 2)
    group = w.router.groups["g"]
    w.router.dispatcher.seek(group, w.router.dispatcher.position(group, {"seq": 2}, "to"), w.router.turn)
    assert w.settle(A, 1, Verdict.ACK, 3, 3) == [
        m.Notice("lease_lost", {"chan": 1, "ordinals": [[3, 3]], "why": "the group was moved"}),
        m.Ok(1, 7, {"applied": 0, "stale": [[3, 3]]}),
    ]
    assert more(w, 5) == ["2", "3"]


@pytest.mark.parametrize(
    ("start", "bodies"),
    [
        ("first", ["1", "2", "3"]),
        ("new", []),
        ("last", ["3"]),
        ({"seq": 2}, ["2", "3"]),
        ({"seq": 99}, []),
        ({"time_us": 0}, ["1", "2", "3"]),
    ],
)
def test_start_positions(start: Any, bodies: list[str]) -> None:
    w = world()
    for body in "123":
        pub(w, 4, body)
    w.hello(B)
    w.sub(B, 1, "job", group="other", start=start)
    assert w.bodies(B) == bodies
    pub(w, 4, "live")
    assert w.bodies(B) == [*bodies, "live"]


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("lease_ms", 5, "lease_ms is 100..43200000, not 5"),
        ("lease_ms", True, "lease_ms is 100..43200000, not True"),
        ("attempts_max", -1, "attempts_max is 0..1000, not -1"),
        ("backoff", "cubic", "backoff is one of fixed, linear, exponential, not 'cubic'"),
        ("backoff_ms", "soon", "backoff_ms is 0..86400000, not 'soon'"),
        ("jitter_pct", 101, "jitter_pct is 0..100, not 101"),
        ("order", "random", "order is one of none, key, strict, not 'random'"),
        ("ack", "never", "ack is one of explicit, auto, not 'never'"),
        ("on_expire", 1, "on_expire is one of drop, dead, not 1"),
        ("lease_max_ms", 200, "lease_max_ms is at least lease_ms (30000), not 200"),
        ("concurrency", 0, "concurrency is 1..65536, not 0"),
        ("start", "middle", "start is 'first', 'new', 'last', 'last_per_key', {seq: n} or {time_us: t}, not 'middle'"),
    ],
)
def test_a_bad_setting_is_refused_by_name(field: str, value: Any, text: str) -> None:
    w = World()
    w.hello(A)
    (answer,) = w.sub(A, 1, "job", group="g", **{field: value})
    assert isinstance(answer, m.Err)
    assert (answer.code, answer.text) == (Code.BAD_OPTION, text)
    assert w.router.groups == {}


def test_a_group_with_other_settings_is_refused_with_the_difference() -> None:
    w = world(backoff_ms=100)
    w.hello(B)
    (answer,) = w.sub(B, 1, group="g", backoff_ms=200)
    assert isinstance(answer, m.Err)
    assert answer.code == Code.GROUP_MISMATCH
    assert answer.text == "group 'g' exists with backoff_ms 100, not 200"
    assert answer.fields == {"field": "backoff_ms", "have": "100", "want": "200"}


def test_a_new_priority_does_not_reach_back_behind_a_start() -> None:
    w = world()
    raw = encode("job", [b"before"], priority=9)
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, raw), commit=False)
    w.hello(B)
    w.sub(B, 1, "job", group="late", start="new")
    pub(w, 9, "after")
    assert w.bodies(A) == ["before", "after"]
    assert w.bodies(B) == ["after"]


def test_a_group_deleted_and_made_again_in_one_turn_is_there_after_a_restart() -> None:
    w = world()
    group = w.router.groups["g"]
    w.router.leave(group.members[0], w.router.turn, lost=False)
    w.router.dispatcher.delete(group, w.router.turn)
    w.say(A, m.Subscribe(2, 5, {"group": "g", "patterns": ["other"], "credit": [9, 9999]}), commit=False)
    w.commit()
    w.restart()
    assert w.router.groups["g"].settings.patterns == ("other",)
