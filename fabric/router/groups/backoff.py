"""Backoff: how long a message waits after a failure. The wait is fixed, linear or exponential, up to a limit."""

from typing import Final
from zlib import crc32

from fabric.records import GroupSettings

_STEPS_MAX: Final = 40  # doublings after which every limit is reached


def wait_ms(settings: GroupSettings, failures: int, what: str) -> int:
    """The wait after failure number `failures`. Jitter depends on `what` only, so a repeated run has equal waits."""
    base = settings.backoff_ms
    if settings.backoff == "linear":
        wait = base * failures
    elif settings.backoff == "exponential":
        wait = base << min(failures - 1, _STEPS_MAX)
    else:
        wait = base
    wait = min(wait, settings.backoff_max_ms)
    spread = wait * settings.jitter_pct // 100
    if spread:
        wait += crc32(f"{what} {failures}".encode()) % (2 * spread + 1) - spread
    return wait
