"""The address that a link or a credentials file gives to another machine: HOST:PORT, as that machine reaches the hub.

What was typed goes first, then what the hub advertises, then the address by which this command reached the hub itself,
then a bind of the hub. A bind to all addresses, such as 0.0.0.0, is written with the name of this machine.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fabric.cli import EXIT_USAGE
from fabric.cli.support.values import Parsed

PORT: Final = 7171
PORT_MAX: Final = 65_535
_ADDRESS: Final = re.compile(r"(?:tcp://)?(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+)(?::([0-9]{1,5}))?/?")
_EVERY: Final = ("0.0.0.0", "[::]", "*")  # binds of a hub, as it tells them


class Address(Parsed):
    name = "host:port"

    def parse(self, text: str) -> str:
        """`hub-1`, `10.0.0.5:7171` or `[fe80::1]:7171`, with its port."""
        host, port = _split(text)
        if not host or not 1 <= port <= PORT_MAX or host in _EVERY:
            raise ValueError(f"{text!r} is not an address; write HOST:PORT, such as hub-1:7171 or 10.0.0.5:7171")
        return f"{host}:{port}"


class Advertised(Address):
    """An address that stays as it was written; empty: none."""

    def parse(self, text: str) -> str:
        if text:
            super().parse(text)
        return text


def reach(given: str | None, url: str, about: Mapping[str, Any]) -> tuple[str, bool]:
    """HOST:PORT, and whether only this machine can reach it. `url` is the address of the hub for this command, and
    `about` what the hub tells about itself."""
    advertised = [given] if given else [str(about["advertise"])] if about.get("advertise") else []
    binds: Sequence[str] = about.get("binds") or ()
    found = [_split(text) for text in advertised or [*url.split(","), *binds]]
    found = [(host, port) for host, port in found if host and port]
    distant = [(host, port) for host, port in found if not is_loopback(host)]
    for host, port in [*distant, *found]:
        name = socket.gethostname() if host in _EVERY else host
        return f"{name}:{port}", is_loopback(name)
    from fabric.cli.support.tables import Failed  # late: the hub needs the addresses alone

    raise Failed(
        "the hub does not tell an address that another machine can use",
        "give the one by which that machine reaches the hub: --address HOST:PORT",
        EXIT_USAGE,
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _split(text: str) -> tuple[str, int]:
    """Host and port; empty if it is an address of another kind."""
    match = _ADDRESS.fullmatch(text.strip())
    return (match[1], int(match[2] or PORT)) if match else ("", 0)
