"""Tries: how often an address has presented a wrong code. Codes cannot be guessed; this bounds the work and the log."""

import ipaddress
from typing import Final

TRIES_MAX: Final = 5  # wrong codes of one address in a period
PERIOD_US: Final = 60_000_000
ADDRESSES_MAX: Final = 10_000  # remembered; the oldest is forgotten, because a refusal of all would stop honest joins


class Tries:
    def __init__(self) -> None:
        self._wrong: dict[str, tuple[int, int]] = {}  # source -> (begin of its period, wrong codes in it)

    def wait_us(self, address: str, wall_us: int) -> int:
        """How long an address has to wait until its next try; 0: it may try now."""
        begun, count = self._wrong.get(source_of(address), (0, 0))
        left = begun + PERIOD_US - wall_us
        return left if count >= TRIES_MAX and 0 < left <= PERIOD_US else 0

    def failed(self, address: str, wall_us: int) -> None:
        """An address has presented a wrong code."""
        source = source_of(address)
        begun, count = self._wrong.pop(source, (wall_us, 0))
        if not 0 <= wall_us - begun < PERIOD_US:
            begun, count = wall_us, 0
        self._wrong[source] = (begun, count + 1)
        if len(self._wrong) > ADDRESSES_MAX:
            del self._wrong[next(iter(self._wrong))]

    def __len__(self) -> int:
        return len(self._wrong)


def source_of(address: str) -> str:
    """An address, or for IPv6 its network of 64 bits: one machine has all addresses of it."""
    try:
        parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
