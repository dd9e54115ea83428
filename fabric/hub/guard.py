"""Keeps the hub's process within its descriptors and its memory, whatever connects to it.

A connection costs a descriptor and memory before it has said a word, and ZeroMQ knows no limit for either: it counts
messages and not the frames of an unfinished one. So connections beyond what the descriptors allow are cut, the silent
ones first; those that stay silent are cut after a while; and when memory exceeds its budget, all that are silent are.
If that does not help, a message that never ends comes from a client with a session. It cannot say anything else before
its end, so all connections are cut that say nothing for a moment; those of honest clients are resumed at once.
"""

import logging
import os
import resource
from collections import Counter
from typing import Any, Final

from fabric.hub.arrivals import Arrivals
from fabric.hub.connections import Connections
from fabric.hub.log import event
from fabric.router.router import Router

SPARE_MAX: Final = 256  # descriptors that connections never get: for the journal, the log, and bursts of connections
CONNECTIONS_MIN: Final = 8
SILENT_MAX_S: Final = 30.0  # for a connection to send its first message
LOOK_EVERY_S: Final = 0.25  # a peer of this machine fills half a gigabyte meanwhile
QUIET_S: Final = 0.5  # above the budget, for a connection to say something before it is cut
GROWTH: Final = 1.25  # of memory since quiet connections were cut, until they are again
SAY_EVERY_S: Final = 10.0  # each of the lines

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Guard:
    def __init__(self, connections: Connections, counters: Counter[str], memory_bytes: int) -> None:
        self._connections = connections
        self._counters = counters
        self._memory_bytes = memory_bytes
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = _descriptors_used()
        spare = min(SPARE_MAX, (limit - used) // 3)
        self.connections_max = max(limit - used - spare, CONNECTIONS_MIN)
        try:
            self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a system without it: memory is not watched
            self._statm = -1
        self.silent_max_s = SILENT_MAX_S
        self._look_at = 0.0
        self._over_at: float | None = None  # since when memory exceeds its budget
        self._cut_above = memory_bytes  # quiet connections are cut when memory is more than this
        self._say_at: dict[str, float] = {}

    @property
    def is_crowded(self) -> bool:
        return self._connections.kept > self.connections_max

    def cut_excess(self, now: float) -> None:
        """Cut connections until as many are left as the descriptors allow."""
        connections = self._connections
        cut = connections.cut(connections.excess[: max(connections.kept - self.connections_max, 0)])
        self._counters["connections_refused"] += cut
        self._say(now, "connections refused", open=connections.kept, limit=self.connections_max)

    def look(self, now: float, router: Router, arrivals: Arrivals) -> None:
        """Now and then: cut connections that say nothing, and compare memory with its budget."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        connections = self._connections
        if cut := connections.cut(connections.silent_since(now - self.silent_max_s)):
            self._counters["connections_silent"] += cut
            self._say(now, "silent connections closed", closed=cut, open=connections.kept)
        memory = self.memory_bytes()
        if memory <= self._memory_bytes:
            self._over_at, self._cut_above = None, self._memory_bytes
            return
        self._counters["memory_over_budget"] += 1
        silent = connections.cut(connections.silent_since(now))
        self._counters["connections_silent"] += silent
        quiet = self._cut_quiet(now, memory, router)
        self._say(
            now,
            "memory above its budget",  # what is not named here is ZeroMQ's
            memory=memory,
            budget=self._memory_bytes,
            connections=connections.kept,
            silent_closed=silent,
            arrived_bytes=arrivals.bytes,
            **router.gauges(),
        )
        if quiet:
            self._say(now, "quiet connections closed", closed=quiet, memory=memory, open=connections.kept)

    def _cut_quiet(self, now: float, memory: int, router: Router) -> int:
        """Cut connections that have said nothing since memory exceeds its budget; returns how many."""
        if self._over_at is None:
            self._over_at = now
        since = self._over_at
        if now - since < QUIET_S or memory <= self._cut_above:
            return 0
        self._over_at, self._cut_above = now, int(memory * GROWTH)
        quiet = self._connections.cut(
            descriptor
            for descriptor, peer in self._connections.speakers()
            if (heard := router.last_heard(peer)) is None or heard < since
        )
        self._counters["connections_quiet"] += quiet
        return quiet

    def memory_bytes(self) -> int:
        """Memory of the process's own: pages of the journal's file do not count, the system can take them back."""
        if self._statm < 0:
            return 0
        _, resident, shared, *_ = os.pread(self._statm, 200, 0).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def close(self) -> None:
        if self._statm >= 0:
            os.close(self._statm)

    def _say(self, now: float, name: str, **fields: Any) -> None:
        if now >= self._say_at.get(name, 0.0):
            self._say_at[name] = now + SAY_EVERY_S
            event(logging.WARNING, name, **fields)


def _descriptors_used() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return SPARE_MAX
