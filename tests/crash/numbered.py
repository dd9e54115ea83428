"""A numbered source and its hub are killed with -9 again and again; each position must be stored once, in order.

    python -m tests.crash.numbered --kills 200

The source counts positions that jump. It keeps nothing: after each death it asks the hub for its position. With
`--control` it publishes without numbers and keeps its place in a file, as programs do without numbered sources. Then
some positions are stored twice, and the check must find them.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import fabric_client
from fabric_client.errors import ConnectionLost
from tests.crash.run import ROOT
from tests.hub.kit import bodies_on_disk
from tests.patience import PATIENCE_S

SOURCE: Final = "counter:positions"
TOPIC: Final = "numbered"
BATCH: Final = 40  # messages between two flushes
PAUSE_S: Final = 0.3  # before a death, at most
EARLY_SHARE: Final = 0.25  # of the deaths that come while a process may still be starting; others wait for a flush
FLUSH_S: Final = 20.0  # so long, at most
HUB_SHARE: Final = 0.5  # of the deaths


def position(k: int) -> int:
    """The position of message k, from 1 on: it rises, and jumps."""
    return 7 * k + k * k % 5


def index_of(at: int) -> int:
    """Which message is the last one at or below a position."""
    k = max(at // 7 - 2, 0)
    while position(k + 1) <= at:
        k += 1
    return k if at else 0


class Stopped(BaseException):
    """SIGTERM has arrived. It may come within a call that handles every Exception."""


def publish(url: str, note: Path, *, control: bool) -> None:
    """Publish positions until the process is stopped or killed. The control keeps its place in the file `note`; for
    the others it only shows that they get on."""
    with fabric_client.connect(url, source=None if control else SOURCE, timeout=PATIENCE_S) as fab:
        k = index_of((int(note.read_text() or 0) if note.exists() else 0) if control else fab.position)
        while True:
            for _ in range(BATCH):
                k += 1
                if control:
                    fab.publish_nowait(TOPIC, b"%d" % position(k))
                else:
                    fab.publish_numbered_nowait(position(k), TOPIC, b"%d" % position(k))
            fab.flush(PATIENCE_S)
            note.write_text(str(position(k)))


class Outcome(NamedTuple):
    seed: int
    deaths: Counter[str]
    stored: int
    twice: list[int]
    missing: list[int]
    disordered: bool

    @property
    def is_good(self) -> bool:
        return not (self.twice or self.missing or self.disordered)

    def __str__(self) -> str:
        deaths = ", ".join(f"{name} {count}" for name, count in sorted(self.deaths.items()))
        order = "not in order" if self.disordered else "in order"
        twice, missing = f"{len(self.twice)} twice {self.twice[:5]}", f"{len(self.missing)} missing {self.missing[:5]}"
        return f"seed {self.seed}, deaths: {deaths}\n{self.stored} stored, {twice}, {missing}, {order}"


class Stage:
    def __init__(self, folder: Path, sockets: Path, *, control: bool) -> None:
        self.journal = folder / "journal"
        self._folder = folder
        self._note = folder / "note"
        url = f"ipc://{sockets}/hub"
        hub = ["fabric", "hub", "--data", str(self.journal), "--bind", url, "--drain", "1s"]
        source = ["tests.crash.numbered", "--source", url, "--note", str(self._note)]
        self._commands = {"hub": hub, "source": [*source, *(["--control"] if control else [])]}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, slot: str) -> None:
        paths = [str(ROOT), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")]
        with (self._folder / f"{slot}.err").open("ab") as errors:
            self._processes[slot] = subprocess.Popen(
                [sys.executable, "-m", *self._commands[slot]],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stdout=errors,
                stderr=errors,
            )

    def kill(self, slot: str) -> None:
        self._processes[slot].kill()
        self._processes.pop(slot).wait()

    def stop(self, slot: str) -> None:
        self._processes[slot].terminate()
        self._processes.pop(slot).wait(PATIENCE_S)

    def await_flush(self) -> None:
        """Wait until the source has flushed something."""
        before, deadline = self._noted(), time.monotonic() + FLUSH_S
        while self._noted() == before and time.monotonic() < deadline:
            time.sleep(0.01)

    def _noted(self) -> str:
        return self._note.read_text() if self._note.exists() else ""

    def look(self, control: bool) -> None:
        """A source does not end by itself; the control gives up when the hub was away for long."""
        code = self._processes["source"].poll()
        if code is not None:
            tail = (self._folder / "source.err").read_text(errors="replace")[-1500:]
            assert control, f"the source ended with {code}: {tail}"
            self.start("source")

    def end(self) -> None:
        for slot in list(self._processes):
            self.kill(slot)


def run(folder: Path, kills: int, seed: int, *, control: bool = False) -> Outcome:
    """Kill hub and source so many times, let the source finish, and compare the journal with the positions."""
    rng, deaths = random.Random(seed), Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fabric-") as sockets:
        stage = Stage(folder, Path(sockets), control=control)
        try:
            for slot in ("hub", "source"):
                stage.start(slot)
            for _ in range(kills):
                if rng.random() >= EARLY_SHARE:
                    stage.await_flush()
                time.sleep(rng.uniform(0.0, PAUSE_S))
                stage.look(control)
                slot = "hub" if rng.random() < HUB_SHARE else "source"
                stage.kill(slot)
                deaths[slot] += 1
                stage.start(slot)
            stage.await_flush()
            stage.stop("source")
            stage.stop("hub")
        finally:
            stage.end()
    stored = [int(body) for body in bodies_on_disk(stage.journal)]
    assert stored, "the machine is too slow to say anything"
    counts = Counter(stored)
    expected = [position(k) for k in range(1, index_of(max(stored)) + 1)]
    twice = sorted(at for at, count in counts.items() if count > 1)
    missing = [at for at in expected if at not in counts]
    return Outcome(seed, deaths, len(stored), twice, missing, stored != sorted(stored))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.numbered", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--control", action="store_true", help="publish without numbers")
    parser.add_argument("--source", help=argparse.SUPPRESS)
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.source:

        def stop(number: int, frame: FrameType | None) -> None:
            raise Stopped

        signal.signal(signal.SIGTERM, stop)
        try:
            publish(options.source, options.note, control=options.control)
        except (Stopped, ConnectionLost):
            return 0
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="fabric-crash-") as scratch:
        outcome = run(Path(scratch), options.kills, options.seed, control=options.control)
    print(outcome)
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
