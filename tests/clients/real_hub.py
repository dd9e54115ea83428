"""Helpers for tests with a real hub, in this process or as a process of its own that can be killed."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fabric_client
from fabric.hub import Hub
from fabric_client import Client, Message
from tests.patience import PATIENCE_S


def another(hub: Hub, name: str = "another") -> Client:
    return fabric_client.connect("inproc://hub", context=hub.context, name=name)


@contextmanager
def running(work: Callable[[], object]) -> Iterator[None]:
    """Something that goes on meanwhile in a thread; its exception is raised at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def acked(fab: Client, *patterns: str, **how: Any) -> list[Message]:
    found = []
    for message in fab.consume(*patterns, **how):
        with message:
            found.append(message)
    return found


def free_port() -> int:
    """Below the range that the system gives out by itself: while the hub is away, a client's attempt to connect to a
    port of that range may get that very port, and meet itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class HubProcess:
    """`python -m fabric hub`, on a port that stays the same over restarts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "fabric", "hub", "--data", str(self._path / "data"), "--bind", self.url]
        path = os.pathsep.join(filter(None, [*sys.path, os.environ.get("PYTHONPATH", "")]))
        with (self._path / "hub.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path})

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def connect(hub_process: HubProcess) -> Client:
    return fabric_client.connect(hub_process.url, timeout=PATIENCE_S)
