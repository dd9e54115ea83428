"""Refused attempts, one row each: the code, that nothing has changed, what the text names, and the audit."""

import pytest

from fabric.router.admin.operations import OPERATIONS
from fabric.router.admin.rights import RIGHTS
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.commands import OF_GUEST, SAMPLES, Sample
from tests.router import test_faults
from tests.router.access import attempts
from tests.router.access.attempts import ATTEMPTS, Attempt
from tests.router.access.controls import FULL, OTHERWISE
from tests.router.access.place import G, Place, W
from tests.router.test_faults import digest


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_an_attempt_is_refused_and_changes_nothing(attempt: Attempt) -> None:
    place = Place(attempt.role)
    place.said[W].clear()
    del place.advised[:]
    before, roles = digest(place.router), place.book.roles()
    place.step(W, attempt.message)
    (error,) = place.said[W]
    assert isinstance(error, m.Err), error
    assert (error.code, error.rid) == (attempt.code, 9), error
    assert (digest(place.router), place.book.roles()) == (before, roles)
    (audit,) = place.audits()
    assert (audit["principal"], audit["address"]) == ("worker", "10.0.0.7")
    assert (audit["kind"], audit["code"], audit["why"]) == ("refused", attempt.code.name, error.text)
    assert "\n" not in error.text
    assert "belongs to the hub" in error.text or ("'worker'" in error.text and "role" in error.text), error.text
    assert "secret.a" not in error.text or "secret.a" in repr(attempt.message), "a topic that the worker does not know"


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_the_same_attempt_with_all_rights_is_not_refused_for_a_right(attempt: Attempt) -> None:
    place = Place(FULL)
    place.said[W].clear()
    place.say(W, attempt.message)
    errors = [Code(said.code) for said in place.said[W] if isinstance(said, m.Err)]
    assert errors == ([OTHERWISE[attempt.name]] if attempt.name in OTHERWISE else []), place.said[W]


def test_there_are_enough_attempts_and_one_for_each_operation() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 200
    free = {"keys.enrol", "keys.rotate"}
    assert set(attempts.OPERATIONS) == set(attempts.NEEDED) == set(OPERATIONS) - free
    assert {op: words for op, (words, _) in RIGHTS.items() if op not in free} == attempts.NEEDED
    assert set(RIGHTS) == set(OPERATIONS)


OF_GUESTS = (m.Hello, m.Ping, m.Goodbye)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_guest_is_refused_every_command_but_those_to_join(sample: Sample) -> None:
    if isinstance(sample.message, OF_GUESTS) or sample.name == OF_GUEST:
        return
    place = Place()
    place.said[G].clear()
    before = digest(place.router)
    place.step(G, sample.message)
    (error,) = place.said[G]
    assert isinstance(error, m.Err)
    assert error.code == Code.FORBIDDEN
    assert digest(place.router) == before
    assert (place.audits()[-1]["principal"], place.audits()[-1]["address"]) == ("?", "10.0.0.7")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_revoked_principal_is_refused_every_command(sample: Sample) -> None:
    place = Place()
    place.admin("keys.revoke", name="worker")
    assert [said for said in place.said[W] if isinstance(said, m.Notice)][-1].kind == "kicked"
    place.said[W].clear()
    before = digest(place.router)
    place.step(W, sample.message)
    (error,) = place.said[W]
    assert isinstance(error, m.Err)
    assert error.code == Code.AUTH_FAILED
    assert digest(place.router) == before
    assert (place.audits()[-1]["kind"], place.audits()[-1]["code"]) == ("refused", "AUTH_FAILED")


def test_a_key_that_was_never_known_opens_no_session() -> None:
    place = Place()
    error = place.come(b"stranger", "")
    assert isinstance(error, m.Err)
    assert error.code == Code.AUTH_FAILED
    assert place.audits()[-1]["address"] == "10.0.0.7"


def test_channels_of_others_do_not_exist_for_a_session() -> None:
    for message in (
        m.Settle(2, 9, ((m.Verdict.ACK, 1, 1, None),)),
        m.Fetch(2, 9, 5, 1000),
        m.Credit(2, 9, 9),
        m.Unsubscribe(2, 9),
        m.Ready(2, 9, 1),
    ):
        place = Place()
        place.said[W].clear()
        before = digest(place.router)
        place.step(W, message)
        (error,) = place.said[W]
        assert isinstance(error, m.Err)
        assert error.code == Code.NOT_FOUND
        assert digest(place.router) == before


def test_the_samples_are_good_commands_of_a_principal_with_all_rights() -> None:
    """So that no sample is refused above for another reason."""
    assert len(SAMPLES) > 60
    assert test_faults.world().router.book is not None
