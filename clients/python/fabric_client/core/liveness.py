"""Liveness: how often client and hub send a heartbeat, and how long the hub keeps a session without one."""

from typing import Final, NamedTuple

from fabric_client.core.verdict_exceptions import Seconds, seconds
from fabric_protocol.errors import FabricError

HEARTBEAT_S: Final = 5.0
SESSION_TTL_S: Final = 30.0
HEARTBEAT_RANGE_S: Final = (0.2, 60.0)
SESSION_TTL_RANGE_S: Final = (1.0, 600.0)
HEARTBEATS_PER_TTL: Final = 6  # by default, so that a few may come late


class Liveness(NamedTuple):
    heartbeat_s: float = HEARTBEAT_S
    ttl_s: float = SESSION_TTL_S


DEFAULT_LIVENESS: Final = Liveness()


def liveness(session_ttl: Seconds, heartbeat: Seconds | None) -> Liveness:
    """The checked arguments of `connect`."""
    ttl_s = _within("session_ttl", session_ttl, SESSION_TTL_RANGE_S)
    if heartbeat is None:
        return Liveness(max(min(HEARTBEAT_S, ttl_s / HEARTBEATS_PER_TTL), HEARTBEAT_RANGE_S[0]), ttl_s)
    heartbeat_s = _within("heartbeat", heartbeat, HEARTBEAT_RANGE_S)
    if heartbeat_s > ttl_s / 2:
        raise FabricError(
            f"heartbeat {heartbeat_s:g} s is more than half of session_ttl {ttl_s:g} s",
            "leave heartbeat out, or choose a longer session_ttl",
        )
    return Liveness(heartbeat_s, ttl_s)


def _within(name: str, value: Seconds, limits: tuple[float, float]) -> float:
    least, most = limits
    length = seconds(value, name)
    if not least <= length <= most:
        raise FabricError(f"{name} is {least:g}..{most:g} seconds, not {length:g}", f"choose a {name} in that range")
    return length
