"""Random configuration files and variables: each is read or refused with a sentence, never with a traceback."""

import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabric.cli import main
from fabric.cli.support import config
from fabric.cli.support.config_aliases import ALIASES
from fabric.cli.support.config_file import ConfigError, read_dotenv
from fabric.cli.support.config_values import key
from tests.cli.test_config import HUB, TOP, here

__all__ = ["here"]  # a fixture of that module

assert HUB is not None
NAMES = ["hub", *(key(option) for option in config.settings(HUB)), *(a.name for a in ALIASES if a.name), "hubb", "a"]
PARTS = sorted({part for name in NAMES for part in name.split(".")} | {"hub", "broker"})
WORDS = st.sampled_from(["7d", "1GB", "true", "${HOME}", "${X:5}", "${", "tcp://127.0.0.1:1", "\0", "\ud800", "9999"])
TEXTS = st.text(max_size=8) | WORDS
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
KEYS = st.sampled_from(PARTS) | st.text(max_size=5)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
LINES = st.lists(
    st.one_of(
        st.sampled_from(["[hub]", "[server]", "[broker.network]", "[[hub]]", "[hub", '"""', "#"]),
        st.builds("{} = {}".format, KEYS, SCALARS.map(lambda value: json.dumps(value)) | st.text(max_size=6)),
    ),
    max_size=8,
).map("\n".join)
CASES = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def started(*words: str) -> None:
    """Read the configuration as `fabric hub` does; a refusal is a sentence with exit code 2."""
    assert HUB is not None
    refusal = None
    try:
        HUB.make_context("hub", list(words), parent=TOP)
    except ConfigError as error:
        refusal = error
    if refusal is not None:
        assert refusal.exit_code == 2
        assert refusal.format_message().encode()  # it can be printed


@CASES
@given(tree=TREES)
def test_any_json(tree: Any, here: Path) -> None:
    (here / "x.json").write_text(json.dumps({"hub": tree} if not isinstance(tree, dict) else tree))
    started("--config", "x.json")
    (here / "x.json").write_text(json.dumps({"hub": tree, "broker": tree, "server": tree}))
    started("--config", "x.json")


@CASES
@given(text=LINES | st.text(max_size=60))
def test_any_toml(text: str, here: Path) -> None:
    (here / "fabric.toml").write_text(text, encoding="utf-8", errors="surrogatepass")
    started()


@CASES
@given(content=st.binary(max_size=200))
def test_any_bytes(content: bytes, here: Path) -> None:
    for name in ("fabric.toml", "x.json", ".env"):
        (here / name).write_bytes(content)
    read_dotenv(Path(".env"))
    started()
    started("--config", "x.json")


@CASES
@given(data=st.data())
def test_any_variables(data: st.DataObject, here: Path) -> None:
    assert HUB is not None
    own = [name for option in config.settings(HUB) for name in option.envvar or ()]
    names = st.sampled_from([*own, "FABRIC_ALIASES", *(alias.variable for alias in ALIASES if alias.variable)])
    texts = (st.text(max_size=8) | WORDS).filter(lambda text: "\0" not in text)
    given_names = data.draw(st.dictionaries(names, texts, max_size=6))
    try:
        encoded = {name: os.fsdecode(text.encode("utf-8", "surrogatepass")) for name, text in given_names.items()}
    except UnicodeError:
        return
    lines = "".join(f"{name}={text}\n" for name, text in given_names.items())
    with mock.patch.dict(os.environ, encoded):
        started()
        started("--aliases")
    (here / ".env").write_text(lines, encoding="utf-8", errors="surrogatepass")
    started("--aliases")
    (here / ".env").unlink()


@pytest.mark.parametrize("command", ["show", "check"])
@CASES
@given(tree=TREES)
def test_the_commands_print_what_they_read(tree: Any, here: Path, command: str) -> None:
    from click.testing import CliRunner

    (here / "x.json").write_text(json.dumps({"hub": tree}))
    words = ["config", "show", "--config", "x.json"] if command == "show" else ["config", "check", "x.json"]
    for output in ("json", "table"):
        result = CliRunner().invoke(main, [*words, "-o", output], prog_name="fabric")
        assert result.exit_code in (0, 2)
        assert "Traceback" not in result.output
