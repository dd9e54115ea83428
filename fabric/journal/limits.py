"""Limits of the journal, and whether there is room for more.

Publishes are refused long before the disk or the map is full: on a full disk even deleting fails, because LMDB writes
new pages to free old ones. Acks are always accepted: they are small, and they let retention make room.
"""

import os
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import lmdb

from fabric.errors import JournalError
from fabric.journal.environment import Reading, Tables, existing

DISK_FLOOR_SHARE: Final = 0.05  # refuse publishes when less than this share of the volume is free,
DISK_FLOOR_BYTES: Final = 1 << 30  # or less than this, whichever is more
MAP_SHARE: Final = 0.8  # or when the data fills this share of the map
EVENTS_BYTES: Final = 1 << 30  # some thirty million delivery events
_POLL_S: Final = 1.0  # between two polls the written bytes are counted: statvfs is a system call


class Limits(NamedTuple):
    """0 means no limit."""

    quota_bytes: int = 0  # publishes are refused above it
    max_age_s: float = 0  # retention: older messages are removed,
    max_bytes: int = 0  # or the oldest, while there is more data than this,
    max_messages: int = 0  # or while there are more messages than this
    disk_floor_bytes: int | None = None  # None: by the constants above
    events_bytes: int = EVENTS_BYTES  # delivery events take at most so much, and at most a quarter of max_bytes

    def check(self) -> None:
        """Refuse a limit below 0, and NaN: every message would be above it, and so be removed."""
        for name, value in self._asdict().items():
            if value is not None and not value >= 0:
                raise JournalError(f"the limit {name} is {value!r}", "give 0 or more; 0 is no limit")


class Gauge:
    """Measures used and free bytes once a second, and estimates them in between."""

    def __init__(
        self, path: Path, environment: lmdb.Environment, tables: Tables, limits: Limits, mapping: threading.Lock
    ) -> None:
        self._path = path
        self._mapping = mapping  # held so that the map does not grow while it is read
        self._environment = environment
        self._tables = tables
        self._limits = limits
        self._polled_s = -_POLL_S
        self._used = self._disk_free = self._disk_floor = self._map = 0
        self._written = 0  # bytes of blocks since the last poll

    def wrote(self, size: int) -> None:
        self._written += size

    def used_bytes(self) -> int:
        """Bytes of all pages that hold data: those of the last poll, and the bytes written since."""
        self._poll()
        return self._used + self._written

    def space(self) -> tuple[int, int]:
        """Free bytes of the disk, and the free bytes below which publishes are refused."""
        self._poll()
        return self._disk_free - self._written, self._disk_floor

    def poll_now(self) -> None:
        self._written = 0
        with self._mapping, self._environment.begin(buffers=True) as txn:
            self._used = used_bytes(txn, self._tables)
        try:
            disk = os.statvfs(self._path)
        except OSError as error:
            raise JournalError(
                f"cannot read the journal's directory {self._path}: {error.strerror}",
                "put the directory back or restore a backup, then start the hub again",
            ) from error
        self._disk_free = disk.f_bavail * disk.f_frsize
        self._disk_floor = max(int(DISK_FLOOR_SHARE * disk.f_blocks * disk.f_frsize), DISK_FLOOR_BYTES)
        if self._limits.disk_floor_bytes is not None:
            self._disk_floor = self._limits.disk_floor_bytes
        self._map = self._environment.info()["map_size"]
        self._polled_s = time.monotonic()  # last: another thread that finds a fresh time uses the values above

    def pressure(self) -> str | None:
        """The reason to refuse publishes, or None."""
        used, quota = self.used_bytes(), self._limits.quota_bytes
        if quota and used > quota:
            return f"the journal holds {used} bytes and its quota is {quota}"
        free = self._disk_free - self._written
        if free < self._disk_floor:
            return f"the disk has {free} bytes free, and the journal keeps {self._disk_floor} bytes free"
        if used > MAP_SHARE * self._map:
            return f"the journal fills {used} bytes of a map of {self._map}"
        return None

    def _poll(self) -> None:
        if time.monotonic() - self._polled_s >= _POLL_S:
            self.poll_now()


def used_bytes(txn: Reading, tables: Tables) -> int:
    """Bytes of the pages that hold data; free pages, which LMDB uses again, are not counted."""
    return sum(table_bytes(txn, table) for table in existing(tables).values())


def table_bytes(txn: Reading, table: "lmdb._Database") -> int:
    stat = txn.stat(table)
    return int((stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"])
