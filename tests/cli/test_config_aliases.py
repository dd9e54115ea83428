"""Names of settings of other brokers: each row of the table, when its variable is read, and what wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from fabric.cli.support import config_aliases as known
from fabric.cli.support.config_aliases import ALIASES, Alias
from tests.cli.conftest import Fabric
from tests.cli.test_config import NO_HUB, here, shown

__all__ = ["here"]  # a fixture of that module

# A value that each alias takes, and the value of the hub's option that follows from it.
VALUES: dict[str, tuple[Any, Any]] = {
    "QB_SERVER_HOST": ("0.0.0.0", ["tcp://0.0.0.0:9999"]),
    "server.host": ("::1", ["tcp://[::1]:9999"]),
    "QB_SERVER_PORT": ("4000", ["tcp://127.0.0.1:4000"]),
    "server.port": (4001, ["tcp://127.0.0.1:4001"]),
    "QB_DATA_DIR": ("there", "there"),
    "storage.data_dir": ("./there", "there"),
    "QB_LOG_LEVEL": ("WARN", "warning"),
    "DATA_DIR": ("there", "there"),
    "broker.storage.data_dir": ("there", "there"),
    "BROKER_PORT": ("9093", ["tcp://127.0.0.1:9093"]),
    "broker.network.port": (9094, ["tcp://127.0.0.1:9094"]),
    "RETENTION_HOURS": ("24", "1d"),
    "STORE_BACKEND": ("memory", None),
    "broker.network.type": ("tcp", None),
    "MAX_MESSAGE_SIZE": ("1MB", None),
}
VARIABLES = [pytest.param(alias, id=alias.variable) for alias in ALIASES if alias.variable]
NAMES = [pytest.param(alias, id=f"{alias.broker}-{alias.name}") for alias in ALIASES if alias.name]


def option_of(alias: Alias) -> str:
    return "bind" if alias.target in (known.HOST, known.PORT) else alias.target


def as_json(name: str, value: Any) -> str:
    """A file with one name."""
    tree: Any = value
    for part in reversed(name.split(".")):
        tree = {part: tree}
    return json.dumps(tree)


@pytest.mark.parametrize("alias", VARIABLES)
def test_every_variable_has_its_effect(
    alias: Alias, here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, wanted = VALUES.get(alias.variable, ("5", None))
    defaults = shown(fabric)
    monkeypatch.setenv(alias.variable, value)
    document = json.loads(fabric("config", "show", "--aliases", "--json").stdout)
    rows = {row["option"]: row for row in document["options"]}
    (row,) = [row for row in document["aliases"] if row["value"] is not None]
    assert row["alias"] == row["origin"] == alias.variable
    assert row["effect"] == alias.effect()
    changed = {name for name in rows if rows[name]["value"] != defaults[name]["value"]} - {"aliases"}
    if alias.reader == known.HUB:
        assert changed == {option_of(alias)}
        assert rows[option_of(alias)]["value"] == wanted
        assert rows[option_of(alias)]["origin"] == alias.variable
    else:
        assert changed == set()
        told = "notes" if alias.reader == known.NONE else "warnings"
        assert document[told] == [f"{alias.variable} has {alias.effect()}"]
    assert (row["value"] == "(set)") is alias.secret


@pytest.mark.parametrize("alias", NAMES)
@pytest.mark.parametrize("dash", ["_", "-"])
def test_every_name_in_a_file_has_its_effect(alias: Alias, dash: str, here: Path, fabric: Fabric) -> None:
    value, wanted = VALUES.get(alias.name, (5, None))
    defaults = shown(fabric)
    (here / "config.json").write_text(as_json(alias.name.replace("_", dash), value))
    rows = shown(fabric, "--config", "config.json")
    changed = {name for name in rows if rows[name]["value"] != defaults[name]["value"]}
    assert changed == ({option_of(alias)} if alias.reader == known.HUB else set())
    if alias.reader == known.HUB:
        assert rows[option_of(alias)]["value"] == wanted
        assert rows[option_of(alias)]["source"] == "file"
    else:
        assert f"has {alias.effect()}" in fabric("config", "check", "config.json").stdout


def test_the_readers_are_known_words() -> None:
    assert {alias.reader for alias in ALIASES} == {known.HUB, known.GATEWAY, known.WORKER, known.NONE}
    assert all(alias.note for alias in ALIASES if alias.reader == known.NONE)
    assert all(alias.target for alias in ALIASES if alias.reader == known.HUB)


# When variables are read.


@pytest.mark.parametrize("alias", VARIABLES)
def test_a_general_name_is_read_only_if_asked_for(
    alias: Alias, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(alias.variable, VALUES.get(alias.variable, ("5", None))[0])
    found = json.loads(fabric("config", "show", "--json").stdout)["aliases"]
    assert [row["alias"] for row in found] == ([alias.variable] if alias.variable.startswith("QB_") else [])


@pytest.mark.parametrize("way", ["flag", "variable", "dotenv", "file", "broker"])
def test_ways_to_ask(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setenv("DATA_DIR", "there")
    monkeypatch.setenv("RETENTION_HOURS", "24")
    assert shown(fabric)["data"]["value"] == "fabric-data"
    if way == "variable":
        monkeypatch.setenv("FABRIC_ALIASES", "1")
    elif way == "dotenv":
        (here / ".env").write_text("FABRIC_ALIASES=1\n")
    elif way == "file":
        (here / "fabric.toml").write_text("[hub]\naliases = true\n")
    elif way == "broker":
        (here / "fabric.toml").write_text("[broker.node]\nid = 'n1'\n")
    rows = shown(fabric, *(["--aliases"] if way == "flag" else []))
    assert rows["data"]["value"] == "there"
    assert rows["max-age"]["value"] == (0 if way == "broker" else "1d"), "a file turns on the names of its own broker"


def test_variables_in_dotenv(here: Path, fabric: Fabric) -> None:
    (here / ".env").write_text("QB_SERVER_PORT=4000\nDATA_DIR=there\n")
    rows = shown(fabric)
    assert (rows["bind"]["value"], rows["bind"]["origin"]) == (["tcp://127.0.0.1:4000"], ".env:1 QB_SERVER_PORT")
    assert rows["data"]["value"] == "fabric-data"
    assert shown(fabric, "--aliases")["data"]["origin"] == ".env:2 DATA_DIR"


def test_no_file_and_no_alias(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QB_DATA_DIR", "there")
    assert shown(fabric, "--config", "none", "--aliases")["data"]["value"] == "fabric-data"


# What wins.


def warnings(fabric: Fabric, *words: str) -> list[str]:
    found: list[str] = json.loads(fabric("config", "show", *words, "--json").stdout)["warnings"]
    return found


def test_our_own_name_wins_wherever_it_is(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QB_DATA_DIR", "of-alias")
    (here / "fabric.toml").write_text('[hub]\ndata = "of-file"\n')
    assert shown(fabric)["data"]["value"] == "of-file"
    assert warnings(fabric) == ["QB_DATA_DIR has no effect: --data is of-file, from fabric.toml:2"]
    monkeypatch.setenv("QB_DATA_DIR", "of-file")
    assert warnings(fabric) == [], "both are the same"
    monkeypatch.setenv("QB_DATA_DIR", "of-alias")
    assert warnings(fabric, "--data", "typed") == [], "the command line is seen by its user"
    assert shown(fabric, "--data", "typed")["data"]["value"] == "typed"


def test_of_two_aliases_the_first_wins(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QB_DATA_DIR", "first")
    monkeypatch.setenv("DATA_DIR", "second")
    assert shown(fabric, "--aliases")["data"]["value"] == "first"
    assert warnings(fabric, "--aliases") == ["DATA_DIR has no effect: --data is first, from QB_DATA_DIR"]


def test_a_host_and_the_port_of_another_broker_do_not_make_an_address(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QB_SERVER_HOST", "0.0.0.0")
    monkeypatch.setenv("BROKER_PORT", "9092")
    assert shown(fabric, "--aliases")["bind"]["value"] == ["tcp://127.0.0.1:9092"]
    assert warnings(fabric, "--aliases") == [
        "QB_SERVER_HOST has no effect: --bind is tcp://127.0.0.1:9092, from BROKER_PORT"
    ]


def test_an_alias_of_the_environment_overrides_that_of_a_file(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "config.json").write_text('{"server": {"host": "localhost", "port": 4000}, "storage": {"data_dir": "d"}}')
    assert shown(fabric, "--config", "config.json")["bind"]["value"] == ["tcp://127.0.0.1:4000"]
    monkeypatch.setenv("QB_SERVER_HOST", "10.0.0.1")
    monkeypatch.setenv("QB_DATA_DIR", "e")
    rows = shown(fabric, "--config", "config.json")
    assert rows["bind"]["value"] == ["tcp://10.0.0.1:4000"]
    assert rows["data"]["value"] == "e"
    assert warnings(fabric, "--config", "config.json") == []


# What is refused.


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "STORE_BACKEND",
            "redis",
            "STORE_BACKEND: 'redis' is not possible: the hub stores messages in",
        ),
        ("STORE_BACKEND", "postgres", "'postgres' is not possible"),
        ("QB_SERVER_PORT", "99999", "'99999' is not a port; write a number of 1..65535"),
        ("BROKER_PORT", "tcp", "'tcp' is not a port"),
        ("QB_SERVER_HOST", "a b", "'a b' is not a host"),
        ("QB_LOG_LEVEL", "loud", "QB_LOG_LEVEL: 'loud' is not allowed; allowed is one of"),
        ("RETENTION_HOURS", "day", "'day' is not a number of hours; write 24"),
        ("RETENTION_HOURS", "-1", "'-1' is not a number of hours"),
        ("RETENTION_HOURS", "nan", "'nan' is not a number of hours"),
        ("RETENTION_HOURS", "1e300", "'1e300' is not a number of hours"),
        ("MAX_MESSAGE_SIZE", "1GB", "'1GB' is too much: a message has at most 16 MiB here"),
        ("MAX_MESSAGE_SIZE", "big", "'big' is not a size"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    result = fabric("hub", "--aliases", "--data", "x", *(NO_HUB[1:] if "QB_SERVER" in name else ()))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert says in result.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"server": {"port": [1]}}',
            "config.json: server.port: [1] is not allowed; allowed is a text, a number, true or false",
        ),
        ('{"server": {"port": true}}', "'true' is not a port"),
        ('{"server": {"port": {}}}', "allowed is a text, a number, true or false"),
        ('{"broker": {"network": {"type": "udp"}}}', "'udp' is not possible: the hub listens at tcp:// and ipc://"),
        ('{"broker": {"storage": {"typ": "mmap"}}}', "did you mean broker.storage.type?"),
        ('{"storage": {"data_dir": "a", "data-dir": "b"}}', "storage.data-dir is there twice"),
        ('{"storage": {"data_dir": "\\u0000"}}', "config.json: storage.data_dir"),
    ],
)
def test_mistakes_in_files_of_other_brokers(here: Path, fabric: Fabric, text: str, says: str) -> None:
    (here / "config.json").write_text(text)
    result = fabric("config", "check", "config.json")
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_secret_is_not_shown(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    for alias in ALIASES:
        if alias.secret:
            monkeypatch.setenv(alias.variable, "hunter2")
    for output in ("json", "table"):
        result = fabric("config", "show", "--aliases", "-o", output)
        assert "hunter2" not in result.output
        assert "JWT_SECRET" in result.stdout


def test_all_aliases_are_listed(fabric: Fabric) -> None:
    said = fabric("config", "show", "--aliases", "-o", "table").stdout
    assert all(name in said for alias in ALIASES for name in (alias.variable, alias.name))
    assert "no effect: for the HTTP gateway, which this version does not have" in said


@pytest.mark.parametrize("way", ["file", "variable"])
def test_the_hub_warns_of_settings_for_a_gateway_that_is_not_there(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    name = "HTTP_PORT"
    if way == "file":
        (here / "fabric.toml").write_text("[broker.http]\nport = 8081\n")
        name = "fabric.toml:2"
    else:
        monkeypatch.setenv("FABRIC_ALIASES", "1")
        monkeypatch.setenv("HTTP_PORT", "8081")
    said = fabric(*NO_HUB, "--log-level", "warning", "--data", "x").stderr
    assert f"{name} has no effect: for the HTTP gateway, which this version does not have" in said
