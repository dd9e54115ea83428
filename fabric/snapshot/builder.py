"""Builds a snapshot: links the closed shards of the previous snapshot, and copies the other messages.

A shard is closed when it is full, so successive snapshots have the same files but for the last shard, which grows. A
closed shard is written again if retention has removed messages of it since; it keeps its last seq, so that the next
shards need not change.

The journal is read in short transactions of some megabytes. When retention removes messages before they are copied, the
work begins again at the journal's new first seq, with the shards that are still valid.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from fabric import __version__
from fabric.errors import SnapshotError
from fabric.journal.directory import FILE_MODE
from fabric.journal.environment import STEP_BYTES
from fabric.journal.limits import DISK_FLOOR_BYTES, DISK_FLOOR_SHARE
from fabric.journal.tables.holes import last_seq_of
from fabric.snapshot.folder import Snapshot
from fabric.snapshot.journal_view import Moment, Overtaken, Row, Rows, Source
from fabric.snapshot.manifest import FORMAT, SHARDS_DIR, EventShard, Manifest, Shard, problem_with
from fabric.snapshot.shard_summary import BlockSummary, EventSummary, Summary, event_end
from fabric.snapshot.shards import SHARD_BYTES, ShardWriter, end_heads, open_shard
from fabric_protocol.errors import FabricError

RESTARTS_MAX: Final = 10  # how often retention may overtake a snapshot

Entry = TypeVar("Entry", Shard, EventShard)


class Pace(NamedTuple):
    """The size of shards, and the rate at which the journal is read."""

    shard_bytes: int = SHARD_BYTES
    rate_bytes: int = 0  # per second; 0: no limit


class Builder:
    """Fills the folder of a snapshot. `reused` and `reused_bytes` count the linked shards."""

    def __init__(
        self,
        source: Source,
        folder: Path,
        earlier: list[Snapshot],
        pace: Pace,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._source = source
        self._folder = folder
        self._earlier = earlier
        self._pace = pace
        self._progress = progress
        # Existing shards with their folders: of the previous snapshot, and of this one so far.
        self._known: list[tuple[Shard, Path]] = []
        self._known_events: list[tuple[EventShard, Path]] = []
        self._linked: dict[str, int] = {}
        self._begun_s = time.monotonic()
        self._read_bytes = 0
        self._first_seq = self._last_seq = 0
        self.reused = self.reused_bytes = 0

    def run(self) -> Manifest:
        for attempt in range(RESTARTS_MAX + 1):
            moment = self._source.moment()
            self._first_seq, self._last_seq = moment.first_seq, moment.last_seq
            if not attempt:
                self._take_over(moment)
            try:
                return self._attempt(moment)
            except Overtaken:
                continue
        raise SnapshotError(
            "retention removes messages faster than they can be copied",
            "write to a faster disk, do not limit the rate, or stop the hub first",
        )

    def _take_over(self, moment: Moment) -> None:
        """Choose the newest earlier snapshot of the same journal that does not reach beyond the journal."""
        for path, manifest in reversed(self._earlier):
            same = (manifest.journal, manifest.epoch) == (moment.meta.uuid.hex(), moment.meta.epoch)
            if same and manifest.last_seq <= moment.last_seq:
                self._known = [(shard, path) for shard in manifest.shards]
                self._known_events = [(shard, path) for shard in manifest.events]
                return

    def _attempt(self, moment: Moment) -> Manifest:
        shards, events = self._shards(moment), self._event_shards(moment)
        files: list[Shard | EventShard] = [*shards, *events]
        kept = {Path(shard.file).name for shard in files}
        for path in (self._folder / SHARDS_DIR).iterdir():  # files of an attempt that was overtaken
            if path.name not in kept:
                path.unlink()
        reused = [shard for shard in files if shard.file in self._linked]
        self.reused, self.reused_bytes = len(reused), sum(shard.bytes for shard in reused)
        return Manifest(
            format=FORMAT,
            fabric=__version__,
            journal=moment.meta.uuid.hex(),
            epoch=moment.meta.epoch,
            created_us=moment.taken_us,
            first_seq=moment.first_seq,
            last_seq=moment.last_seq,
            messages=sum(shard.rows for shard in shards),
            bytes=sum(shard.bytes for shard in files),
            shards=tuple(shards),
            events=tuple(events),
            groups=moment.groups,
            topics=moment.topics,
            floor=moment.meta.floor,
        )

    # Messages.

    def _shards(self, moment: Moment) -> list[Shard]:
        made: list[Shard] = []
        seq, last_seq = moment.first_seq, moment.last_seq
        try:
            for shard, folder in self._known:
                if shard.last_seq < seq:
                    continue
                if shard.first_seq > seq or shard.last_seq > last_seq:
                    break
                if shard.first_seq == seq and self._is_current(shard, folder, last_seq):
                    self._link(shard, folder)
                    made.append(shard)
                elif shard.closed:
                    made += self._copy(self._source.blocks, last_seq_of, BlockSummary, seq, shard.last_seq, whole=True)
                else:
                    break
                seq = shard.last_seq + 1
                self._tell(seq)
            for shard in self._copy(self._source.blocks, last_seq_of, BlockSummary, seq, last_seq):
                made.append(shard)
        finally:
            self._known = self._remembered(made, self._known)
        return made

    def _remembered(self, made: list[Shard], known: list[tuple[Shard, Path]]) -> list[tuple[Shard, Path]]:
        """The shards with which another attempt can begin."""
        after = made[-1].last_seq if made else 0
        return [(shard, self._folder) for shard in made] + [pair for pair in known if pair[0].first_seq > after]

    def _is_current(self, shard: Shard, folder: Path, last_seq: int) -> bool:
        """Whether a shard exists and holds the present blocks of the journal. An open shard must reach the last seq."""
        if not (shard.closed or shard.last_seq == last_seq) or problem_with(folder, shard):
            return False
        if self._source.outline(shard.first_seq, shard.last_seq) != (shard.blocks, shard.holes):
            return False
        if self._source.origins(shard.first_seq, shard.last_seq) != shard.origins:  # an older program copied none
            return False
        try:  # a journal whose file was replaced by hand may have other blocks with the same seqs
            environment = open_shard(folder / shard.file)
            try:
                heads = end_heads(environment)
            finally:
                environment.close()
        except FabricError:
            return False
        return all(self._source.head(base) == head for base, head in heads.items())

    # Events.

    def _event_shards(self, moment: Moment) -> list[EventShard]:
        made: list[EventShard] = []
        number, last = moment.first_event, moment.last_event
        known = self._known_events
        for shard, folder in known:
            if shard.last < number:
                continue
            if shard.first > number or shard.last > last or not (shard.closed or shard.last == last):
                break
            if shard.first == number and not problem_with(folder, shard):
                self._link(shard, folder)
                made.append(shard)
            elif shard.closed:
                made += self._copy(self._source.events, event_end, EventSummary, number, shard.last, whole=True)
            else:
                break
            number = shard.last + 1
        made += self._copy(self._source.events, event_end, EventSummary, number, last)
        return made

    # Messages and events.

    def _copy(
        self,
        read: Callable[[int, int], Rows],
        end_of: Callable[[int, bytes], int],
        summary: Callable[[int], Summary[Entry]],
        first: int,
        last: int,
        *,
        whole: bool = False,
    ) -> Iterator[Entry]:
        """Shards of all rows from first to last; with `whole`, a single shard of any size."""
        rows = self._rows(read, end_of, first, last)
        while first <= last:
            held = summary(first)
            with ShardWriter(self._folder / "shard.partial", held.table, self._pace.shard_bytes) as writer:
                for row in rows:
                    held.add(*row)
                    writer.add(*row)
                    if writer.is_full and not whole:
                        break
                else:
                    held.close(last)
                size, sha256 = writer.finish()
                file = f"{SHARDS_DIR}/{held.prefix}{held.first}-{held.next - 1}-{sha256[:16]}.mdb"
                os.replace(writer.path, self._folder / file)
            first = held.next
            yield held.entry(file, size, sha256, whole or writer.is_full)

    def _rows(
        self, read: Callable[[int, int], Rows], end_of: Callable[[int, bytes], int], first: int, last: int
    ) -> Iterator[Row]:
        """All rows, read in steps, at the allowed rate."""
        while first <= last:
            self._require_room()
            rows = read(first, last)
            if not rows:
                return
            yield from rows
            first = end_of(rows[-1].number, rows[-1].raw) + 1
            self._read_bytes += sum(len(row.raw) for row in rows)
            if self._pace.rate_bytes:
                due_s = self._begun_s + self._read_bytes / self._pace.rate_bytes
                time.sleep(max(due_s - time.monotonic(), 0))
            if read == self._source.blocks:
                self._tell(first)

    def _require_room(self) -> None:
        """On the disk of the journal, stop before the hub has to refuse publishes."""
        if os.stat(self._folder).st_dev != os.stat(self._source.path).st_dev:
            return
        disk = os.statvfs(self._folder)
        free, floor = disk.f_bavail * disk.f_frsize, int(DISK_FLOOR_SHARE * disk.f_blocks * disk.f_frsize)
        if free < 2 * STEP_BYTES + max(floor, DISK_FLOOR_BYTES):
            raise SnapshotError(
                f"the disk of the journal has {free:,} bytes left, and the hub needs them",
                "write snapshots to another disk, or keep fewer snapshots",
            )

    def _link(self, shard: Shard | EventShard, folder: Path) -> None:
        """Link a file of another snapshot into this snapshot; copy it if it cannot be linked."""
        if folder == self._folder:
            return
        source, target = folder / shard.file, self._folder / shard.file
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            with source.open("rb") as data, open(os.open(target, os.O_WRONLY | os.O_CREAT, FILE_MODE), "wb") as copy:
                shutil.copyfileobj(data, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
        self._linked[shard.file] = shard.bytes

    def _tell(self, seq: int) -> None:
        if self._progress is not None:
            self._progress(min(seq, self._last_seq + 1) - self._first_seq, self._last_seq - self._first_seq + 1)
