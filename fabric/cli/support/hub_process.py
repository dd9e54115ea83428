"""A hub as a child process: starts, stops and kills it, and reads its CPU time and memory.

Used by the demo and the benchmark. The child ends with its parent, also when the parent is killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from fabric_protocol.errors import FabricError

ANY_PORT: Final = "tcp://127.0.0.1:*"
START_S: Final = 30.0  # enough on a busy machine
STOP_S: Final = 20.0
LOG_LINES_KEPT: Final = 50


def die_with(pipe_fd: int) -> None:
    """Kill this process when the other end of a pipe is closed: then its parent has ended."""

    def watch() -> None:
        # A thread that waits in sys.stdin would hold its lock, and the end of the program would hang.
        while os.read(pipe_fd, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def cpu_clock(pid: int) -> int:
    """The CPU clock of another process, for `time.clock_gettime`: Linux gives it this number."""
    return ~pid << 3 | 2


class Memory(NamedTuple):
    """Resident bytes. `mapped` are pages of the journal's file, which the kernel takes back when it needs memory."""

    own: int
    mapped: int


class HubProcess:
    """`fabric hub` in a process of its own. The hub is ready when `start` returns."""

    def __init__(self, data: Path, bind: str = ANY_PORT) -> None:
        self._data = data
        self._bind = bind
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._log: deque[str] = deque(maxlen=LOG_LINES_KEPT)
        self._known = threading.Event()  # the hub is ready or has failed
        self._is_up = False
        self.url = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> "HubProcess":
        """Start the hub; a second start uses the same address."""
        options = ["--data", str(self._data), "--bind", self.url or self._bind, "--drain", "0", "--log-format", "json"]
        options += ["--config", "none"]  # settings that are meant for another hub would falsify what this one shows
        self._known.clear()
        self._is_up = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fabric.cli.support.hub_process", "hub", *options, "--log-level", "info"],
            stdin=subprocess.PIPE,  # never written to: see die_with
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("FABRIC_HUB_")},
            start_new_session=True,  # Ctrl-C is for the parent, which stops the hub
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()
        if not self._known.wait(START_S) or not self._is_up:
            self.kill()
            raise FabricError("the hub did not start: " + " | ".join(self._log), "run 'fabric hub' to see why")
        return self

    def stop(self) -> int:
        """Drain the hub, or kill it after STOP_S; returns its exit code, 0 if it did not run."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._reap()

    def kill(self) -> None:
        """End the hub by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def cpu_s(self) -> float:
        """CPU seconds used so far, by all threads and by the children that have ended."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> Memory:
        sizes = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem"):
                sizes[name] = int(value.split()[0]) * 1024
        return Memory(sizes["RssAnon"] + sizes["RssShmem"], sizes["RssFile"])

    def __enter__(self) -> "HubProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _reap(self) -> int:
        assert self._process is not None
        code = self._process.wait()
        if self._reader is not None:
            self._reader.join()
        for pipe in (self._process.stdin, self._process.stderr):
            assert pipe is not None
            pipe.close()
        self._process = None
        return code

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        """Read the log to its end, so that the pipe is never full."""
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line.strip())
            event: dict[str, Any] = {}
            with contextlib.suppress(ValueError):
                event = json.loads(line)
            if event.get("event") == "hub ready":
                self.url = event["binds"].split(",")[0]
                self._is_up = True
                self._known.set()
        self._known.set()  # the hub has ended: `start` reports its log


if __name__ == "__main__":
    from fabric.cli import main

    die_with(sys.stdin.fileno())
    main(prog_name="fabric")
