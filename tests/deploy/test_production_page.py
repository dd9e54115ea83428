"""docs/production.md is followed from top to bottom. `systemctl` stops and starts the hub of the test, which has keys.

A new machine is an empty data folder; the hub before was killed. Commands for docker, kubectl and the system are not
run: files that they name exist, and the command line understands what they let `fabric` do.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

import fabric_client
from fabric.access.keys import open_hub_key
from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests import pages
from tests.hub.kit import sockets
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

PAGE: Final = ROOT / "docs/production.md"
STEPS: Final = [step for step in pages.steps(PAGE) if step.kind == "shell"]
OF_THE_SYSTEM: Final = re.compile(
    r"(docker|kubectl|python3|ln|mkdir|install|systemd-sysusers|systemctl|chown|export|/opt/fabric/bin)\b"
)
ADDRESS: Final = "export FABRIC_URL=ipc:///var/lib/fabric/hub.sock"
NEW_MACHINE: Final = "install -d -m 0700 -o fabric -g fabric /var/lib/fabric"
UNIT: Final = re.compile(r"systemctl (start|stop|restart) fabric-hub")


@pytest.fixture
def folder() -> Iterator[Path]:
    with sockets() as folder:
        yield folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubProcess]:
    (folder / "fabric-data").mkdir()
    open_hub_key(folder / "fabric-data")
    # No other program takes the port of this address while the hub is stopped.
    with HubProcess(folder / "fabric-data", bind="tcp://127.0.0.2:*") as hub:
        yield hub


def test_the_page_can_be_followed(hub: HubProcess, folder: Path) -> None:
    place = pages.Place(folder, f"ipc://{folder}/fabric-data/hub.sock")
    (folder / "mnt/backup").mkdir(parents=True)
    credentials = folder / "billing.cred"
    create = f"fabric keys create billing --role client --address {hub.url.removeprefix('tcp://')} -o {credentials}"
    place.run(pages.Step("shell", create))
    is_running, ran = True, 0
    for step in STEPS:
        if unit := UNIT.fullmatch(step.text):
            if unit[1] != "start" and is_running:
                assert hub.stop() == 0
            if unit[1] != "stop" and (not is_running or unit[1] == "restart"):
                hub.start()
                publish(credentials)
            is_running = unit[1] != "stop"
        elif step.text == NEW_MACHINE:
            hub.kill()
            is_running = False
            shutil.rmtree(folder / "fabric-data")
            (folder / "fabric-data").mkdir(mode=0o700)
        elif not OF_THE_SYSTEM.match(step.text):
            place.run(step)
            ran += 1
    assert is_running, "the page leaves the hub running"
    assert ran >= 20


def publish(credentials: Path) -> None:
    """A client that has joined the hub before trusts it, and has its rights."""
    with fabric_client.connect(credentials=credentials, timeout=PATIENCE_S) as fab:
        fab.publish("orders.created", b"1", timeout=PATIENCE_S)


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
        assert (ROOT / name).exists() or "/secrets" in name, name
    if inner := re.search(r"(?:exec hub|--) fabric (.*)$", text):
        understood(shlex.split(inner[1]))


def test_each_secret_of_compose_is_made() -> None:
    text = PAGE.read_text(encoding="utf-8")
    workers = (ROOT / "deploy/compose/hub-and-workers.yml").read_text(encoding="utf-8")
    secrets = re.findall(r"(\w+)\.cred$", workers, re.MULTILINE)
    assert len(secrets) == 2
    for name in secrets:
        assert f"hub fabric keys create {name} " in text
        assert f"deploy/compose/secrets/{name}.cred" in text


def test_both_kinds_of_commands_are_found() -> None:
    texts = [step.text for step in STEPS]
    assert {ADDRESS, NEW_MACHINE} <= set(texts)
    assert sum(bool(UNIT.fullmatch(text)) for text in texts) >= 6
    assert any(re.search("exec hub fabric keys create", text) for text in texts)
    with pytest.raises(click.UsageError):
        understood(["check", "--no-such-option"])
