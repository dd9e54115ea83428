"""`fabric keys` and `fabric join` with a hub that has keys: from the invitation to the revoked key."""

import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from fabric.access.keys import open_hub_key
from fabric.cli.support.hub_process import HubProcess
from fabric_client import contexts
from fabric_client.credentials import Credentials
from fabric_client.keys import link_form, new_pair
from fabric_client.links import parse_link
from tests.cli.conftest import Fabric, wait_until

On = Callable[..., Result]
SOON = ("--connect-timeout", "2s")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub on loopback that has keys, as one on a network address has."""
    (tmp_path / "fabric-data").mkdir(mode=0o700)
    open_hub_key(tmp_path / "fabric-data")
    with HubProcess(tmp_path / "fabric-data") as running:
        yield running


@pytest.fixture
def on(hub: HubProcess, fabric: Fabric, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> On:
    """Runs a command on a machine: in its folder, with its contexts. `hub` is the machine of the hub."""

    def run(machine: str, *words: str, stdin: str | None = None) -> Result:
        folder = tmp_path if machine == "hub" else tmp_path / machine
        folder.mkdir(exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FABRIC_HOME", str(tmp_path / f"home-{machine}"))
        return fabric(*words, stdin=stdin)

    return run


def link_of(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    (found,) = re.findall(r"^fabric join '(fabric\+curve://[^']+)'$", result.stdout, re.MULTILINE)
    return str(found)


def joined(on: On, machine: str = "app", name: str = "billing", role: str = "client") -> None:
    link = link_of(on("hub", "keys", "invite", name, "--role", role))
    result = on(machine, "join", link, "--context", "shop", "-o", "table")
    assert result.exit_code == 0, result.stderr


def test_from_the_invitation_to_the_revoked_key(on: On, hub: HubProcess) -> None:
    invited = on("hub", "keys", "invite", "billing", "--role", "client")
    link = link_of(invited)
    assert parse_link(link).url == hub.url
    assert "only this machine reaches 127.0.0.1" in invited.stderr
    result = on("app", "join", link, "-o", "table")
    assert result.stdout.splitlines() == [
        f"joined the hub at {hub.url.removeprefix('tcp://')} as billing",
        'saved as context "127.0.0.1"; it is the current one',
        "try: fabric info",
    ]
    assert stat.S_IMODE(os.stat(contexts.path_of("127.0.0.1")).st_mode) == 0o600
    assert on("app", "pub", "orders.created", "x", "-o", "seq").stdout == "1\n"
    assert on("app", "sub", "orders.#", "--group", "billing", "--count", "1", "-f", "%v").stdout == "x"
    assert on("app", "check").exit_code == 0
    top = on("app", "top", "--once", "--interval", "100ms")
    assert (top.exit_code, "may not read INFO" in top.stderr) == (5, True), top.stderr
    shown = json.loads(on("app", "keys", "show").stdout)
    assert (shown["principal"], shown["role"]) == ("billing", "client")
    (row,) = json.loads(on("hub", "keys", "list").stdout)["principals"]
    assert (row["principal"], row["file"], row["keys"]) == ("billing", "enrolled", [shown["key"]])

    assert on("hub", "keys", "revoke", "billing", "--yes").exit_code == 0
    for command in (("pub", "orders.created", "y"), ("sub", "a", "--timeout", "1s"), ("info",), ("top", "--once")):
        result = on("app", *command, *SOON)
        assert (result.exit_code, result.stdout) == (5, ""), command
        assert "not known to" in result.stderr
        assert "(the context 127.0.0.1)" in result.stderr
        assert "hint: join the hub with 'fabric join LINK'" in result.stderr


def test_a_revoked_key_is_told_to_join_also_while_an_invitation_is_open(on: On) -> None:
    joined(on)
    on("hub", "keys", "revoke", "billing", "--yes")
    on("hub", "keys", "invite", "another", "--role", "client")
    result = on("app", "pub", "a", "b", *SOON)
    assert (result.exit_code, "hint: join the hub with 'fabric join LINK'" in result.stderr) == (5, True)


def test_a_link_works_once_and_a_name_that_is_taken_does_not_use_it_up(on: On) -> None:
    link = link_of(on("hub", "keys", "invite", "billing", "--role", "client"))
    on("app", "ctx", "add", "shop", "--url", "tcp://127.0.0.1:1")
    taken = on("app", "join", link, "--context", "shop")
    assert (taken.exit_code, "the context 'shop' exists" in taken.stderr) == (6, True)
    answer = json.loads(on("app", "join", "-", "--name", "eu", stdin=f"fabric join '{link}'\n").stdout)
    assert (answer["context"], answer["current"], answer["principal"]) == ("eu", False, "billing")
    again = on("other", "join", link)
    assert again.exit_code == 5
    assert "the link was used, its time is over, or it was revoked" in again.stderr
    assert "hint: ask for a new link" in again.stderr
    new = link_of(on("hub", "keys", "invite", "ada", "--role", "admin"))
    assert on("app", "join", new, "--context", "eu", "--replace").exit_code == 0
    assert contexts.load("eu").principal == "ada"
    assert on("app", "keys", "list", "--context", "eu").exit_code == 0, "an administrator needs no access to the folder"
    link_of(on("app", "keys", "invite", "bob", "--role", "client", "--context", "eu"))


def test_a_context_that_cannot_be_saved_does_not_use_the_link_up(on: On, tmp_path: Path) -> None:
    link = link_of(on("hub", "keys", "invite", "billing", "--role", "client"))
    (tmp_path / "home-app").write_text("a file where the folder should be")
    failed = on("app", "join", link)
    assert failed.exit_code == 1
    assert "cannot write" in failed.stderr
    assert "hint: check the folder" in failed.stderr
    (tmp_path / "home-app").unlink()
    assert on("app", "join", link).exit_code == 0
    assert [path.name for path in (tmp_path / "home-app" / "joining").iterdir()] == []


def test_a_join_that_was_interrupted_is_run_again(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_of(on("hub", "keys", "invite", "billing", "--role", "client"))

    def interrupted(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(contexts, "add", interrupted)
        first = on("app", "join", link)
    assert first.exit_code == 130
    assert "note: interrupted; run the same line again" in first.stderr
    assert json.loads(on("app", "join", link).stdout)["principal"] == "billing"
    assert on("app", "pub", "a", "b").exit_code == 0


def test_a_join_that_was_interrupted_at_its_end_is_run_again(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_of(on("hub", "keys", "invite", "billing", "--role", "client"))
    unlink = Path.unlink

    def interrupted(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "joining" and not path.name.startswith("."):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", interrupted)
        assert on("app", "join", link, "--context", "shop").exit_code == 130
    assert contexts.names() == ["shop"]
    again = on("app", "join", link, "--context", "shop")
    assert (again.exit_code, json.loads(again.stdout)["current"]) == (0, True), again.stderr
    assert contexts.names() == ["shop"]


def test_a_revoked_principal_that_joins_again_has_its_context_again(on: On) -> None:
    joined(on)
    assert on("hub", "keys", "revoke", "billing", "--yes").exit_code == 0
    joined(on)
    assert contexts.names() == ["shop"]
    assert on("app", "pub", "a", "b").exit_code == 0
    another = link_of(on("hub", "keys", "invite", "another", "--role", "client"))
    assert on("app", "join", another, "--context", "shop").exit_code == 6, "the key of another principal stays"


def test_a_key_is_rotated_and_the_context_goes_on(on: On) -> None:
    joined(on)
    before = contexts.load("shop")
    result = on("app", "keys", "rotate", "-o", "table")
    assert (result.exit_code, result.stderr) == (0, "")
    after = contexts.load("shop")
    assert (after.principal, after.pending) == ("billing", "")
    assert after.secret != before.secret
    assert on("app", "pub", "a", "b").exit_code == 0
    before.save("old.cred")
    assert on("app", "pub", "a", "b", "--credentials", "old.cred", *SOON).exit_code == 5


def test_created_and_exported_credentials_are_used(on: On, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert on("hub", "keys", "create", "ci", "--role", "reader", "-o", "app.cred").exit_code == 0
    assert on("hub", "keys", "create", "ci", "--role", "reader", "-o", "more.cred").exit_code in (0, 6)
    credentials = ("--credentials", str(tmp_path / "app.cred"))
    assert on("app", "info", *credentials).exit_code == 0
    refused = on("app", "pub", "orders.created", "x", *credentials)
    assert refused.exit_code == 5
    assert "principal 'ci' may not publish to 'orders.created': role 'reader' publishes to no topic" in refused.stderr
    assert "hint: 'fabric keys show' shows your role and rights" in refused.stderr
    assert on("app", "ctx", "add", "ci", *credentials).exit_code == 0
    for line in on("app", "keys", "export", "--format", "env").stdout.splitlines():
        name, _, value = line.partition("=")
        monkeypatch.setenv(name, value.strip("'"))
    on("app", "ctx", "rm", "ci", "--yes")
    assert json.loads(on("app", "keys", "show").stdout)["principal"] == "ci"
    assert on("app", "keys", "rotate").exit_code == 2
    monkeypatch.delenv("FABRIC_SECRET_KEY")
    monkeypatch.delenv("FABRIC_URL")
    monkeypatch.setenv("FABRIC_CREDENTIALS", credentials[1])
    assert json.loads(on("app", "keys", "show").stdout)["principal"] == "ci"


def test_each_refusal_is_told_in_words(on: On, hub: HubProcess, tmp_path: Path) -> None:
    joined(on)
    found = contexts.load("shop")
    found.replace(hub_key=new_pair().public).save("wrong.cred")
    Credentials(found.url, found.hub_key, secret=new_pair().secret).save("stranger.cred")
    for words, code, says in (
        (("info", "--url", hub.url), 5, "wants a key"),
        (("info", "--credentials", "wrong.cred"), 3, "is not the one"),  # the right one may come back
        (("info", "--credentials", "stranger.cred"), 5, "not known to"),
        (("keys", "list"), 5, "needs the right 'keys'"),
        (("keys", "invite", "eve", "--role", "admin"), 5, "needs the right 'keys'"),
    ):
        result = on("app", *words, *SOON)
        assert result.exit_code == code, (words, result.output)
        assert says in result.stderr
    result = on("app", "keys", "show", "--credentials", "wrong.cred", *SOON)
    assert (result.exit_code, "fabric hub" in result.stderr, "check the address" in result.stderr) == (3, False, True)
    elsewhere = on("app", "keys", "invite", "eve", "--role", "client", "--url", hub.url)
    assert (elsewhere.exit_code, "name its data folder with --data" in elsewhere.stderr) == (5, True)
    wrong: tuple[tuple[tuple[str, ...], int, str, str], ...] = (
        (("invite", "eve", "--role", "clinet"), 4, "it has: admin, client, reader", "choose one of them"),
        (("invite", "eve", "--role", "client", "--ttl", "1000d"), 2, "ttl", "--help"),
        (("revoke", "eve", "--yes"), 4, "there is no principal 'eve'", "'fabric keys list'"),
        (("show", "eve"), 4, "there is no principal 'eve'", "'fabric keys list'"),
        (("create", "billing", "--role", "client"), 6, "there is a principal 'billing'", "'fabric keys list'"),
    )
    for what, code, says, hint in wrong:
        result = on("hub", "keys", *what)
        assert (result.exit_code, says in result.stderr, hint in result.stderr) == (code, True, True), result.stderr


def test_a_hub_without_keys_says_how_to_get_them(on: On, tmp_path: Path) -> None:
    joined(on)
    with HubProcess(tmp_path / "plain") as plain:
        for words in (("list",), ("invite", "a", "--role", "client"), ("revoke", "a", "--yes")):
            result = on("hub", "keys", *words, "--url", plain.url)
            assert (result.exit_code, "this hub has no keys" in result.stderr) == (4, True)
            assert "hint: start one with 'fabric hub --bind tcp://0.0.0.0:7171'" in result.stderr
        result = on("app", "info", "--context", "shop", "--url", plain.url, *SOON)
        assert (result.exit_code, "has no encryption" in result.stderr) == (5, True)
        link = parse_link(link_of(on("hub", "keys", "invite", "b", "--role", "client")))._replace(url=plain.url)
        result = on("app", "join", link.text(), "--timeout", "2s", "--context", "new")
        assert (result.exit_code, "has no encryption" in result.stderr) == (5, True)


def test_names_of_principals_are_completed(on: On) -> None:
    from tests.cli.test_main import completions

    joined(on)
    on("hub", "keys", "list")
    wait_until(lambda: completions("fabric keys show bil") == ["billing"])


@pytest.mark.parametrize(
    ("words", "code", "error", "hint"),
    [
        ("", 2, "Missing argument 'LINK'", "see 'fabric join --help'"),
        ("hub-1:7171", 2, "this is not a link", "'fabric keys invite NAME' on the hub prints one"),
        ("tcp://127.0.0.1:7171", 2, "this is not a link", "'fabric keys invite NAME'"),
        ("fabric+curve://h:1/", 2, "the link has no '#k=KEY'", "quote it"),
        ("fabric+curve://h:1/#k=short", 2, "the link has no key of the hub", "a link looks like"),
        ("fabric+curve://h:1/#k=KEY", 2, "this link has no code; put it in single quotes", "see 'fabric join --help'"),
        ("fabric+curve://h:1/#k=KEY&c=x --context a/b", 2, "'a/b' is not a name of a context", "--help"),
        ("fabric+curve://h:1/#k=KEY&c=x --timeout 0", 2, "--timeout must be more than 0", "--help"),
        (
            "fabric+curve://127.0.0.1:1/#k=KEY&c=x --timeout 200ms",
            3,
            "no hub at tcp://127.0.0.1:1",
            "'fabric keys invite NAME --role ROLE --address HOST:PORT' on the hub prints a link",
        ),
    ],
)
def test_wrong_links_are_told_with_a_hint(fabric: Fabric, words: str, code: int, error: str, hint: str) -> None:
    result = fabric("join", *words.replace("=KEY", f"={link_form(new_pair().public)}").split())
    first, *rest = result.stderr.splitlines()
    assert (result.exit_code, result.stdout) == (code, "")
    assert error in first
    assert hint in "\n".join(rest)
    assert contexts.names() == []


def test_a_variable_that_hides_the_new_context_is_noted(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_of(on("hub", "keys", "invite", "billing", "--role", "client"))
    monkeypatch.setenv("FABRIC_URL", "tcp://127.0.0.1:1")
    assert "FABRIC_URL is set, and goes before contexts" in on("app", "join", link).stderr
