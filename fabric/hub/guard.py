"""Guard keeps the hub's process within its descriptors and its memory, whatever connects to it.

A connection takes a descriptor and memory before its first message. ZeroMQ limits neither: it counts whole messages,
and not the frames of an unfinished message. A connection is silent until it has sent a whole message. Guard cuts

    connections beyond the limit of descriptors, the silent connections first;
    connections that are silent for SILENT_MAX_S;
    connections without a session for SILENT_MAX_S, whatever they send;
    all silent connections, when memory exceeds its budget;
    all connections without a message for QUIET_S, if memory still exceeds its budget after that.

The last rule is for a client with a session that sends a message without an end: its connection cannot carry another
message before that end. Other clients that are cut by it resume their sessions at once.
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
from fabric_protocol.messages import PeerId

SPARE_MAX: Final = 256  # descriptors kept free for the journal, the log, and bursts of connections
CONNECTIONS_MIN: Final = 8
SILENT_MAX_S: Final = 30.0  # time for the first message of a connection, and for its session
STRANGERS_EVERY_S: Final = 5.0  # connections without a session are looked for; ten thousand take some milliseconds
LOOK_EVERY_S: Final = 0.25  # a peer on this machine can fill half a gigabyte in this time
QUIET_S: Final = 0.5  # time for a message of each connection while memory exceeds its budget
GROWTH: Final = 1.25  # growth of memory after quiet connections were cut, until they are cut again
LOG_EVERY_S: Final = 10.0  # for each kind of line

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
        except OSError:  # the system has no such file: memory is not measured
            self._statm = -1
        self.silent_max_s = SILENT_MAX_S
        self._look_at = self._strangers_at = 0.0
        self._strangers: dict[PeerId, float] = {}  # peers without a session, and since when
        self._over_at: float | None = None  # when memory began to exceed its budget, or quiet connections were cut last
        self._cut_above = memory_bytes  # quiet connections are cut when memory is above this
        self._log_at: dict[str, float] = {}  # when a line may be logged again

    @property
    def is_crowded(self) -> bool:
        return self._connections.kept > self.connections_max

    def cut_excess(self, now: float) -> None:
        """Cut connections beyond the limit of descriptors."""
        connections = self._connections
        cut = connections.cut(connections.excess[: max(connections.kept - self.connections_max, 0)])
        self._counters["connections_refused"] += cut
        self._log(now, "connections refused", open=connections.kept, limit=self.connections_max)

    def look(self, now: float, router: Router, arrivals: Arrivals) -> None:
        """Every LOOK_EVERY_S: cut silent connections, and compare memory with its budget."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        connections = self._connections
        if cut := connections.cut(connections.silent_since(now - self.silent_max_s)):
            self._counters["connections_silent"] += cut
            self._log(now, "silent connections closed", closed=cut, open=connections.kept)
        if now >= self._strangers_at:
            self._strangers_at = now + STRANGERS_EVERY_S
            self._cut_strangers(now, router)
        memory = self.memory_bytes()
        if memory <= self._memory_bytes:
            self._over_at, self._cut_above = None, self._memory_bytes
            return
        self._counters["memory_over_budget"] += 1
        silent = connections.cut(connections.silent_since(now))
        self._counters["connections_silent"] += silent
        quiet = self._cut_quiet(now, memory, router)
        self._log(
            now,
            "memory above its budget",  # memory beyond the figures of this line is ZeroMQ's
            memory=memory,
            budget=self._memory_bytes,
            connections=connections.kept,
            silent_closed=silent,
            arrived_bytes=arrivals.bytes,
            **router.gauges(),
        )
        if quiet:
            self._log(now, "quiet connections closed", closed=quiet, memory=memory, open=connections.kept)

    def _cut_strangers(self, now: float, router: Router) -> None:
        """Cut connections that have had no session for too long: a key that is not known, or more connections than its
        principal may have sessions."""
        found = {peer: fd for fd, peer in self._connections.peers() if router.last_heard(peer) is None}
        self._strangers = {peer: self._strangers.get(peer, now) for peer in found}
        until = now - self.silent_max_s
        if cut := self._connections.cut(found[peer] for peer, since in self._strangers.items() if since <= until):
            self._counters["connections_without_session"] += cut
            self._log(now, "connections without a session closed", closed=cut, open=self._connections.kept)

    def _cut_quiet(self, now: float, memory: int, router: Router) -> int:
        """Cut connections without a message since memory exceeds its budget; returns how many."""
        if self._over_at is None:
            self._over_at = now
        since = self._over_at
        if now - since < QUIET_S or memory <= self._cut_above:
            return 0
        self._over_at, self._cut_above = now, int(memory * GROWTH)
        quiet = self._connections.cut(
            descriptor
            for descriptor, peer in self._connections.peers()
            if (heard := router.last_heard(peer)) is None or heard < since
        )
        self._counters["connections_quiet"] += quiet
        return quiet

    def memory_bytes(self) -> int:
        """Private memory of the process. Pages of the journal's file do not count: the system can take them back."""
        if self._statm < 0:
            return 0
        _, resident, shared, *_ = os.pread(self._statm, 200, 0).split()
        return (int(resident) - int(shared)) * _PAGE_BYTES

    def close(self) -> None:
        if self._statm >= 0:
            os.close(self._statm)

    def _log(self, now: float, name: str, **fields: Any) -> None:
        if now >= self._log_at.get(name, 0.0):
            self._log_at[name] = now + LOG_EVERY_S
            event(logging.WARNING, name, **fields)


def _descriptors_used() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return SPARE_MAX
