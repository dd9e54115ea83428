"""The LMDB environment: how it is opened, who may open it, and what its errors mean.

The settings that decide about durability are written here, once, and are not options: every commit is synced, and
the map is never written to directly. (Without sync a power cut does not only lose the tail, it corrupts the file.)
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import lmdb

from fabric.errors import JournalDamaged, JournalError
from fabric.journal.directory import FILE_MODE, scratch, swap
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
    seq_key,
)

MAP_BYTES: Final = 1 << 40  # set once and huge: address space is free, and the disk must fill before the map does
READERS_MAX: Final = 1024  # slots in lock.mdb; the hub needs two, the rest is for copies and the command line
RESTORE_HINT: Final = "restore a backup with 'fabric journal restore'"
_SPARE_READERS: Final = 4  # read transactions kept for reuse, so that beginning one costs a microsecond

# A reading transaction lends its bytes; a writing one is asked for little and copies them.
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


_FORMAT_1: Final = (b"meta", b"blocks", b"chunks", b"groups", b"producers")


def open_environment(path: Path, *, map_bytes: int = MAP_BYTES, readonly: bool = False) -> lmdb.Environment:
    """Open the environment. The caller holds the lock file, or opens it read-only."""
    with lmdb_errors(f"cannot open the journal in {path}"):
        return lmdb.open(
            str(path),
            map_size=map_bytes,
            sync=True,  # every commit is on disk when it returns
            metasync=True,  # and so is the page that makes it count
            writemap=False,  # with it a full disk is SIGBUS, and a stray pointer reaches the file
            map_async=False,
            meminit=True,  # or what lies around in this process's memory, keys too, ends up in the file's gaps
            readahead=True,  # a cold reader who catches up is several times faster; single blocks cost the same
            readonly=readonly,
            create=False,
            mode=FILE_MODE,
            max_readers=READERS_MAX,
            max_spare_txns=_SPARE_READERS,
            max_dbs=len(Tables._fields),
            lib_version=0,  # LMDB 0.9's file format; 1.0's is another one and the two do not read each other
        )


def create_environment(path: Path, meta: Meta) -> None:
    """Make a new journal. It comes to be whole or not at all, whenever the power goes."""
    with scratch(path / "creating") as partial, lmdb_errors(f"cannot create a journal in {path}"):
        with closing(open_environment(partial)) as environment:
            tables = open_tables(environment, create=True)
            with environment.begin(write=True) as txn:
                txn.put(FORMAT_KEY, encode_format(), db=tables.meta)
                put_meta(txn, tables, meta)
        swap(partial, path)


def open_tables(environment: lmdb.Environment, *, create: bool = False, upgrade: bool = False) -> Tables:
    """Open the tables of a journal whose format this program knows.

    With `create`, they are made first; with `upgrade`, those that an older format did not have, and the journal is of
    this format from then on. Without either, tables that are not there are None: use `existing`.
    """
    names = [name.encode() for name in Tables._fields]
    with lmdb_errors("cannot open the journal's tables"):
        if create:
            _make_tables(environment, names)
        version = _known_format(environment)
        if upgrade and version < FORMAT:
            _make_tables(environment, names, upgrade=True)
        if upgrade or version >= FORMAT:
            return Tables(*(environment.open_db(name, create=False) for name in names))
        return Tables(*(_open_if_there(environment, name) for name in names))


def put_meta(txn: "Reading | Writing", tables: Tables, meta: Meta) -> None:
    txn.put(META_KEY, encode_meta(meta), db=tables.meta)


def read_meta(txn: "Reading | Writing", tables: Tables) -> Meta:
    """The row with the journal's id, its epoch and where it begins."""
    row = txn.get(META_KEY, db=tables.meta)
    if row is None:
        raise JournalDamaged("the journal has no row with its id and its epoch", RESTORE_HINT)
    return decode_meta(row)


def existing(tables: Tables) -> "dict[str, lmdb._Database]":
    """The tables that a journal has, by name; one of an older format that was opened to be read lacks some."""
    return {name: table for name, table in zip(Tables._fields, tables, strict=True) if table is not None}


def _make_tables(environment: lmdb.Environment, names: list[bytes], *, upgrade: bool = False) -> None:
    with environment.begin(write=True) as txn:  # one transaction: all tables come to be, or none
        tables = [environment.open_db(name, txn) for name in names]
        if upgrade:
            txn.put(FORMAT_KEY, encode_format(), db=tables[Tables._fields.index("meta")])


def _open_if_there(environment: lmdb.Environment, name: bytes) -> "lmdb._Database":
    try:
        return environment.open_db(name, create=False)
    except lmdb.NotFoundError:
        if name in _FORMAT_1:
            raise
        return None  # type: ignore[return-value]  # or every use would have to ask what only old journals need


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
    """Move to the last row whose key is not above seq; false when there is none."""
    if not cursor.set_range(seq_key(seq)):
        return cursor.last()
    return key_seq(cursor.key()) == seq or cursor.prev()


def append_row(txn: Writing, key: bytes | memoryview, row: bytes | memoryview, table: "lmdb._Database") -> None:
    """Write a row behind all others of its table. LMDB does not raise when there is one at or above the key."""
    if not txn.put(key, row, append=True, db=table):
        raise foreign_writer(f"row {bytes(key).hex()} does not follow the last one")


def foreign_writer(finding: str) -> JournalError:
    """The journal is not as its only writer has left it."""
    return JournalError(
        f"another process has written to this journal ({finding})",
        "make sure that one hub alone uses the directory, then check it with 'fabric journal verify'",
    )


@contextmanager
def lmdb_errors(doing: str) -> Iterator[None]:
    """Turn whatever LMDB raises into the journal's own errors."""
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
