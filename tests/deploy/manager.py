"""A service manager for tests: the datagram socket of NOTIFY_SOCKET, and a hub that is started as a service."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.patience import PATIENCE_S


class Manager:
    """Receives the messages of a service. An address with @ is an abstract name of Linux."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._services: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Manager":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for service in self._services:
            service.kill()
            service.wait(PATIENCE_S)
        self._socket.close()

    def start_hub(self, data: Path, *options: str, watchdog_s: float = 0.0) -> "subprocess.Popen[str]":
        environment = {**os.environ, "NOTIFY_SOCKET": self.address}
        if watchdog_s:
            environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        command = [sys.executable, "-m", "fabric", "hub", "--data", str(data), *options]
        if "--bind" not in options:
            command += ["--bind", f"ipc://{data}.sock"]
        with Path(f"{data}.log").open("w") as log:
            self._services.append(subprocess.Popen(command, env=environment, stderr=log, text=True))
        return self._services[-1]

    def receive(self, within_s: float = PATIENCE_S) -> dict[str, str]:
        """The next message; empty if none came in time."""
        self._socket.settimeout(within_s)
        try:
            text = self._socket.recv(65_536).decode()
        except TimeoutError:
            return {}
        pairs = dict(line.split("=", 1) for line in text.splitlines())
        assert len(pairs) == len(text.splitlines()), text
        return pairs

    def receive_with(self, name: str) -> dict[str, str]:
        """The next message with a line of this name."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if name in (message := self.receive()):
                return message
        raise AssertionError(f"no message with {name}")

    def forget(self) -> None:
        """Drop the messages that have arrived."""
        while self.receive(0.001):
            pass
