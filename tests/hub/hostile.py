"""A hub process, a DEALER that sends any frames to it, and an ordinary client (the canary) that must be served."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import psutil
import zmq

from fabric_protocol import block as b
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.block import Block
from fabric_protocol.errors import Code
from tests.patience import PATIENCE_S

ROOT: Final = Path(__file__).parent.parent.parent
# Long enough for a machine that is busy with other tests; a test that passes does not wait for it.

SCRIPT: Final = """
import resource, sys
from fabric.hub.hub import Hub, HubOptions
from fabric.hub.serve import serve
from fabric.journal.journal import Limits
descriptors_max, limits, options = map(eval, sys.argv[2:])
if descriptors_max:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_max, descriptors_max))
hub = Hub(sys.argv[1], HubOptions(binds=["tcp://127.0.0.1:*"], drain_s=0.1, limits=Limits(**limits), **options))
print(hub.binds[0], flush=True)
sys.exit(serve(hub))
"""

Kind = TypeVar("Kind", bound="m.ToClient")


class HubProcess:
    def __init__(
        self, folder: Path, *, descriptors_max: int = 0, limits: dict[str, Any] | None = None, **options: Any
    ) -> None:
        paths = [str(ROOT), str(ROOT / "clients/python"), os.environ.get("PYTHONPATH", "")]
        self._log = (folder / "hub.log").open("w+")
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SCRIPT,
                str(folder / "journal"),
                *map(repr, (descriptors_max, limits or {}, options)),
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, f"the hub did not start: {self.log()}"
        self.port = int(self.url.rpartition(":")[2])

    def log(self) -> str:
        self._log.flush()
        return Path(self._log.name).read_text()[-2000:]

    def assert_alive(self) -> None:
        assert self._process.poll() is None, f"the hub died: {self.log()}"

    def rss_mb(self) -> float:
        return float(psutil.Process(self._process.pid).memory_info().rss) / 2**20

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()


class Peer:
    """A DEALER that says what it is told, well-formed or not."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        url: str,
        routing_id: bytes = b"",
        keys: tuple[str, str, str] | None = None,  # public, secret, and that of the hub
    ) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        if routing_id:
            self._socket.setsockopt(zmq.ROUTING_ID, routing_id)
        if keys is not None:
            for option, key in zip((zmq.CURVE_PUBLICKEY, zmq.CURVE_SECRETKEY, zmq.CURVE_SERVERKEY), keys, strict=True):
                self._socket.setsockopt(option, key.encode())
        self._socket.connect(url)
        self._rid = 100
        self._kept: deque[m.ToHub | m.ToClient] = deque()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def next_rid(self) -> int:
        self._rid += 1
        return self._rid

    def send_raw(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(list(frames))

    def send(self, message: m.ToHub | m.ToClient) -> None:
        self.send_raw(wire.encode(message))

    def receive(self, within_s: float = PATIENCE_S) -> m.ToHub | m.ToClient | None:
        """The next message from the hub, or None when none came."""
        if self._kept:
            return self._kept.popleft()
        if not self._socket.poll(max(int(within_s * 1000), 0)):
            return None
        return wire.decode(self._socket.recv_multipart())

    def until(self, kind: type[Kind], rid: int | None = None) -> Kind:
        """The next message of that kind (and rid). Others are kept for later; an error is never passed over."""
        deadline = time.monotonic() + PATIENCE_S
        passed: list[m.ToHub | m.ToClient] = []
        while True:
            message = self.receive(deadline - time.monotonic())
            assert message is not None, f"no {kind.__name__} came, but {passed}"
            if isinstance(message, kind) and (rid is None or getattr(message, "rid", None) == rid):
                self._kept.extendleft(reversed(passed))
                return message
            assert not isinstance(message, m.Err) or kind is m.Err, message
            passed.append(message)

    def refused(self, rid: int) -> Code:
        """The code of the error that answers rid."""
        return Code(self.until(m.Err, rid).code)

    def hello(self, **fields: Any) -> m.Welcome:
        rid = self.next_rid()
        self.send(m.Hello(rid, {"proto": 1, "client": "hostile", **fields}))
        return self.until(m.Welcome, rid)

    def still_served(self) -> None:
        """The session goes on: data-plane errors never close it."""
        rid = self.next_rid()
        self.send(m.Ping(rid))
        self.until(m.Pong, rid)


class Canary:
    """An ordinary client beside hostile peers: publishes, consumes and acks one message at a time."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._published = 0
        self._ordinal = 0
        peer.hello(producer={"name": "canary"}, hb_ms=60_000, ttl_ms=600_000)
        rid = peer.next_rid()
        fields = {"group": "canary", "patterns": ["canary.messages"], "credit": [1 << 40, 1 << 50], "lease_ms": 600_000}
        peer.send(m.Subscribe(1, rid, fields))
        peer.until(m.Ok, rid)

    def round_trip(self) -> None:
        """Publish a message, receive it and ack it."""
        self._published += 1
        payload = b"payload %d" % self._published
        rid, ack = self._peer.next_rid(), self._peer.next_rid()
        self._peer.send(m.Publish(rid, self._published, 0, b.encode("canary.messages", [payload])))
        delivered: m.Deliver | None = None
        confirmed = False
        while delivered is None or not confirmed:
            message = self._peer.receive()
            match message:
                case m.PubOk(_, confirms):
                    assert [(row[0], row[2]) for row in confirms] == [(rid, 1)]
                    confirmed = True
                case m.Deliver():
                    assert message.first_ordinal == self._ordinal + 1
                    delivered = message
                case m.Flow():
                    pass
                case other:
                    raise AssertionError(f"the canary received {other}")
        assert Block(delivered.block).payloads() == [payload]
        self._ordinal += 1
        self._peer.send(m.Settle(1, ack, ((m.Verdict.ACK, self._ordinal, self._ordinal, None),)))
        assert self._peer.until(m.Ok, ack).fields["applied"] == 1

    def counters(self) -> dict[str, int]:
        rid = self._peer.next_rid()
        self._peer.send(m.Info(rid, {"what": "counters"}))
        return dict(self._peer.until(m.Ok, rid).fields)

    def wait_for(self, counter: str, above: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.counters().get(counter, 0) <= above:
            assert time.monotonic() < deadline, f"{counter} did not go above {above}"
