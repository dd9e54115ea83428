"""Copies a snapshot to another folder, or to a URL that fsspec can write to.

Shards are sent first and the manifest last, so that the destination has a manifest only when it has the whole snapshot.
The name of a file contains its checksum: a file with the same name and size in any snapshot at the destination is not
sent again. After an interruption, run the push again.
"""

import hashlib
import importlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from fabric.errors import SnapshotDamaged, SnapshotError
from fabric.journal.directory import DIR_MODE, FILE_MODE, sync_directory
from fabric.snapshot.folder import Busy, find, os_errors
from fabric.snapshot.manifest import MANIFEST_FILE, SHARDS_DIR

Progress = Callable[[int, int], None]  # (copied bytes, all bytes)

_COPY_BYTES: Final = 1 << 20


class Pushed(NamedTuple):
    target: str
    files: int  # all shards
    sent: int  # from this machine
    copied: int  # from an earlier snapshot at the destination
    skipped: int  # already at the destination
    sent_bytes: int


class _Store(Protocol):
    """The destination. Paths are relative to it."""

    def size(self, path: str) -> int | None: ...
    def read(self, path: str) -> bytes | None: ...
    def shards(self) -> dict[str, tuple[str, int]]: ...  # of all snapshots at the destination: name -> (path, size)
    def send(self, source: Path, path: str) -> None: ...
    def copy(self, there: str, path: str) -> None: ...
    def write(self, path: str, data: bytes) -> None: ...


def push(path: str | os.PathLike[str], destination: str, progress: Progress | None = None) -> Pushed:
    """Copy a snapshot, or the newest of a folder, into a folder of snapshots or to a URL of fsspec."""
    snapshot, manifest = find(path)
    store, name = _store(destination), snapshot.absolute().name
    text = (snapshot / MANIFEST_FILE).read_bytes()
    present = store.read(f"{name}/{MANIFEST_FILE}")
    if present is not None and present != text:
        raise Busy(f"{destination} has another snapshot with the name {name}", "remove or rename one of the two")
    elsewhere = store.shards()
    sent = copied = skipped = sent_bytes = done = 0
    for shard in manifest.files:
        target = f"{name}/{shard.file}"
        there, size = elsewhere.get(Path(shard.file).name, ("", -1))
        if store.size(target) == shard.bytes:
            skipped += 1
        elif size == shard.bytes and there != target:
            store.copy(there, target)
            copied += 1
        else:
            _require_sound(snapshot / shard.file, shard.sha256)
            store.send(snapshot / shard.file, target)
            sent, sent_bytes = sent + 1, sent_bytes + shard.bytes
        if store.size(target) != shard.bytes:
            raise SnapshotError(
                f"{destination}: {target} is not whole after the copy", "push again: whole files are skipped"
            )
        done += shard.bytes
        if progress is not None:
            progress(done, manifest.bytes)
    if present is None:
        store.write(f"{name}/{MANIFEST_FILE}", text)
    return Pushed(f"{destination.rstrip('/')}/{name}", len(manifest.files), sent, copied, skipped, sent_bytes)


def _require_sound(file: Path, sha256: str) -> None:
    """Refuse to send a damaged file."""
    with os_errors(f"cannot read {file}"), file.open("rb") as data:
        if hashlib.file_digest(data, "sha256").hexdigest() != sha256:
            hint = "push an older snapshot, or take a new snapshot"
            raise SnapshotDamaged(f"{file} does not match its sha256", hint)


def _store(destination: str) -> _Store:
    if "://" not in destination:
        return _Folder(Path(destination).absolute())
    if destination.startswith("file://"):
        return _Folder(Path(unquote(urlsplit(destination).path)))
    return _Remote(destination)


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def size(self, path: str) -> int | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self._root / path).stat().st_size
        return None

    def read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError, NotADirectoryError):
            return (self._root / path).read_bytes()
        return None

    def shards(self) -> dict[str, tuple[str, int]]:
        found = sorted(self._root.glob(f"[!.]*/{SHARDS_DIR}/*.mdb"))
        return {path.name: (str(path.relative_to(self._root)), path.stat().st_size) for path in found}

    def send(self, source: Path, path: str) -> None:
        with os_errors(f"cannot write to {self._root}"):
            temporary = self._temporary(path)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with source.open("rb") as data, os.fdopen(fd, "wb") as copy:
                shutil.copyfileobj(data, copy, _COPY_BYTES)
                copy.flush()
                os.fsync(fd)
            self._settle(temporary, path)

    def copy(self, there: str, path: str) -> None:
        with os_errors(f"cannot write to {self._root}"):
            temporary = self._temporary(path)
            try:
                os.link(self._root / there, temporary)
            except OSError:
                self.send(self._root / there, path)
                return
            self._settle(temporary, path)

    def write(self, path: str, data: bytes) -> None:
        with os_errors(f"cannot write to {self._root}"):
            temporary = self._temporary(path)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(fd)
            self._settle(temporary, path)

    def _temporary(self, path: str) -> Path:
        target = self._root / path
        target.parent.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
        temporary = target.with_name(target.name + ".partial")
        temporary.unlink(missing_ok=True)
        return temporary

    def _settle(self, temporary: Path, path: str) -> None:
        os.replace(temporary, self._root / path)
        sync_directory(temporary.parent)


class _Remote:
    """A URL of fsspec: object stores, SFTP, HDFS and others. Their errors have no common class, so all are caught."""

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            fsspec: Any = importlib.import_module("fsspec")
        except ImportError:
            raise SnapshotError(
                f"pushing to {url} needs fsspec, which is not installed",
                "pip install fsspec, and what it needs for this kind of URL, such as s3fs or gcsfs",
            ) from None
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise SnapshotError(
                f"fsspec cannot open {url}: {error}", "install the package that it names, or check the URL"
            ) from error
        self._root: str = root.rstrip("/")

    def size(self, path: str) -> int | None:
        with suppress(FileNotFoundError):
            return int(self._try(self._fs.info, f"{self._root}/{path}")["size"])
        return None

    def read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return bytes(self._try(self._fs.cat_file, f"{self._root}/{path}"))
        return None

    def shards(self) -> dict[str, tuple[str, int]]:
        found = self._try(self._fs.glob, f"{self._root}/*/{SHARDS_DIR}/*.mdb", detail=True)
        start = len(self._root.lstrip("/")) + 1
        return {path.rpartition("/")[2]: (path.lstrip("/")[start:], int(info["size"])) for path, info in found.items()}

    def send(self, source: Path, path: str) -> None:
        self._make_parent(path)
        self._try(self._fs.put_file, str(source), f"{self._root}/{path}")

    def copy(self, there: str, path: str) -> None:
        self._make_parent(path)
        self._try(self._fs.cp_file, f"{self._root}/{there}", f"{self._root}/{path}")

    def write(self, path: str, data: bytes) -> None:
        self._try(self._fs.pipe_file, f"{self._root}/{path}", data)

    def _make_parent(self, path: str) -> None:
        with suppress(Exception):  # object stores have no folders, and some refuse to create a bucket
            self._fs.makedirs(f"{self._root}/{path}".rpartition("/")[0], exist_ok=True)

    def _try(self, action: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return action(*args, **options)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise SnapshotError(
                f"{self._url}: {error or type(error).__name__}",
                "check the address and your credentials, then push again: what has arrived is skipped",
            ) from error
