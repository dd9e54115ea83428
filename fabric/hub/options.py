"""HubOptions: addresses, limits and resources of a hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fabric.journal.journal import Limits
from fabric.router.health import Thresholds

DEFAULT_BIND: Final = "tcp://127.0.0.1:7171"


class HubOptions(NamedTuple):
    binds: Sequence[str] = (DEFAULT_BIND,)
    limits: Limits = Limits()
    drain_s: float = 5.0  # how long a hub that stops waits for outstanding acks
    io_threads: int = 1
    allow_network_fs: bool = False
    memory_bytes: int = 2 << 30  # memory of the process; above it the hub logs a warning and closes silent connections
    thresholds: Thresholds = Thresholds()  # of the hub's health
    access: str | Path | None = None  # the access file; None: access.toml in the data folder
    advertise: str = ""  # the address that invitations name; empty: the client knows how it has reached the hub
    has_socket: bool = False  # without keys, too, listen at the socket in the data folder, for health checks
