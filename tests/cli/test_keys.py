"""`fabric keys` against answers that are written down: what is asked, what is printed, and wrong input.

tests/cli/test_join.py has the same with a hub.
"""

import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fabric.cli.support.reach import Address, reach
from fabric_client import Conflict, Timeout, contexts
from fabric_client.credentials import Credentials
from fabric_client.keys import link_form, new_pair
from fabric_client.links import parse_link
from tests.cli.conftest import Fabric
from tests.cli.test_ctx import NOWHERE, keyed

HUB_KEY = new_pair().public
ENDS_US = 4_000_000_000_000_000


class FakeHub:
    """Answers as a hub does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.url = ""
        self.about: dict[str, Any] = {"binds": ["tcp://127.0.0.1:7171", "tcp://0.0.0.0:7272"]}
        self.refusal: Exception | None = None
        self.admin = self

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.asked.append({"op": op, **fields})
        if self.refusal is not None:
            raise self.refusal
        name, role = fields.get("name"), fields.get("role")
        match op:
            case "keys.invite":
                return {"name": name, "role": role, "code": "c0de", "hub_key": HUB_KEY, "expires_us": ENDS_US}
            case "keys.create":
                return {"name": name, "role": role, "key": fields["key"], "hub_key": HUB_KEY}
        return {"name": name, "keys": 2, "invitations": 1}

    def info(self, what: str) -> dict[str, Any]:
        if what == "hub":
            return self.about
        if what == "me":
            rights = {"publish": ["#"], "deny": [], "admin": ["keys"]}
            return {"principal": "ada", "role": "admin", "key": "k", "rights": rights, "limits": {"rate": 20_000}}
        row = {"principal": "ada", "role": "admin", "keys": ["k1", "k2"], "file": "access", "since_us": ENDS_US}
        invited = {"name": "billing", "role": "client", "expires_us": ENDS_US}
        return {"principals": [row], "invitations": [invited], "hub_key": HUB_KEY}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    hub = FakeHub()

    @contextmanager
    def connect(url: str, timeout_s: float) -> Iterator[FakeHub]:
        hub.url = url
        yield hub

    monkeypatch.setattr("fabric.cli.commands.keys.connect", connect)
    monkeypatch.chdir(tmp_path)
    return hub


def test_an_invitation_is_a_line_to_paste(fabric: Fabric, fake: FakeHub) -> None:
    result = fabric("keys", "invite", "billing", "--role", "worker", "--ttl", "10m")
    assert fake.asked == [{"op": "keys.invite", "name": "billing", "role": "worker", "ttl_ms": 600_000}]
    (line,) = result.stdout.splitlines()
    assert line.startswith("fabric join 'fabric+curve://")
    link = parse_link(line)
    assert link == (f"tcp://{socket.gethostname()}:7272", HUB_KEY, "c0de", "billing")
    assert "once, until 2096-10-02T07:06:40Z (in " in result.stderr


def test_an_invitation_as_json_has_no_code_outside_of_the_link(fabric: Fabric, fake: FakeHub) -> None:
    result = fabric("key", "invite", "billing", "--role", "r", "--address", "10.0.0.5:99", "--json")
    found = json.loads(result.stdout)
    assert (found["schema"], found["expires"]) == ("fabric.keys.invite.v1", "2096-10-02T07:06:40.000000Z")
    assert parse_link(found["link"]).url == "tcp://10.0.0.5:99"
    assert found["command"] == f"fabric join '{found['link']}'"
    assert "code" not in found


def test_an_address_that_only_this_machine_reaches_is_noted(fabric: Fabric, fake: FakeHub) -> None:
    fake.about = {"binds": ["tcp://127.0.0.1:7272"]}
    result = fabric("keys", "invite", "billing", "--role", "r", "--url", "ipc://x")
    assert "//127.0.0.1:7272/" in result.stdout
    assert "only this machine reaches 127.0.0.1:7272" in result.stderr


def test_without_an_address_one_is_asked_for(fabric: Fabric, fake: FakeHub) -> None:
    fake.about = {"binds": ["ipc://x"]}
    result = fabric("keys", "invite", "billing", "--role", "r", "--url", "ipc://x")
    assert (result.exit_code, result.stdout, fake.asked) == (2, "", [])
    assert "--address HOST:PORT" in result.stderr


@pytest.mark.parametrize(
    ("given", "url", "about", "wanted"),
    [
        ("a:1", "tcp://b:2", {"advertise": "c:3", "binds": ["tcp://d:4"]}, ("a:1", False)),
        (None, "tcp://b:2", {"advertise": "c:3", "binds": ["tcp://d:4"]}, ("c:3", False)),
        (None, "tcp://b:2", {"binds": ["tcp://d:4"]}, ("b:2", False)),
        (None, "tcp://127.0.0.1:2", {"binds": ["tcp://10.0.0.1:4"]}, ("10.0.0.1:4", False)),
        (None, "ipc:///d/hub.sock", {"binds": ["tcp://[::]:4"]}, (f"{socket.gethostname()}:4", False)),
        (None, "ipc:///d/hub.sock", {"binds": ["tcp://127.0.0.1:4", "tcp://[fe80::1]:5"]}, ("[fe80::1]:5", False)),
        (None, "tcp://localhost:2", {}, ("localhost:2", True)),
        (None, "tcp://[::1]:2", {"binds": None}, ("[::1]:2", True)),
    ],
)
def test_the_address_of_a_link(given: str | None, url: str, about: dict[str, Any], wanted: tuple[str, bool]) -> None:
    assert reach(given, url, about) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [("hub-1", "hub-1:7171"), ("tcp://a.b:1/", "a.b:1"), ("[::1]:5", "[::1]:5")]
)
def test_an_address_may_be_typed_in_many_ways(text: str, wanted: str) -> None:
    assert Address().parse(text) == wanted


def test_created_credentials_are_a_file_of_the_owner(fabric: Fabric, fake: FakeHub) -> None:
    result = fabric("keys", "create", "ci", "--role", "client", "--address", "hub-1")
    assert result.exit_code == 0, result.stderr
    found = Credentials.load("ci.cred")
    assert (found.url, found.hub_key, found.principal) == ("tcp://hub-1:7171", HUB_KEY, "ci")
    assert fake.asked == [{"op": "keys.create", "name": "ci", "role": "client", "key": found.public}]
    assert stat.S_IMODE(os.stat("ci.cred").st_mode) == 0o600
    assert found.secret not in result.output
    again = fabric("keys", "create", "ci", "--role", "client")
    assert (again.exit_code, len(fake.asked)) == (6, 1), "a key is not overwritten"
    assert "ci.cred exists" in again.stderr


def test_refused_credentials_leave_no_file(fabric: Fabric, fake: FakeHub) -> None:
    fake.refusal = Conflict("there is a principal 'ci'", code=409)
    assert fabric("keys", "create", "ci", "--role", "client", "-o", "x.cred").exit_code == 6
    assert not Path("x.cred").exists()


def test_credentials_whose_answer_is_lost_stay(fabric: Fabric, fake: FakeHub) -> None:
    fake.refusal = Timeout("no answer")
    result = fabric("keys", "create", "ci", "--role", "client", "-o", "x.cred")
    assert result.exit_code == 3
    assert "the hub may have taken the key in x.cred" in result.stderr
    assert Credentials.load("x.cred").principal == "ci"


def test_keys_are_listed_and_shown(fabric: Fabric, fake: FakeHub) -> None:
    table = fabric("keys", "list", "-o", "table").stdout
    assert [line.split()[:3] for line in table.splitlines()] == [
        ["PRINCIPAL", "ROLE", "KEYS"],
        ["ada", "admin", "2"],
        [],
        ["INVITED", "ROLE", "ENDS"],
        ["billing", "client", "in"],
    ]
    listed = json.loads(fabric("keys", "list").stdout)
    assert listed["invitations"][0]["expires"] == listed["principals"][0]["since"] == "2096-10-02T07:06:40.000000Z"
    assert json.loads(fabric("keys", "show", "ada").stdout)["keys"] == ["k1", "k2"]
    mine = fabric("keys", "show", "-o", "table").stdout
    assert "publish: #; admin: keys" in mine
    assert "rate: 20,000" in mine
    for name, says in (("billing", "invited, and has not joined yet"), ("nope", "there is no principal 'nope'")):
        result = fabric("keys", "show", name)
        assert (result.exit_code, says in result.stderr, "hint: 'fabric keys list'" in result.stderr) == (4, True, True)


def test_revoke_asks_first(fabric: Fabric, fake: FakeHub) -> None:
    assert fabric("keys", "revoke", "billing").exit_code == 6
    assert fake.asked == []
    result = fabric("keys", "revoke", "billing", "--yes")
    assert json.loads(result.stdout)["keys"] == 2
    assert fake.asked == [{"op": "keys.revoke", "name": "billing"}]


def test_the_owner_of_the_folder_needs_no_address(
    fabric: Fabric, fake: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("fabric-data", "other"):
        Path(folder).mkdir()
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{folder}/hub.sock")
    contexts.add("far", keyed("tcp://127.0.0.1:3"))
    fabric("keys", "list")
    assert fake.url == "ipc://fabric-data/hub.sock"
    fabric("keys", "list", "--data", "other")
    assert fake.url == "ipc://other/hub.sock"
    fabric("keys", "list", "--context", "far")
    assert fake.url == "tcp://127.0.0.1:3"
    monkeypatch.setenv("FABRIC_URL", "tcp://127.0.0.1:4")
    fabric("keys", "list")
    assert fake.url == "tcp://127.0.0.1:4"
    monkeypatch.delenv("FABRIC_URL")
    monkeypatch.setenv("FABRIC_DATA", "empty")
    fabric("keys", "list")
    assert fake.url == "tcp://127.0.0.1:3", "there is no socket, so the current context counts"


def test_the_context_is_exported_as_a_file_and_as_variables(fabric: Fabric, fake: FakeHub) -> None:
    found = keyed("tcp://hub-1:7171")
    contexts.add("far", found)
    assert fabric("keys", "export").exit_code == 0
    assert Credentials.load("billing.cred") == found
    assert fabric("keys", "export").exit_code == 6
    result = fabric("keys", "export", "--context", "far", "--format", "env")
    assert result.stderr == "warning: the output shows a secret key\n"
    url, key = result.stdout.splitlines()
    assert key == f"FABRIC_SECRET_KEY='{link_form(found.secret)}'"
    assert parse_link(url.removeprefix("FABRIC_URL=")) == ("tcp://hub-1:7171", found.hub_key, "", "")


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("invite billing", 2, "--role"),
        ("invite local --role r", 2, "'local' is reserved"),
        ("invite a/b --role r", 2, "'a/b' is not a name of a principal"),
        ("invite a --role r --ttl soon", 2, "'soon' is not a duration"),
        ("invite a --role r --ttl 0", 2, "--ttl must be 1s..30d, not 0"),
        ("invite a --role r --ttl 31d", 2, "--ttl must be 1s..30d, not 31d"),
        ("invite a --role r --address 0.0.0.0:7171", 2, "'0.0.0.0:7171' is not an address"),
        ("invite a --role r --address a:99999", 2, "'a:99999' is not an address"),
        ("invite a --role r --address http://a:1", 2, "is not an address"),
        ("create", 2, "NAME"),
        ("create ? --role r", 2, "'?' is not a name of a principal"),
        ("create a --role r -o -", 2, "-o takes a file, not '-'"),
        ("list --data . --url tcp://a:1", 2, "give --data or an address"),
        ("list --data nowhere", 3, "no hub with keys runs over nowhere: there is no nowhere/hub.sock"),
        ("revoke", 2, "NAME"),
        ("rotate --url tcp://127.0.0.1:1", 4, "there is no key for tcp://127.0.0.1:1"),
        ("export --url tcp://127.0.0.1:1", 4, "there is no key for tcp://127.0.0.1:1"),
        ("export --context far --format env -o x", 2, "-o is for a credentials file"),
        ("export --format json", 2, "json"),
        ("export --context far -o -", 2, "-o takes a file, not '-'"),
        ("rotate --context far --url tcp://127.0.0.1:9", 2, "a rotation uses the address in"),
        ("invtie a --role r", 2, "did you mean 'fabric keys invite'?"),
    ],
)
def test_wrong_input_is_told_with_a_hint(
    fabric: Fabric, words: str, code: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    contexts.add("far", keyed(NOWHERE))
    result = fabric("keys", *words.split())
    first, *rest = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in first
    assert rest
    assert rest[0].startswith("hint: ")


def test_a_key_of_the_environment_cannot_be_rotated(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_URL", f"fabric+curve://127.0.0.1:1/#k={link_form(HUB_KEY)}")
    monkeypatch.setenv("FABRIC_SECRET_KEY", new_pair().secret)
    result = fabric("keys", "rotate")
    assert (result.exit_code, "give --context or --credentials" in result.stderr) == (2, True)


def test_without_a_hub_the_hint_says_how_to_start_one_with_keys(fabric: Fabric, tmp_path: Path) -> None:
    result = fabric("keys", "list", "--url", NOWHERE, "--connect-timeout", "100ms")
    assert result.exit_code == 3
    assert "hint: start one with 'fabric hub --bind tcp://0.0.0.0:7171'" in result.stderr
