"""Keys, links, files of credentials and contexts. No sockets here."""

import logging
import os
import stat
from pathlib import Path

import pytest

from fabric_client import Credentials, contexts
from fabric_client.destination import destination
from fabric_client.errors import Conflict, NotFound
from fabric_client.keys import CurveKeys, KeyPair, key, link_form, new_pair, public_of
from fabric_client.links import Link, parse_link
from fabric_protocol.errors import FabricError

# Fixed, because names of tests have them.
HUB = KeyPair("6{!]SftO6hin?E>x#}8DJ^K{UMYn%L+>j]UW^+U!", "Be7RoC!V2KWaNr*zb:vQFm&j4<qC75Qzq4GMS(tV")
ME = KeyPair("d1yL}].MNaq@HRvZ[p!6{upQUD@*I#gN}Dtdh+lY", "agQdyUlMo$:UfSKjv[m(SqRISzB420sCcKhYPXS+")
# The example of libzmq's specification of Z85 keys; its secret key has '&' and '%'.
SPEC = ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def credentials(url: str = "tcp://hub-1:7171") -> Credentials:
    return Credentials(url, HUB.public, ME.public, ME.secret, "billing", "shop-eu")


# Keys.


def test_a_key_is_read_in_both_forms() -> None:
    for pair in (*(new_pair() for _ in range(50)), SPEC):
        for text in pair:
            assert key(text, "x") == text
            assert len(link_form(text)) == 43
            assert key(f" {link_form(text)}\n", "x") == text
    assert public_of(SPEC[1]) == SPEC[0]


@pytest.mark.parametrize(
    "text",
    ["", ME.secret[:-1], ME.secret + "x", ME.secret[:-1] + "~", "é" * 40, link_form(ME.secret)[:-1] + "!", None, 7],
)
def test_a_wrong_key_is_refused_and_not_shown(text: object) -> None:
    with pytest.raises(FabricError, match="the secret") as caught:
        key(text, "the secret")
    assert "40 characters" in caught.value.hint
    if text:
        assert str(text) not in str(caught.value) + caught.value.hint


def test_a_key_with_bits_that_count_for_nothing_is_refused() -> None:
    """Otherwise one key would have two texts."""
    text = link_form(ME.public)
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    other = text[:-1] + last[last.index(text[-1]) + 1]
    with pytest.raises(FabricError):
        key(other, "x")


# Links.


def test_a_link_is_read_as_it_was_printed() -> None:
    link = Link("tcp://hub-1:7171", HUB.public, "code-1", "billing")
    assert parse_link(link.text()) == link
    assert parse_link(f"  fabric join '{link.text()}'\n") == link
    assert parse_link(Link("tcp://[::1]:7171,tcp://b:7172", HUB.public).text()).url == "tcp://[::1]:7171,tcp://b:7172"
    assert parse_link(f"fabric+curve://hub-1#k={link_form(HUB.public)}").url == "tcp://hub-1:7171"
    assert parse_link(f"fabric+curve://h:1/#c=x&k={link_form(HUB.public)}&later=7").code == "x"
    assert "code-1" not in repr(link)
    text = f"fabric join '{link.text()}'"
    assert parse_link(f"{text[:40]}\n  {text[40:]}\r\n") == link, "a mail has broken the line"


def test_a_link_may_have_its_key_in_z85() -> None:
    for text in SPEC:
        assert parse_link(f"fabric+curve://h:1/#k={text}&c=abc&n=me") == Link("tcp://h:1", text, "abc", "me")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with"),
        ("tcp://h:1", "does not begin with"),
        ("fabric+curve://h:1/", "after '#' is missing"),
        ("fabric+curve://h:1/#c=sesame", "no key of the hub"),
        ("fabric+curve://h:1/#k=abc&c=sesame", "no key of the hub"),
        (f"fabric+curve:///#k={link_form(HUB.public)}&c=sesame", "not HOST:PORT"),
        (f"fabric+curve://a b:1/#k={link_form(HUB.public)}&c=sesame", "not HOST:PORT"),
        (f"fabric+curve://h:99999/#k={link_form(HUB.public)}&c=sesame", "no port of 1..65535"),
        (f"fabric+curve://h:port/#k={link_form(HUB.public)}&c=sesame", "not HOST:PORT"),
        (f"fabric+curve://h:1/#k={'~' * 40}&c=sesame", "Z85"),
        (f"fabric+curve://h:1/#k={link_form(HUB.public)},fabric+curve://h:2/#c=sesame", "several links"),
        (7, "not int"),
    ],
)
def test_a_wrong_link_is_refused_in_words(text: str, says: str) -> None:
    with pytest.raises(FabricError, match=says) as caught:
        parse_link(text)
    assert caught.value.hint
    assert "sesame" not in str(caught.value) + caught.value.hint


# Credentials.


def test_credentials_come_back_from_their_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "billing.cred"
    made = credentials()
    made.save(path)
    assert Credentials.load(path) == made
    assert Credentials.load(str(path)).keys == CurveKeys(HUB.public, ME.public, ME.secret)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    made.replace(hub='a "quoted" \\ näme').save(path)
    assert Credentials.load(path).hub == 'a "quoted" \\ näme'
    assert [file.name for file in path.parent.iterdir()] == ["billing.cred"], "no temporary file is left"
    with pytest.raises(FabricError, match="exists"):
        made.save(path, replace=False)


def test_the_secret_key_is_in_no_text(tmp_path: Path) -> None:
    made = credentials().replace(pending=new_pair().secret)
    told = f"{made!r} {made} {made.keys!r} {ME!r} {[made.keys]}"
    assert ME.secret not in told
    assert made.pending not in told
    assert ME.public in told


def test_a_public_key_is_computed_and_a_pair_is_checked() -> None:
    assert Credentials("tcp://h:1", HUB.public, secret=ME.secret).public == ME.public
    assert Credentials("tcp://h:1", link_form(HUB.public), secret=link_form(ME.secret)).keys == credentials().keys
    assert Credentials(Link("tcp://h:1", HUB.public).text(), secret=ME.secret).url == "tcp://h:1"
    assert Credentials("tcp://h:1").keys is None
    other = new_pair()
    assert credentials().replace(secret=other.secret).public == other.public
    for wrong, says in [
        ({"hub_key": HUB.public, "public": other.public, "secret": ME.secret}, "not one key pair"),
        ({"secret": ME.secret}, "no hub_key"),
        ({"hub_key": "short"}, "hub_key is not a key"),
        ({"principal": "a\nb"}, "control characters"),
    ]:
        with pytest.raises(FabricError, match=says) as caught:
            Credentials("tcp://h:1", **wrong)
        assert ME.secret not in str(caught.value) + caught.value.hint
    with pytest.raises(FabricError, match="no key of this client"):
        assert Credentials("tcp://h:1", HUB.public).keys


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ('url = "tcp://h:1"\nsecrt = "x"', "unknown key 'secrt'", "did you mean 'secret'"),
        ('hub = "x"', "no url", "add url"),
        ("url = ", "not a file of credentials in TOML", "join"),
        ("url = 7", "url of credentials is not a text", "quotes"),
        (f'url = "tcp://h:1"\nsecret = "{ME.secret[:-1]}"', "secret is not a key", "40 characters"),
        ("#" * 100_000, "too large", "join"),
    ],
)
def test_a_wrong_file_is_refused_in_words(tmp_path: Path, text: str, says: str, hint: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(FabricError, match=says) as caught:
        Credentials.load(path)
    assert str(path) in str(caught.value)
    assert hint in caught.value.hint
    assert ME.secret[:-1] not in str(caught.value) + caught.value.hint


def test_a_replaced_file_keeps_its_owner(tmp_path: Path) -> None:
    """Root rotates the key of a service, which must be able to read it."""
    path = tmp_path / "x.cred"
    credentials().save(path)
    path.chmod(0o644)
    owner = (4321, 4321) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    os.chown(path, *owner)
    new = credentials("tcp://new:1")
    new.save(path, keep_owner=True)
    assert Credentials.load(path) == new
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*owner, 0o640)
    new.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_file_is_written_through_no_link(tmp_path: Path) -> None:
    """Another user may have put the link there, in a folder that all can write."""
    (tmp_path / "link.cred").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FabricError):
        credentials().save(tmp_path / "link.cred", replace=False)
    credentials().save(tmp_path / "link.cred")
    assert not (tmp_path / "elsewhere").exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"there is no file .*missing.cred"):
        Credentials.load(tmp_path / "missing.cred")


def test_the_content_of_a_file_is_not_shown_as_its_path(tmp_path: Path) -> None:
    """A platform that gives secrets as variables may put the file into FABRIC_CREDENTIALS."""
    credentials().save(tmp_path / "x.cred")
    with pytest.raises(FabricError, match="what stands in a credentials file") as caught:
        destination(environ={"FABRIC_CREDENTIALS": (tmp_path / "x.cred").read_text()})
    assert ME.secret not in str(caught.value) + caught.value.hint


def test_a_file_that_others_can_read_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.cred"
    credentials().save(path)
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "fabric_client"):
        Credentials.load(path)
        Credentials.load(path)
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        f"other users can read the secret key in {path}"
    ]
    assert ME.secret not in caplog.text
    path.chmod(0o606)
    with pytest.raises(FabricError, match="all users can write") as caught:
        Credentials.load(path)
    assert "chmod 600" in caught.value.hint


# Contexts.


def test_contexts_are_added_used_and_removed(home: Path) -> None:
    assert contexts.names() == []
    assert contexts.current() == ""
    path = contexts.add("shop-eu", credentials())
    assert path == home / "contexts" / "shop-eu.toml"
    assert contexts.current() == "shop-eu", "the first one is the current one"
    contexts.add("shop-us", credentials("tcp://us:7171"))
    assert contexts.current() == "shop-eu"
    contexts.use("shop-us")
    assert (contexts.current(), contexts.names()) == ("shop-us", ["shop-eu", "shop-us"])
    assert contexts.load("shop-us").url == "tcp://us:7171"
    contexts.remove("shop-us")
    assert (contexts.current(), contexts.names()) == ("", ["shop-eu"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_wrong_contexts_are_refused_in_words(home: Path) -> None:
    contexts.add("shop-eu", credentials())
    with pytest.raises(Conflict, match="exists"):
        contexts.add("shop-eu", credentials())
    contexts.add("shop-eu", credentials("tcp://new:1"), replace=True)
    assert contexts.load("shop-eu").url == "tcp://new:1"
    for call in (contexts.use, contexts.load, contexts.remove):
        with pytest.raises(NotFound, match="no context 'shop-ue'") as caught:
            call("shop-ue")
        assert "did you mean 'shop-eu'" in caught.value.hint
    for name in ("", "../x", "a/b", "-x", "x" * 65, ".toml"):
        with pytest.raises(FabricError, match="not a name of a context"):
            contexts.path_of(name)


def test_the_folder_of_the_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FABRIC_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert contexts.home() == tmp_path / "fabric"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert contexts.home() == tmp_path / ".config/fabric"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)  # a user whom the system does not know, as in containers
    assert contexts.home() == Path("/.config/fabric")


def test_a_folder_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    home.mkdir()
    monkeypatch.setenv("FABRIC_HOME", str(home / ("x" * 300)))
    with pytest.raises(FabricError, match=r"cannot read .*: File name too long"):
        contexts.load("one")
    with pytest.raises(FabricError, match="cannot write"):
        contexts.add("one", credentials())


def test_a_context_is_the_current_one_if_there_is_none() -> None:
    contexts.add("one", credentials())
    contexts.add("two", credentials())
    contexts.remove("one")
    contexts.add("three", credentials())
    assert contexts.current() == "three"
    contexts.path_of("two").write_text("url = ")
    with pytest.raises(FabricError, match="TOML"):
        contexts.use("two")
    assert contexts.current() == "three", "it was not changed"
