"""To which hub a client connects: arguments, environment, contexts, and what each of them leaves out."""

from pathlib import Path

import pytest

from fabric_client import Credentials, contexts
from fabric_client.destination import DEFAULT_URL, Destination, destination
from fabric_client.keys import KeyPair, link_form, new_pair
from fabric_client.links import Link
from fabric_protocol.errors import FabricError

# Fixed, because names of tests have them.
HUB = KeyPair("n/Yk$h/hY}VZ3Fuan}EOX=>+&qG}M[1-0e!-R*UP", "z(YnU{:C)zn:7ydYTxoJGdzVOoftwvzWu^hG0bI]")
ME = KeyPair("I(Amk(CqhP}BbM)P4204ssiz}=}G77vm!4Z*-Y)u", "oxCuE=QclB(qX<fU!q[f4Um-iNA.j6yzkU[aS#VV")
OTHER_HUB, ANOTHER = new_pair(), new_pair()
LINK = Link("tcp://linked:1", HUB.public).text()


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))


def credentials(url: str) -> Credentials:
    return Credentials(url, HUB.public, secret=ME.secret)


@pytest.fixture
def cred(tmp_path: Path) -> Path:
    credentials("tcp://file:1").save(tmp_path / "x.cred")
    return tmp_path / "x.cred"


def public(found: Destination) -> str:
    return found.keys.public if found.keys else ""


def test_the_order_of_the_places(cred: Path) -> None:
    assert destination(environ={}) == Destination((DEFAULT_URL,))
    contexts.add("one", credentials("tcp://one:1"))
    contexts.add("two", Credentials("tcp://two:1"))
    environ: dict[str, str] = {}
    found = destination(environ=environ)
    assert (found.url, found.origin, public(found)) == ("tcp://one:1", "the context one", ME.public)
    environ["FABRIC_CONTEXT"] = "two"
    found = destination(environ=environ)
    assert (found.url, found.origin, found.keys) == ("tcp://two:1", "the context two (FABRIC_CONTEXT)", None)
    environ["FABRIC_URL"] = "tcp://url:1"
    found = destination(environ=environ)
    assert (found.url, found.origin, found.keys) == ("tcp://url:1", "FABRIC_URL", None)
    environ["FABRIC_CREDENTIALS"] = str(cred)
    found = destination(environ=environ)
    assert (found.url, public(found)) == ("tcp://url:1", ME.public)
    assert found.origin == f"FABRIC_URL and FABRIC_CREDENTIALS ({cred})"
    del environ["FABRIC_URL"]
    assert destination(environ=environ).url == "tcp://file:1"
    found = destination("tcp://given:1", environ=environ)
    assert (found.url, found.origin, found.keys) == ("tcp://given:1", "", None)
    found = destination(credentials=credentials("tcp://own:1"), environ=environ)
    assert (found.url, found.origin, public(found)) == ("tcp://own:1", "", ME.public)
    found = destination("tcp://given:1", cred, environ=environ)
    assert (found.url, public(found), found.path) == ("tcp://given:1", ME.public, cred)


def test_a_link_takes_the_secret_key_from_where_the_same_hub_is_trusted(cred: Path) -> None:
    for name in ("FABRIC_KEY", "FABRIC_SECRET_KEY"):
        for text in (ANOTHER.secret, link_form(ANOTHER.secret)):
            found = destination(environ={"FABRIC_URL": LINK, name: text})
            assert (found.url, found.origin, public(found)) == ("tcp://linked:1", "FABRIC_URL", ANOTHER.public)
    assert public(destination(LINK, environ={"FABRIC_SECRET_KEY": ANOTHER.secret})) == ANOTHER.public
    assert public(destination(LINK, environ={"FABRIC_CREDENTIALS": str(cred)})) == ME.public
    with pytest.raises(FabricError, match="no key of this client"):
        destination(LINK, environ={})
    contexts.add("one", credentials("tcp://one:1"))
    assert public(destination(LINK, environ={})) == ME.public
    with pytest.raises(FabricError, match="no key of this client"):
        destination(Link("tcp://linked:1", OTHER_HUB.public).text(), environ={})
    contexts.add("two", Credentials("tcp://two:1", HUB.public))
    with pytest.raises(FabricError, match=r"no key of this client \(the context two \(FABRIC_CONTEXT\)\)"):
        destination(environ={"FABRIC_CONTEXT": "two"})


def test_a_file_without_a_secret_key_takes_it_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "image.cred"
    Credentials("tcp://file:1", HUB.public).save(path)
    found = destination(environ={"FABRIC_CREDENTIALS": str(path), "FABRIC_SECRET_KEY": ME.secret})
    assert public(found) == ME.public


@pytest.mark.parametrize(
    ("url", "environ", "says"),
    [
        (None, {"FABRIC_KEY": ME.secret}, "no address has the key of a hub"),
        (None, {"FABRIC_KEY": ME.secret, "FABRIC_URL": "tcp://h:1"}, "FABRIC_URL has no key of the hub"),
        (None, {"FABRIC_KEY": ME.secret[:-1], "FABRIC_URL": LINK}, "FABRIC_KEY: secret is not a key"),
        (None, {"FABRIC_CONTEXT": "nowhere"}, "no context 'nowhere'"),
        (None, {"FABRIC_CREDENTIALS": "/nowhere.cred"}, "no file /nowhere.cred"),
        ("tcp://a:1,,tcp://b:1", {}, "empty address"),
        (f"tcp://a:1,{LINK}", {}, "one of several addresses is a link"),
        (",".join(["tcp://a:1"] * 17), {}, "too many"),
    ],
)
def test_contradictions_are_errors(url: str | None, environ: dict[str, str], says: str) -> None:
    with pytest.raises(FabricError, match=says) as caught:
        destination(url, environ=environ)
    assert caught.value.hint
    assert ME.secret[:-1] not in str(caught.value) + caught.value.hint


def test_credentials_and_a_link_of_another_hub_exclude_each_other(cred: Path) -> None:
    with pytest.raises(FabricError, match="trust another hub"):
        destination(Link("tcp://h:1", OTHER_HUB.public).text(), cred, {})
    assert destination(LINK, cred, {}).url == "tcp://linked:1"


def test_the_key_of_a_message_is_no_secret_key() -> None:
    """`fabric sub --exec` sets FABRIC_KEY for its command."""
    assert destination(environ={"FABRIC_KEY": "customer-7", "FABRIC_TOPIC": "orders"}).url == DEFAULT_URL


def test_a_current_context_that_is_gone_is_an_error() -> None:
    contexts.add("one", credentials("tcp://one:1"))
    contexts.path_of("one").unlink()
    with pytest.raises(FabricError, match="no context 'one'"):
        destination(environ={})


def test_keys_are_read_again_from_their_file(cred: Path) -> None:
    found = destination(credentials=cred, environ={})
    Credentials.load(cred).replace(secret=ANOTHER.secret).save(cred)
    assert public(found.reloaded()) == ANOTHER.public
    assert destination("tcp://h:1", environ={}).reloaded().keys is None


def test_several_addresses() -> None:
    assert destination("tcp://a:1, tcp://b:2", environ={}).urls == ("tcp://a:1", "tcp://b:2")
    assert destination(credentials=credentials("tcp://a:1,tcp://b:2"), environ={}).urls == ("tcp://a:1", "tcp://b:2")
