"""The LMDB environment: opens it, opens its tables, and turns LMDB's errors into errors of the journal.

The settings for durability are constants, not options: every commit is synced, and the map is never written to
directly. Without sync, a power cut loses more than the tail: it corrupts the file.
"""

import os
from collections.abc import Container, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import lmdb

from fabric.errors import JournalDamaged, JournalError
from fabric.journal.directory import FILE_MODE, READERS_FILE, scratch, share, swap
from fabric.journal.rows import (
    FORMAT,
    FORMAT_KEY,
    META_KEY,
    Meta,
    decode_format,
    decode_meta,
    encode_format,
    encode_meta,
    key_seq,
    pack,
    seal,
    seq_key,
)

MAP_BYTES: Final = 1 << 40  # address space is free, and the disk fills before the map does
READERS_MAX: Final = 1024  # slots in lock.mdb: two for the hub, the others for backups, snapshots and commands
STEP_BYTES: Final = 16 << 20  # copied or verified within one read transaction
RESTORE_HINT: Final = "restore a backup with 'fabric journal restore'"
_SPARE_READERS: Final = 4  # read transactions kept for reuse: to begin one then costs a microsecond

# A read transaction returns views of its pages; a write transaction reads little, and returns copies.
Reading: TypeAlias = "lmdb.Transaction[memoryview]"
Writing: TypeAlias = "lmdb.Transaction[bytes]"
Cursor: TypeAlias = "lmdb.Cursor[memoryview] | lmdb.Cursor[bytes]"


class Tables(NamedTuple):
    meta: "lmdb._Database"
    blocks: "lmdb._Database"
    chunks: "lmdb._Database"
    groups: "lmdb._Database"
    producers: "lmdb._Database"
    failures: "lmdb._Database"
    topics: "lmdb._Database"
    schedule: "lmdb._Database"
    schedule_ids: "lmdb._Database"
    ids: "lmdb._Database"
    events: "lmdb._Database"
    settings: "lmdb._Database"
    origins: "lmdb._Database"


_FORMAT_1: Final = (b"meta", b"blocks", b"chunks", b"groups", b"producers")
_LATER: Final = (b"origins",)  # journals of format 2 that an older program wrote have none of these


def open_environment(path: Path, *, map_bytes: int = MAP_BYTES, readonly: bool = False) -> lmdb.Environment:
    """Open the environment. The caller holds the lock file, or opens the environment read-only."""
    with lmdb_errors(f"cannot open the journal in {path}"):
        environment = lmdb.open(
            os.fsencode(path),  # a path is not always text
            map_size=map_bytes,
            sync=True,  # every commit is on disk when it returns
            metasync=True,  # and so is the page that makes the commit valid
            writemap=False,  # with a writable map, a full disk is SIGBUS and a stray pointer damages the file
            map_async=False,
            meminit=True,  # otherwise bytes of this process's memory, keys too, get into the gaps of the file
            readahead=True,  # catching up from a cold disk is several times faster; single blocks cost the same
            readonly=readonly,
            create=False,
            mode=FILE_MODE,
            max_readers=READERS_MAX,
            max_spare_txns=_SPARE_READERS,
            max_dbs=len(Tables._fields),
            lib_version=0,  # the file format of LMDB 0.9; that of 1.0 is another
        )
    share(path / READERS_FILE)
    return environment


def create_environment(path: Path, meta: Meta) -> None:
    """Make a new journal. After a power cut there is a whole journal or none."""
    with scratch(path / "creating") as partial, lmdb_errors(f"cannot create a journal in {path}"):
        with closing(open_environment(partial)) as environment:
            tables = open_tables(environment, create=True)
            with environment.begin(write=True) as txn:
                txn.put(FORMAT_KEY, encode_format(), db=tables.meta)
                put_meta(txn, tables, meta)
        swap(partial, path)


def open_tables(environment: lmdb.Environment, *, create: bool = False, upgrade: bool = False) -> Tables:
    """Open the tables of a journal whose format this program knows.

    `create` makes the tables first. `upgrade` makes the tables that an older format does not have, and sets the
    journal's format to this one. Without either, a missing table is None: use `existing`.
    """
    names = [name.encode() for name in Tables._fields]
    with lmdb_errors("cannot open the journal's tables"):
        if create:
            _make_tables(environment, names)
        version = _known_format(environment)
        needed = _FORMAT_1 if version < FORMAT else [name for name in names if name not in _LATER]
        tables = Tables(*(_open_if_there(environment, name, needed) for name in names))
        if upgrade and (version < FORMAT or len(existing(tables)) < len(names)):
            _make_tables(environment, names, upgrade=True)
            tables = Tables(*(environment.open_db(name, create=False) for name in names))
        return tables


def put_row(txn: Writing, table: "lmdb._Database", key: bytes, values: list[object]) -> None:
    """Write a row of packed values, with its checksum."""
    txn.put(key, seal(key, pack(values)), db=table)


def put_meta(txn: "Reading | Writing", tables: Tables, meta: Meta) -> None:
    txn.put(META_KEY, encode_meta(meta), db=tables.meta)


def read_meta(txn: "Reading | Writing", tables: Tables) -> Meta:
    """The row with the journal's id, its epoch and where it begins."""
    row = txn.get(META_KEY, db=tables.meta)
    if row is None:
        raise JournalDamaged("the journal has no row with its id and its epoch", RESTORE_HINT)
    return decode_meta(row)


def existing(tables: Tables) -> "dict[str, lmdb._Database]":
    """The tables that a journal has, by name. A journal of an older format that is only read lacks some."""
    return {name: table for name, table in zip(Tables._fields, tables, strict=True) if table is not None}


def _make_tables(environment: lmdb.Environment, names: list[bytes], *, upgrade: bool = False) -> None:
    with environment.begin(write=True) as txn:  # one transaction: all tables are made, or none
        tables = [environment.open_db(name, txn) for name in names]
        if upgrade:
            txn.put(FORMAT_KEY, encode_format(), db=tables[Tables._fields.index("meta")])


def _open_if_there(environment: lmdb.Environment, name: bytes, needed: Container[bytes]) -> "lmdb._Database":
    try:
        return environment.open_db(name, create=False)
    except lmdb.NotFoundError:
        if name in needed:
            raise
        return None  # type: ignore[return-value]  # otherwise every use would check for None, for old journals only


def _known_format(environment: lmdb.Environment) -> int:
    meta = environment.open_db(b"meta", create=False)
    with environment.begin() as txn:
        row = txn.get(FORMAT_KEY, db=meta)
    version = decode_format(row) if row is not None else FORMAT
    if version > FORMAT:
        raise JournalError(
            f"the journal in {environment.path()} has format {version}, and this program knows up to {FORMAT}",
            "upgrade fabricmq",
        )
    return version


def seek(cursor: Cursor, seq: int) -> bool:
    """Move to the last row whose key is not above seq; False when there is no such row."""
    if not cursor.set_range(seq_key(seq)):
        return cursor.last()
    return key_seq(cursor.key()) == seq or cursor.prev()


def append_row(txn: Writing, key: bytes | memoryview, row: bytes | memoryview, table: "lmdb._Database") -> None:
    """Write a row at the end of its table. LMDB returns False, and does not raise, if a row is at or above the key."""
    if not txn.put(key, row, append=True, db=table):
        raise foreign_writer(f"row {bytes(key).hex()} does not follow the last row")


def foreign_writer(finding: str) -> JournalError:
    """The error for a journal that has changed since its only writer wrote last."""
    return JournalError(
        f"another process has written to this journal ({finding})",
        "make sure that only one hub uses the directory, then check it with 'fabric journal verify'",
    )


@contextmanager
def lmdb_errors(doing: str) -> Iterator[None]:
    """Turn errors of LMDB into errors of the journal."""
    try:
        yield
    except lmdb.Error as error:
        raise as_journal_error(doing, error) from error


def as_journal_error(doing: str, error: lmdb.Error) -> JournalError:
    text = f"{doing}: {error}"
    match error:
        case lmdb.CorruptedError() | lmdb.PageNotFoundError() | lmdb.InvalidError() | lmdb.VersionMismatchError():
            return JournalDamaged(text, RESTORE_HINT)
        case lmdb.ReadersFullError():
            return JournalError(text, "too many processes read this journal; end some of them")
        case lmdb.MapFullError():
            return JournalError(text, "shorten the retention, or compact the journal while the hub is stopped")
        case lmdb.DiskError() | lmdb.PanicError():
            return JournalError(text, "the disk may be full or failing; look at 'df' and 'dmesg' before starting again")
        case lmdb.MemoryError():
            return JournalError(text, "the limit on address space is too low (ulimit -v)")
        case lmdb.NotFoundError():
            return JournalError(text, "this is not a fabric journal; check the path")
    if "Permission denied" in str(error):
        return JournalError(text, "check the owner and the permissions of the directory")
    if "No such file" in str(error):
        return JournalError(text, "there is no journal here; check the path")
    return JournalError(text, "the disk may be full or failing; look at 'df' and 'dmesg' before starting again")
