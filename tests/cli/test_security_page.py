"""docs/security.md is followed from top to bottom: two machines are two folders, and the hub is one on loopback."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fabric.access.keys import open_hub_key
from fabric.cli.support.hub_process import HubProcess
from tests.pages import EXIT, expression
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

PAGE: Final = ROOT / "docs/security.md"
PROMPT: Final = re.compile(r"    (hub|app)\$ (.*)")
# As a terminal shows it, which is what a page shows.
TABLES: Final = ("JOIN", "CTX_ADD", "CTX_LIST", "KEYS_SHOW", "KEYS_ROTATE", "KEYS_REVOKE", "GROUP_LIST", "INFO")
OUTPUTS: Final = {f"FABRIC_{name}_OUTPUT": "table" for name in TABLES}
Step = tuple[str, str, list[str]]


def steps() -> list[Step]:
    """Machine, command, and the lines that it is shown to write."""
    found: list[Step] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if prompt := PROMPT.fullmatch(line):
            found.append((prompt[1], prompt[2], []))
        elif line.startswith("    ") and found and found[-1][0]:
            found[-1][2].append(line[4:])
        else:
            found.append(("", "", []))  # ends what the command before it shows
    return [step for step in found if step[0]]


class Machines:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._host, _, self._port = url.removeprefix("tcp://").rpartition(":")
        self._link = ""
        command = folder / "bin" / "fabric"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m fabric "$@"\n')
        command.chmod(0o755)
        for machine in ("hub", "app"):
            (folder / machine).mkdir(exist_ok=True)

    def here(self, text: str) -> str:
        """A command or a line of output, with the address of the test."""
        return text.replace("hub-1:7171", f"{self._host}:{self._port}")

    def typed(self, command: str) -> str:
        """A command as a person types it: with the link that was printed."""
        return self.here(re.sub(r"fabric join '.*?'", f"fabric join '{self._link}' --context hub-1", command))

    def run(self, machine: str, command: str) -> "subprocess.CompletedProcess[str]":
        home = str(self._folder / f"home-{machine}")
        path = os.pathsep.join((str(self._folder / "bin"), os.environ["PATH"]))
        python = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
        done = subprocess.run(
            ["bash", "-c", self.typed(command)],
            cwd=self._folder / machine,
            env={**os.environ, **OUTPUTS, "PATH": path, "PYTHONPATH": python, "FABRIC_HOME": home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if link := re.search(r"^fabric join '(.*)'$", done.stdout, re.MULTILINE):
            self._link = re.sub(r"//[^/]+/", f"//{self._host}:{self._port}/", link[1])
        for file in (self._folder / "hub").glob("*.cred"):
            (self._folder / "app" / file.name).write_bytes(file.read_bytes())  # a person carries it
            (self._folder / "app" / file.name).chmod(0o600)
        return done


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    data = tmp_path / "hub" / "fabric-data"
    data.mkdir(mode=0o700, parents=True)
    open_hub_key(data)
    with HubProcess(data) as hub:
        yield Machines(tmp_path, hub.url)


def test_the_page_can_be_followed(machines: Machines) -> None:
    assert len(steps()) > 12
    for machine, command, shown in steps():
        if command.startswith("fabric hub "):
            continue
        code = next((int(found[1]) for line in shown if (found := EXIT.fullmatch(line))), 0)
        done = machines.run(machine, command)
        assert done.returncode == code, f"{command}\n{done.stdout}"
        lines = [machines.here(line) for line in shown if not EXIT.fullmatch(line)]
        if "keys invite" in command or "keys create" in command:
            lines.append("…")  # the hub is on loopback here, and the command notes it
        said = done.stdout.rstrip("\n") + "\n"
        assert not lines or expression(lines).fullmatch(said), f"{command}\n{said}"
