"""A folder of snapshots: lists them, locks the folder, names and removes snapshots.

A snapshot appears and disappears by one rename, so that a part of a snapshot is never read as a snapshot: while it is
made or removed, its name begins with a dot. The process that makes or removes a snapshot locks the folder. It removes
files with such names first: a process that died has left them.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from fabric.errors import SnapshotError
from fabric.journal.directory import DIR_MODE, FILE_MODE, sync_directory
from fabric.snapshot.manifest import MANIFEST_FILE, SHARDS_DIR, Manifest, NotASnapshot, load

LOCK_FILE: Final = ".snapshots.lock"
_MAKING: Final = ".making-"
_REMOVING: Final = ".removing-"


class Busy(SnapshotError):
    """Another process makes a snapshot in the folder, or the name of the snapshot is taken."""


class Snapshot(NamedTuple):
    path: Path
    manifest: Manifest


def name_for(created_us: int, last_seq: int) -> str:
    """The name of a snapshot; names sort by time."""
    seconds, micros = divmod(created_us, 1_000_000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{micros // 1000:03d}Z-{last_seq}"


def scan(folder: Path) -> list[Path]:
    """All snapshots in a folder, also damaged ones, by name."""
    try:
        return sorted(
            path for path in folder.iterdir() if not path.name.startswith(".") and (path / MANIFEST_FILE).is_file()
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SnapshotError(f"cannot list {folder}: {error.strerror}", "check owner and permissions") from error


def snapshots(folder: Path, *, check_files: bool = True) -> list[Snapshot]:
    """The undamaged snapshots in a folder, the oldest first."""
    found = []
    for path in scan(folder):
        try:
            found.append(Snapshot(path, load(path, check_files=check_files)))
        except SnapshotError:
            continue
    return sorted(found, key=lambda snapshot: (snapshot.manifest.created_us, snapshot.path))


def find(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot at a path, or the newest snapshot in the folder at the path."""
    folder = Path(path)
    if not (folder / MANIFEST_FILE).exists():
        paths = scan(folder)
        for newest in reversed(snapshots(folder, check_files=False)):
            return Snapshot(newest.path, load(newest.path))
        if paths:
            load(paths[-1])  # raises an error that names the defect
    return Snapshot(folder, load(folder))


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """Lock a folder, to add or remove snapshots. Removes what processes that died have left."""
    with os_errors(f"cannot write to {folder}"):
        if not folder.is_dir():
            folder.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
            sync_directory(folder.parent)
        fd = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise Busy(
                f"another process makes or removes a snapshot in {folder}", "wait for it, or choose another folder"
            ) from error
        for path in folder.iterdir():
            if path.name.startswith((_MAKING, _REMOVING)):
                shutil.rmtree(path, ignore_errors=True)
        yield
    finally:
        os.close(fd)


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A temporary folder for an unfinished snapshot. It is removed afterwards, unless it was renamed."""
    path = folder / f"{_MAKING}{os.getpid()}"
    with os_errors(f"cannot write to {folder}"):
        (path / SHARDS_DIR).mkdir(mode=DIR_MODE, parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def require_free(target: Path) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists():
        raise Busy(f"{target} already exists", "choose a new folder for each snapshot")


def settle(partial: Path, target: Path) -> None:
    """Give a finished snapshot its name."""
    require_free(target)
    with os_errors(f"cannot write {target}"):
        sync_directory(partial / SHARDS_DIR)
        sync_directory(partial)
        os.rename(partial, target)
        sync_directory(target.parent)


def remove(path: Path) -> None:
    """Remove a snapshot, also a damaged one. Other snapshots keep shared shards. The caller holds the lock."""
    path = path.absolute()
    require_removable(path)
    doomed = path.with_name(f"{_REMOVING}{path.name}")
    with os_errors(f"cannot remove {path}"):
        os.rename(path, doomed)
        sync_directory(path.parent)
        shutil.rmtree(doomed)


def require_removable(path: Path) -> None:
    """Refuse a folder that is no snapshot, or that has other files too."""
    if path.is_symlink() or not (path / MANIFEST_FILE).is_file():
        raise NotASnapshot(f"{path} is not a snapshot: it has no {MANIFEST_FILE}", "'fabric snapshot list' shows them")
    shards = path / SHARDS_DIR
    strangers = [entry.name for entry in path.iterdir() if entry.name not in (MANIFEST_FILE, SHARDS_DIR)]
    if shards.is_dir():
        strangers += [f"{SHARDS_DIR}/{entry.name}" for entry in shards.iterdir() if entry.suffix != ".mdb"]
    if strangers:
        raise NotASnapshot(
            f"{path} has files that do not belong to a snapshot: {', '.join(sorted(strangers)[:5])}",
            "move that elsewhere, or remove the folder by hand",
        )


def superseded(folder: Path, keep: int, journal: str) -> list[Path]:
    """The snapshots of a journal in a folder, without the newest `keep`."""
    assert keep >= 1
    mine = [s.path for s in snapshots(folder, check_files=False) if s.manifest.journal == journal]
    return mine[:-keep]


@contextmanager
def os_errors(doing: str) -> Iterator[None]:
    """Turn an error of the operating system into an error with a hint."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                hint = "the disk is full; make room, or keep fewer snapshots with --keep"
            case errno.EACCES | errno.EPERM | errno.EROFS:
                hint = "check owner and permissions of the folder"
            case _:
                hint = "the disk may be failing; look at 'df' and 'dmesg'"
        raise SnapshotError(f"{doing}: {error.strerror or error}", hint) from error
