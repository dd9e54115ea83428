"""`fabric completion`: the scripts, and bash with one of them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from tests.cli.conftest import Fabric
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("shell", "has"), [("bash", "complete -o nosort"), ("zsh", "#compdef fabric"), ("fish", "complete --no-files")]
)
def test_each_shell_has_its_script(fabric: Fabric, shell: str, has: str) -> None:
    result = fabric("completion", shell)
    assert (result.exit_code, result.stderr) == (0, "")
    assert has in result.stdout
    assert f"_FABRIC_COMPLETE={shell}_complete" in result.stdout


# What each shell does when TAB is pressed after the words in $@. In zsh the functions stand for the built-in ones that
# are allowed only while a person edits a line.
SCRIPTS = {
    "bash": (
        ["bash", "--norc", "-c"],
        'eval "$(fabric completion bash)"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))\n'
        '_fabric_completion fabric; printf "%s\\n" "${COMPREPLY[@]}"',
    ),
    "zsh": (
        ["zsh", "-f", "-c"],
        'autoload -Uz compinit; compinit -u -D; eval "$(fabric completion zsh)"; shift; words=($@) CURRENT=$#\n'
        "compadd() { print -rl -- ${(P)@[-1]} }; _describe() { print -rl -- ${${(P)@[-2]}%%:*} }; _fabric_completion",
    ),
    "fish": (
        ["fish", "--no-config", "-c"],
        'fabric completion fish | source; complete -C "$argv" | cut -f1',
    ),
}


OFFERED = {
    "fabric completion fi": ["fish"],
    "fabric sch": ["schedule"],
    "fabric hub --max-a": ["--max-age"],
    "fabric ctx use sh": ["shop-eu", "shop-us"],
    "fabric info --context shop-e": ["shop-eu"],
    "fabric group show bil": ["billing"],
    "fabric pub orders.c": ["orders.created"],
    "fabric pub x": ["x.plain"],
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_shell_completes_with_it(shell: str, tmp_path: Path, hub: HubProcess, fabric: Fabric) -> None:
    command, script = SCRIPTS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("shop-eu", "shop-us"):
        fabric("ctx", "add", name, "--url", hub.url)
    with fabric_client.connect(hub.url) as fab:
        fab.admin.groups.create("billing", "#")
        for topic in ("orders.created", "x.plain", "x.$(reboot)", "x.a:b", "x.a,b", "x.`reboot`", "x.?", "x.a;b"):
            fab.publish(topic, b"")
    program = tmp_path / "fabric"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fabric "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    python = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PATH": path, "PYTHONPATH": python}
    environment |= {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}  # fish makes a folder there
    for line, offered in OFFERED.items():
        words = [*command, script, *(["sh", "--"] if shell != "fish" else ["--"]), *line.split()]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        assert (done.stdout.split(), done.stderr) == (offered, ""), line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FABRIC_URL", "nonsense"),
        ("FABRIC_URL", "tcp://127.0.0.1:1"),
        ("FABRIC_URL", "tcp://192.0.2.1:7171"),
        ("FABRIC_URL", "tcp://missing.invalid:7171"),
        ("FABRIC_CONTEXT", "missing"),
        ("FABRIC_CREDENTIALS", "missing"),
        ("FABRIC_HOME", "/dev/null"),
        ("FABRIC_GROUP_SHOW_CONNECT_TIMEOUT", "nonsense"),
        ("FABRIC_NONSENSE", "x"),
    ],
)
def test_completion_that_cannot_be_is_silent(name: str, value: str) -> None:
    """A sentence in the middle of a line that is being typed would be worse than nothing."""
    environment = {**os.environ, name: value, "COMP_CWORD": "3", "_FABRIC_COMPLETE": "bash_complete"}
    for words in ("fabric group show x", "fabric keys show x"):
        done = subprocess.run(
            [sys.executable, "-m", "fabric"],
            env={**environment, "COMP_WORDS": words},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.parametrize(("words", "says"), [([], "bash, zsh, fish"), (["tcsh"], "'tcsh' is not one of 'bash'")])
def test_another_shell_is_wrong_usage(fabric: Fabric, words: list[str], says: str) -> None:
    result = fabric("completion", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr.splitlines()[0]
    assert "hint: see 'fabric completion --help'" in result.stderr
