"""Two hosts on one machine: network namespaces with one cable between them, and no loopback in common.

They need root and the command `ip`. Tests that use them are skipped elsewhere, with the reason. The name of a namespace
has the process of its test run: what a killed run has left is removed by the next one.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.patience import PATIENCE_S

ROOT: Final = Path(__file__).parents[2]
PYTHON_PATH: Final = os.pathsep.join(map(str, (ROOT, ROOT / "clients/python", ROOT / "spark")))
_numbers: Final = count()


class Host(NamedTuple):
    """A network namespace with one address."""

    namespace: str
    address: str

    def start(self, *command: str, **how: Any) -> "subprocess.Popen[str]":
        """Start a program on this host."""
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **how.pop("env", {})}
        return subprocess.Popen(["ip", "netns", "exec", self.namespace, *command], env=environment, text=True, **how)

    def run(self, *command: str, **how: Any) -> "subprocess.CompletedProcess[str]":
        """Run a program on this host to its end."""
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)
        try:
            out, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def fabric(self, *arguments: str, **how: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command of Fabric on this host."""
        return self.run(sys.executable, "-m", "fabric", *arguments, **how)


class Network(NamedTuple):
    one: Host
    other: Host

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.one.namespace, "link", "set", "cable", "down")

    def mend(self) -> None:
        _ip("-n", self.one.namespace, "link", "set", "cable", "up")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def listed(*arguments: str) -> list[str]:
    """The first words of what `ip netns` prints."""
    done = subprocess.run(["ip", "netns", *arguments], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in done.stdout.splitlines()]


def sweep() -> None:
    """End the programs of test runs that were killed, and remove their namespaces."""
    for name in listed("list"):
        found = re.fullmatch(r"fabric-(\d+)-\d+-[ab]", name)
        if found is None or Path("/proc", found[1]).exists():
            continue
        for process in listed("pids", name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def network() -> Iterator[Network]:
    """Two hosts; skips the test where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("there is no command 'ip' to make network namespaces with")
    sweep()
    name = f"fabric-{os.getpid()}-{next(_numbers)}"
    hosts = Network(Host(f"{name}-a", "10.79.0.1"), Host(f"{name}-b", "10.79.0.2"))
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.namespace)
            ends = ("link", "add", "cable", "netns", hosts.one.namespace, "type", "veth")
            _ip(*ends, "peer", "name", "cable", "netns", hosts.other.namespace)
            for host in hosts:
                _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "cable")
                _ip("-n", host.namespace, "link", "set", "cable", "up")
                _ip("-n", host.namespace, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine does not allow network namespaces: {error.stderr.strip()}")
        yield hosts
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True, check=False)
