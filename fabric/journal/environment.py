"""The LMDB environment: how it is opened, who may open it, and what its errors mean.

The settings that decide about durability are written here, once, and are not options: every commit is synced, and
the map is never written to directly. (Without sync a power cut does not only lose the tail, it corrupts the file.)
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import lmdb

from fabric.errors import JournalDamaged, JournalError
from fabric.journal.records import FORMAT, FORMAT_KEY, decode_format

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "hub.lock"
MAP_BYTES: Final = 1 << 40  # set once and huge: address space is free, and the disk must fill before the map does
READERS_MAX: Final = 1024  # slots in lock.mdb; the hub needs two, the rest is for copies and the command line
_SPARE_READERS: Final = 4  # read transactions kept for reuse, so that beginning one costs a microsecond
_DIR_MODE: Final = 0o700
_FILE_MODE: Final = 0o600

# File systems on which two machines may see one file: LMDB's locks and its shared map do not hold there.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "fuse.ceph",
        "fuse.glusterfs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gfs2",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "prl_fs",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "vmhgfs",
        "fuse.vmhgfs-fuse",
    ]
)


# A reading transaction lends its bytes; a writing one is asked for little and copies them.
Reading: TypeAlias = "lmdb.Transaction[memoryview]"
Writing: TypeAlias = "lmdb.Transaction[bytes]"
Cursor: TypeAlias = "lmdb.Cursor[memoryview]"


class Tables(NamedTuple):
    meta: "lmdb._Database"
    blocks: "lmdb._Database"
    chunks: "lmdb._Database"
    groups: "lmdb._Database"
    producers: "lmdb._Database"


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
            mode=_FILE_MODE,
            max_readers=READERS_MAX,
            max_spare_txns=_SPARE_READERS,
            max_dbs=len(Tables._fields),
            lib_version=0,  # LMDB 0.9's file format; 1.0's is another one and the two do not read each other
        )


def open_tables(environment: lmdb.Environment, *, create: bool = False) -> Tables:
    """Open the tables of a journal whose format this program knows; with `create`, make those of a new one."""
    names = [name.encode() for name in Tables._fields]
    with lmdb_errors("cannot open the journal's tables"):
        if create and is_unborn(environment):
            with environment.begin(write=True) as txn:  # one transaction: all tables come to be, or none
                for name in names:
                    environment.open_db(name, txn)
        _require_known_format(environment)
        return Tables(*(environment.open_db(name, create=False) for name in names))


def _require_known_format(environment: lmdb.Environment) -> None:
    meta = environment.open_db(b"meta", create=False)
    with environment.begin() as txn:
        row = txn.get(FORMAT_KEY, db=meta)
    if row is not None and (version := decode_format(row)) > FORMAT:
        raise JournalError(
            f"the journal in {environment.path()} has format {version}, and this program knows up to {FORMAT}",
            "upgrade fabricmq",
        )


def is_unborn(environment: lmdb.Environment) -> bool:
    """Whether nothing was ever committed: the creation was cut short."""
    return not environment.stat()["entries"]


def has_data(path: Path) -> bool:
    """Whether a directory holds a journal. An empty file is one whose creation was cut short."""
    data = path / DATA_FILE
    return data.exists() and data.stat().st_size > 0


def make_directory(path: Path) -> None:
    """Create the journal's directory so that it survives a power cut: a new name is durable once its parent is."""
    if not path.is_dir():
        try:
            path.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"cannot create the journal directory {path}: {error.strerror}", "choose another --data directory"
            ) from error
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LockFile:
    """An exclusive claim on a journal directory, for as long as the process lives or until `release`."""

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK_FILE
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise JournalError(
                f"cannot open {path}: {error.strerror}", "check the owner and the permissions of the directory"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise JournalError(
                f"the journal in {directory} is in use" + (f" by process {owner}" if owner else ""),
                "stop the hub that uses it, or choose another directory",
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        # The file stays: removing it would let two processes hold a lock on two files of one name.
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def require_local(path: Path, mountinfo: str | None = None) -> None:
    """Refuse a directory on a network file system. Where the kernel does not tell, it is taken as local."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return
    kind = _file_system(path.resolve(), mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise JournalError(
            f"{path} is on a network file system ({kind}), where a journal can be damaged",
            "use a local disk, or force it if only one machine ever opens it",
        )


def _file_system(path: Path, mountinfo: str) -> str:
    """The type of the file system that holds a path: the last mount at the longest prefix wins."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        mount_point = fields[4].encode().decode("unicode_escape")  # the kernel writes a space as \040
        if path.is_relative_to(mount_point) and len(mount_point) >= best:
            best, kind = len(mount_point), fields[fields.index("-", 6) + 1]
    return kind


@contextlib.contextmanager
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
            return JournalDamaged(text, "restore a backup with 'fabric journal restore'")
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
