"""Addresses at which a hub may listen, and which of them need keys."""

import contextlib
import ipaddress
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from fabric_protocol.errors import FabricError

PORT_MAX: Final = 65_535  # ZeroMQ takes the lower bits of a larger number, and listens at another port
SOCKET_PATH_BYTES_MAX: Final = 107  # of a Unix socket, by the operating system
ADMIN_SOCKET: Final = "hub.sock"  # in the data folder
EVERYWHERE: Final = ("0.0.0.0", "::", "*")
_SECOND: Final = re.compile(r"[,; ]+(tcp|ipc|inproc)://")


def check_addresses(urls: Sequence[str]) -> None:
    """Refuse addresses at which no hub can listen, before anything is made."""
    if isinstance(urls, str) or not urls:
        raise FabricError(
            f"a hub needs a list of addresses to listen at, not {urls!r}", 'write binds=["tcp://127.0.0.1:7171"]'
        )
    for error in mistakes(urls):
        raise error


def mistakes(urls: Sequence[str]) -> Iterator[FabricError]:
    """What is wrong with the addresses of one hub."""
    for number, url in enumerate(urls):
        try:
            check_address(url)
        except FabricError as error:
            yield error
            continue
        if other := next((one for one in urls[:number] if _includes(one, url) or _includes(url, one)), ""):
            why = "it is given twice" if other == url else f"{other} takes that place"
            yield FabricError(f"cannot listen at {url}: {why}", "leave one of them out, or choose another --bind")


def _includes(one: str, other: str) -> bool:
    """True if a hub that listens at one address cannot listen at the other one."""
    if not (one.startswith("tcp://") and other.startswith("tcp://")):
        return place(one) == place(other)
    port = one.rpartition(":")[2]
    if port != other.rpartition(":")[2] or port.strip("0") in ("", "*"):  # each gets a free port
        return False
    host, second = place(one), place(other)
    return host == second or host == "::" or (host == "0.0.0.0" and ":" not in second)


def place(url: str) -> str:
    """The host of a tcp address, the path of an ipc address, or the whole address."""
    if url.startswith("ipc://"):
        return f"ipc://{os.path.abspath(url[6:])}"
    if not url.startswith("tcp://"):
        return url
    host = host_of(url)
    return {"localhost": "127.0.0.1", "*": "0.0.0.0"}.get(host, host)


def check_address(url: str) -> None:
    """Refuse an address at which no hub can listen."""
    if not url.isprintable():
        raise FabricError(f"cannot listen at {url!r}: it has characters that no address has", "write it anew")
    if _SECOND.search(url):
        raise FabricError(
            f"cannot listen at {url}: these are several addresses",
            "repeat --bind for each of them; a file has a list, and a variable has spaces between them",
        )
    transport, _, rest = url.partition("://")
    if transport == "ipc":
        _check_path(url, rest)
    elif transport == "tcp":
        _check_host_and_port(url)
    elif transport != "inproc" or not rest:
        raise FabricError(
            f"cannot listen at {url}: its transport is not tcp, ipc or inproc",
            "use tcp://127.0.0.1:PORT, tcp://0.0.0.0:PORT for all networks (with keys), ipc://PATH or inproc://NAME",
        )


def _check_path(url: str, path: str) -> None:
    if not path or path.startswith("@"):
        why = "every user of the machine could connect, with all rights" if path else "it has no path"
        raise FabricError(f"cannot listen at {url}: {why}", "write a path, such as ipc:///run/fabric/hub.sock")
    size = len(os.fsencode(path))
    if size > SOCKET_PATH_BYTES_MAX:
        raise FabricError(
            f"cannot listen at {url}: its path has {size} bytes, and that of a socket at most {SOCKET_PATH_BYTES_MAX}",
            "choose a shorter path, or one that is relative to the working directory",
        )


def _check_host_and_port(url: str) -> None:
    port = url.rpartition(":")[2]
    if port != "*" and not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise FabricError(
            f"cannot listen at {url}: it has no port of 0..{PORT_MAX}",
            "write tcp://127.0.0.1:PORT, or * for any free port",
        )
    host = host_of(url)
    if ":" in host and "[" not in url:
        raise FabricError(
            f"cannot listen at {url}: an IPv6 address has brackets around it", f"write tcp://[{host}]:{port}"
        )
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
    """Refuse an ipc path with a file, or at which a process listens: ZeroMQ would remove the file silently."""
    path = url.removeprefix("ipc://")
    if path == url or path == "*":
        return
    if os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise FabricError(
            f"cannot listen at {url}: there is a file or folder of that name", "choose a path that is free"
        )
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
    """The ipc address in a data folder, for its owner; empty if no address has its path."""
    path = os.path.abspath(data / ADMIN_SOCKET)
    found = [one for one in (path, os.path.relpath(path)) if one.isprintable()]
    return next((f"ipc://{one}" for one in found if len(os.fsencode(one)) <= SOCKET_PATH_BYTES_MAX), "")
