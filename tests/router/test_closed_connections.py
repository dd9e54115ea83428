"""A closed connection: messages that go to other consumers at once, messages that stay for the grace, and a resume."""

from typing import Any

import pytest

from fabric.router.sessions.session import GRACE_S
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.messages import Verdict
from tests.router.world import World

P, A, B, C = b"\0p", b"\0a", b"\0b", b"\0c"


def world(*peers: bytes, **fields: Any) -> tuple[World, list[bytes]]:
    """Peers in one group, and the secrets of their sessions."""
    w, secrets = World(), []
    w.hello(P, ttl_ms=600_000)
    for peer in peers:
        welcome = w.hello(peer, ttl_ms=600_000, hb_ms=60_000)
        assert isinstance(welcome, m.Welcome)
        secrets.append(welcome.fields["session"])
        w.sub(peer, 1, "job", group="g", jitter_pct=0, **fields)
    return w, secrets


def pub(w: World, *bodies: str, keyed: bool = False) -> None:
    keys = [body[0].encode() for body in bodies] if keyed else None
    w.say(P, m.Publish(9, 0, m.Level.JOURNALED, encode("job", [body.encode() for body in bodies], keys=keys)))


def gone(w: World, peer: bytes) -> None:
    w.router.peer_gone(peer)
    w.pass_time(0)


def back(w: World, peer: bytes, secret: bytes, seen: int) -> dict[str, Any]:
    welcome = w.hello(peer, resume={"session": secret, "subs": [[1, seen]]})
    assert isinstance(welcome, m.Welcome)
    return dict(welcome.fields)


def taken_back(w: World, peer: bytes) -> list[list[int]]:
    notices = [said for said in w.said[peer] if isinstance(said, m.Notice) and said.kind == "lease_lost"]
    return [span for notice in notices for span in notice.fields["ordinals"]]


def test_what_was_not_begun_goes_to_others_at_once_and_what_was_begun_after_the_grace() -> None:
    w, _ = world(A, concurrency=2, backoff_ms=0)
    pub(w, *"12345")
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    assert w.bodies(B) == []
    gone(w, A)
    assert sorted(w.bodies(B)) == ["3", "4", "5"]
    assert not w.failures, "what was not begun is not counted"
    w.pass_time(GRACE_S - 0.1)
    assert sorted(w.bodies(B)) == ["3", "4", "5"]
    w.pass_time(0.1)
    assert sorted(w.bodies(B)) == ["1", "2", "3", "4", "5"]
    assert [(row.first, row.last, row.failures) for row in w.failures.values()] == [(1, 2, 1)]


def test_what_was_begun_is_a_dead_letter_after_the_grace_when_attempts_are_spent() -> None:
    w, _ = world(A, B, attempts_max=1)
    pub(w, "1", "2")
    gone(w, A)
    w.pass_time(GRACE_S)
    (letter,) = [block for block in w.reader.blocks if block.topics == ("$dlq.g",)]
    assert letter.headers()[0]["fabric-reason"] == "consumer lost"
    assert [body.decode() for body in letter.payloads()] == w.bodies(A)[:1]


@pytest.mark.parametrize("seen", [0, 3])
def test_the_only_consumer_keeps_everything_if_it_is_back_in_time(seen: int) -> None:
    w, secrets = world(A)
    pub(w, "1", "2", "3")
    gone(w, A)
    w.pass_time(GRACE_S - 0.1)
    assert back(w, C, secrets[0], seen)["subs"] == [1]
    assert w.delivered(C) == ([] if seen else [(n, n, 1, str(n)) for n in (1, 2, 3)])
    assert w.settle(C, 1, Verdict.ACK, 1, 3) == [m.Ok(1, 7, {"applied": 3, "stale": []})]
    w.pass_time(GRACE_S)
    pub(w, "4")
    assert w.bodies(C)[-1] == "4", "the grace is forgotten"


def test_a_consumer_that_joins_during_the_grace_gets_what_was_not_begun() -> None:
    w, _ = world(A)
    pub(w, "1", "2", "3")
    gone(w, A)
    w.pass_time(1)
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    assert [row[1:] for row in w.delivered(B)] == [(2, 2, "2"), (3, 2, "3")]


def test_a_resumed_session_is_told_which_leases_it_has_lost() -> None:
    w, secrets = world(A)
    pub(w, "1", "2", "3")
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    gone(w, A)
    assert w.bodies(B) == ["2", "3"]
    assert back(w, C, secrets[0], 3)["subs"] == [1]
    assert taken_back(w, C) == [[2, 3]]
    assert w.settle(C, 1, Verdict.ACK, 1, 3) == [m.Ok(1, 7, {"applied": 1, "stale": [[2, 3]]})]
    assert w.settle(B, 1, Verdict.ACK, 1, 2) == [m.Ok(1, 7, {"applied": 2, "stale": []})]
    assert not w.router.groups["g"].open


def test_after_the_grace_the_session_goes_on_without_its_subscriptions() -> None:
    w, secrets = world(A)
    pub(w, "1")
    gone(w, A)
    w.pass_time(GRACE_S)
    fields = back(w, C, secrets[0], 1)
    assert (fields["resumed"], fields["subs"]) == (True, [])
    w.sub(C, 1, group="g")
    w.pass_time(1)
    assert w.delivered(C) == [(1, 1, 2, "1")]


def test_a_short_session_has_no_longer_grace() -> None:
    w = World()
    w.hello(P)
    w.hello(A, ttl_ms=1000, hb_ms=200)
    w.sub(A, 1, "job", group="g")
    gone(w, A)
    w.pass_time(1)
    assert not w.router.groups["g"].members


def test_in_strict_order_the_next_one_waits_for_what_was_begun() -> None:
    w, _ = world(A, B, order="strict", backoff_ms=0)
    pub(w, "1", "2", "3")
    w.settle(A, 1, Verdict.ACK, 1, 1)
    gone(w, A)
    assert w.bodies(B) == []
    w.pass_time(GRACE_S)
    assert w.bodies(B) == ["2", "3"]


def test_in_strict_order_the_next_one_takes_over_at_once_from_an_idle_one() -> None:
    w, _ = world(A, B, order="strict")
    gone(w, A)
    pub(w, "1")
    assert w.bodies(B) == ["1"]


def test_in_strict_order_a_resumed_session_does_not_overtake() -> None:
    w, secrets = world(A, B, order="strict", backoff_ms=0)
    pub(w, "1", "2", "3")
    gone(w, A)
    assert back(w, C, secrets[0], 3)["subs"] == [1]
    assert taken_back(w, C) == [[2, 3]]
    assert w.bodies(B) == [], "the first one is still at work on 1"
    w.settle(C, 1, Verdict.ACK, 1, 1)
    assert w.bodies(B) + w.bodies(C) == ["2", "3"]


def test_a_key_that_was_begun_stays_and_other_keys_go_on() -> None:
    w, _ = world(A, order="key", backoff_ms=0)
    pub(w, "a1", "a2", "b1", "b2", keyed=True)
    w.hello(B, ttl_ms=600_000)
    w.sub(B, 1, group="g")
    gone(w, A)
    assert w.bodies(B) == ["b1", "b2"]
    w.pass_time(GRACE_S)
    assert w.bodies(B) == ["b1", "b2", "a1"], "after a failure a key goes one by one"
    ordinal = w.delivered(B)[-1][0]
    w.settle(B, 1, Verdict.ACK, ordinal, ordinal)
    assert w.bodies(B)[-1] == "a2"


def test_a_consumer_that_is_silent_keeps_what_it_has_begun_and_the_rest_goes_to_others() -> None:
    """Its connection is open: it may be frozen, and it may be slow."""
    w = World()
    w.hello(P, ttl_ms=600_000, hb_ms=60_000)
    for peer, hb_ms in ((A, 1_000), (B, 60_000)):
        w.hello(peer, ttl_ms=600_000, hb_ms=hb_ms)
        w.sub(peer, 1, "job", group="g", lease_ms=600_000, credit=1_000 if peer == A else 0)
    pub(w, *"12345")
    w.say(B, m.Credit(1, 1_000, 1 << 40))
    w.pass_time(2.9)
    assert w.bodies(B) == []
    w.pass_time(0.6)
    assert sorted(w.bodies(B)) == ["2", "3", "4", "5"]
    assert not w.failures
    w.pass_time(60)
    assert w.router.groups["g"].members[0].outstanding == 1, "what was begun is its own"
    assert taken_back(w, A) == []
    w.say(A, m.Ping(0))
    assert taken_back(w, A) == [[2, 5]]
    assert w.settle(A, 1, Verdict.ACK, 1, 5) == [m.Ok(1, 7, {"applied": 1, "stale": [[2, 5]]})]
    pub(w, "6")
    assert "6" in w.bodies(A) + w.bodies(B)


def test_a_silent_consumer_whose_connection_is_closed_has_its_grace() -> None:
    w = World()
    w.hello(P, ttl_ms=600_000, hb_ms=60_000)
    for peer, hb_ms in ((A, 1_000), (B, 60_000)):
        w.hello(peer, ttl_ms=600_000, hb_ms=hb_ms)
        w.sub(peer, 1, "job", group="g", lease_ms=600_000, backoff_ms=0, credit=1_000 if peer == A else 0)
    pub(w, *"12")
    w.say(B, m.Credit(1, 1_000, 1 << 40))
    w.pass_time(4)
    assert w.bodies(B) == ["2"]
    gone(w, A)
    w.pass_time(GRACE_S)
    w.pass_time(0.1)
    assert w.bodies(B) == ["2", "1"]


def test_a_silent_consumer_without_others_keeps_all() -> None:
    w = World()
    w.hello(P, ttl_ms=600_000, hb_ms=60_000)
    w.hello(A, ttl_ms=600_000, hb_ms=1_000)
    w.sub(A, 1, "job", group="g", lease_ms=600_000)
    pub(w, *"123")
    w.pass_time(10)
    assert w.settle(A, 1, Verdict.ACK, 1, 3) == [m.Ok(1, 7, {"applied": 3, "stale": []})]


@pytest.mark.parametrize("heard", [A, B])
def test_consumers_that_are_silent_together_keep_all(heard: bytes) -> None:
    """There is no other consumer for what they cannot have begun, until one of them is heard again."""
    w = World()
    w.hello(P, ttl_ms=600_000, hb_ms=60_000)
    for peer in (A, B):
        w.hello(peer, ttl_ms=600_000, hb_ms=1_000)
        w.sub(peer, 1, "job", group="g", lease_ms=600_000, credit=3)
    pub(w, *"123")
    pub(w, *"456")
    w.pass_time(10)
    assert w.settle(heard, 1, Verdict.ACK, 1, 3) == [m.Ok(1, 7, {"applied": 3, "stale": []})]
