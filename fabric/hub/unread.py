"""How much was sent to a peer that it may not have read: a bound for the memory that a peer takes which does not read.

ZeroMQ counts frames, not bytes, and 256 of the largest blocks are four gigabytes. A peer grants credit for as many
bytes as it likes, so credit is no bound either. But ZeroMQ writes to a connection as fast as that takes it: when the
system has nothing left to send there, neither has ZeroMQ, and all that was sent before has been read.
"""

import fcntl
import termios
from collections.abc import Mapping
from typing import Final

from fabric_protocol.messages import PeerId

LARGE_BYTES: Final = 16 << 10  # of a frame; ZeroMQ holds some megabytes of smaller ones at most
PEER_BYTES_MAX: Final = 32 << 20  # twice the credit of a subscription of the Python client
PEER_BYTES_MIN: Final = 1 << 20
ALL_BYTES_MAX: Final = 256 << 20  # shared by the peers that do not read

_NOTHING: Final = bytes(4)  # as an int of the system


class Unread:
    def __init__(self, descriptors: Mapping[PeerId, int]) -> None:
        self._descriptors = descriptors
        self._bytes: dict[PeerId, int] = {}  # of large frames, since the peer was known to have read all

    def admits(self, peer: PeerId, size: int, full: int) -> bool:
        """Whether a large frame may be sent to a peer, while so many peers are full; it is counted then."""
        unread = self._bytes.get(peer, 0)
        limit = min(max(ALL_BYTES_MAX // (full + 1), PEER_BYTES_MIN), PEER_BYTES_MAX)
        if unread and unread + size > limit // 2:  # a peer that reads has a moment with nothing left until the limit
            if self._has_read(peer):
                unread = 0
            elif unread + size > limit:
                return False
        self._bytes[peer] = unread + size
        return True

    def forget(self, peer: PeerId) -> None:
        self._bytes.pop(peer, None)

    def _has_read(self, peer: PeerId) -> bool:
        """Whether a connection has nothing left to send; a peer in this process has none."""
        descriptor = self._descriptors.get(peer, -1)
        if descriptor < 0:
            return True
        try:
            left = fcntl.ioctl(descriptor, termios.TIOCOUTQ, _NOTHING)
        except OSError:  # closed meanwhile
            return False
        return left == _NOTHING
