"""Snapshots that are not on this machine's disks: fetched by fsspec, each shard once for each machine.

A shard never changes and its name has its checksum, so a copy that has the right size and name is the shard. It is
fetched under another name and renamed when it is whole and its checksum is right; two tasks that fetch the same one
at the same time do twice the work and no harm.
"""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from fabric.snapshot.manifest import MANIFEST_FILE
from fabric_spark.errors import SourceError
from fabric_spark.folders import private

CACHE_ENV: Final = "FABRIC_SPARK_CACHE"
_PIECE: Final = 8 << 20
_MADE: Final = re.compile(rf"/\d{{8}}T\d{{6}}\.\d{{3}}Z-\d+/{MANIFEST_FILE}$")


def is_remote(path: str) -> bool:
    return "://" in path and not path.startswith("file://")


def _filesystem(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError:
        raise SourceError(f"{url} needs fsspec, which is not installed", "pip install 'fabricmq[spark]'") from None
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SourceError(
            f"{url} cannot be opened: {error}", "install fsspec's package for it, such as s3fs for s3:// URLs"
        ) from error
    return filesystem, str(path)


def manifest(url: str) -> tuple[str, bytes]:
    """The manifest of the snapshot at a URL, or of the newest in the folder of snapshots that is there; and its URL."""
    folder = url.rstrip("/")
    filesystem, path = _filesystem(folder)
    try:
        filesystem.invalidate_cache()  # a stream wants to see what was pushed since
        if filesystem.exists(f"{path}/{MANIFEST_FILE}"):
            return folder, _read(filesystem, f"{path}/{MANIFEST_FILE}")
        found = sorted(str(file) for file in filesystem.glob(f"{path}/*/{MANIFEST_FILE}"))
        if found and not all(_MADE.search(file) for file in found):  # names of snapshots sort by time
            found.sort(key=lambda file: _created(_read(filesystem, file)))
        if found:
            newest = str(filesystem.unstrip_protocol(found[-1])).removesuffix(f"/{MANIFEST_FILE}")
            return newest, _read(filesystem, found[-1])
    except FileNotFoundError:
        pass
    except Exception as error:  # any exception of the store's library
        raise SourceError(f"{url} cannot be read: {error}", "check the credentials and the network") from error
    raise SourceError(
        f"there is no snapshot at {url}", "check the URL; a snapshot that was not copied to its end has no manifest"
    )


def _read(filesystem: Any, path: str) -> bytes:
    data: bytes = filesystem.cat_file(path)
    return data


def _created(text: bytes) -> int:
    try:
        return int(json.loads(text)["created_us"])
    except (ValueError, KeyError, TypeError):
        return 0


def local_copy(url: str, sha256: str, size: int, cache: str = "") -> Path:
    """The path of a shard on this machine; fetched when it is not here yet."""
    given = cache or os.environ.get(CACHE_ENV)
    folder = Path(given) if given else private("fabric-spark")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / f"{sha256}.mdb"
    if target.exists() and target.stat().st_size == size:
        return target
    filesystem, path = _filesystem(url)
    digest = hashlib.sha256()
    handle, name = tempfile.mkstemp(dir=folder, prefix="fetching-")
    try:
        with os.fdopen(handle, "wb") as out, filesystem.open(path, "rb") as source:
            while piece := source.read(_PIECE):
                digest.update(piece)
                out.write(piece)
        if digest.hexdigest() != sha256:
            raise SourceError(f"{url} does not match its checksum", "copy the snapshot to the store again")
        os.replace(name, target)
    except FileNotFoundError:
        raise SourceError(f"{url} is missing", "copy the snapshot to the store again") from None
    finally:
        Path(name).unlink(missing_ok=True)
    return target
