"""Environment variables: every option has one, by one rule; a variable that no option reads is reported."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.core import ParameterSource

from docs import reference
from fabric.cli import main, variables
from fabric.cli.support.hub_process import HubProcess
from fabric.cli.support.values import Duration, Header, Moment, Position, Rate, Seq, Size
from fabric.cli.support.variables import OTHERS
from tests.cli.conftest import Fabric
from tests.cli.test_hub import read_until
from tests.test_house import ROOT

Start = Callable[..., "subprocess.Popen[bytes]"]
OPTIONS = [
    pytest.param(context, option, id=f"{context.command_path} {max(option.opts, key=len)}")
    for context in reference.commands(main, "fabric")
    for option in context.command.params
    if isinstance(option, click.Option) and option.expose_value
]
TEXTS: dict[type[Any], str] = {
    Duration: "7s",
    Rate: "7/min",
    Size: "64KB",
    Position: "seq:7",
    Moment: "2026-11-16T02:00Z",
    Seq: "7",
    Header: "a:b",
}


def text_for(option: click.Option) -> str:
    """What an option may be given, and what is not its default."""
    kind: Any = option.type
    if isinstance(kind, click.Choice):
        return str(kind.choices[-1])
    if isinstance(kind, click.IntRange):
        return str(int(kind.min or 0) + 1)
    if isinstance(kind, click.Path) and kind.exists:
        return "."
    return TEXTS.get(type(kind), "text")


def by_the_rule(path: str, option: click.Option) -> str:
    """As docs/cli.md says it."""
    return "_".join([*path.upper().split(), max(option.opts, key=len).lstrip("-").upper().replace("-", "_")])


@pytest.mark.parametrize(("context", "option"), OPTIONS)
def test_every_option_reads_its_variable(
    context: click.Context, option: click.Option, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = text_for(option)
    name = by_the_rule(context.command_path, option)
    monkeypatch.setenv(name, "1" if option.is_flag else text)
    words = [option.opts[0]] if option.is_flag else [option.opts[0], text]
    parsed, _, _ = context.command.make_parser(context).parse_args(words)
    value, source = option.consume_value(context, {})
    assert source is ParameterSource.ENVIRONMENT, name
    assert option.process_value(context, value) == option.process_value(context, parsed[option.name or ""])
    assert option.consume_value(context, parsed)[1] is ParameterSource.COMMANDLINE


def test_no_variable_has_two_meanings() -> None:
    assert len(variables(main)) == len(OPTIONS)
    assert not set(variables(main)) & set(OTHERS)


@pytest.mark.parametrize("values", ["a:b c:d", '"a: two words" c:d', ""])
def test_several_values_in_one_variable(talk: Fabric, monkeypatch: pytest.MonkeyPatch, values: str) -> None:
    monkeypatch.setenv("FABRIC_PUB_HEADER", values)
    assert talk("pub", "t", "x").exit_code == 0
    wanted = {"a:b c:d": '{"a": "b", "c": "d"}', '"a: two words" c:d': '{"a": "two words", "c": "d"}', "": "{}"}
    assert talk("get", "t", "-f", "%h").stdout == wanted[values]


def test_values_that_cannot_be_split_are_wrong_usage(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_PUB_HEADER", '"a:b')
    result = talk("pub", "t", "x")
    assert result.exit_code == 2
    assert "cannot be split into values" in result.stderr


def test_a_hub_listens_where_its_variable_says(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_HUB_BIND", f"ipc://{tmp_path}/one ipc://{tmp_path}/two")
    monkeypatch.setenv("FABRIC_HUB_DATA", str(tmp_path / "mine"))
    monkeypatch.setenv("FABRIC_DATA", str(tmp_path / "of-all"))
    process = start("hub")
    said = read_until(process, "hub ready")
    assert f"ipc://{tmp_path}/one" in said
    assert f"ipc://{tmp_path}/two" in said
    assert (tmp_path / "mine").is_dir()
    assert not (tmp_path / "of-all").exists()


def test_a_variable_has_the_name_of_the_command_whatever_was_typed(
    talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_GROUP_LIST_OUTPUT", "table")
    assert talk("groups", "ls").stdout == "there are no groups\n"


def test_the_command_line_goes_first_where_options_exclude_each_other(
    talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk("pub", "a", "x")
    monkeypatch.setenv("FABRIC_GET_OUTPUT", "json")
    assert talk("get", "a", "-f", "%v").stdout == "x"
    monkeypatch.setenv("FABRIC_GET_FORMAT", "%s")
    assert talk("get", "a", "-o", "raw").stdout == "x"
    assert talk("get", "a").exit_code == 2, "two variables that exclude each other"
    monkeypatch.setenv("FABRIC_GROUP_LIST_JSON", "1")
    assert talk("group", "list", "-o", "table").stdout == "there are no groups\n"


def test_a_hub_of_our_own_is_not_changed_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub of the demo and of the benchmark: a limit meant for another hub would falsify what they show."""
    monkeypatch.setenv("FABRIC_HUB_MAX_MESSAGES", "none of its business")
    with HubProcess(tmp_path / "journal"):
        pass


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("FABRIC_HUB_BINDS", "did you mean FABRIC_HUB_BIND?"),
        ("FABRIC_URI", "did you mean FABRIC_URL?"),
        ("FABRIC_XYZZY", "docs/cli.md lists the variables"),
    ],
)
def test_an_unknown_variable_is_told(fabric: Fabric, monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setenv(name, "x")
    result = fabric("--help")
    assert result.exit_code == 0
    assert result.stderr == f"warning: {name} is set, and no option reads it; {hint}\n"


def test_variables_that_kubernetes_sets_for_a_service_are_not_told(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pod beside a service called fabric-hub has them."""
    names = ["SERVICE_PORT", "SERVICE_PORT_ZMQ", "PORT", "PORT_7171_TCP", "PORT_7171_TCP_ADDR", "PORT_7171_TCP_PROTO"]
    for name in names:
        monkeypatch.setenv(f"FABRIC_HUB_{name}", "tcp://10.0.0.1:7171")
    assert fabric("--help").stderr.count("warning: FABRIC_HUB_") == len(names), "without a service they are mistakes"
    monkeypatch.setenv("FABRIC_HUB_SERVICE_HOST", "10.0.0.1")
    assert fabric("--help").stderr == ""
    monkeypatch.setenv("FABRIC_PORT", "7171")
    assert fabric("--help").stderr.startswith("warning: FABRIC_PORT is set, and no option reads it")


def test_known_variables_are_not_told(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OTHERS, "FABRIC_HUB_MAX_AGE"):
        monkeypatch.setenv(name, "0")
    assert fabric("--help").stderr == ""


def test_every_variable_of_the_project_is_known() -> None:
    files = [path for folder in ("fabric", "clients", "spark", "bench", "docs") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix in (".py", ".md")]
    named = {name for text in texts for name in re.findall(r"(?<![_\w])FABRIC_[A-Z_]*[A-Z](?![\w…])", text)}
    assert "FABRIC_URL" in named
    assert named - set(OTHERS) - set(variables(main)) == set()


def test_the_page_lists_all_variables() -> None:
    assert reference.PAGE.read_text(encoding="utf-8").endswith(reference.listed_variables()), "run make generated"
