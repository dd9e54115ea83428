"""Joining a hub with a link, and rotating a key, with a crash or a lost answer at each step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fabric_client
from fabric_client import AuthFailed, ConnectionLost, Credentials, FabricError, Forbidden, Timeout, joining
from fabric_client.joining import identity, join, rotate
from fabric_client.keys import new_pair
from fabric_client.links import Link, parse_link
from fabric_client.sync import ask
from fabric_protocol import messages as m
from fabric_protocol.errors import Code
from tests.clients.curve_hub import CurveServed
from tests.clients.model_hub import Served
from tests.patience import PATIENCE_S


@pytest.fixture
def keyed() -> Iterator[CurveServed]:
    served = CurveServed()
    yield served
    served.close()


def test_a_link_gives_credentials_that_the_hub_knows(keyed: CurveServed) -> None:
    found = join(keyed.invite(name="billing"), timeout=PATIENCE_S)
    assert (found.url, found.hub_key, found.principal) == (keyed.url, keyed.pair.public, "billing")
    assert keyed.hub.known == {found.public: "billing"}
    with fabric_client.connect(credentials=found, timeout=PATIENCE_S) as fab:
        assert fab.publish("t", b"x").seq == 1


def test_the_secret_key_is_not_sent(keyed: CurveServed) -> None:
    found = join(keyed.invite(), timeout=PATIENCE_S)
    assert found.secret not in repr(keyed.hub.heard)
    assert any(isinstance(message, m.Admin) for message in keyed.hub.heard)


def test_a_link_that_was_used_is_refused_in_words(keyed: CurveServed) -> None:
    link = keyed.invite()
    join(link, timeout=PATIENCE_S)
    with pytest.raises(AuthFailed, match="takes no new keys: the link was used") as caught:
        join(link, timeout=PATIENCE_S)
    assert "fabric keys invite" in caught.value.hint
    keyed.invite("another")
    with pytest.raises(Forbidden, match="this code was used, or its time is over") as again:
        join(link, timeout=PATIENCE_S)
    assert "fabric keys invite" in again.value.hint
    assert "c0de" not in str(again.value) + again.value.hint


def test_the_hub_of_a_link_must_prove_its_key(keyed: CurveServed, served: Served) -> None:
    link = parse_link(keyed.invite())
    with pytest.raises(ConnectionLost, match="is not the one that the credentials trust"):
        join(link._replace(hub_key=new_pair().public), timeout=2)
    with pytest.raises(AuthFailed, match="has no encryption"):
        join(link._replace(url=served.url), timeout=PATIENCE_S)
    assert keyed.hub.codes == {"c0de": "billing"}, "the code was told to no other hub"
    assert served.hub.heard == []


def test_a_link_without_a_code_is_an_address(keyed: CurveServed) -> None:
    with pytest.raises(FabricError, match="no code to join with"):
        join(Link(keyed.url, keyed.pair.public).text())


def test_a_hub_that_is_not_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sent, so the hub cannot have enrolled the key: a second attempt would double the wait."""

    def enrolled(*_: object) -> Credentials:
        raise AssertionError("it is not asked")

    monkeypatch.setattr(joining, "_enrolled", enrolled)
    with pytest.raises(ConnectionLost, match="no hub at") as caught:
        join(Link("tcp://127.0.0.1:1", new_pair().public, "c0de", "billing"), timeout=0.1)
    assert "--address HOST:PORT" in caught.value.hint


def test_an_enrolment_whose_answer_was_lost_has_succeeded(keyed: CurveServed, monkeypatch: pytest.MonkeyPatch) -> None:
    link = keyed.invite()
    monkeypatch.setattr(ask, "ANSWER_S", 1.0)
    keyed.hub.drop_answers = 1
    assert join(link, timeout=PATIENCE_S).principal == "billing"


def test_a_hub_that_wants_a_pause_says_so(keyed: CurveServed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "ANSWER_S", 0.5)
    link = keyed.invite()
    monkeypatch.setattr(keyed.hub, "_admin", lambda key, fields: (Code.BUSY, "too many wrong codes: wait for a minute"))
    with pytest.raises(Timeout, match=r"no answer to keys\.enrol") as caught:
        join(link, timeout=PATIENCE_S)
    assert caught.value.hint == "the hub says: too many wrong codes: wait for a minute"


def test_a_key_that_cannot_be_saved_does_not_use_the_code_up(keyed: CurveServed, tmp_path: Path) -> None:
    link = keyed.invite()
    (tmp_path / "file").write_text("")
    with pytest.raises(FabricError, match="cannot write"):
        join(link, draft=tmp_path / "file" / "x.toml", timeout=PATIENCE_S)
    assert keyed.hub.codes == {"c0de": "billing"}


def test_a_crash_after_the_code_was_used_goes_on_with_the_same_key(keyed: CurveServed, tmp_path: Path) -> None:
    link, draft = keyed.invite(), tmp_path / "x.toml"
    first = join(link, draft=draft, timeout=PATIENCE_S)  # and the crash is before the credentials are saved
    assert join(link, draft=draft, timeout=PATIENCE_S) == first
    assert draft.stat().st_mode & 0o777 == 0o600
    with pytest.raises(AuthFailed, match="takes no new keys"):
        join(link, draft=tmp_path / "y.toml", timeout=PATIENCE_S)
    assert not (tmp_path / "y.toml").exists(), "a key that was refused is of no use"


def test_a_crash_before_the_code_was_used_goes_on_too(keyed: CurveServed, tmp_path: Path) -> None:
    link, draft = keyed.invite(), tmp_path / "x.toml"
    pair = new_pair()
    parsed = parse_link(link)
    Credentials(parsed.url, parsed.hub_key, pair.public, pair.secret).save(draft)
    found = join(link, draft=draft, timeout=PATIENCE_S)
    assert (found.public, found.principal) == (pair.public, "billing")


def test_a_key_is_kept_when_another_program_answers(keyed: CurveServed, served: Served, tmp_path: Path) -> None:
    """The hub may know the key from a run that was interrupted."""
    link, draft = keyed.invite(), tmp_path / "x.toml"
    first = join(link, draft=draft, timeout=PATIENCE_S)
    with pytest.raises(AuthFailed, match="has no encryption"):
        join(parse_link(link)._replace(url=served.url), draft=draft, timeout=PATIENCE_S)
    assert join(link, draft=draft, timeout=PATIENCE_S) == first


# Rotation.


@pytest.fixture
def cred(keyed: CurveServed, tmp_path: Path) -> Path:
    keyed.credentials().save(tmp_path / "x.cred")
    return tmp_path / "x.cred"


def test_a_rotation_replaces_the_key_in_file_and_hub(keyed: CurveServed, cred: Path) -> None:
    before = Credentials.load(cred)
    after = rotate(cred, timeout=PATIENCE_S)
    assert after == Credentials.load(cred)
    assert after.public != before.public
    assert after.pending == ""
    assert keyed.hub.known == {after.public: "billing"}
    with pytest.raises(AuthFailed):
        identity(before, PATIENCE_S)
    assert identity(after, PATIENCE_S)["principal"] == "billing"


def test_a_rotation_through_a_link_changes_the_file(keyed: CurveServed, cred: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.cred"
    link.symlink_to(cred)
    cred.chmod(0o640)
    after = rotate(link, timeout=PATIENCE_S)
    assert (Credentials.load(cred), link.is_symlink()) == (after, True)
    assert cred.stat().st_mode & 0o777 == 0o640, "a service of this group reads it"


def test_a_rotation_whose_answer_was_lost_has_succeeded(
    keyed: CurveServed, cred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "ANSWER_S", 1.0)
    keyed.hub.drop_answers = 1
    after = rotate(cred, timeout=PATIENCE_S)
    assert keyed.hub.known == {after.public: "billing"}
    assert Credentials.load(cred) == after


def test_a_crash_after_the_hub_has_changed_the_key_loses_nothing(keyed: CurveServed, cred: Path) -> None:
    """The file has both keys before the hub is asked, so that the next call finds the right one."""
    old, new = Credentials.load(cred), new_pair()
    old.replace(pending=new.secret).save(cred)
    keyed.revoke()
    keyed.credentials(new)
    after = rotate(cred, timeout=PATIENCE_S)
    assert (after.public, after.pending) == (new.public, "")
    assert Credentials.load(cred) == after


def test_a_crash_before_the_hub_was_asked_goes_on_with_the_same_key(keyed: CurveServed, cred: Path) -> None:
    new = new_pair()
    Credentials.load(cred).replace(pending=new.secret).save(cred)
    after = rotate(cred, timeout=PATIENCE_S)
    assert after.public == new.public
    assert keyed.hub.known == {new.public: "billing"}


def test_a_refused_rotation_leaves_the_old_key(keyed: CurveServed, cred: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Credentials.load(cred)
    monkeypatch.setattr(keyed.hub, "_admin", lambda key, fields: (Code.FORBIDDEN, "not for this principal"))
    with pytest.raises(Forbidden, match="not for this principal"):
        rotate(cred, timeout=PATIENCE_S)
    assert Credentials.load(cred) == before
    assert identity(before, PATIENCE_S)["principal"] == "billing"


def test_an_address_without_keys_has_nothing_to_rotate(tmp_path: Path) -> None:
    Credentials("tcp://h:1").save(tmp_path / "plain.toml")
    with pytest.raises(FabricError, match="has no keys"):
        rotate(tmp_path / "plain.toml")
