"""Requests: rights of both sides, replies of the responder's own session only, and the principal beside the name."""

from typing import Any

import pytest

from fabric.router.access.role import Limits
from fabric_protocol import messages as m
from fabric_protocol.block import encode
from fabric_protocol.errors import Code
from tests.router.identity.people import ANN, ANN2, BOB, CLIENT, EVE, People

NAMED = CLIENT._replace(groups=("sums*",))


@pytest.fixture
def world() -> People:
    world = People()
    for peer in (ANN, ANN2, BOB, EVE):
        world.hello(peer, client="web-1")
    return world


def serve(world: People, peer: bytes, *patterns: str, chan: int = 1, **fields: Any) -> m.ToClient:
    body = {"respond": True, **({"patterns": list(patterns)} if patterns else {}), **fields}
    return world.say(peer, m.Subscribe(chan, 5, body))[-1]


def ask(world: People, peer: bytes, topic: str = "sum", rid: int = 50) -> list[m.ToClient]:
    return world.say(peer, m.Request(0, rid, {"timeout_ms": 5_000}, encode(topic, [b"1+1"])))


def passed_on(world: People, peer: bytes) -> m.Request:
    return [message for message in world.said[peer] if isinstance(message, m.Request)][-1]


def replies(world: People, peer: bytes) -> list[m.Reply]:
    return [message for message in world.said[peer] if isinstance(message, m.Reply)]


def test_both_sides_learn_the_principal_of_the_other(world: People) -> None:
    serve(world, BOB, "sum")
    ask(world, ANN)
    request = passed_on(world, BOB)
    assert (request.fields["from"], request.fields["principal"]) == ("web-1", "ann")
    world.say(BOB, m.Reply(1, request.rid, {}, encode("r", [b"2"])))
    (reply,) = replies(world, ANN)
    assert (reply.fields["from"], reply.fields["principal"]) == ("web-1", "bob")


@pytest.mark.parametrize("forger", [EVE, ANN2, ANN, b"bob2"])
@pytest.mark.parametrize("responds", [False, True])
def test_a_reply_of_another_session_is_dropped(world: People, forger: bytes, responds: bool) -> None:
    """Also of another session of the same principal, and of another responder."""
    if forger == b"bob2":
        world.opened(forger)
    serve(world, BOB, "sum")
    ask(world, ANN)
    rid = passed_on(world, BOB).rid
    if responds:
        serve(world, forger, "sum")
    for guess in range(rid + 3):
        for chan in range(3):
            world.say(forger, m.Reply(chan, guess, {}, encode("r", [b"forged"])))
    assert replies(world, ANN) == []
    world.say(BOB, m.Reply(1, rid, {}, encode("r", [b"2"])))
    (reply,) = replies(world, ANN)
    assert reply.block == encode("r", [b"2"])


def test_a_reply_after_a_takeover_attempt_still_counts(world: People) -> None:
    secret = world.router.session_table.session_of(BOB).id
    serve(world, BOB, "sum")
    ask(world, ANN)
    world.opened(b"eve2", resume={"session": secret, "subs": []})
    world.say(BOB, m.Reply(1, passed_on(world, BOB).rid, {}, encode("r", [b"2"])))
    assert len(replies(world, ANN)) == 1


def test_a_request_needs_the_right(world: People) -> None:
    serve(world, BOB, "sum")
    world.change(ann=CLIENT._replace(request=("other.#",)))
    (refusal,) = ask(world, ANN)
    assert isinstance(refusal, m.Err)
    assert (refusal.code, refusal.rid) == (Code.FORBIDDEN, 50)
    assert not any(isinstance(message, m.Request) for message in world.said[BOB])
    assert len(world.router.requests) == 0


def test_a_request_without_the_right_does_not_tell_whether_a_responder_exists(world: People) -> None:
    world.change(ann=CLIENT._replace(request=()))
    (before,) = ask(world, ANN)
    serve(world, BOB, "sum")
    (after,) = ask(world, ANN)
    assert before == after


def test_a_responder_needs_the_right_to_its_patterns(world: People) -> None:
    world.change(eve=CLIENT._replace(respond=("sum.eve",)))
    refusal = serve(world, EVE, "sum")
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.FORBIDDEN
    assert list(world.router.requests.services) == []
    assert isinstance(serve(world, EVE, "sum.eve"), m.Ok)


@pytest.mark.parametrize("patterns", [(), ("sum",), ("sum.eve",)])
def test_a_responder_needs_the_right_to_the_stored_patterns_of_a_service(
    world: People, patterns: tuple[str, ...]
) -> None:
    serve(world, BOB, "sum", group="sums")
    world.change(eve=CLIENT._replace(respond=("sum.eve",)))
    refusal = serve(world, EVE, *patterns, group="sums")
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.FORBIDDEN
    ask(world, ANN)
    assert not any(isinstance(message, m.Request) for message in world.said[EVE])


def test_a_name_of_a_service_is_a_name_of_a_group_and_cannot_be_squatted(world: People) -> None:
    world.change(bob=NAMED, eve=CLIENT._replace(groups=("eve.*",), respond=("#",)))
    refusal = serve(world, EVE, "eve.sum", group="sums")
    assert isinstance(refusal, m.Err)
    assert (refusal.code, "eve.*" in refusal.text) == (Code.FORBIDDEN, True)
    assert isinstance(serve(world, BOB, "sum", group="sums"), m.Ok)
    assert isinstance(serve(world, EVE, "eve.sum", group="eve.sums"), m.Ok)
    assert isinstance(serve(world, EVE, "eve.sum", chan=2), m.Ok)  # without a name


def test_requests_that_wait_are_bytes_in_flight_until_a_responder_has_them(world: People) -> None:
    serve(world, BOB, "sum", concurrency=1)
    world.change(ann=CLIENT._replace(limits=Limits(inflight=2 * len(encode("sum", [b"1+1"])))))
    used = world.router.session_table.session_of(ANN).principal.usage
    for rid in (51, 52, 53):  # the responder has the first one
        assert ask(world, ANN, rid=rid) == []
    (refusal,) = ask(world, ANN2, rid=54)
    assert isinstance(refusal, m.Err)
    assert (refusal.code, refusal.fields["retry_ms"]) == (Code.BUSY, 50)
    assert ask(world, EVE) == [], "another principal has room"
    world.say(BOB, m.Reply(1, passed_on(world, BOB).rid, {}, encode("r", [b"2"])))
    assert ask(world, ANN2, rid=54) == []
    world.say(ANN, m.Goodbye(0))
    world.say(ANN2, m.Goodbye(0))
    world.pass_time(6)
    assert used.inflight_bytes == 0


def test_requests_count_for_the_rate(world: People) -> None:
    serve(world, BOB, "sum")
    world.change(ann=CLIENT._replace(limits=Limits(rate=1)))
    assert ask(world, ANN, rid=51) == []
    (refusal,) = ask(world, ANN, rid=52)
    assert isinstance(refusal, m.Err)
    assert (refusal.code, refusal.fields["retry_ms"]) == (Code.BUSY, 1)
    world.pass_time(0.001)
    assert ask(world, ANN, rid=52) == []  # with a debt
    (refusal,) = ask(world, ANN, rid=53)
    assert isinstance(refusal, m.Err)
    assert refusal.fields["retry_ms"] == 1_000
    world.pass_time(1.0)
    assert ask(world, ANN, rid=53) == []
