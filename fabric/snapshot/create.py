"""Creates a snapshot: the manifest is written last, and the folder gets its name when all is on disk."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from fabric.errors import SnapshotError
from fabric.journal.directory import FILE_MODE
from fabric.snapshot.builder import Builder, Pace
from fabric.snapshot.folder import Snapshot, claim, making, name_for, os_errors, require_free, settle, snapshots
from fabric.snapshot.journal_view import Source
from fabric.snapshot.manifest import MANIFEST_FILE, Manifest, encode, load
from fabric.snapshot.shards import SHARD_BYTES, SHARD_BYTES_MAX, SHARD_BYTES_MIN

Progress = Callable[[int, int], None]  # (copied seqs, all seqs)


class Made(NamedTuple):
    path: Path
    manifest: Manifest
    reused: int  # shards linked from an earlier snapshot
    written_bytes: int


def create(
    journal: str | os.PathLike[str],
    target: str | os.PathLike[str],
    previous: str | os.PathLike[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress | None = None,
    rate_bytes: int = 0,
) -> Manifest:
    """Take a snapshot of a journal into the new folder `target`; the hub may run.

    Shards of `previous`, an earlier snapshot of the same journal, are linked instead of copied.
    """
    place, pace = Path(target).absolute(), Pace(shard_bytes, rate_bytes)
    require_free(place)
    with claim(place.parent):
        earlier = [] if previous is None else [Snapshot(Path(previous), load(previous, check_files=False))]
        return _make(Path(journal), place.parent, place.name, earlier, pace, progress).manifest


def create_in(
    journal: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    pace: Pace = Pace(),  # noqa: B008 - immutable
    full: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Add a snapshot to a folder of snapshots. Shards of the newest snapshot there are linked.

    With `full`, all is copied.
    """
    place = Path(folder).absolute()
    with claim(place):
        earlier = [] if full else snapshots(place, check_files=False)
        return _make(Path(journal), place, None, earlier, pace, progress)


def _make(
    journal: Path, folder: Path, name: str | None, earlier: list[Snapshot], pace: Pace, progress: Progress | None
) -> Made:
    if not SHARD_BYTES_MIN <= pace.shard_bytes <= SHARD_BYTES_MAX:
        raise SnapshotError(
            f"the size of a shard is {pace.shard_bytes:,} bytes",
            f"choose {SHARD_BYTES_MIN:,} to {SHARD_BYTES_MAX:,} bytes",
        )
    with closing(Source(journal)) as source, making(folder) as partial:
        builder = Builder(source, partial, earlier, pace, progress)
        with os_errors(f"cannot write to {folder}"):
            manifest = builder.run()
            _write_durably(partial / MANIFEST_FILE, encode(manifest))
        target = folder / (name or name_for(manifest.created_us, manifest.last_seq))
        settle(partial, target)
    return Made(target, manifest, builder.reused, manifest.bytes - builder.reused_bytes)


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file under a temporary name, then rename it: a file with its name is whole."""
    temporary = path.with_suffix(".partial")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    os.replace(temporary, path)
