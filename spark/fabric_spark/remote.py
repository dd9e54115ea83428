"""Snapshots that are not on this machine's disks: fetched by fsspec, each shard once for each machine.

A shard never changes and its name has its checksum, so a copy that has the right size and name is the shard. It is
fetched under another name and renamed when it is whole and its checksum is right; two tasks that fetch the same one
at the same time do twice the work and no harm.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from fabric_spark.errors import SourceError

CACHE_ENV: Final = "FABRIC_SPARK_CACHE"
_PIECE: Final = 8 << 20


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


def read(url: str) -> bytes:
    """A small file, whole."""
    filesystem, path = _filesystem(url)
    try:
        data: bytes = filesystem.cat_file(path)
    except FileNotFoundError:
        raise SourceError(
            f"there is no {url}", "check the URL; a snapshot that was not copied to its end has no manifest"
        ) from None
    except Exception as error:  # whatever the store's own library raises
        raise SourceError(f"{url} cannot be read: {error}", "check the credentials and the network") from error
    return data


def local_copy(url: str, sha256: str, size: int, cache: str = "") -> Path:
    """The path of a shard on this machine; fetched when it is not here yet."""
    folder = Path(cache or os.environ.get(CACHE_ENV) or Path(tempfile.gettempdir()) / f"fabric-spark-{os.getuid()}")
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
