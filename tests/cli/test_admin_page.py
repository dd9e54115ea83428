"""docs/admin.md is run from top to bottom, and the output of each command is compared with the page."""

import re
import shlex
import time
from typing import Final

import click
import pytest

from tests.cli.conftest import Fabric
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

PAGE: Final = ROOT / "docs/admin.md"
EXIT: Final = re.compile(r"\(exit code (\d+)\)")
Step = tuple[str, list[str]]


def steps() -> list[Step]:
    """Commands, each with the lines that it is shown to write. `…` stands for anything."""
    found: list[Step] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("    $ fabric "):
            found.append((line.removeprefix("    $ fabric "), []))
        elif line.startswith("    ") and found and found[-1][1] is not None:
            found[-1][1].append(line[4:])
        elif line.strip():
            found.append(("", []))  # ends what the command before it shows
    return [step for step in found if step[0]]


def as_expression(lines: list[str]) -> str:
    """The shown lines, wide spaces aside; a line `…` is any number of lines."""
    parts = [r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r" *\n" for line in lines]
    return re.sub(r"(?:\\ )+", r" +", "".join(parts))


def test_the_page_is_true(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    assert len(steps()) > 30
    for command, shown in steps():
        code = next((int(found[1]) for line in shown if (found := EXIT.fullmatch(line))), 0)
        lines = [line for line in shown if not EXIT.fullmatch(line)]
        wanted = re.compile(as_expression(lines))

        end = time.monotonic() + PATIENCE_S  # the last verdict may still be on its way to the disk
        while True:
            result = talk(*shlex.split(command))
            said = click.unstyle(result.output).rstrip("\n") + "\n"
            if result.exit_code == code and wanted.fullmatch(said):
                break
            assert command.split()[1] == "list", f"fabric {command}\n{said}"
            assert time.monotonic() < end, f"fabric {command}\n{said}"
