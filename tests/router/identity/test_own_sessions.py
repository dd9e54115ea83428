"""A session belongs to a principal: for all others it does not exist."""

import pytest

from fabric.router.access.identity import GUEST_NAME, LOCAL, Identity
from fabric.router.access.role import Limits
from fabric.router.sessions import session_table
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.router.identity.people import ADMIN, ANN, ANN2, BOB, CLIENT, EVE, People, identity


@pytest.fixture
def world() -> People:
    return People()


def test_a_session_of_another_principal_cannot_be_resumed(world: People) -> None:
    secret = world.opened(ANN, producer={"name": "p"})["session"]
    world.sub(ANN, 1, "t", group="g")
    world.pub(ANN, "t", "one")
    heard = len(world.said[ANN])
    welcome = world.opened(EVE, resume={"session": secret, "subs": [[1, 0]]})
    assert (welcome["resumed"], welcome["subs"]) == (False, [])
    assert welcome["session"] != secret
    assert "producer" not in welcome
    assert world.delivered(EVE) == []
    assert world.said[ANN][heard:] == []  # no notice: the session is untouched
    assert world.pub(ANN, "t", "two", pseq=1)
    assert world.bodies(ANN) == ["one", "two"]


def test_an_attempt_looks_like_the_resume_of_a_session_that_has_ended(world: People) -> None:
    secret = world.opened(ANN)["session"]
    of_another = world.opened(EVE, resume={"session": secret, "subs": []})
    of_none = world.opened(b"eve2", resume={"session": b"\0" * 16, "subs": []})
    assert {**of_another, "session": b""} == {**of_none, "session": b""}


def test_a_claim_beside_the_resume_of_another_session_is_a_claim_of_a_new_session(world: People) -> None:
    mine = world.opened(ANN, producer={"name": "p"})
    theirs = world.opened(EVE, producer={"name": "p"}, resume={"session": mine["session"], "subs": []})
    assert theirs["producer"]["last_pseq"] == 0
    assert not world.router.session_table.session_of(ANN).fenced


def test_the_attempt_is_in_the_audit_and_an_own_resume_is_not(world: People) -> None:
    secret = world.opened(ANN)["session"]
    world.opened(EVE, resume={"session": secret, "subs": []})
    (told,) = world.audits(kind="refused", verb="HELLO")
    assert (told["principal"], told["address"], told["client"]) == ("eve", "10.0.0.1", "eve")
    assert "belongs to principal 'ann'" in told["why"]
    assert secret.hex() not in str(told)
    world.opened(ANN2, resume={"session": secret, "subs": []})
    world.opened(BOB, resume={"session": b"\1" * 16, "subs": []})
    assert len(world.audits()) == 1


def test_a_connection_without_a_key_and_a_principal_cannot_resume_each_other(world: People) -> None:
    mine = world.opened(ANN)["session"]
    world.identities[b"x"] = world.identities[b"y"] = LOCAL
    theirs = world.opened(b"x")["session"]
    assert not world.opened(b"y", resume={"session": mine, "subs": []})["resumed"]
    assert not world.opened(EVE, resume={"session": theirs, "subs": []})["resumed"]


def test_another_key_of_the_principal_resumes_and_the_session_knows_its_connection(world: People) -> None:
    secret = world.opened(ANN)["session"]
    world.identities[ANN2] = identity("ann", "another key")._replace(address="10.0.0.2")
    assert world.opened(ANN2, resume={"session": secret, "subs": []})["resumed"]
    session = world.router.session_table.session_of(ANN2)
    assert session.connected_as == ("ann", "another key", "10.0.0.2")
    assert world.said[ANN][-1] == m.Notice("taken_over", {})


def test_guests_share_a_principal_and_not_their_sessions(world: People) -> None:
    secret = world.opened(b"guest1", enrol=True, ttl_ms=600_000)["session"]
    assert world.router.session_table.session_of(b"guest1").ttl_s == session_table.GUEST_TTL_S
    assert not world.opened(b"guest2", enrol=True, resume={"session": secret, "subs": []})["resumed"]
    world.identities[b"guest3"] = world.identities[b"guest1"]
    assert world.opened(b"guest3", enrol=True, resume={"session": secret, "subs": []})["resumed"]


def test_a_key_that_is_not_known_opens_a_session_only_to_become_known(world: People) -> None:
    for fields in ({}, {"enrol": False}, {"enrol": 1}, {"enrol": "true"}, {"enrol": None}):
        assert world.refused(b"guest1", **fields).code == Code.AUTH_FAILED
    world.opened(b"guest1", enrol=True)


def test_a_key_that_is_known_may_ask_to_enrol_and_gets_its_own_session(world: People) -> None:
    world.opened(b"guest1", enrol=True)
    world.opened(ANN, enrol=True, producer={"name": "p"})


def test_guests_do_not_take_all_sessions(world: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_table, "GUESTS_MAX", 2)
    world.opened(b"guest1", enrol=True)
    world.opened(b"guest2", enrol=True)
    assert world.refused(b"guest3", enrol=True).code == Code.BUSY
    world.opened(ANN)
    world.pass_time(session_table.GUEST_TTL_S + 1)
    world.opened(b"guest3", enrol=True)


def test_guests_of_one_address_do_not_keep_others_from_joining(world: People) -> None:
    def come(number: int, address: str) -> m.ToClient:
        peer = b"guest%d" % number
        world.identities[peer] = Identity(GUEST_NAME, f"key {number}", address)
        return world.hello(peer, enrol=True)

    for number in range(session_table.GUESTS_OF_ADDRESS_MAX):
        assert isinstance(come(number, "10.0.0.1"), m.Welcome)
    refusal = come(50, "10.0.0.1")
    assert isinstance(refusal, m.Err)
    assert refusal.code == Code.BUSY
    assert isinstance(come(60, "10.0.0.2"), m.Welcome)
    world.say(b"guest3", m.Goodbye(1))
    assert isinstance(come(50, "10.0.0.1"), m.Welcome)


def test_a_principal_has_as_many_sessions_as_its_limit(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(sessions=2)))
    secret = world.opened(ANN)["session"]
    world.opened(b"ann3")
    refusal = world.refused(ANN2)
    assert (refusal.code, refusal.fields["retry_ms"] > 0) == (Code.BUSY, True)
    assert "may have 2 sessions" in refusal.text
    world.opened(BOB)  # the limit is of one principal
    assert world.opened(ANN2, resume={"session": secret, "subs": []})["resumed"]  # no new session
    world.say(ANN2, m.Goodbye(1))
    world.opened(b"ann4")
    assert world.refused(b"ann5").code == Code.BUSY
    world.pass_time(31)  # both are lost
    world.opened(b"ann6")
    assert world.router.session_table.session_of(b"ann6").principal.usage.sessions == 1


def test_a_refused_hello_is_not_counted(world: People) -> None:
    world.change(ann=CLIENT._replace(limits=Limits(sessions=1)))
    for number in range(3):
        assert world.refused(b"ann%d" % number, hb_ms="soon").code == Code.BAD_OPTION
    world.opened(ANN)


def test_info_names_the_principal_of_a_session(world: People) -> None:
    world.opened(ANN)
    rows = world.info(ADMIN, "sessions")["sessions"]
    assert [(row["client"], row["principal"]) for row in rows] == [("admin", "local"), ("ann", "ann")]
