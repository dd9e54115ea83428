"""`fabric ctx`, and how every command finds its hub: options, variables, contexts, the default."""

import json
from pathlib import Path

import pytest

from fabric.cli.support.hub_process import HubProcess
from fabric_client import ConnectionLost, contexts
from fabric_client.credentials import Credentials
from fabric_client.keys import new_pair
from tests.cli.conftest import Fabric
from tests.cli.test_main import completions

NOWHERE = "tcp://127.0.0.1:1"
SOON = ("--connect-timeout", "100ms")


def keyed(url: str = NOWHERE, principal: str = "billing") -> Credentials:
    return Credentials(url, new_pair().public, "", new_pair().secret, principal)


def test_contexts_are_added_used_shown_and_removed(fabric: Fabric) -> None:
    assert fabric("ctx", "list", "-o", "table").stdout.startswith("there are no contexts; 'fabric join LINK'")
    assert "it is the current one" in fabric("ctx", "add", "one", "--url", NOWHERE, "-o", "table").stdout
    assert "'fabric ctx use two'" in fabric("ctx", "add", "two", "--url", "tcp://hub:7", "-o", "table").stdout
    table = fabric("contexts", "ls", "-o", "table").stdout.splitlines()
    assert [line.split()[:2] for line in table] == [["CONTEXT", "URL"], ["*", "one"], ["two", "tcp://hub:7"]]
    assert fabric("ctx", "use", "two", "-o", "table").stdout == 'context "two": tcp://hub:7\n'
    shown = json.loads(fabric("ctx", "show").stdout)
    assert (shown["context"], shown["url"], shown["current"], shown["encrypted"]) == ("two", "tcp://hub:7", True, False)
    assert fabric("ctx", "rm", "two", "-o", "table").stdout == 'context "two": removed\n'
    assert fabric("ctx", "show").exit_code == 2, "no context is current"
    assert [row["context"] for row in json.loads(fabric("ctx", "list").stdout)["contexts"]] == ["one"]


def test_a_secret_key_is_copied_and_never_shown(fabric: Fabric, tmp_path: Path) -> None:
    found = keyed()
    found.save(tmp_path / "x.cred")
    assert fabric("ctx", "add", "x", "--credentials", str(tmp_path / "x.cred"), "--url", "tcp://hub:7").exit_code == 0
    assert contexts.load("x") == found.replace(url="tcp://hub:7")
    assert contexts.path_of("x").stat().st_mode & 0o777 == 0o600
    shown = fabric("ctx", "show").stdout + fabric("ctx", "list").stdout + fabric("ctx", "show", "-o", "table").stdout
    assert found.public in shown
    assert found.secret not in shown
    refused = fabric("ctx", "rm", "x")
    assert (refused.exit_code, "--yes" in refused.stderr) == (6, True), "a key that is removed is lost"
    assert fabric("ctx", "rm", "x", "--yes").exit_code == 0
    assert contexts.names() == []


def test_a_context_that_cannot_be_read_is_listed_with_its_error(fabric: Fabric) -> None:
    fabric("ctx", "add", "good", "--url", NOWHERE)
    contexts.path_of("bad").write_text("url = ")
    rows = {row["context"]: row for row in json.loads(fabric("ctx", "list").stdout)["contexts"]}
    assert rows["good"]["error"] is None
    assert "TOML" in rows["bad"]["error"]
    assert "ERROR" in fabric("ctx", "list", "-o", "table").stdout
    refused = fabric("ctx", "rm", "bad")
    assert (refused.exit_code, "--yes" in refused.stderr) == (6, True), "it may have a key"
    assert fabric("ctx", "rm", "bad", "--yes").exit_code == 0
    assert contexts.names() == ["good"]


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        ("add x", 2, "give --url, --credentials, or both", "see 'fabric ctx add --help'"),
        ("add a/b --url tcp://x:1", 2, "'a/b' is not a name of a context", "see 'fabric ctx add --help'"),
        ("add one --url tcp://x:1", 6, "the context 'one' exists", "'fabric ctx rm one'"),
        ("add x --credentials nope.cred", 1, "there is no file nope.cred", "'fabric join LINK'"),
        ("add x --url fabric+curve://h:1/", 1, "the link has no '#k=KEY'", "quote it"),
        ("add x --url nonsense", 1, "'nonsense' is not an address", "it looks like tcp://HOST:PORT"),
        ("add x --url http://h:1", 1, "'http://h:1' is not an address", "it looks like tcp://HOST:PORT"),
        ("add x --url tcp://h", 1, "'tcp://h' has no port of 1..65535", "it looks like tcp://HOST:PORT"),
        ("add x --url tcp://h:1,tcp://h:65536", 1, "'tcp://h:65536' has no port", "it looks like tcp://HOST:PORT"),
        ("add x --url ipc://", 1, "'ipc://' is not an address", "it looks like tcp://HOST:PORT"),
        ("use on", 4, "there is no context 'on'", "did you mean 'one'?"),
        ("show nope", 4, "there is no context 'nope'", "'fabric ctx list'"),
        ("rm nope", 4, "there is no context 'nope'", "'fabric ctx list'"),
        ("switch one", 2, "there is no command 'fabric ctx switch'", ""),
    ],
)
def test_wrong_input_is_told_with_a_hint(fabric: Fabric, words: str, code: int, error: str, hint: str) -> None:
    fabric("ctx", "add", "one", "--url", NOWHERE)
    result = fabric("ctx", *words.split())
    first, *rest = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in first
    assert hint in "\n".join(rest)


def test_a_context_that_cannot_be_read_is_not_made_the_current_one_and_can_be_removed(fabric: Fabric) -> None:
    fabric("ctx", "add", "good", "--url", NOWHERE)
    contexts.path_of("bad").write_text("url = ")
    assert fabric("ctx", "use", "bad").exit_code == 1
    assert contexts.current() == "good"
    assert fabric("ctx", "rm", "bad").exit_code == 6, "it may have a key"
    assert fabric("ctx", "rm", "bad", "--yes").exit_code == 0
    assert contexts.names() == ["good"]


def test_a_context_that_was_removed_by_hand(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    fabric("ctx", "add", "one", "--url", NOWHERE)
    contexts.path_of("one").unlink()
    said = fabric("info")
    assert said.exit_code == 4
    assert "there is no context 'one', and it is the current one" in said.stderr
    assert "hint: 'fabric ctx use NAME' chooses one" in said.stderr
    assert json.loads(fabric("ctx", "add", "two", "--url", NOWHERE).stdout)["current"] is True
    monkeypatch.setenv("FABRIC_CONTEXT", "one")
    assert "there is no context 'one', and FABRIC_CONTEXT names it" in fabric("info").stderr


def set_up(fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *places: str) -> None:
    """The address of a hub that does not exist, in each of the places; its port says which."""
    for number, place in enumerate(("current", "context", "url", "own"), 2):
        address = f"tcp://127.0.0.1:{number}"
        if place not in places:
            continue
        if place == "url":
            monkeypatch.setenv("FABRIC_URL", address)
        elif place == "own":
            monkeypatch.setenv("FABRIC_INFO_URL", address)
        else:
            fabric("ctx", "add", place, "--url", address)
    if "current" in places:
        fabric("ctx", "use", "current")
    if "context" in places:
        monkeypatch.setenv("FABRIC_CONTEXT", "context")


@pytest.mark.parametrize(
    ("places", "words", "address", "origin"),
    [
        ("", "", "tcp://127.0.0.1:8", ""),
        ("current", "", "tcp://127.0.0.1:2", "(the context current)"),
        ("current context", "", "tcp://127.0.0.1:3", "the context context (FABRIC_CONTEXT)"),
        ("current context url", "", "tcp://127.0.0.1:4", "FABRIC_URL"),
        ("current context url own", "", "tcp://127.0.0.1:5", "FABRIC_INFO_URL"),
        ("current context url own", "--context current", "tcp://127.0.0.1:2", "(the context current)"),
        ("current context url own", "--url tcp://127.0.0.1:9", "tcp://127.0.0.1:9", ""),
        ("current context", "--context current --url tcp://127.0.0.1:9", "tcp://127.0.0.1:9", "the context current"),
        ("current context url", "--credentials c.cred", "tcp://127.0.0.1:1", "c.cred"),
    ],
)
def test_what_is_typed_goes_first_then_variables_then_contexts(
    fabric: Fabric,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    places: str,
    words: str,
    address: str,
    origin: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    keyed().save("c.cred")
    set_up(fabric, tmp_path, monkeypatch, *places.split())
    monkeypatch.setattr("fabric_client.destination.DEFAULT_URL", "tcp://127.0.0.1:8")  # a hub may run at 7171
    result = fabric("info", *SOON, *words.split())
    assert result.exit_code == 3
    assert f"no hub at {address} for" in result.stderr
    assert origin in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("info --context nope", 4, "there is no context 'nope'"),
        ("info --credentials nope", 1, "there is no file nope"),
        ("info --context one --credentials nope", 2, "not both"),
        ("pub a b --context nope", 4, "there is no context 'nope'"),
        ("sub a --context nope", 4, "there is no context 'nope'"),
        ("top --once --context nope", 4, "there is no context 'nope'"),
        ("top --once --context one --connect-timeout 100ms", 3, "(the context one)"),
        ("get a --context one --connect-timeout 100ms", 3, "(the context one)"),
    ],
)
def test_every_command_says_which_address_was_wrong(fabric: Fabric, words: str, code: int, error: str) -> None:
    fabric("ctx", "add", "one", "--url", NOWHERE)
    result = fabric(*words.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in result.stderr
    assert "hint: " in result.stderr


def test_a_check_without_an_address_is_unknown(fabric: Fabric) -> None:
    result = fabric("check", "--context", "nope")
    assert (result.exit_code, result.stdout) == (3, "FABRIC UNKNOWN - there is no context 'nope'\n")
    assert fabric("check", "--context", "nope", "--credentials", "x").exit_code == 3


def test_commands_and_completion_use_the_current_context(fabric: Fabric, hub: HubProcess) -> None:
    fabric("ctx", "add", "here", "--url", hub.url)
    fabric("ctx", "add", "hidden", "--url", NOWHERE)
    assert fabric("group", "create", "billing", "a").exit_code == 0
    assert json.loads(fabric("top", "--once", "--interval", "100ms").stdout)
    assert fabric("check").exit_code == 0
    assert completions("fabric group show bil") == ["billing"]
    assert completions("fabric group show --context hidden bil") == []
    assert completions("fabric info --context h") == ["here", "hidden"]
    assert completions("fabric ctx use hi") == ["hidden"]


def test_each_of_several_addresses_has_its_time(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a first host that is off would take all of it."""
    waited: list[float] = []

    def connect(url: str, *, timeout: float, **_: object) -> None:
        waited.append(timeout)
        raise ConnectionLost("no hub")

    monkeypatch.setattr("fabric_client.connect", connect)
    assert fabric("info", "--url", "tcp://a:1,tcp://b:1").exit_code == 3
    assert fabric("info", "--url", "tcp://a:1").exit_code == 3
    assert waited == [6.0, 3.0]
