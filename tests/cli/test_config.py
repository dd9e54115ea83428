"""The configuration of a hub: every option by file, `.env`, environment and flag; mistakes with their place; the
commands `fabric config …`."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from docs import reference
from fabric.cli import main
from fabric.cli.commands.config import template
from fabric.cli.support import config, config_file
from fabric.cli.support.config_values import converted, key, text_of, toml
from fabric.cli.support.hub_process import HubProcess
from fabric.cli.support.reach import Advertised
from fabric.cli.support.values import BYTES_MAX, Duration, Rate, Size, size_bytes
from fabric.cli.support.variables import variable
from fabric_client import contexts
from fabric_client.credentials import Credentials
from fabric_client.keys import link_form, new_pair
from tests.cli.conftest import Fabric
from tests.cli.test_hub import read_until
from tests.patience import PATIENCE_S

Start = Callable[..., "subprocess.Popen[bytes]"]
TOP = click.Context(main, info_name="fabric")
HUB = main.get_command(TOP, "hub")
assert HUB is not None
CONTEXT = click.Context(HUB, parent=TOP, info_name="hub")
OPTIONS = [pytest.param(option, id=key(option)) for option in config.settings(HUB)]

NO_HUB = ["hub", "--bind", "ipc:///dev/null/hub"]  # refused with exit code 1 if the configuration is right


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no file of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(config, "PLACES", [Path("fabric.toml"), tmp_path / "etc/fabric.toml"])
    for name in [name for name in os.environ if name.startswith("QB_")]:
        monkeypatch.delenv(name)
    return tmp_path


def shown(fabric: Fabric, *words: str) -> dict[str, dict[str, Any]]:
    """The rows of `fabric config show`, by option."""
    result = fabric("config", "show", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return {row["option"]: row for row in json.loads(result.stdout)["options"]}


def values_for(option: click.Option, folder: Path) -> list[Any]:
    """Values of a file for an option, each unlike the one before it, and the first unlike the default."""
    kind: Any = option.type
    if option.is_flag:
        return [True, False, True, False]
    if isinstance(kind, click.Choice):
        return [kind.choices[-1 - i % len(kind.choices)] for i in range(4)]
    if isinstance(kind, click.IntRange):
        return [int(kind.min or 0) + i for i in (1, 2, 3, 4)]
    if isinstance(kind, click.Path):
        paths = [folder / f"place{i}" for i in range(4)]
        for path in paths if kind.exists else ():
            path.mkdir() if kind.dir_okay else path.write_text("")
        return [str(path) for path in paths]
    texts = {Duration: "{}s", Size: "{}KB", Rate: "{}/s", Advertised: "hub-{}:7171"}.get(type(kind), "ipc://{}")
    found: list[Any] = [texts.format(i) for i in (7, 8, 9, 11)]
    return [[value] for value in found] if option.multiple else found


def as_text(option: click.Option, value: Any) -> str:
    """A value of a file as the text of a variable."""
    return " ".join(value) if option.multiple else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_set_by_file_dotenv_environment_and_flag(
    option: click.Option, here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, own = key(option), variable(("hub",), option)
    in_file, in_dotenv, in_environment, typed = values_for(option, here)
    if option.is_flag:
        in_file, in_dotenv, in_environment, typed = True, False, False, True
    assert shown(fabric)[name]["origin"] == "default"

    (here / "fabric.toml").write_text(f"# a comment\n[hub]\n{name} = {toml(in_file)}\n")
    row = shown(fabric)[name]
    assert (row["value"], row["source"], row["origin"]) == (in_file, "file", "fabric.toml:3")

    (here / ".env").write_text(f"A=b\n{own}='{as_text(option, in_dotenv)}'\n")
    row = shown(fabric)[name]
    assert (row["value"], row["source"], row["origin"]) == (in_dotenv, ".env", f".env:2 {own}")

    (here / ".env").write_text(f"{own}='{as_text(option, in_file)}'\n")
    monkeypatch.setenv(own, as_text(option, in_environment))
    row = shown(fabric)[name]
    assert (row["value"], row["source"], row["origin"]) == (in_environment, "environment", own)

    words = [f"--{name}"] if option.is_flag else [f"--{name}", as_text(option, typed)]
    row = shown(fabric, *words)[name]
    assert (row["value"], row["source"], row["origin"]) == (typed, "flag", option.opts[0])


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_may_be_written_with_underscores(option: click.Option, here: Path, fabric: Fabric) -> None:
    value = values_for(option, here)[0]
    (here / "fabric.toml").write_text(f"[hub]\n{key(option).replace('-', '_')} = {toml(value)}\n")
    assert shown(fabric)[key(option)]["value"] == value


@pytest.mark.parametrize("option", OPTIONS)
def test_what_is_shown_is_what_the_command_gets(option: click.Option, here: Path, fabric: Fabric) -> None:
    value = values_for(option, here)[0]
    (here / "fabric.toml").write_text(f"[hub]\n{key(option)} = {toml(value)}\n")
    assert HUB is not None
    context = HUB.make_context("hub", [], parent=TOP)
    assert option.name == "aliases" or context.params[str(option.name)] == converted(option, value, context)
    assert "config" not in context.params


def test_a_variable_for_all_commands_is_below_that_of_the_option_and_above_the_file(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "fabric.toml").write_text('[hub]\ndata = "of-file"\n')
    monkeypatch.setenv("FABRIC_DATA", "of-all")
    assert shown(fabric)["data"]["origin"] == "FABRIC_DATA"
    monkeypatch.setenv("FABRIC_HUB_DATA", "of-hub")
    assert shown(fabric)["data"]["value"] == "of-hub"
    monkeypatch.setenv("FABRIC_HUB_DATA", "")
    assert shown(fabric)["data"]["value"] == "of-all", "an empty variable is not set"


# Which file.


def test_the_first_file_that_exists_is_read(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    def age() -> Any:
        return shown(fabric)["max-age"]["value"]

    assert age() == 0
    (here / "etc").mkdir()
    (here / "etc/fabric.toml").write_text("[hub]\nmax-age = 1\n")
    assert age() == "1s"
    (here / "fabric.toml").write_text("[hub]\nmax-age = 2\n")
    assert age() == "2s"
    for number, name in enumerate(("dotenv", "general", "own", "typed"), 3):
        (here / f"{name}.toml").write_text(f"[hub]\nmax-age = {number}\n")
    (here / ".env").write_text("FABRIC_CONFIG=dotenv.toml\n")
    assert age() == "3s"
    monkeypatch.setenv("FABRIC_CONFIG", "general.toml")
    assert age() == "4s"
    monkeypatch.setenv("FABRIC_HUB_CONFIG", "own.toml")
    assert age() == "5s"
    assert shown(fabric, "--config", "typed.toml")["max-age"]["value"] == "6s"
    assert shown(fabric, "--config", "none")["max-age"]["value"] == 0


def test_the_hub_tells_which_file_it_read(start: Start, here: Path) -> None:
    (here / "fabric.toml").write_text(f'[hub]\nbind = ["ipc://{here}/hub"]\ndata = "journal"\n')
    (here / ".env").write_text("FABRIC_HUB_DRAIN=0\nOTHER=x\nFABRIC_HUB_MAX_AGES=1\n")
    process = start("hub")
    said = read_until(process, "hub ready")
    assert f"config   {here}/fabric.toml" in said
    assert f"config   {here}/.env" in said
    assert f'configuration read files="{here}/fabric.toml, {here}/.env"' in said
    assert ".env:3 FABRIC_HUB_MAX_AGES: no option reads it; did you mean FABRIC_HUB_MAX_AGE?" in said
    assert (here / "journal/data.mdb").exists()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_json_logs_of_a_hub_with_warnings_are_json(start: Start, here: Path) -> None:
    text = f'[hub]\nlog-format = "json"\nbind = ["ipc://{here}/hub"]\n[server]\nport = 1\n'
    (here / "fabric.toml").write_text(text)
    events = [json.loads(line) for line in read_until(start("hub"), "hub ready").splitlines()]
    assert [event["event"] for event in events[:2]] == ["configuration warning", "configuration read"]
    assert events[0]["warning"] == f"fabric.toml:5 has no effect: --bind is ipc://{here}/hub, from fabric.toml:3"


def test_the_hub_of_the_demo_reads_no_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "fabric.toml").write_text("this is not TOML")
    (here / ".env").write_text("FABRIC_HUB_MAX_AGE=nonsense\n")
    monkeypatch.setenv("FABRIC_CONFIG", "missing.toml")
    monkeypatch.setenv("QB_SERVER_PORT", "nonsense")
    with HubProcess(here / "journal"):
        pass


def test_a_broken_file_does_not_take_the_help_away(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text("this is not TOML")
    assert fabric("hub", "--help").exit_code == 0
    assert fabric(*NO_HUB).exit_code == 2


def test_a_hub_without_a_file_imports_no_parser() -> None:
    code = (
        "import sys; from fabric.cli import main\n"
        "main.get_command(None, 'hub').make_context('hub', [])\n"
        "print([name for name in ('tomllib', 'difflib', 'yaml', 'bz2', 'fabric_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "[]"


# Mistakes.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[hub]\nmax-agee = 1", "fabric.toml:2: there is no option 'max-agee' in [hub]; did you mean max-age?"),
        ("[hub]\nbinds = []", "fabric.toml:2: there is no option 'binds' in [hub]; did you mean bind?"),
        ("[hub]\nconfig = 'x'", "fabric.toml:2: there is no option 'config' in [hub]"),
        ("[hub.max-age]\nx = 1", "there is no option 'max-age.x' in [hub]; did you mean max-age?"),
        ("[hub]\n\nxyzzy = 1", "fabric.toml:3: there is no option 'xyzzy' in [hub]\n"),
        ("[hubb]\nx = 1", "fabric.toml:2: there is no table [hubb]; allowed is [hub]; did you mean hub?"),
        ("[hubb]", "fabric.toml: hubb: there is no table [hubb]; allowed is [hub]; did you mean hub?"),
        ("max-age = 1", "fabric.toml:1: 'max-age' stands above all tables; write it below a line [hub]"),
        ("hub = 1", "fabric.toml:1: hub must be a table, not 1"),
        ("server = 1", "fabric.toml:1: server must be a table, not 1"),
        ("[hub]\nmax-age = 1\nmax_age = 2", "fabric.toml:3: max_age is there twice"),
        ("[hub]\nmax-age = true", 'fabric.toml:2: max-age: true is not allowed; allowed is a duration such as "30s"'),
        ("[hub]\nmax-age = '7x'", "fabric.toml:2: max-age: '7x' is not a duration; allowed is a duration such as"),
        ("[hub]\nmax-age = -1", "fabric.toml:2: max-age: '-1' is not a duration"),
        ("[hub]\nmax-age = inf", "fabric.toml:2: max-age: 'inf' is not a duration"),
        ("[hub]\nmax-age = nan", "fabric.toml:2: max-age: 'nan' is not a duration"),
        ("[hub]\nmax-age = 2026-11-16", "fabric.toml:2: max-age: datetime.date(2026, 11, 16) is not allowed"),
        ("[hub]\nmax-age = {a = 1}", "there is no option 'max-age.a'"),
        ("[hub]\nmax-messages = 1.5", "fabric.toml:2: max-messages: 1.5 is not allowed; allowed is a whole number"),
        ("[hub]\nmax-bytes = '10G'", "fabric.toml:2: max-bytes: '10G' is not a size"),
        (
            "[hub]\nmax-messages = -1",
            "fabric.toml:2: max-messages: -1 is not allowed; allowed is a whole number of 0 or more, at most",
        ),
        ("[hub]\nmax-messages = 9223372036854775808", "9223372036854775808 is not allowed; allowed is"),
        ("[hub]\nmax-bytes = 9223372036854775808", "fabric.toml:2: max-bytes: "),
        ("[hub]\nmax-age = 1e308", "fabric.toml:2: max-age: "),
        ("[hub]\ndrain = 1e15", "fabric.toml:2: drain: '1000000000000000' is longer than a thousand years"),
        ("[hub]\nbind = []", "fabric.toml:2: bind: [] is not allowed; allowed is a list of texts"),
        ("[hub]\n[hub]", "fabric.toml: it is not TOML: Cannot declare ('hub',) twice (at line 2"),
        ("[[hub]]\nmax-age = 1", "hub must be a table, not [{'max-age': 1}]"),
        ("[server]\nport = 99999", "fabric.toml:2: server.port: '99999' is not a port; write a number of 1..65535"),
        ("[hub]\nmax-messages = 0x" + "f" * 9000, "max-messages: a very large number is not allowed"),
        ("[hub]\nbind = 7", "fabric.toml:2: bind: 7 is not allowed; allowed is a list of texts"),
        ("[hub]\nbind = [7]", "fabric.toml:2: bind: [7] is not allowed; allowed is a list of texts"),
        ("[hub]\ndata = 7", "fabric.toml:2: data: 7 is not allowed; allowed is a path"),
        ("[hub]\ndata = ''", "fabric.toml:2: data: '' is not allowed; allowed is a path"),
        ('[hub]\ndata = "a\\u0000b"', "fabric.toml:2: data: 'a\\x00b' is not allowed"),
        ("[hub]\nlog-format = 'xml'", "log-format: 'xml' is not allowed; allowed is one of \"text\""),
        ("[hub]\nlog-format = ['text']", "fabric.toml:2: log-format: ['text'] is not allowed"),
        ("[hub]\nallow-network-fs = 1", "fabric.toml:2: allow-network-fs: 1 is not allowed; allowed is true or false"),
        (
            "[hub]\nallow-network-fs = 'maybe'",
            "fabric.toml:2: allow-network-fs: 'maybe' is not allowed; allowed is true or false",
        ),
        ("[hub]\nmax-age = '${MISSING}'", "fabric.toml:2: the variable MISSING is not set"),
        (
            "[hub]\ndata = '${user.home}/x'",
            "fabric.toml:2: ${user.home} is no variable; write ${NAME} or ${NAME:DEFAULT}",
        ),
        ("[hub]\ndata = '${A:${B:x}}'", "fabric.toml:2: ${A:${B:x} is no variable"),
        ("[hub]\ndata = '${A'", "fabric.toml:2: ${A is no variable"),
        (
            "[hub]\nadvertise = 'hub-1:x'",
            "fabric.toml:2: advertise: 'hub-1:x' is not an address; allowed is a host:port",
        ),
        ("[hub]\nadvertise = 'tcp://0.0.0.0:7171'", "fabric.toml:2: advertise: 'tcp://0.0.0.0:7171' is not an address"),
        ("[hub]\nmax-age = 1\nmax-age = 2", "fabric.toml: it is not TOML: Cannot overwrite a value"),
        ("nonsense", "fabric.toml: it is not TOML: "),
        ("[server]\nprt = 1", "fabric.toml:2: the name 'server.prt' is not known; did you mean server.port?"),
        ("x = " + "[" * 5000, "fabric.toml: its values are nested too deeply"),
        ("a.b.c.d.e.f.g.h.i = 1", "more than 8 levels"),
        ("[hub]\n" + "".join(f"x{i} = 1\n" for i in range(2000)), "more than 1000 names"),
    ],
)
def test_a_mistake_is_told_with_its_place(here: Path, fabric: Fabric, text: str, says: str) -> None:
    (here / "fabric.toml").write_text(text)
    for words in (NO_HUB, ["config", "show"], ["config", "check"], ["config", "check", "fabric.toml"]):
        result = fabric(*words)
        assert result.exit_code == 2
        assert says in result.stderr
        assert result.stderr.startswith("error: ")
        assert "hint: 'fabric config init'" in result.stderr
        assert "Traceback" not in result.stderr


def test_all_mistakes_are_told_at_once(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text("[hub]\n" + "".join(f"x{i} = 1\n" for i in range(50)))
    said = fabric("config", "check").stderr
    assert said.count("error: fabric.toml:") == 20
    assert "error: and 30 more" in said


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FABRIC_HUB_MAX_AGE", "7x", "error: FABRIC_HUB_MAX_AGE: '7x' is not a duration"),
        ("FABRIC_HUB_BIND", '"a', "error: FABRIC_HUB_BIND: '\"a' in the environment cannot be split"),
        (
            "FABRIC_HUB_ALLOW_NETWORK_FS",
            "maybe",
            "error: FABRIC_HUB_ALLOW_NETWORK_FS: 'maybe' is not allowed; allowed is true or false",
        ),
        ("FABRIC_ALIASES", "maybe", "error: FABRIC_ALIASES: 'maybe' is not allowed; allowed is true or false"),
        ("FABRIC_CONFIG", "missing.toml", "error: missing.toml: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_variable_is_told(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(name, value)
    result = fabric("hub", "--quota", "1GB", *(NO_HUB[1:] if name != "FABRIC_HUB_BIND" else ()))
    assert result.exit_code == 2
    assert result.stderr.startswith(says)
    assert result.stderr.count("error:") == 1


@pytest.mark.parametrize(("name", "word"), [("LOG_LEVEL", "WARNING"), ("LOG_FORMAT", "Json")])
def test_capitals_are_no_mistake(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    option = name.lower().replace("_", "-")
    assert shown(fabric, f"--{option}", word)[option]["value"] == word.lower()
    (here / "fabric.toml").write_text(f'[hub]\n{option} = "{word}"\n')
    assert shown(fabric)[option]["value"] == word.lower()
    monkeypatch.setenv(f"FABRIC_HUB_{name}", word)
    assert shown(fabric)[option]["value"] == word.lower()


def test_a_wrong_variable_does_not_matter_if_the_option_is_typed(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_HUB_MAX_AGE", "7x")
    assert shown(fabric, "--max-age", "1h")["max-age"]["value"] == "1h"


def test_a_near_miss_of_a_variable_is_told(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_HUB_BINDS", "ipc://x")
    result = fabric("config", "show", "--json")
    assert "warning: FABRIC_HUB_BINDS is set, and no option reads it; did you mean FABRIC_HUB_BIND?" in result.stderr
    monkeypatch.delenv("FABRIC_HUB_BINDS")
    monkeypatch.setenv("FABRIC_HUB_BIND", "ipc://x ipc://y")
    assert shown(fabric)["bind"]["value"] == ["ipc://x", "ipc://y"]


def test_files_that_cannot_be_read_are_told(here: Path, fabric: Fabric) -> None:
    (here / "folder").mkdir()
    (here / "large.toml").write_bytes(b"#" * 10_000_000)
    (here / "latin.toml").write_bytes(b"[hub]\ndata = '\xe4'\n")
    (here / "loop.toml").symlink_to(here / "loop.toml")
    for name, says in {
        "missing.toml": "missing.toml: cannot be read: No such file or directory",
        "folder": "folder: cannot be read: Is a directory",
        "large.toml": "large.toml: it has more than 1 MiB, so it is not a configuration",
        "latin.toml": "latin.toml:2: it is not text in UTF-8",
        "loop.toml": "loop.toml: cannot be read: Too many levels of symbolic links",
        "/proc/self/mem": "/proc/self/mem: cannot be read: Input/output error",
        "/dev/zero": "/dev/zero: it has more than 1 MiB",
    }.items():
        for words in ([*NO_HUB, "--config", name], ["config", "check", name]):
            result = fabric(*words)
            assert (result.exit_code, result.stdout) == (2, "")
            assert result.stderr.startswith(f"error: {says}")


def test_a_file_without_the_right_to_read_it_is_told(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "fabric.toml").write_text("[hub]")

    def refuse(path: Path, *_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", refuse)  # the modes of a file do not hinder root
    result = fabric(*NO_HUB)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        "error: fabric.toml: cannot be read: Permission denied",
    )


@pytest.mark.parametrize("text", ["", "# nothing", "\ufeff", "[hub]\n"])
def test_an_empty_file_sets_nothing(here: Path, fabric: Fabric, text: str) -> None:
    (here / "fabric.toml").write_text(text)
    assert {row["source"] for row in shown(fabric).values()} == {"default"}
    assert json.loads(fabric("config", "check", "--json").stdout)["options"] == []


@pytest.mark.parametrize("option", ["data", "access"])
def test_an_empty_path_is_refused(fabric: Fabric, option: str) -> None:
    """It would be the working directory, as of --data "$DIR" without DIR."""
    result = fabric("hub", f"--{option}", "")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, f"error: --{option} is empty; allowed is a path")


def test_an_empty_name_of_a_file_is_refused(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text("[hub]")
    result = fabric("hub", "--config", "")
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: --config is empty; name a file, or none")


def test_the_largest_numbers_are_read(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text(f"[hub]\nmax-messages = {2**63 - 1}\nmax-bytes = {BYTES_MAX}\n")
    rows = shown(fabric)
    assert rows["max-messages"]["value"] == 2**63 - 1
    assert size_bytes(str(rows["max-bytes"]["value"])) == BYTES_MAX


def test_check_tells_an_address_at_which_no_hub_can_listen(here: Path, fabric: Fabric) -> None:
    wrong = ["nonsense", "tcp://127.0.0.1", "tcp://example.org:1", "tcp://[::1", "ipc://x"]
    (here / "fabric.toml").write_text(f"[hub]\nbind = {['ipc://x', *wrong]}\n")
    result = fabric("config", "check")
    assert (result.exit_code, result.stdout) == (2, "")
    for url in wrong:
        assert f"error: fabric.toml:2: cannot listen at {url}" in result.stderr


@pytest.mark.parametrize("way", ["file", ".env", "environment", "alias"])
def test_a_wrong_address_is_told_with_its_place(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "file":
        (here / "fabric.toml").write_text('[hub]\nbind = ["ipc://x", "tcp://broker:9999"]\n')
    elif way == ".env":
        (here / ".env").write_text("FABRIC_HUB_BIND=tcp://broker:9999\n")
    elif way == "environment":
        monkeypatch.setenv("FABRIC_HUB_BIND", "tcp://broker:9999")
    else:
        monkeypatch.setenv("QB_SERVER_HOST", "broker")
    places = {"file": "fabric.toml:2", ".env": ".env:1 FABRIC_HUB_BIND", "environment": "FABRIC_HUB_BIND"}
    result = fabric("hub", "--log-level", "error")
    assert (result.exit_code, result.stderr.splitlines()) == (
        2,
        [
            f"error: {places.get(way, 'QB_SERVER_HOST')}: cannot listen at tcp://broker:9999: "
            "'broker' is not an IP address of this machine",
            "hint: write an IP address of this machine, or 0.0.0.0 for all networks",
        ],
    )
    assert not (here / "fabric-data").exists()


def test_a_file_that_is_there_but_cannot_be_read_is_not_passed_over(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").symlink_to("missing")
    assert "error: fabric.toml: cannot be read" in fabric(*NO_HUB).stderr


def test_a_file_of_windows_is_read(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_bytes(b'\xef\xbb\xbf[hub]\r\nmax-age = "1h"\r\n')
    row = shown(fabric)["max-age"]
    assert (row["value"], row["origin"]) == ("1h", "fabric.toml:2")


# `.env`.


def test_dotenv_is_read_as_programs_write_it(here: Path) -> None:
    text = "# c\nA=1\nexport B = two words # c\nC='q # q' # c\nD=\"x\"\nE=\n1F=x\nnonsense\nG=#c\r\nH='open\n"
    (here / ".env").write_text(text)
    found, problem = config_file.read_dotenv(Path(".env"))
    assert problem == ""
    assert {name: entry.value for name, entry in found.items()} == {
        "A": "1",
        "B": "two words",
        "C": "q # q",
        "D": "x",
        "E": "",
        "G": "",
        "H": "'open",
    }


def test_a_near_miss_in_dotenv_is_told(here: Path, fabric: Fabric) -> None:
    names = ["DATTA", "HUB_DATTA", "HBU_DATA", "URL", "GET_OUTPUT", "GET_OUTPT", "X"]
    (here / ".env").write_text("".join(f"FABRIC_{name}=x\n" for name in names) + "DATTA=x\n")
    assert json.loads(fabric("config", "show", "--json").stdout)["warnings"] == [
        ".env:1 FABRIC_DATTA: no option reads it; did you mean FABRIC_DATA?",
        ".env:6 FABRIC_GET_OUTPT: no option reads it; did you mean FABRIC_GET_OUTPUT?",
        ".env:3 FABRIC_HBU_DATA: no option reads it; did you mean FABRIC_HUB_DATA?",
        ".env:2 FABRIC_HUB_DATTA: no option reads it; did you mean FABRIC_HUB_DATA?",
        ".env:7 FABRIC_X: no option reads it",
    ]


def test_a_folder_called_dotenv_is_ignored_and_a_large_one_is_told(here: Path, fabric: Fabric) -> None:
    (here / ".env").mkdir()
    assert fabric("config", "show", "-o", "table").stderr == ""
    (here / ".env").rmdir()
    (here / ".env").write_bytes(b"x" * 2_000_000)
    result = fabric("config", "show", "-o", "table")
    assert result.exit_code == 0
    assert result.stderr == "warning: .env: it has more than 1 MiB, so it is not a configuration; it is not used\n"


# Other formats.


def test_variables_in_values(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[hub]\nmax-age = "${AGE:7d}"\ndata = "/x/${NAME}/$${NAME}"\nbind = ["ipc://${SOCKET:s}"]\n'
    (here / "fabric.toml").write_text(text + 'max-messages = "${COUNT:5}"\nallow-network-fs = "${FLAG:true}"\n')
    (here / ".env").write_text("NAME=of-dotenv\n")
    rows = shown(fabric)
    assert rows["max-age"]["value"] == "7d"
    assert rows["data"]["value"] == "/x/of-dotenv/${NAME}"
    assert rows["bind"]["value"] == ["ipc://s"]
    assert rows["max-messages"]["value"] == 5
    assert rows["allow-network-fs"]["value"] is True
    for name in ("AGE", "NAME", "SOCKET"):
        monkeypatch.setenv(name, "9h")
    rows = shown(fabric)
    assert (rows["max-age"]["value"], rows["data"]["value"], rows["bind"]["value"]) == (
        *("9h", "/x/9h/${NAME}", ["ipc://9h"]),
    )


def test_a_default_may_be_written_as_in_a_shell(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text('[hub]\ndata = "${DIR:-/var/lib/x}"\nbind = "ipc://${S:-}s"\n')
    rows = shown(fabric)
    assert (rows["data"]["value"], rows["bind"]["value"]) == ("/var/lib/x", ["ipc://s"])


def test_json(here: Path, fabric: Fabric) -> None:
    (here / "config.json").write_text('{"hub": {"max-age": "7d", "bind": ["ipc://a"], "drain": 2.5}}')
    rows = shown(fabric, "--config", "config.json")
    assert (rows["max-age"]["value"], rows["bind"]["value"], rows["drain"]["value"]) == ("7d", ["ipc://a"], "2500ms")
    assert rows["max-age"]["origin"] == "config.json: hub.max-age"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "config.json: it must be an object with names and values, not []"),
        ("{", "config.json: it is not JSON: Expecting"),
        ('{"hub": {"max-age": 1, "max-age": 2}}', "config.json: it is not JSON: 'max-age' is there twice"),
        ('{"hub": {"data": "\\ud800"}}', "config.json: hub.data: data: '\\ud800' is not allowed"),
        ('{"hub": {"\\ud800": 1}}', "there is no option '\\ud800' in [hub]"),
        ('{"hub": null}', None),
        ('{"hub": {"max-age": null}}', "config.json: hub.max-age: max-age: null is not allowed; allowed is a duration"),
        ('{"a":' * 5000, "config.json: its values are nested too deeply"),
        ("9" * 5000, "config.json: it is not JSON"),
    ],
)
def test_json_with_mistakes(here: Path, fabric: Fabric, text: str, says: str | None) -> None:
    (here / "config.json").write_text(text)
    result = fabric("config", "check", "config.json")
    assert result.exit_code == (0 if says is None else 2)
    assert says is None or says in result.stderr


def test_yaml_without_its_parser_says_what_to_install(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "application.yml").write_text("broker:\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = fabric("config", "check", "application.yml")
    assert result.exit_code == 2
    assert "run 'pip install pyyaml'" in result.stderr


def test_yaml(here: Path, fabric: Fabric) -> None:
    (here / "application.yml").write_text('{"hub": {"max-age": "7d"}}')
    assert shown(fabric, "--config", "application.yml")["max-age"]["value"] == "7d"
    (here / "application.yml").write_text("")
    assert shown(fabric, "--config", "application.yml")["max-age"]["value"] == 0
    (here / "application.yml").write_text("\t:")
    assert "application.yml: it is not YAML" in fabric("config", "check", "application.yml").stderr


def test_parts_that_maps_share_do_not_multiply(here: Path, fabric: Fabric) -> None:
    """Forty lines of YAML can stand for a billion names."""
    maps, lists = "m0: &m0 {x: 1}\n", "l0: &l0 [1]\n"
    for i in range(1, 41):
        maps += f"m{i}: &m{i} {{{', '.join(f'a{j}: *m{i - 1}' for j in range(10))}}}\n"
        lists += f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n"
    for text in (maps, f"{lists}hub: {{bind: *l40}}"):
        (here / "application.yml").write_text(text)
        assert fabric("config", "check", "application.yml").exit_code == 2


def test_an_error_in_yaml_has_its_line_and_no_secret(here: Path, fabric: Fabric) -> None:
    (here / "x.yml").write_text("a: 1\npassword: hunter2: x\n")
    said = fabric("config", "check", "x.yml").stderr
    assert said.startswith("error: x.yml: it is not YAML: mapping values are not allowed here (at line 2)\n")
    assert "hunter2" not in said


@pytest.mark.parametrize("text", ["hub:\n  quota: 1\n  quota: 2\n", "hub: {}\nhub: {}\n", "a: [{x: {b: 1, b: 1}}]\n"])
def test_a_name_that_is_twice_in_yaml_is_told(here: Path, fabric: Fabric, text: str) -> None:
    (here / "x.yaml").write_text(text)
    said = fabric("config", "check", "x.yaml").stderr
    assert re.match(r"error: x.yaml: it is not YAML: '(quota|hub|b)' is there twice\n", said)


def test_real_yaml(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "broker:\n  network:\n    port: ${BROKER_PORT:9092}\n  storage:\n    data-dir: ./data\n    type: mmap\n"
    (here / "application.yml").write_text(text)
    rows = shown(fabric, "--config", "application.yml")
    assert (rows["bind"]["value"], rows["data"]["value"]) == (["tcp://127.0.0.1:9092"], "data")
    for wrong in ("a: b: c", "? [a]\n: 1", "- a", "2026-99-99: 1", "a: &a [*a]", "!!python/object:os.system x"):
        (here / "application.yml").write_text(wrong)
        assert fabric("config", "check", "application.yml").exit_code == 2


# The commands.


def test_show_as_a_table(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text('[hub]\nmax-age = "7d"\n')
    said = fabric("config", "show", "--quota", "1GiB", "-o", "table").stdout
    assert said.startswith(f"files: {here}/fabric.toml\n")
    assert re.search(r"^max-age +7d +fabric.toml:2$", said, re.MULTILINE)
    assert re.search(r"^quota +1GiB +--quota$", said, re.MULTILINE)
    assert re.search(r"^max-bytes +keep +default$", said, re.MULTILINE)


def test_show_tells_which_hub_a_client_would_use(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(fabric("config", "show").stdout)["client"]["url"] == "tcp://127.0.0.1:7171"
    monkeypatch.setenv("FABRIC_URL", "ipc:///x")
    client = json.loads(fabric("config", "show").stdout)["client"]
    assert (client["url"], client["origin"]) == ("ipc:///x", "FABRIC_URL")


def test_show_tells_the_key_of_a_client_and_never_a_secret(
    here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(here / "home"))
    hub, own = new_pair(), new_pair()
    saved = Credentials("tcp://10.0.0.1:7171", hub.public, secret=own.secret, principal="billing")
    contexts.add("shop-eu", saved)
    contexts.add("shop-us", Credentials("tcp://10.0.0.2:7171"))
    client = json.loads(fabric("config", "show").stdout)["client"]
    file = str(here / "home/contexts/shop-eu.toml")
    assert client == {
        "url": "tcp://10.0.0.1:7171",
        "origin": "the context shop-eu",
        "context": "shop-eu",
        "credentials": file,
        "principal": "billing",
        "key": own.public,
        "encrypted": True,
        "unused": [],
        "error": None,
        "hint": None,
    }
    said = fabric("config", "show", "-o", "table").stdout
    assert f"encrypted as billing, with the key of {file}\n" in said
    assert own.secret not in said
    monkeypatch.setenv("FABRIC_CONTEXT", "shop-us")
    monkeypatch.setenv("FABRIC_URL", "fabric+curve:/10.0.0.3#k=x&c=CODE")  # a damaged link
    said = fabric("config", "show", "-o", "table").stdout
    assert "connects to fabric+curve:/10.0.0.3 (FABRIC_URL)\n" in said
    assert "FABRIC_CONTEXT (shop-us) has no effect: FABRIC_URL is set\n" in said
    assert "the current context (shop-eu) has no effect: FABRIC_URL is set\n" in said
    assert "CODE" not in said


def test_show_tells_why_a_client_cannot_connect(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_HOME", str(here / "home"))
    monkeypatch.setenv("FABRIC_CONTEXT", "missing")
    said = fabric("config", "show", "-o", "table").stdout
    why = "there is no context 'missing', and FABRIC_CONTEXT names it"
    assert f"a client that is started here cannot connect: {why}\nhint: " in said
    monkeypatch.delenv("FABRIC_CONTEXT")
    monkeypatch.setenv("FABRIC_SECRET_KEY", "not-a-key-and-secret")
    monkeypatch.setenv("FABRIC_URL", f"fabric+curve://10.0.0.1:7171/#k={link_form(new_pair().public)}")
    for words in (["-o", "table"], ["--json"]):
        result = fabric("config", "show", *words)
        assert "is not a key" in result.stdout
        assert "not-a-key-and-secret" not in result.output + result.stderr


def test_show_takes_no_other_options(fabric: Fabric) -> None:
    result = fabric("config", "show", "--nonsense")
    assert result.exit_code == 2
    assert "--nonsense" in result.stderr
    assert "see 'fabric hub --help'" in result.stderr


def test_check_of_a_good_file(here: Path, fabric: Fabric) -> None:
    (here / "fabric.toml").write_text('[hub]\nmax-age = "7d"\n[storage]\nfsync_on_write = true\n')
    result = fabric("config", "check", "-o", "table")
    assert (result.exit_code, result.stdout) == (0, "fabric.toml: ok; it sets max-age\n")
    assert "fabric.toml:4 has no effect: the hub always syncs" in result.stderr
    assert json.loads(fabric("config", "check", "--json").stdout)["options"] == ["max-age"]


def test_check_is_about_the_file_alone(here: Path, fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "fabric.toml").write_text("[hub]\n")
    monkeypatch.setenv("FABRIC_HUB_MAX_AGE", "nonsense")
    monkeypatch.setenv("QB_SERVER_PORT", "nonsense")
    assert fabric("config", "check", "fabric.toml", "-o", "table").stdout == "fabric.toml: ok; it sets nothing\n"


def test_check_without_a_file(fabric: Fabric) -> None:
    result = fabric("config", "check")
    assert result.exit_code == 2
    assert "there is no file to check" in result.stderr


def test_init_writes_a_file_that_sets_nothing(here: Path, fabric: Fabric) -> None:
    assert fabric("config", "init", "fabric.toml").exit_code == 0
    before = {name: row["value"] for name, row in shown(fabric, "--config", "none").items()}
    after = shown(fabric)
    assert {name: row["value"] for name, row in after.items()} == before
    assert {row["origin"] for row in after.values()} == {"default"}
    again = fabric("config", "init", "fabric.toml")
    assert again.exit_code == 6
    assert "fabric.toml exists already\nhint: --force replaces it" in again.stderr
    (here / "fabric.toml").write_text("x")
    assert fabric("config", "init", "fabric.toml", "--force").exit_code == 0
    assert (here / "fabric.toml").read_text() == fabric("config", "init").stdout


def test_the_file_of_init_has_every_option_with_its_default(here: Path, fabric: Fabric) -> None:
    assert HUB is not None
    bare = re.sub(r"^#(?! )", "", template(HUB, CONTEXT), flags=re.MULTILINE)
    parsed = tomllib.loads(bare)["hub"]
    assert list(parsed) == [key(option) for option in config.settings(HUB)]
    (here / "fabric.toml").write_text(bare)
    rows, defaults = shown(fabric), shown(fabric, "--config", "none")
    for option in config.settings(HUB):
        name = key(option)
        assert rows[name]["source"] == "file"
        assert defaults[name]["value"] in (None, rows[name]["value"])


@pytest.mark.parametrize("option", OPTIONS)
def test_a_shown_value_can_be_written_into_a_file(option: click.Option, here: Path) -> None:
    for value in values_for(option, here):
        first = converted(option, value, CONTEXT)
        assert converted(option, text_of(option, first), CONTEXT) == first


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Duration(), 0.0, 0),
        (Duration(), 604_800.0, "7d"),
        (Duration(), 5400.0, "90m"),
        (Duration(), 0.25, "250ms"),
        (Duration(), 0.00125, 0.00125),
        (Size(), 0, 0),
        (Size(), 4096, "4KiB"),
        (Size(), 50_000_000_000, "50GB"),
        (Size(), 1 << 30, "1GiB"),
        (Size(), 4097, 4097),
    ],
)
def test_values_are_shown_as_people_write_them(kind: Any, value: Any, text: Any) -> None:
    option = click.Option(["--x"], type=kind)
    assert text_of(option, value) == text
    assert converted(option, text, CONTEXT) == value


def test_another_command_has_a_table_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway later: the loader has no knowledge of the hub's options."""
    got: list[str] = []

    @click.command("gateway", cls=config.Configured)
    @config.config_options
    @click.option("--http", envvar="GATEWAY_HTTP", default="here")
    def gateway(http: str) -> None:
        got.append(http)

    monkeypatch.setattr(config, "SECTIONS", ["hub", "gateway"])
    (here / "fabric.toml").write_text('[hub]\nmax-age = "7d"\n[gateway]\nhttp = "there"\n')
    gateway.main([], standalone_mode=False)
    gateway.main(["--http", "typed"], standalone_mode=False)
    assert got == ["there", "typed"]
    assert HUB is not None
    assert HUB.make_context("hub", [], parent=TOP).params["max_age"] == 604_800.0


def test_the_reference_has_the_commands() -> None:
    assert {"fabric config show", "fabric config check", "fabric config init"} <= set(reference.helps())


# The page.

PAGE = reference.CONFIGURATION.read_text(encoding="utf-8")


def test_the_tables_of_the_page_are_fresh() -> None:
    assert reference.configured(PAGE) == PAGE, "run python docs/reference.py"


@pytest.mark.parametrize("text", re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
def test_files_of_the_page_are_right(here: Path, fabric: Fabric, text: str) -> None:
    (here / "fabric.toml").write_text(text)
    assert fabric("config", "check", "fabric.toml").exit_code == 0
