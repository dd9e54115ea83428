"""`fabric completion`: the scripts, and bash with one of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_bash_completes_with_it(tmp_path: Path) -> None:
    command = tmp_path / "fabric"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fabric "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(fabric completion bash)"\n'
        "COMP_WORDS=(fabric completion fi) COMP_CWORD=2; _fabric_completion fabric; echo ${COMPREPLY[@]}\n"
        "COMPREPLY=() COMP_WORDS=(fabric sch) COMP_CWORD=1; _fabric_completion fabric; echo ${COMPREPLY[@]}\n"
    )
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    python = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": path, "PYTHONPATH": python},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.split() == ["fish", "schedule"]


@pytest.mark.parametrize(("words", "says"), [([], "bash, zsh, fish"), (["tcsh"], "'tcsh' is not one of 'bash'")])
def test_another_shell_is_wrong_usage(fabric: Fabric, words: list[str], says: str) -> None:
    result = fabric("completion", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr.splitlines()[0]
    assert "hint: see 'fabric completion --help'" in result.stderr
