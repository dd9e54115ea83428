"""Unread bounds the memory of frames that were sent to a peer and that the peer may not have read.

ZeroMQ counts frames, not bytes, and 256 of the largest blocks are four gigabytes. A client chooses its credit, so
credit is no bound either. ZeroMQ writes to a connection as fast as the connection takes it. So when the system has
nothing left to send on the connection, ZeroMQ has nothing left either, and the peer has read all frames before.
"""

import fcntl
import termios
from collections.abc import Mapping
from typing import Final

from fabric_protocol.messages import PeerId

LARGE_BYTES: Final = 16 << 10  # smaller frames are not counted: ZeroMQ holds a few megabytes of them at most
PEER_BYTES_MAX: Final = 32 << 20  # twice the credit of a subscription of the Python client
PEER_BYTES_MIN: Final = 1 << 20
ALL_BYTES_MAX: Final = 256 << 20  # shared by all peers that do not read

_NOTHING: Final = bytes(4)  # a C int of 0


class Unread:
    def __init__(self, descriptors: Mapping[PeerId, int]) -> None:
        self._descriptors = descriptors
        self._bytes: dict[PeerId, int] = {}  # bytes of large frames since the peer had read all

    def admits(self, peer: PeerId, size: int, full: int) -> bool:
        """Count a large frame and return True, if it may be sent to a peer. `full` is how many peers are full."""
        unread = self._bytes.get(peer, 0)
        limit = min(max(ALL_BYTES_MAX // (full + 1), PEER_BYTES_MIN), PEER_BYTES_MAX)
        if (
            unread and unread + size > limit // 2
        ):  # half: a peer that reads has read all at some moment before the limit
            if self._has_read(peer):
                unread = 0
            elif unread + size > limit:
                return False
        self._bytes[peer] = unread + size
        return True

    def forget(self, peer: PeerId) -> None:
        self._bytes.pop(peer, None)

    def _has_read(self, peer: PeerId) -> bool:
        """True if the system has nothing left to send to the peer; a peer in this process has no connection."""
        descriptor = self._descriptors.get(peer, -1)
        if descriptor < 0:
            return True
        try:
            left = fcntl.ioctl(descriptor, termios.TIOCOUTQ, _NOTHING)
        except OSError:  # the connection was closed meanwhile
            return False
        return left == _NOTHING
