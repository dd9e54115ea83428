"""Figures about a journal, taken from its tables in one short read transaction."""

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb

from fabric.journal.directory import DATA_FILE
from fabric.journal.environment import Reading, Tables, existing, read_meta
from fabric.journal.limits import used_bytes
from fabric.journal.rows import key_seq
from fabric.journal.tables.holes import span_of
from fabric_protocol.block import stamp_of
from fabric_protocol.errors import BlockError


class Stats(NamedTuple):
    uuid: str
    epoch: int
    clean: bool  # closed cleanly; False while a hub runs
    first_seq: int
    last_seq: int
    messages: int
    removed: int  # between first and last, by retention of single topics
    blocks: int
    chunks: int
    groups: int
    producers: int
    failures: int  # runs of messages that have failed in a group
    topics: int  # with settings of their own
    schedules: int
    ids: int  # parts of the index of idempotency keys
    events: int  # blocks of delivery events
    origins: int  # blocks that another journal had first
    settings: int
    first_ts_us: int
    last_ts_us: int
    data_bytes: int  # pages that hold data
    free_bytes: int  # free pages of the file, which LMDB uses again
    file_bytes: int
    map_bytes: int
    disk_free_bytes: int
    readers: int
    oldest_reader_lag: int  # commits since the oldest read transaction began; it grows while a reader hangs


def collect(path: Path, environment: lmdb.Environment, tables: Tables) -> Stats:
    with environment.begin(buffers=True) as txn:
        meta = read_meta(txn, tables)
        first_seq, first_ts_us, last_seq, last_ts_us = _ends(txn, tables)
        entries = dict.fromkeys(Tables._fields, 0)  # an older format lacks some tables
        entries.update({name: txn.stat(table)["entries"] for name, table in existing(tables).items()})
        data_bytes, page_bytes = used_bytes(txn, tables), txn.stat(tables.meta)["psize"]
    info = environment.info()
    disk = os.statvfs(path)
    allocated = (info["last_pgno"] + 1) * page_bytes
    readers, oldest = _readers(environment.readers())
    return Stats(
        uuid=meta.uuid.hex(),
        epoch=meta.epoch,
        clean=meta.clean,
        first_seq=first_seq,
        last_seq=last_seq,
        messages=last_seq - first_seq + 1 - meta.removed,
        removed=meta.removed,
        blocks=entries["blocks"],
        chunks=entries["chunks"],
        groups=entries["groups"],
        producers=entries["producers"],
        failures=entries["failures"],
        topics=entries["topics"],
        schedules=entries["schedule"],
        ids=entries["ids"],
        events=entries["events"],
        origins=entries["origins"],
        settings=entries["settings"],
        first_ts_us=first_ts_us,
        last_ts_us=last_ts_us,
        data_bytes=data_bytes,
        free_bytes=max(allocated - data_bytes, 0),
        file_bytes=(path / DATA_FILE).stat().st_size,
        map_bytes=info["map_size"],
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        readers=readers,
        oldest_reader_lag=max(info["last_txnid"] - oldest, 0) if oldest else 0,
    )


def _ends(txn: Reading, tables: Tables) -> tuple[int, int, int, int]:
    """First seq and time, last seq and time; a time is 0 when its block is damaged."""
    cursor = txn.cursor(tables.blocks)
    if not cursor.first():
        return 1, 0, 0, 0
    first_seq, first_ts_us = key_seq(cursor.key()), 0
    with suppress(BlockError):
        first_ts_us = span_of(first_seq, cursor.value()).ts_us
    cursor.last()
    last_seq, last_ts_us = key_seq(cursor.key()), 0
    with suppress(BlockError):
        _, last_seq, last_ts_us = stamp_of(cursor.value())
    return first_seq, first_ts_us, last_seq, last_ts_us


def _readers(table: str) -> tuple[int, int]:
    """The number of open read transactions, and the id of the oldest, from LMDB's text `pid thread txnid`."""
    ids = [fields[2] for line in table.splitlines()[1:] if len(fields := line.split()) == 3]
    active = [int(txnid) for txnid in ids if txnid.isdigit()]
    return len(active), min(active, default=0)
