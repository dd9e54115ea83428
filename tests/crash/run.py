"""Starts a hub, producers and consumers, kills them again and again, and runs the checker at the end."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, NamedTuple

import fabric_client
from fabric.journal.journal import Journal
from fabric.journal.tools.verify import verify_in_child
from fabric_protocol.block import Block
from tests.crash.checker import Found, Letter, Stored, Totals, Violation, check, totals
from tests.crash.history import digest, name_of, read_all
from tests.crash.worker import GAVE_UP
from tests.patience import PATIENCE_S

ROOT: Final = Path(__file__).parent.parent.parent
PAUSES_S: Final = ((0.05, 0.3), (0.3, 0.8), (0.6, 1.5))  # between deaths: some come while the hub is starting
GRACEFUL: Final = 0.15  # this share of the hub's deaths is a SIGTERM
CAST: Final[dict[str, dict[str, Any]]] = {
    "p0": {"role": "producer"},
    "p1": {"role": "producer"},
    "solo": {"role": "consumer", "group": "solo", "patterns": ["crash.#"], "alone": True, "picky": False},
    "team-a": {"role": "consumer", "group": "team", "patterns": ["crash.#"], "alone": False, "picky": False},
    "team-b": {"role": "consumer", "group": "team", "patterns": ["crash.#"], "alone": False, "picky": False},
    "picky": {"role": "consumer", "group": "picky", "patterns": ["crash.*.0"], "alone": True, "picky": True},
}
GROUPS: Final = {"solo": lambda topic: True, "team": lambda topic: True, "picky": lambda topic: topic.endswith(".0")}


class Outcome(NamedTuple):
    seed: int
    seconds: float
    deaths: Counter[str]
    totals: Totals
    violations: list[Violation]

    def __str__(self) -> str:
        deaths = ", ".join(f"{name} {count}" for name, count in sorted(self.deaths.items()))
        counts = ", ".join(f"{count} {name}" for name, count in self.totals._asdict().items())
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(v.kind for v in self.violations).items()) or "none"
        shown = "".join(f"\n  {v.kind}: {v.text}" for v in self.violations[:20])
        return f"seed {self.seed}, {self.seconds:.0f} s\ndeaths: {deaths}\n{counts}\nviolations: {kinds}{shown}"


class Stage:
    """One run in a folder: `journal`, and the histories in `logs`."""

    def __init__(self, folder: Path, sockets: Path, seed: int, hub: list[str]) -> None:
        self._folder, self._seed = folder, seed
        self.rng = random.Random(seed)
        self.url = f"ipc://{sockets}/hub"
        self._hub_command = [sys.executable, *hub, "hub", "--data", str(folder / "journal"), "--bind", self.url]
        self._hub_command += ["--drain", "1s"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._runs = 0
        self.deaths: Counter[str] = Counter()
        self.troubles: list[Violation] = []
        (folder / "logs").mkdir(parents=True)

    def start(self, slot: str) -> None:
        self._runs += 1
        paths = [str(ROOT), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")]
        command = self._hub_command
        if slot != "hub":
            log = self._folder / "logs" / f"{self._runs:06d}-{slot}.log"
            about = {"name": slot, "run": self._runs, "log": str(log), "url": self.url, "seed": self._seed}
            command = [sys.executable, "-m", "tests.crash.worker", json.dumps({**CAST[slot], **about})]
        with (self._folder / f"{slot}.err").open("ab") as errors:
            self._processes[slot] = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, stderr=errors
            )

    def kill(self, slot: str) -> None:
        process = self._processes.pop(slot)
        process.kill()
        process.wait()
        self.deaths[slot] += 1

    def stop(self, slot: str) -> None:
        """Ask it to end; it must end well."""
        process = self._processes.pop(slot)
        process.terminate()
        try:
            code = process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if code and code != -signal.SIGTERM:  # it had only just begun, and had no handler yet
            self._trouble(slot, code)

    def look(self) -> None:
        """Report processes that have ended by themselves, and start them again."""
        for slot, process in list(self._processes.items()):
            code = process.poll()
            if code is not None:
                del self._processes[slot]
                if code == GAVE_UP:
                    self.deaths["gave up"] += 1
                else:
                    self._trouble(slot, code)
                self.start(slot)

    def _trouble(self, slot: str, code: int) -> None:
        tail = (self._folder / f"{slot}.err").read_text(errors="replace")[-1500:]
        self.troubles.append(Violation("died", f"{slot} ended with {code}: {tail}"))

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()

    # The play.

    def play(self, seconds: float) -> None:
        for slot in ("hub", *CAST):
            self.start(slot)
        until = time.monotonic() + seconds
        while time.monotonic() < until and len(self.troubles) < 5:
            time.sleep(self.rng.uniform(*self.rng.choice(PAUSES_S)))
            self.look()
            slot = "hub" if self.rng.random() < 0.5 else self.rng.choice(list(CAST))
            if slot == "hub" and self.rng.random() < GRACEFUL:
                self.stop(slot)
                self.deaths["hub, drained"] += 1
            else:
                self.kill(slot)
            self.start(slot)

    def settle(self) -> None:
        """The killing is over: producers finish, and consumers must get through everything."""
        for slot, about in CAST.items():
            if about["role"] == "producer":
                self.stop(slot)
        self.kill("hub")  # with it end the sessions of consumers that were killed, which else hold their leases on
        self.start("hub")
        deadline = time.monotonic() + PATIENCE_S
        with fabric_client.connect(self.url, timeout=PATIENCE_S) as fab:
            while open_groups := _open_groups(fab):
                if time.monotonic() > deadline:
                    self.troubles.append(Violation("never settled", f"{open_groups}"))
                    break
                self.look()
                time.sleep(0.05)
        for slot in [slot for slot in self._processes if slot != "hub"]:
            self._processes.pop(slot).kill()
        self.stop("hub")


def _open_groups(fab: fabric_client.Client) -> list[dict[str, Any]]:
    """Groups with messages left; at first also groups that no consumer has opened yet."""
    groups = fab.info("groups", timeout=PATIENCE_S)["groups"]
    busy = [g for g in groups if g["behind"] or g["outstanding"] or g["redelivering"]]
    missing = set(GROUPS) - {g["group"] for g in groups}
    return busy + [{"group": name, "missing": True} for name in missing]


def find(path: Path) -> Found:
    """Read the journal from end to end."""
    report = verify_in_child(path)
    assert not report.findings, report.findings
    journal = Journal.open(path, create=False)
    firsts: list[int] = []
    counts: list[int] = []
    messages: list[Stored] = []
    letters: list[Letter] = []
    try:
        reader, seq, last = journal.reader(), journal.first_seq, journal.last_seq
        while seq <= last:
            block = reader.block_at(seq)
            assert isinstance(block, Block), f"seq {seq}: {block}"
            firsts.append(block.base_seq)
            counts.append(block.count)
            rows = zip(block.topic_names(), block.payloads(), block.headers(), strict=True)
            for at, (topic, body, headers) in enumerate(rows):
                if topic.startswith("$dlq."):
                    letters.append(Letter(topic.removeprefix("$dlq."), int(headers["fabric-seq"])))
                else:
                    messages.append(Stored(block.base_seq + at, name_of(body), digest(body), topic))
            seq = block.last_seq + 1
    finally:
        journal.close()
    return Found(firsts, counts, messages, letters)


def run(folder: Path, seconds: float, seed: int, hub: tuple[str, ...] = ("-m", "fabric")) -> Outcome:
    """One run; `hub` is what Python is told to start as the hub, so that a bad one can be tried."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fabric-") as sockets:  # the path of an ipc socket must be short
        stage = Stage(folder, Path(sockets), seed, list(hub))
        try:
            stage.play(seconds)
            stage.settle()
        finally:
            stage.end()
    histories = read_all(folder / "logs")
    found = find(folder / "journal")
    violations = stage.troubles + check(histories, found, GROUPS)
    return Outcome(seed, time.monotonic() - begun, stage.deaths, totals(histories, found), violations)
