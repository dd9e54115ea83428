"""Tells the service manager how the hub is, by the protocol of sd_notify: lines in a datagram to NOTIFY_SOCKET.

The hub's loop calls `tick`, and no thread does. So a watchdog of the manager finds a loop that hangs, and one that
fails in each turn. A disk that hangs does not stop the loop: it makes the hub UNHEALTHY, and a restart would not help.
A hub that was told to stop asks for more time until its drain is over, and not while it waits for such a disk.
"""

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

from fabric.hub.log import event
from fabric.router.timers import NEVER

STATUS_S: Final = 10.0  # `systemctl status` shows figures of this age at most
RETRY_S: Final = 1.0  # the queue of the manager was full, or the manager starts again
STOPPING_S: Final = 1.0  # between two messages of a hub that drains
EXTEND_S: Final = 15.0  # the manager waits this long after each of them, also past its own limit


class Notifier:
    """The messages of one hub. Without an address it sends nothing, and the time `due_at` never comes."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        self.health = "HEALTHY"  # the latest judgement, for the status
        self._has_watchdog = watchdog_s > 0
        self._every_s = min(STATUS_S, watchdog_s / 2) if watchdog_s > 0 else STATUS_S
        self._is_ready = self._is_stopping = self._is_failing = False
        self._extend_until = 0.0
        self._socket: socket.socket | None = None
        self._address = f"\0{address[1:]}" if address.startswith("@") else address  # @: Linux's abstract names
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        self.due_at = 0.0 if address else NEVER  # when the loop has to call `tick`

    def tick(self, now: float, last_seq: int) -> None:
        """Send what is due. The first message says that the hub is ready."""
        word = "draining" if self._is_stopping else self.health
        sent = self._send(f"STATUS={word}, last seq {last_seq:,}")
        if sent:
            self._is_ready = True
        elif not self._is_failing:
            event(logging.WARNING, "service manager not told", address=self._address.replace("\0", "@"))
        self._is_failing = not sent
        every_s = min(self._every_s, STOPPING_S) if self._is_stopping else self._every_s
        self.due_at = now + (every_s if sent else min(every_s, RETRY_S))

    def stopping(self, drain_s: float) -> None:
        """The hub was told to stop, and drains for this time at most. For signal handlers: it does not log."""
        if self._socket is not None and not self._is_stopping:
            self._is_stopping = True
            self._extend_until = time.monotonic() + drain_s
            self._send("STATUS=draining")
            self.due_at = 0.0

    def _send(self, status: str) -> bool:
        """Send the state of the hub; False if the manager did not take it. Never waits."""
        if self._is_stopping:
            lines = ["STOPPING=1"]
            if time.monotonic() < self._extend_until:
                lines.append(f"EXTEND_TIMEOUT_USEC={EXTEND_S * 1e6:.0f}")
        else:
            lines = [] if self._is_ready else ["READY=1"]
        if self._has_watchdog:
            lines.append("WATCHDOG=1")
        assert self._socket is not None
        try:
            self._socket.sendto("\n".join([*lines, status]).encode(), self._address)
        except OSError:
            return False
        return True


def of_environment(environment: MutableMapping[str, str]) -> Notifier:
    """The notifier that the service manager asks for. Its variables are removed: they are not for child processes."""
    address = environment.pop("NOTIFY_SOCKET", "")
    watchdog_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if address and address[0] not in "/@":
        event(logging.WARNING, "service manager not told", address=address, why="it is no Unix socket")
        return Notifier()
    is_ours = watchdog_us.isascii() and watchdog_us.isdigit() and pid in ("", str(os.getpid()))
    return Notifier(address, int(watchdog_us) / 1e6 if is_ours else 0.0)
