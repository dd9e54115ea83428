"""A model hub behind a CURVE socket, with a ZAP handler, principals and invitations: what a client sees of keys."""

import threading
from collections import deque
from typing import Any

import zmq
from zmq.utils import z85

from fabric_client import Credentials
from fabric_client.keys import KeyPair, new_pair
from fabric_client.links import Link
from fabric_protocol import messages as m
from fabric_protocol import wire
from fabric_protocol.errors import Code
from tests.clients.model_hub import ModelHub, Served

GUEST = "?"


class KeyedHub(ModelHub):
    """A model hub that knows which key each connection has proved."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, str] = {}  # key -> principal
        self.codes: dict[str, str] = {}  # open invitations: code -> principal
        self.keys: dict[bytes, str] = {}  # routing id -> key
        self.drop_answers = 0  # how many answers to ADMIN are lost

    def _hello(self, peer: bytes, message: m.Hello) -> None:
        key = self.keys.get(peer, "")
        if key not in self.known and not (self.codes and message.fields.get("enrol") is True):
            self._say(peer, m.Err(0, message.rid, Code.AUTH_FAILED, "this key is not known to the hub", {}))
            return
        super()._hello(peer, message)

    def _command(self, peer: bytes, session: Any, message: m.ToHub) -> None:
        key = self.keys.get(peer, "")
        match message:
            case m.Admin(rid, fields):
                answer = self._admin(key, dict(fields))
                if self.drop_answers:
                    self.drop_answers -= 1
                elif isinstance(answer, dict):
                    self._say(peer, m.Ok(0, rid, answer))
                else:
                    later = {"retry_ms": 60_000} if answer[0] == Code.BUSY else {}
                    self._say(peer, m.Err(0, rid, answer[0], answer[1], later))
            case m.Info(rid, fields) if fields.get("what") == "me":
                self._say(peer, m.Ok(0, rid, {"principal": self.known.get(key, GUEST), "role": "worker", "key": key}))
            case _ if key not in self.known:
                rid = getattr(message, "rid", 0)
                self._say(peer, m.Err(0, rid, Code.FORBIDDEN, "guests may enrol and nothing else", {}))
            case _:
                super()._command(peer, session, message)

    def _admin(self, key: str, fields: dict[str, Any]) -> dict[str, Any] | tuple[Code, str]:
        if fields["op"] == "keys.enrol":
            if key in self.known:
                return Code.CONFLICT, "this key is enrolled already"
            if fields["code"] not in self.codes:
                return Code.FORBIDDEN, "this code was used, or its time is over"
            self.known[key] = self.codes.pop(fields["code"])
            return {"principal": self.known[key], "role": "worker", "journal": b"J" * 16, "key": key}
        if fields["op"] == "keys.rotate":
            self.known[fields["key"]] = self.known.pop(key)
            return {"principal": self.known[fields["key"]], "key": fields["key"], "before": key}
        return Code.NOT_FOUND, "no such operation"


class CurveServed(Served):
    """A KeyedHub behind a CURVE socket. `hub.known` and `hub.codes` may be changed under `lock`."""

    hub: KeyedHub

    def __init__(self, hub_pair: KeyPair | None = None) -> None:
        self.pair = hub_pair or new_pair()
        self.zap_status = "200"
        self._told: deque[tuple[bytes, m.ToClient]] = deque()
        self.asked = 0  # handshakes that reached the ZAP handler
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._zap = context.socket(zmq.REP)
        self._zap.bind("inproc://zeromq.zap.01")
        self._zap_context = context
        self._zap_thread = threading.Thread(target=self._authenticate, daemon=True)
        self._closing = threading.Event()
        super().__init__(hub=KeyedHub())

    def _start(self) -> None:
        if self.context is not self._zap_context:
            self.context.destroy(0)
            self.context = self._zap_context
            self._zap_thread.start()
        super()._start()

    def _bind_when_free(self) -> None:
        socket = self._socket
        socket.setsockopt(zmq.ZAP_DOMAIN, b"fabric")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_PUBLICKEY, self.pair.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret.encode())
        super()._bind_when_free()

    def _authenticate(self) -> None:
        while not self._closing.is_set():
            if not self._zap.poll(20):
                continue
            frames = self._zap.recv_multipart()
            key = z85.encode(frames[6]).decode()
            with self.lock:
                self.asked += 1
                accepted = key in self.hub.known or self.hub.codes
                status = self.zap_status if accepted or self.zap_status != "200" else "400"
            user = key.encode() if status == "200" else b""
            self._zap.send_multipart([frames[0], frames[1], status.encode(), b"", user, b""])
        self._zap.close(0)

    def _serve(self) -> None:
        while not self._stop.is_set():
            while self._told:
                peer, told = self._told.popleft()
                self._socket.send_multipart([peer, *wire.encode(told)])
            if not self._socket.poll(20):
                continue
            first, *rest = self._socket.recv_multipart(copy=False)
            peer, message = first.bytes, wire.decode([frame.bytes for frame in rest])
            with self.lock:
                self.hub.keys[peer] = str(rest[0].get("User-Id"))
                answers = self.hub.step(peer, message)  # type: ignore[arg-type]
            for receiver, answer in answers:
                self._socket.send_multipart([receiver, *wire.encode(answer)])
        self._socket.close(0)

    def credentials(self, pair: KeyPair | None = None, *, name: str = "billing", known: bool = True) -> Credentials:
        """Credentials for this hub, which it knows or not."""
        pair = pair or new_pair()
        found = Credentials(self.url, self.pair.public, pair.public, pair.secret, name)
        if known:
            self.enrol(found)
        return found

    def enrol(self, found: Credentials) -> None:
        """Make a key known."""
        with self.lock:
            self.hub.known[found.public] = found.principal

    def invite(self, code: str = "c0de", name: str = "billing") -> str:
        """A link to join."""
        with self.lock:
            self.hub.codes[code] = name
        return Link(self.url, self.pair.public, code, name).text()

    def tell(self, peer: bytes, message: m.ToClient) -> None:
        """Send a message that no client has asked for."""
        self._told.append((peer, message))

    def revoke(self) -> None:
        """Forget all keys; live connections hear of it with their next command."""
        with self.lock:
            self.hub.known.clear()

    def close(self) -> None:
        self.stop()
        self._closing.set()
        self._zap_thread.join()
        self._zap_context.destroy(0)
