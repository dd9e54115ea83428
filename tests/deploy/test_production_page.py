"""docs/production.md is followed from top to bottom. `systemctl` stops and starts the hub of the test.

Commands for docker, kubectl and the system are not run: files that they name exist, and the command line understands
what they let `fabric` do.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests import pages
from tests.test_house import ROOT

PAGE: Final = ROOT / "docs/production.md"
STEPS: Final = [step for step in pages.steps(PAGE) if step.kind == "shell"]
OF_THE_SYSTEM: Final = re.compile(
    r"(docker|kubectl|python3|install|systemd-sysusers|systemctl|chown|/opt/fabric/bin)\b"
)
UNIT: Final = re.compile(r"systemctl (start|stop|restart) fabric-hub")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    with HubProcess(tmp_path / "fabric-data") as hub:
        yield hub


def test_the_page_can_be_followed(hub: HubProcess, tmp_path: Path) -> None:
    place = pages.Place(tmp_path, hub.url)
    (tmp_path / "mnt/backup").mkdir(parents=True)
    is_running, ran = True, 0
    for step in STEPS:
        if unit := UNIT.fullmatch(step.text):
            if unit[1] != "start" and is_running:
                assert hub.stop() == 0
            if unit[1] != "stop" and (not is_running or unit[1] == "restart"):
                hub.start()
            is_running = unit[1] != "stop"
        elif not OF_THE_SYSTEM.match(step.text):
            place.run(step)
            ran += 1
    assert is_running, "the page leaves the hub running"
    assert ran >= 20


def understood(words: list[str]) -> None:
    """The command line reads these words of a command; nothing is run."""
    context = click.Context(main, info_name="fabric")
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.make_context(command.name, list(words), parent=context.parent)


@pytest.mark.parametrize("text", [step.text for step in STEPS if OF_THE_SYSTEM.match(step.text)])
def test_a_command_of_the_system_names_what_exists(text: str) -> None:
    for name in re.findall(r"(?<!\S)(deploy/\S+|\./clients/python)", text):
        assert (ROOT / name).exists() or "/secrets/" in name, name
    if inner := re.search(r"(?:exec hub|--) fabric (.*)$", text):
        understood(shlex.split(inner[1]))


def test_both_kinds_of_commands_are_found() -> None:
    texts = [step.text for step in STEPS]
    assert sum(bool(UNIT.fullmatch(text)) for text in texts) >= 6
    assert any(re.search("exec hub fabric keys create", text) for text in texts)
    with pytest.raises(click.UsageError):
        understood(["check", "--no-such-option"])
