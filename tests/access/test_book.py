"""The book: invitations, keys, changed files, and what is refused."""

import os
import secrets
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from zmq.utils import z85

from fabric.access import enrolled_file
from fabric.access.access_file import STARTER
from fabric.access.book import AccessBook
from fabric.access.keys import link_form, make_pair, raw_key
from fabric.access.tries import ADDRESSES_MAX, TRIES_MAX, Tries, source_of
from fabric.router.access.identity import GUEST_NAME, REFUSED_NAME, Identity
from fabric_protocol.errors import Code, FabricError, ProtocolError
from tests.patience import PATIENCE_S

NOW_US = 2_000_000_000_000_000  # later than any clock, so that the start of a book sees no invitation as expired
MINUTE_US = 60_000_000
SECONDS = count(10, 2)  # each look is later than the one before


@pytest.fixture
def book(tmp_path: Path) -> AccessBook:
    return AccessBook(tmp_path)


def guest(address: str = "10.0.0.1") -> Identity:
    return Identity(GUEST_NAME, make_pair().public, address)


def refused(code: Code, error: "pytest.ExceptionInfo[ProtocolError]") -> None:
    assert error.value.code == code, error.value


def look(book: AccessBook, times: int = 2) -> bool:
    """Look at the files so often; a changed file is read at the second look."""
    return sum(book.reload_if_changed(next(SECONDS), NOW_US) for _ in range(times)) > 0  # all of them


def test_the_first_start_makes_key_and_starter_file(tmp_path: Path, book: AccessBook) -> None:
    assert book.is_new
    assert (tmp_path / "access.toml").read_text() == STARTER
    assert not book.problem
    assert not book.roles()
    assert not AccessBook(tmp_path).is_new
    assert AccessBook(tmp_path).hub_key == book.hub_key


def test_an_invitation_makes_one_key_known(tmp_path: Path, book: AccessBook) -> None:
    invited = book.invite("billing", "client", 60, NOW_US)
    assert (invited["name"], invited["role"], invited["hub_key"]) == ("billing", "client", book.hub_key)
    assert invited["code"] not in enrolled_file.enrolled_path(tmp_path).read_text(), "it is stored as a hash"
    first, second = guest(), guest()
    assert book.identity_of(first.key).name == GUEST_NAME
    revision = book.revision
    assert book.enrol(invited["code"], first, NOW_US) == {"principal": "billing", "role": "client", "key": first.key}
    assert book.revision > revision
    assert book.identity_of(first.key, "a") == Identity("billing", first.key, "a")
    assert book.identity_of(second.key).name == REFUSED_NAME, "no invitation is open any more"
    with pytest.raises(ProtocolError, match="wrong or was used") as error:
        book.enrol(invited["code"], second, NOW_US)
    refused(Code.AUTH_FAILED, error)
    again = AccessBook(tmp_path)
    assert again.identity_of(first.key).name == "billing"
    assert again.roles()["billing"].name == "client"
    assert enrolled_file.enrolled_path(tmp_path).stat().st_mode & 0o777 == 0o600


def test_a_late_code_is_refused_and_says_so(book: AccessBook) -> None:
    code = book.invite("billing", "client", 60, NOW_US)["code"]
    with pytest.raises(ProtocolError, match="has expired") as error:
        book.enrol(code, guest(), NOW_US + MINUTE_US)
    refused(Code.AUTH_FAILED, error)


def test_expired_invitations_let_no_guest_in(book: AccessBook) -> None:
    book.invite("billing", "client", 60, NOW_US)
    assert book.view.guests_until_us == NOW_US + MINUTE_US
    revision = book.revision
    assert not book.reload_if_changed(1.0, NOW_US)
    assert book.reload_if_changed(3.0, NOW_US + MINUTE_US)
    assert book.revision > revision
    assert book.view.guests_until_us == 0
    assert not book.listed()["invitations"]


def test_ten_thousand_guesses_find_nothing_and_leave_others_alone(book: AccessBook) -> None:
    code = book.invite("billing", "client", 3600, NOW_US)["code"]
    codes: Counter[Code] = Counter()
    for number in range(10_000):
        with pytest.raises(ProtocolError) as error:
            book.enrol(secrets.token_urlsafe(16), guest(), NOW_US + number * 1000)
        codes[error.value.code] += 1
        if error.value.code == Code.BUSY:
            assert error.value.fields["retry_ms"] > 0
    assert codes == {Code.AUTH_FAILED: TRIES_MAX, Code.BUSY: 10_000 - TRIES_MAX}
    with pytest.raises(ProtocolError) as error:
        book.enrol(code, guest(), NOW_US + 1000)
    refused(Code.BUSY, error)
    assert book.enrol(code, guest("10.0.0.2"), NOW_US + 1000)["principal"] == "billing"


def test_after_a_minute_an_address_may_try_again(book: AccessBook) -> None:
    code = book.invite("billing", "client", 3600, NOW_US)["code"]
    for _ in range(TRIES_MAX):
        with pytest.raises(ProtocolError):
            book.enrol("wrong", guest(), NOW_US)
    assert book.enrol(code, guest(), NOW_US + MINUTE_US)["principal"] == "billing"


def test_the_table_of_addresses_is_bounded() -> None:
    tries = Tries()
    for number in range(ADDRESSES_MAX + 100):
        tries.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", NOW_US)
    assert len(tries) == ADDRESSES_MAX
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff") != source_of("2001:db8:0:1::1")
    assert source_of("::ffff:10.0.0.1") == source_of("10.0.0.1")


@pytest.mark.parametrize("name", ["", "?", "a b", "-a", "a" * 65, "a/b", 'a"b', "é", "../x"])
def test_a_wrong_name_is_refused(book: AccessBook, name: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: book.invite(name, "client", 60, NOW_US),
        lambda: book.create(name, "client", "", NOW_US),
    ]
    for call in calls:
        with pytest.raises(ProtocolError) as error:
            call()
        refused(Code.BAD_OPTION, error)


def test_names_and_keys_that_exist_are_conflicts(book: AccessBook) -> None:
    key = make_pair().public
    book.create("billing", "client", link_form(key), NOW_US)
    calls: list[Callable[[], Any]] = [
        lambda: book.create("billing", "client", make_pair().public, NOW_US),
        lambda: book.create("other", "client", key, NOW_US),
        lambda: book.create("other", "client", book.hub_key, NOW_US),
        lambda: book.invite("billing", "client", 60, NOW_US),
        lambda: book.invite("local", "client", 60, NOW_US),
    ]
    for call in calls:
        with pytest.raises(ProtocolError) as error:
            call()
        refused(Code.CONFLICT, error)
    code = book.invite("other", "client", 60, NOW_US)["code"]
    with pytest.raises(ProtocolError) as error:
        book.enrol(code, Identity("billing", key, ""), NOW_US)
    refused(Code.CONFLICT, error)
    with pytest.raises(ProtocolError) as error:
        book.enrol(code, Identity("local"), NOW_US)
    refused(Code.BAD_OPTION, error)


def test_a_role_that_does_not_exist_is_refused(book: AccessBook) -> None:
    with pytest.raises(ProtocolError, match=r"no \[role.clint\]; it has: admin, client, reader") as error:
        book.invite("billing", "clint", 60, NOW_US)
    refused(Code.NOT_FOUND, error)


def test_a_second_invitation_replaces_the_first(book: AccessBook) -> None:
    first = book.invite("billing", "client", 60, NOW_US)["code"]
    second = book.invite("billing", "reader", 60, NOW_US)["code"]
    assert len(book.listed()["invitations"]) == 1
    with pytest.raises(ProtocolError):
        book.enrol(first, guest(), NOW_US)
    assert book.enrol(second, guest(), NOW_US)["role"] == "reader"


def test_open_invitations_are_bounded(book: AccessBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.access.book.INVITATIONS_MAX", 3)
    for number in range(3):
        book.invite(f"n{number}", "client", 60, NOW_US)
    with pytest.raises(ProtocolError) as error:
        book.invite("n3", "client", 60, NOW_US)
    refused(Code.CONFLICT, error)
    book.invite("n3", "client", 60, NOW_US + MINUTE_US)  # the others have expired


def test_a_rotated_key_replaces_the_old_one(book: AccessBook) -> None:
    old, new = make_pair().public, make_pair().public
    book.create("billing", "client", old, NOW_US)
    identity = Identity("billing", old, "")
    assert book.rotate(identity, new, NOW_US) == {"principal": "billing", "key": new, "before": old}
    assert book.identity_of(old).name == REFUSED_NAME
    assert book.identity_of(new).name == "billing"
    assert set(book.view.keys) == {raw_key(new)}
    with pytest.raises(ProtocolError) as error:
        book.rotate(identity, make_pair().public, NOW_US)
    refused(Code.NOT_FOUND, error)


def test_a_change_translates_no_key_that_is_known(book: AccessBook, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        book.create(f"n{number}", "client", make_pair().public, NOW_US)
    calls = 0

    def decode(key: bytes) -> bytes:
        nonlocal calls
        calls += 1
        return z85.decode(key)

    monkeypatch.setattr("fabric.access.keys.z85", SimpleNamespace(encode=z85.encode, decode=decode))
    book.create("another", "client", make_pair().public, NOW_US)
    book.revoke("n3", NOW_US)
    assert 1 <= calls <= 2


def test_a_key_is_rotated_once_in_a_second(book: AccessBook) -> None:
    old, new = make_pair().public, make_pair().public
    book.create("billing", "client", old, NOW_US)
    book.rotate(Identity("billing", old, ""), new, NOW_US)
    with pytest.raises(ProtocolError) as error:
        book.rotate(Identity("billing", new, ""), old, NOW_US + 400_000)
    refused(Code.BUSY, error)
    assert error.value.fields["retry_ms"] == 601
    book.rotate(Identity("billing", new, ""), old, NOW_US + 1_000_000)


def test_revoke_removes_keys_and_invitations(book: AccessBook) -> None:
    key = make_pair().public
    book.create("billing", "client", key, NOW_US)
    book.invite("shop", "client", 60, NOW_US)
    assert book.revoke("billing", NOW_US) == {"name": "billing", "keys": 1, "invitations": 0}
    assert book.revoke("shop", NOW_US) == {"name": "shop", "keys": 0, "invitations": 1}
    assert book.identity_of(key).name == REFUSED_NAME
    with pytest.raises(ProtocolError) as error:
        book.revoke("billing", NOW_US)
    refused(Code.NOT_FOUND, error)


def test_principals_of_the_access_file_are_for_people(tmp_path: Path) -> None:
    key = make_pair().public
    (tmp_path / "access.toml").write_text(f'[role.r]\n[principal.billing]\nrole = "r"\nkey = "{key}"\n')
    book = AccessBook(tmp_path)
    calls: list[Callable[[], Any]] = [
        lambda: book.revoke("billing", NOW_US),
        lambda: book.rotate(Identity("billing", key, ""), make_pair().public, NOW_US),
        lambda: book.create("billing", "r", make_pair().public, NOW_US),
    ]
    for call in calls:
        with pytest.raises(ProtocolError, match="billing") as error:
            call()
        refused(Code.CONFLICT, error)
    rows = book.listed()["principals"]
    assert rows == [{"principal": "billing", "role": "r", "keys": [key], "file": "access", "since_us": 0}]


def test_a_change_that_cannot_be_written_does_not_count(book: AccessBook, monkeypatch: pytest.MonkeyPatch) -> None:
    key = make_pair().public
    book.create("billing", "client", key, NOW_US)
    revision = book.revision

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fabric.access.enrolled_file.replace_private", full)
    with pytest.raises(ProtocolError) as error:
        book.revoke("billing", NOW_US)
    refused(Code.DISK_FULL, error)
    assert (book.identity_of(key).name, book.revision) == ("billing", revision)


def test_a_changed_file_counts_when_it_rests(tmp_path: Path, book: AccessBook) -> None:
    key, path = make_pair().public, tmp_path / "access.toml"
    revision = book.revision
    path.write_text(STARTER + f'[principal.x]\nrole = "reader"\nkey = "{key}"\n')
    assert not look(book, 1), "it may still be written"
    assert look(book, 1)
    assert book.revision > revision
    assert book.identity_of(key).name == "x"
    assert not look(book, 3)


@pytest.mark.parametrize("text", ["[role.x", "[principal.x]\nrole = 'gone'\n", "\0", "[role.x]\nadmn = []"])
def test_a_file_with_a_mistake_keeps_the_old_rights(tmp_path: Path, text: str) -> None:
    key, path = make_pair().public, tmp_path / "access.toml"
    good = STARTER + f'[principal.x]\nrole = "reader"\nkey = "{key}"\n'
    path.write_text(good)
    book = AccessBook(tmp_path)
    before = book.revision, dict(book.roles()), book.view
    path.write_text(text)
    assert look(book)
    assert str(path) in book.problem
    assert "the rights that were read before stay" in book.problem
    assert (book.revision, dict(book.roles()), book.view) == before
    path.write_text(good)
    assert look(book)
    assert not book.problem


def test_a_vanished_file_keeps_the_old_rights(tmp_path: Path, book: AccessBook) -> None:
    key, path = make_pair().public, tmp_path / "access.toml"
    book.create("billing", "client", key, NOW_US)
    os.rename(path, tmp_path / "away")
    assert look(book)
    assert "has vanished" in book.problem
    assert book.roles()["billing"].name == "client"
    os.rename(tmp_path / "away", path)
    look(book)
    assert not book.problem


def test_a_file_with_wrong_permissions_counts_when_they_are_right(tmp_path: Path, book: AccessBook) -> None:
    path, key = tmp_path / "access.toml", make_pair().public
    path.write_text(STARTER + f'[principal.x]\nrole = "reader"\nkey = "{key}"\n')
    path.chmod(0o666)
    assert look(book)
    assert f"chmod o-w {path}" in book.problem
    path.chmod(0o644)
    assert look(book)
    assert not book.problem
    assert book.identity_of(key).name == "x"


def test_what_is_no_file_keeps_the_old_rights(tmp_path: Path, book: AccessBook) -> None:
    path, roles = tmp_path / "access.toml", dict(book.roles())
    for make in (os.mkfifo, os.mkdir, lambda one: os.symlink(one, one)):
        path.unlink() if path.is_file() or path.is_fifo() else path.rmdir()
        make(path)
        in_time(lambda: look(book))
        assert "the rights that were read before stay" in book.problem
        assert book.roles() == roles
    path.unlink()
    path.write_text(STARTER)
    look(book)
    assert not book.problem


def test_a_key_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    os.mkfifo(tmp_path / "keys/hub.key", 0o600)

    def read() -> None:
        with pytest.raises(FabricError, match="not a regular file"):
            AccessBook(tmp_path)

    in_time(read)


def in_time(call: Callable[[], object]) -> None:
    """Call it in a thread, which may wait for the writer of a pipe for ever."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert failures == []


def test_a_role_that_is_gone_leaves_a_principal_without_rights(tmp_path: Path, book: AccessBook) -> None:
    book.create("billing", "client", make_pair().public, NOW_US)
    (tmp_path / "access.toml").write_text("[role.other]\n")
    look(book)
    assert "no [role.client], which billing has" in book.problem
    assert book.roles()["billing"].publish == ()


def test_a_name_in_both_files_is_that_of_the_access_file(tmp_path: Path, book: AccessBook) -> None:
    old, new = make_pair().public, make_pair().public
    book.create("billing", "client", old, NOW_US)
    (tmp_path / "access.toml").write_text(STARTER + f'[principal.billing]\nrole = "reader"\nkey = "{new}"\n')
    look(book)
    assert "[principal.billing] is enrolled as well" in book.problem
    assert (book.identity_of(old).name, book.identity_of(new).name) == (REFUSED_NAME, "billing")
    assert book.roles()["billing"].name == "reader"


def test_a_book_with_a_damaged_file_does_not_open(tmp_path: Path, book: AccessBook) -> None:
    book.create("billing", "client", make_pair().public, NOW_US)
    enrolled_file.enrolled_path(tmp_path).write_text("[principal")
    with pytest.raises(FabricError, match=r"enrolled.toml: it is not TOML"):
        AccessBook(tmp_path)
    with pytest.raises(FabricError, match="cannot read"):
        AccessBook(tmp_path, tmp_path / "typo.toml")
