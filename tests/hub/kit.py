"""Hubs for tests: in a thread of the test, or in a process that can be signalled and killed."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import zmq

from fabric.journal.journal import Journal
from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from tests.hub.hostile import ROOT, Peer
from tests.patience import PATIENCE_S

# The child may be given limits before the hub starts, so it is a script and not the command line.
SCRIPT: Final = """
import resource, sys
from fabric.hub import log
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.serve import serve
from fabric.journal.journal import Limits
path, url, options, limits, file_bytes_max = sys.argv[1], sys.argv[2], *map(eval, sys.argv[3:])
log.set_up("text", "info")
hub = Hub(path, HubOptions(binds=[url], limits=Limits(**limits), **options))
if file_bytes_max:
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, file_bytes_max))
sys.exit(serve(hub))
"""


def eventually(what: Callable[[], object], text: str) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, f"never: {text}"
        time.sleep(0.01)


@contextmanager
def sockets() -> Iterator[Path]:
    """A folder with a short path, as ipc sockets need."""
    with tempfile.TemporaryDirectory(prefix="fabric-") as folder:
        yield Path(folder)


class Child:
    """A hub in a process, listening on an ipc socket. `start` it again as often as you like."""

    def __init__(self, folder: Path, socket_folder: Path) -> None:
        self.journal = folder / "journal"
        self.url = f"ipc://{socket_folder}/hub"
        self._errors = folder / "hub.err"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, file_bytes_max: int = 0, limits: dict[str, Any] | None = None, **options: Any) -> "Child":
        paths = [str(ROOT), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")]
        args = [str(self.journal), self.url, repr(options), repr(limits or {}), repr(file_bytes_max)]
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *args],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                stderr=errors,
            )
        return self

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None
        return self._process

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def errors(self) -> str:
        return self._errors.read_text(errors="replace")

    def anonymous_mb(self) -> float:
        """Memory of its own; pages of the journal's file that happen to be mapped do not count."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        return int(line.split()[1]) / 1024

    def __enter__(self) -> "Child":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class Talker(Peer):
    """A peer that says whole sentences."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", url: str, keys: tuple[str, str, str] | None = None
    ) -> None:
        super().__init__(context, url, keys=keys)
        self._seqs: dict[int, int] = {}  # of confirmed publishes, by rid

    def __enter__(self) -> "Talker":
        return self

    def subscribe(self, *patterns: str, chan: int = 1, credit: int = 1 << 30, **fields: Any) -> dict[str, Any]:
        rid = self.next_rid()
        request = {"credit": [credit, 1 << 40], **fields}
        if patterns:
            request["patterns"] = list(patterns)
        self.send(m.Subscribe(chan, rid, request))
        return dict(self.until(m.Ok, rid).fields)

    def publish(self, topic: str, *bodies: bytes, pseq: int = 0, level: int = 0) -> int:
        """The first seq."""
        rid = self.next_rid()
        self.send(m.Publish(rid, pseq, level, b.encode(topic, list(bodies))))
        return self.confirmed(rid)

    def confirmed(self, rid: int) -> int:
        while rid not in self._seqs:
            self._seqs |= {row[0]: row[1] for row in self.until(m.PubOk).confirms}
        return self._seqs.pop(rid)

    def take(self, count: int) -> list[tuple[int, bytes]]:
        """(ordinal, body) of the next deliveries; their ordinals follow each other."""
        rows: list[tuple[int, bytes]] = []
        while len(rows) < count:
            message = self.until(m.Deliver)
            block = Block(message.block)
            block.verify()
            block.verify_stamp()
            rows += enumerate(block.payloads(), message.first_ordinal)
        assert len(rows) == count
        assert [ordinal for ordinal, _ in rows] == list(range(rows[0][0], rows[0][0] + count))
        return rows

    def ack(self, first: int, last: int, chan: int = 1) -> dict[str, Any]:
        rid = self.next_rid()
        self.send(m.Settle(chan, rid, ((m.Verdict.ACK, first, last, None),)))
        return dict(self.until(m.Ok, rid).fields)

    def info(self, what: str, **fields: Any) -> dict[str, Any]:
        rid = self.next_rid()
        self.send(m.Info(rid, {"what": what, **fields}))
        return dict(self.until(m.Ok, rid).fields)

    def admin(self, op: str, **fields: Any) -> dict[str, Any]:
        rid = self.next_rid()
        self.send(m.Admin(rid, {"op": op, **fields}))
        return dict(self.until(m.Ok, rid).fields)


def talker(context: "zmq.Context[zmq.Socket[bytes]]", url: str, **hello: Any) -> Talker:
    peer = Talker(context, url)
    peer.hello(**{"hb_ms": 60_000, "ttl_ms": 600_000, **hello})
    return peer


def bodies_on_disk(path: Path) -> list[bytes]:
    """All payloads of a journal without a hub."""
    journal = Journal.open(path, create=False)
    try:
        reader, seq, bodies = journal.reader(), journal.first_seq, list[bytes]()
        while seq <= journal.last_seq:
            block = reader.block_at(seq)
            assert isinstance(block, Block), block
            bodies += block.payloads()
            seq = block.last_seq + 1
        return bodies
    finally:
        journal.close()
