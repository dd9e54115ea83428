"""What libzmq does not tell of an address: the greeting of its peer, and whether its name is known.

The greeting, read over a plain TCP connection, names the mechanism of the peer, NULL or CURVE, and that is
enough to tell a hub without encryption from a hub with another key. The answer is for the words of an error only.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

GREETING_BYTES: Final = 64
GREETING_S: Final = 1.0  # how long a peer may take
KNOWN_S: Final = 10.0  # how long an answer counts
# Signature and version. The mechanism is left out: a peer that receives another one closes before it sends its own.
_OPENING: Final = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
_MECHANISM: Final = slice(12, 32)


def mechanism(url: str, timeout: float = GREETING_S) -> str:
    """The mechanism of the peer at a tcp:// address, such as "NULL" or "CURVE"; empty if it does not say."""
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    if not url.startswith("tcp://") or not port.isdecimal():
        return ""
    with contextlib.suppress(OSError, UnicodeError):
        with socket.create_connection((host.strip("[]"), int(port)), timeout) as peer:
            peer.settimeout(timeout)
            peer.sendall(_OPENING)
            received = b""
            while len(received) < GREETING_BYTES and (more := peer.recv(GREETING_BYTES - len(received))):
                received += more
        if received[:1] == b"\xff":
            return received[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
    return ""


def unknown_host(urls: Sequence[str]) -> str:
    """The first name of a host for which this machine finds no address; empty if there is none, or it takes long."""
    found: list[str] = []

    def look() -> None:
        for url in urls:
            scheme, _, place = url.partition("://")
            host = place.rpartition(":")[0].rpartition(";")[2].strip("[]")
            try:
                if scheme == "tcp":
                    socket.getaddrinfo(host, None)
            except (OSError, UnicodeError):
                found.append(host)

    thread = threading.Thread(target=look, name="fabric-names", daemon=True)
    thread.start()
    thread.join(GREETING_S)
    return found[0] if found else ""


class Greetings:
    """Mechanisms of addresses, asked in a thread, because neither the lock nor the event loop may wait."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}
        self._asking = False

    def mechanism(self, url: str) -> str:
        """What is known of an address; asks in the background if that is nothing, or old."""
        found, since = self._known.get(url, ("", 0.0))
        is_old = time.monotonic() - since > KNOWN_S
        if is_old and not self._asking:
            self._asking = True
            threading.Thread(target=self._ask, args=(url,), name="fabric-greeting", daemon=True).start()
        return "" if is_old else found

    def _ask(self, url: str) -> None:
        try:
            self._known[url] = (mechanism(url), time.monotonic())
        finally:
            self._asking = False
