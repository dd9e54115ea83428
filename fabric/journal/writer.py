"""Transactions of the journal's only writer, and the growth of the map when one of them does not fit."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import lmdb

from fabric.journal.environment import foreign_writer

_GROWTH_MIN_BYTES: Final = 1 << 20  # a full map grows by 1 %, but at least so that the next commit fits

_READER_CHECK_S: Final = 10.0


class Writer:
    """Begins transactions. The numbers that LMDB gives them tell when another process has written as well."""

    def __init__(self, environment: lmdb.Environment, mapping: threading.Lock) -> None:
        self._environment = environment
        self._mapping = mapping
        self._txn_id = environment.info()["last_txnid"]  # of the last transaction that changed something
        self._checked_readers_s = 0.0

    @contextmanager
    def transaction(self, *, buffers: bool = False) -> "Iterator[lmdb.Transaction[Any]]":
        """A transaction that writes. Raises JournalError when another process has written since the last one."""
        begin: Callable[..., lmdb.Transaction[Any]] = self._environment.begin
        with begin(write=True, buffers=buffers) as txn:
            number = txn.id()
            if number != self._txn_id + 1:
                raise foreign_writer(f"transaction {number} cannot follow {self._txn_id}")
            yield txn
        # A transaction that changed nothing has no number of its own.
        self._txn_id = min(self._environment.info()["last_txnid"], number)

    def check_readers(self) -> None:
        """Free the slots of readers that were killed, now and then: each keeps LMDB from using old pages again."""
        now_s = time.monotonic()
        if now_s - self._checked_readers_s >= _READER_CHECK_S:
            self._checked_readers_s = now_s
            self._environment.reader_check()

    def grow(self, needed: int) -> None:
        """Enlarge the map, so that a transaction that writes so many bytes fits into it."""
        with self._mapping:
            size = self._environment.info()["map_size"]
            self._environment.set_mapsize(size + max(size // 100, 2 * needed + _GROWTH_MIN_BYTES))
