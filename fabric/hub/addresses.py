"""Addresses at which a hub may listen, and which of them need keys."""

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fabric_protocol.errors import FabricError

PORT_MAX: Final = 65_535  # ZeroMQ takes the lower bits of a larger number, and listens at another port
SOCKET_PATH_BYTES_MAX: Final = 107  # of a Unix socket, by the operating system
ADMIN_SOCKET: Final = "hub.sock"  # in the data folder
EVERYWHERE: Final = ("0.0.0.0", "::", "*")


def check_address(url: str) -> None:
    """Refuse an address at which no hub can listen."""
    transport = url.partition("://")[0]
    if transport in ("ipc", "inproc"):
        return
    if transport != "tcp":
        raise FabricError(
            f"cannot listen at {url}: its transport is not tcp, ipc or inproc",
            "use tcp://127.0.0.1:PORT, tcp://0.0.0.0:PORT for all networks (with keys), ipc://PATH or inproc://NAME",
        )
    port = url.rpartition(":")[2]
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise FabricError(
            f"cannot listen at {url}: it has no port of 0..{PORT_MAX}",
            "write tcp://127.0.0.1:PORT, or * for any free port",
        )
    host = host_of(url)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if host != "localhost" and host not in EVERYWHERE:
            raise FabricError(
                f"cannot listen at {url}: {host!r} is not an IP address of this machine",
                "write an IP address of this machine, or 0.0.0.0 for all networks",
            ) from None


def host_of(url: str) -> str:
    """The host of a tcp address, without brackets."""
    return url.removeprefix("tcp://").rpartition(":")[0].strip("[]").partition("%")[0]


def is_network(url: str) -> bool:
    """True for an address that other machines can reach."""
    if not url.startswith("tcp://"):
        return False
    host = host_of(url)
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def require_free(url: str) -> None:
    """Refuse an ipc path at which a process listens: ZeroMQ would remove its file and take its place silently."""
    path = url.removeprefix("ipc://")
    if path == url or path.startswith(("@", "*")):
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return  # the path is free: there is no file, or a killed hub has left it
    raise FabricError(
        f"cannot listen at {url}: another process already listens there",
        "is another hub running there? choose another --bind",
    )


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files that are made in this context are readable by this user only, from the beginning."""
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def admin_address(data: Path) -> str:
    """The ipc address in a data folder, for its owner; empty if its path is too long for a Unix socket."""
    path = os.path.abspath(data / ADMIN_SOCKET)
    found = [one for one in (path, os.path.relpath(path)) if len(os.fsencode(one)) <= SOCKET_PATH_BYTES_MAX]
    return f"ipc://{found[0]}" if found else ""
