"""Identity: which principal a connection has proved to be. The hub reads it from the connection, never from a frame."""

from typing import Final, NamedTuple

LOCAL_NAME: Final = "local"  # connections without a key come from this machine: loopback, ipc, inproc
GUEST_NAME: Final = "?"  # a key that is not known yet, while an invitation is open
REFUSED_NAME: Final = ""  # a key that is not known, or not any more


class Identity(NamedTuple):
    """The identity of a connection."""

    name: str  # of the principal, or one of the names above
    key: str = ""  # its public key, in Z85; empty: the connection has no key
    address: str = ""  # of the peer, for the audit


LOCAL: Final = Identity(LOCAL_NAME)
