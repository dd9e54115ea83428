"""ZapHandler decides which keys may connect: ZeroMQ asks it in each CURVE handshake, before a frame is received.

ZeroMQ asks by a socket of a fixed name inside of the process (RFC 27), one question for each handshake. The handler has
a thread of its own, so that a long turn of the hub delays no handshake. It reads `KeyView` alone, which is immutable.

A socket without a handler lets every key in. So the handler is bound before any address, the sockets have a domain with
ZAP_ENFORCE_DOMAIN, and the hub ends when the thread of the handler ends.

The answer has a user id: a random text of this process, then the key. The random text proves that the handler has
written the user id: ZeroMQ passes a user id that a client without a key has put into its own handshake, too.
"""

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from fabric.access.book import KeyView
from fabric.access.keys import KEY_BYTES
from fabric_protocol.errors import FabricError

ADDRESS: Final = "inproc://zeromq.zap.01"  # ZeroMQ has no other
DOMAIN: Final = b"fabric"
VERSION: Final = b"1.0"
REFUSALS_MAX: Final = 1_000  # that wait for the hub's loop; the oldest are dropped
ADDRESS_CHARS_MAX: Final = 100
STAMP_BYTES: Final = 16

# version, request id, domain, address, routing id, mechanism, then the credentials: one key
_HEAD: Final = 6
_CURVE_FRAMES: Final = 7

Answer = tuple[bytes, bytes, bytes]  # status, text, user id
ACCEPTED: Final = b"200"
TRY_AGAIN: Final = b"300"
REFUSED: Final = b"400"
MALFORMED: Final = b"500"


class Refusal(NamedTuple):
    """A key or a handshake that was refused, for the audit."""

    address: str
    key: str  # in Z85; empty: there was none
    why: str


class ZapHandler:
    """Start it before any bind, then give it a view with `show`."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._context = context
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(ADDRESS)
        except zmq.ZMQError as error:
            self._socket.close()
            raise FabricError(
                "another hub with keys, or another ZAP handler, uses this ZeroMQ context",
                "give each hub a context of its own",
            ) from error
        self.stamp = secrets.token_hex(STAMP_BYTES)
        self._stop = secrets.token_bytes(STAMP_BYTES)  # a question that ends the thread
        self._users: dict[bytes, bytes] | None = None  # raw key -> user id; None: not ready
        self._guests_until_us = 0
        self.refusals: deque[Refusal] = deque(maxlen=REFUSALS_MAX)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fabric-zap", daemon=True)
        self._thread.start()

    def show(self, view: KeyView) -> None:
        """Use these keys from now on."""
        self._guests_until_us = 0  # between the two lines a guest may be refused, and is never let in wrongly
        self._users = {raw: f"{self.stamp}{key}".encode() for raw, key in view.keys.items()}
        self._guests_until_us = view.guests_until_us

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def key_of(self, user_id: str) -> str:
        """The key of a user id that this handler has written; empty for any other."""
        stamp, key = user_id[: len(self.stamp)], user_id[len(self.stamp) :]
        return key if secrets.compare_digest(stamp.encode(), self.stamp.encode()) else ""

    def close(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            with self._context.socket(zmq.REQ) as asking:
                asking.setsockopt(zmq.LINGER, 1000)
                asking.connect(ADDRESS)
                with contextlib.suppress(zmq.ZMQError):
                    asking.send(self._stop)
                    self._thread.join()
        self._socket.close()

    # In the thread.

    def _run(self) -> None:
        receive, send = self._socket.recv_multipart, self._socket.send_multipart
        try:
            while (question := receive())[0] != self._stop:
                send(self.reply(question))
        except BaseException as error:
            self.failure = error

    def reply(self, question: Sequence[bytes]) -> list[bytes]:
        """The frames that answer a question of any form."""
        try:
            status, text, user_id = self._answer(question)
        except Exception as error:  # no question may end the thread, and with it the hub
            status, text, user_id = MALFORMED, type(error).__name__.encode(), b""
        request_id = question[1] if len(question) > 1 else b""
        return [VERSION, request_id, status, text, user_id, b""]

    def _answer(self, question: Sequence[bytes]) -> Answer:
        if len(question) < _HEAD or question[0] != VERSION:
            return MALFORMED, b"malformed question", b""
        address = question[3][:ADDRESS_CHARS_MAX].decode(errors="replace")
        mechanism = question[5]
        if question[2] != DOMAIN or mechanism != b"CURVE":
            self._refuse(address, "", f"mechanism {mechanism[:20].decode(errors='replace')} is not allowed")
            return REFUSED, b"this address takes CURVE only", b""
        if len(question) != _CURVE_FRAMES or len(question[6]) != KEY_BYTES:
            self._refuse(address, "", "the key has a wrong length")
            return REFUSED, b"no key", b""
        users, raw = self._users, question[6]
        if users is None:
            return TRY_AGAIN, b"the hub is not ready", b""
        user_id = users.get(raw)
        if user_id is not None:
            return ACCEPTED, b"", user_id
        key = z85.encode(raw).decode()
        if time.time_ns() // 1000 < self._guests_until_us:
            return ACCEPTED, b"", f"{self.stamp}{key}".encode()
        self._refuse(address, key, "the key is not known")
        return REFUSED, b"this key is not known to the hub", b""

    def _refuse(self, address: str, key: str, why: str) -> None:
        self.refusals.append(Refusal(address, key, why))
