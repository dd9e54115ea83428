"""The journal's directory: its file system, its locks, and the replacement of its data file."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fabric.errors import JournalError

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "hub.lock"
READERS_FILE: Final = "lock.mdb"  # LMDB makes it, also when a journal is only read
DIR_MODE: Final = 0o700
FILE_MODE: Final = 0o600

# Two machines may open one file there: LMDB's locks and its shared map do not work between machines.
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone"}
    | {"fuse.s3fs", "fuse.sshfs", "fuse.vmhgfs-fuse", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "prl_fs", "smb2", "smb3", "smbfs", "vboxsf", "vmhgfs"}
)


def has_data(path: Path) -> bool:
    """Whether a directory holds a journal."""
    return (path / DATA_FILE).exists()


def make_directory(path: Path) -> None:
    """Create the journal's directory, durably: a new name is on disk after its parent directory was synced."""
    if not path.is_dir():
        try:
            path.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(
                f"cannot create the journal directory {path}: {error.strerror}", "choose another --data directory"
            ) from error
        sync_directory(path.parent)


def share(path: Path) -> None:
    """Give a file that root has made to the owner of its directory. Otherwise the hub's user could not open it."""
    owner = path.parent.stat()
    if os.geteuid() == 0 and owner.st_uid != 0 and path.stat().st_uid == 0:
        os.chown(path, owner.st_uid, owner.st_gid)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class LockFile:
    """An exclusive lock on a journal directory, until `release` or the end of the process.

    Two files are locked: `hub.lock`, which exists before the journal is made, and the data file, because a lock on
    `hub.lock` excludes no other hub after that file was removed by hand.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._data_fd = -1
        self._fd = self._locked(LOCK_FILE, os.O_RDWR | os.O_CREAT)
        try:
            share(directory / LOCK_FILE)
            if has_data(directory):
                self.claim_data()
        except BaseException:
            os.close(self._fd)
            raise
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise JournalError(
                f"cannot write {directory / LOCK_FILE}: {error.strerror}",
                "free some space, or choose another directory",
            ) from error

    def claim_data(self) -> None:
        """Lock the data file, which must exist."""
        if self._data_fd < 0:
            self._data_fd = self._locked(DATA_FILE, os.O_RDONLY)

    def holds_data(self) -> bool:
        """Whether the locked data file is still in the directory, under its name."""
        held = os.fstat(self._data_fd)
        try:
            there = os.stat(self._directory / DATA_FILE)
        except OSError:
            return False
        return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)

    def release(self) -> None:
        # The files stay: after a removal, two processes could lock two files of the same name.
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            for fd in (self._data_fd, self._fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._data_fd = -1

    def _locked(self, name: str, flags: int) -> int:
        """Open a file of the directory and lock it."""
        path = self._directory / name
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            raise JournalError(
                f"cannot open {path}: {error.strerror}", "check the owner and the permissions of the directory"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(fd, 32, 0).decode(errors="replace").strip() if name == LOCK_FILE else ""
            os.close(fd)
            raise JournalError(
                f"the journal in {self._directory} is in use" + (f" by process {owner}" if owner else ""),
                "stop the hub that uses it, or choose another directory",
            ) from error
        return fd


def require_local(path: Path, mountinfo: str | None = None) -> None:
    """Refuse a directory on a network file system. A file system of unknown type counts as local."""
    kind = file_system(path, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        raise JournalError(
            f"{path} is on a network file system ({kind}), where a journal can be damaged",
            "use a local disk; if only one machine ever opens the journal, --allow-network-fs accepts it",
        )


def file_system(path: Path, mountinfo: str | None = None) -> str:
    """The type of the file system of a path, empty if the kernel does not tell it.

    The last mount at the longest prefix counts.
    """
    path, best, kind = path.resolve(), -1, ""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return kind
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        mount_point = fields[4].encode().decode("unicode_escape")  # the kernel writes a space as \040
        if path.is_relative_to(mount_point) and len(mount_point) >= best:
            best, kind = len(mount_point), fields[fields.index("-", 6) + 1]
    return kind


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """An empty directory, removed after the work; if the process is killed, removed by the next attempt."""
    import shutil  # late: it imports all compressors, and only a new journal needs it

    shutil.rmtree(path, ignore_errors=True)
    make_directory(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def swap(partial: Path, target: Path) -> None:
    """Replace the data file by a finished copy: sync the copy, rename it, sync the directory."""
    with (partial / DATA_FILE).open("rb") as data:
        os.fchmod(data.fileno(), FILE_MODE)  # a copy that LMDB has made is open to all users
        os.fsync(data.fileno())
    os.replace(partial / DATA_FILE, target / DATA_FILE)
    share(target / DATA_FILE)
    (target / READERS_FILE).unlink(missing_ok=True)  # it lists readers of the old file
    sync_directory(target)
