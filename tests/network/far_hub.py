"""`fabric hub` on one host, its log, the commands of its owner, and programs on the other host."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any, Final

import fabric_client
from fabric_client import Client
from tests.hub.kit import eventually
from tests.network.namespaces import Host, Network, network
from tests.patience import PATIENCE_S

PORT: Final = 7171  # each host has all ports for itself


class FarHub:
    """A hub that listens to the network, and two machines that have contexts of their own."""

    def __init__(self, hosts: Network, folder: Path, *options: str) -> None:
        self.hosts = hosts
        self.folder = folder
        self.data = folder / "data"
        self.url = f"tcp://{hosts.one.address}:{PORT}"
        self._log = folder / "hub.log"
        self._options = options
        self.process = self.start()

    def start(self) -> "Popen[str]":
        """Start the hub, also again after it was killed."""
        before = len(self.events("hub ready"))
        words = ("--bind", f"tcp://0.0.0.0:{PORT}", "--data", str(self.data), "--drain", "0", "--config", "none")
        with self._log.open("a") as log:
            self.process = self.hosts.one.start(
                sys.executable, "-m", "fabric", "hub", *words, "--log-format", "json", *self._options, stderr=log
            )
        eventually(
            lambda: len(self.events("hub ready")) > before or self.process.poll() is not None, "the hub is ready"
        )
        assert self.process.poll() is None, self._log.read_text()
        return self.process

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log that have this name."""
        text = self._log.read_text() if self._log.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be written now
        rows = (json.loads(line) for line in whole.splitlines() if line.startswith("{"))
        return [row for row in rows if row["event"] == name]

    def audited(self, **wanted: Any) -> None:
        """Wait for a line of the audit that has these fields."""
        self.heard(lambda row: wanted.items() <= row.items())

    def heard(self, matches: Callable[[dict[str, Any]], bool]) -> None:
        """Wait for a line of the audit."""
        eventually(lambda: any(map(matches, self.events("audit"))), "the audit has it")

    def keys(self, *words: str) -> "CompletedProcess[str]":
        """A command of the owner of the data folder."""
        return self.on(self.hosts.one, "keys", *words, "--data", str(self.data))

    def link(self, name: str, role: str = "client") -> str:
        """The link of a new invitation."""
        invited = self.keys("invite", name, "--role", role, "--address", f"{self.hosts.one.address}:{PORT}")
        (found,) = re.findall(r"^fabric join '(fabric\+curve://[^']+)'$", invited.stdout, re.MULTILINE)
        return str(found)

    def on(self, host: Host, *words: str, home: str = "", **how: Any) -> "CompletedProcess[str]":
        """A command on a host, with the contexts of that host or of another home."""
        return host.fabric(*words, env=self.home(home or host.namespace), cwd=self.folder, **how)

    def far(self, *words: str, home: str = "") -> "CompletedProcess[str]":
        """A command on the host that is not the hub's."""
        return self.on(self.hosts.other, *words, home=home)

    def home(self, name: str) -> Mapping[str, str]:
        return {"FABRIC_HOME": str(self.folder / f"home-{name}")}

    def context(self, name: str) -> Path:
        """The file of a context on the host that is not the hub's."""
        return Path(self.home(self.hosts.other.namespace)["FABRIC_HOME"], "contexts", f"{name}.toml")

    def owner(self) -> Client:
        """A client of the owner of the data folder."""
        return fabric_client.connect(f"ipc://{self.data}/hub.sock", timeout=PATIENCE_S)


@contextmanager
def far_hub(folder: Path, *options: str) -> Iterator[FarHub]:
    with network() as hosts:
        hub = FarHub(hosts, folder, *options)
        try:
            yield hub
        finally:
            hub.stop()


def lines_until(process: "Popen[str]", enough: Callable[[list[str]], bool]) -> list[str]:
    """Lines that a program prints, until there are enough."""
    assert process.stdout is not None
    found: list[str] = []
    while not enough(found):
        line = process.stdout.readline()
        assert line, f"the program has ended: {found[-3:]}"
        found.append(line.strip())
    return found
