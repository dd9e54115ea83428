"""Bytes that were sent to a peer and may be unread are bounded, and the bound never stops a peer that reads."""

import socket
from collections.abc import Iterator

import pytest

from fabric.hub.unread import PEER_BYTES_MAX, Unread

PEER = b"\0peer"
SIZE = 1 << 20
FRAMES_MAX = PEER_BYTES_MAX // SIZE


class Connection:
    """A connection whose peer reads when the test says so."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.unread = Unread({PEER: self._ours.fileno()})

    def write(self) -> None:
        self._ours.send(b"x")

    def read(self) -> None:
        self._theirs.recv(100)

    def admitted(self, count: int) -> int:
        """How many of so many frames may be sent, one after the other."""
        return sum(self.unread.admits(PEER, SIZE, 0) for _ in range(count))

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def connection() -> Iterator[Connection]:
    connection = Connection()
    yield connection
    connection.close()


def test_a_peer_that_does_not_read_gets_as_much_as_the_bound(connection: Connection) -> None:
    connection.write()
    assert connection.admitted(2 * FRAMES_MAX) == FRAMES_MAX
    connection.read()
    assert connection.admitted(1) == 1


def test_a_peer_that_had_read_all_before_the_bound_is_not_stopped_at_it(connection: Connection) -> None:
    """It need not have read all at the very moment when the bound is reached."""
    for _ in range(4):
        connection.write()
        assert connection.admitted(FRAMES_MAX - 1) == FRAMES_MAX - 1
        connection.read()
        assert connection.admitted(1) == 1


def test_half_of_the_bound_is_sent_without_a_look(connection: Connection) -> None:
    assert connection.admitted(FRAMES_MAX // 2) == FRAMES_MAX // 2
    connection.write()
    assert connection.admitted(2 * FRAMES_MAX) == FRAMES_MAX // 2
