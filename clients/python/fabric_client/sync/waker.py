"""A pair of sockets that ends the poll of another thread."""

import contextlib
import socket


class Waker:
    """Ends another thread's poll."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self.fd = self._read.fileno()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the poll ends anyway; closed: no thread polls
            self._write.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._read.recv(4096)

    def __del__(self) -> None:
        self._read.close()
        self._write.close()
