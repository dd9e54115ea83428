"""A real hub in a process of its own, and the command line run in this process or in another."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests.patience import PATIENCE_S

Fabric = Callable[..., Result]


def wait_until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("FABRIC_") and name != "FABRIC_SEED"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FABRIC_HOME", str(tmp_path / "home"))  # contexts


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    running = HubProcess(tmp_path / "journal")
    with running:
        yield running


@pytest.fixture
def fabric() -> Fabric:
    """Runs a command in this process."""

    def run(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=stdin, prog_name="fabric")

    return run


@pytest.fixture
def talk(hub: HubProcess, monkeypatch: pytest.MonkeyPatch, fabric: Fabric) -> Fabric:
    """Runs a command in this process, with a hub to talk to."""
    monkeypatch.setenv("FABRIC_URL", hub.url)
    return fabric


@pytest.fixture
def start() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Starts a command in a process of its own; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "fabric", *arguments]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
