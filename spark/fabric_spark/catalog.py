"""Lists what a query can read: snapshots by their manifests, live journals by their summaries.

A place is read once, where the query is planned. The result is small: runs of seqs, each in one file, with their times
and topics as far as they are known. Tasks get pieces of runs and never read a manifest.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from fabric.errors import JournalDamaged
from fabric.journal.directory import DATA_FILE
from fabric.journal.environment import Reading, Tables, open_environment, open_tables, seek
from fabric.journal.rows import seq_key
from fabric.journal.tables.chunks import Chunk
from fabric.snapshot.folder import find
from fabric.snapshot.journal_view import Source
from fabric.snapshot.manifest import (
    MANIFEST_FILE,
    EventShard,
    GroupState,
    Manifest,
    NotASnapshot,
    Shard,
    decode,
    load,
)
from fabric_spark import remote
from fabric_spark.errors import SourceError
from fabric_spark.options import Options
from fabric_spark.topics import Wanted

_CHUNKS_PER_STEP: Final = 256  # summaries read in one transaction
_FOREVER: Final = (1 << 63) - 1
_RETENTION: Final = "start later, take snapshots more often, or set failOnDataLoss=false to read what is left"

Span = tuple[int, int]


class Run(NamedTuple):
    """Seqs first..last in one file (or numbers of events), and what is known of them."""

    file: str  # a shard, or the directory of a live journal
    first: int
    last: int
    rows: int
    first_us: int
    last_us: int
    topics: tuple[str, ...] | None = None  # None: not known
    holes: tuple[Span, ...] = ()  # removed on purpose
    lost: tuple[Span, ...] = ()  # damaged or missing
    sha256: str = ""
    size: int = 0


class Place(NamedTuple):
    """A hub's data in one place, as it is now."""

    hub: str
    path: str
    is_live: bool  # a journal that a hub may be writing to
    shards: tuple[Shard, ...]
    events: tuple[EventShard, ...]
    groups: tuple[GroupState, ...]
    journal: str
    epoch: int
    first_seq: int
    last_seq: int
    now_us: int
    first_event: int
    last_event: int
    floors: dict[str, int]  # topic -> what lies below was removed, though its block may still be there

    def extent(self, stream: str) -> Span:
        return (self.first_event, self.last_event) if stream == "events" else (self.first_seq, self.last_seq)


def places(options: Options) -> list[Place]:
    """All that the paths of a query name; the same journal twice is refused, since its rows would count twice."""
    found = [place_of(name, path) for name, path in options.paths]
    names = [place.hub for place in found]
    if len(set(names)) < len(names):
        found = [place._replace(hub=place.path) for place in found]
    known: dict[str, str] = {}
    for place in found:
        if place.journal in known:
            raise SourceError(
                f"{known[place.journal]} and {place.path} are of the same journal, and messages would be there twice",
                "read the newer of the two",
            )
        known[place.journal] = place.path
    return found


def place_of(hub: str, path: str) -> Place:
    """A snapshot or a live journal, whichever there is; of a folder of snapshots the newest."""
    path = path.removeprefix("file://") if path.startswith("file://") else path
    if remote.is_remote(path):
        url, text = remote.manifest(path)
        return _snapshot(hub or Path(path.rstrip("/")).name, url, decode(text, f"{url}/{MANIFEST_FILE}"))
    folder = Path(path)
    if (folder / MANIFEST_FILE).exists():
        return _snapshot(hub, path, load(folder))
    if (folder / DATA_FILE).exists():
        return _live(hub, folder)
    if not folder.exists():
        raise SourceError(
            f"there is no {folder.absolute()}", "check the path; on a cluster it must be there for every executor"
        )
    try:
        newest = find(folder)
    except NotASnapshot:
        raise SourceError(
            f"{path} is neither a snapshot (it has no {MANIFEST_FILE}) nor a journal (it has no {DATA_FILE})",
            "an unfinished snapshot has no manifest: take a new snapshot with 'fabric snapshot create'",
        ) from None
    return _snapshot(hub or folder.resolve().name, str(newest.path), newest.manifest)


def _snapshot(hub: str, path: str, manifest: Manifest) -> Place:
    events = manifest.events
    return Place(
        hub=hub or Path(path.rstrip("/")).name,
        path=path.rstrip("/"),
        is_live=False,
        shards=manifest.shards,
        events=events,
        groups=manifest.groups,
        journal=manifest.journal,
        epoch=manifest.epoch,
        first_seq=manifest.begins_at,
        last_seq=manifest.last_seq,
        now_us=manifest.created_us,
        first_event=events[0].first if events else 1,
        last_event=events[-1].last if events else 0,
        floors=manifest.floors,
    )


def _live(hub: str, folder: Path) -> Place:
    with closing(Source(folder)) as source:
        moment = source.moment()
    return Place(
        hub=hub or folder.resolve().name,
        path=str(folder),
        is_live=True,
        shards=(),
        events=(),
        groups=moment.groups,
        journal=moment.meta.uuid.hex(),
        epoch=moment.meta.epoch,
        first_seq=max(moment.first_seq, moment.meta.floor),
        last_seq=moment.last_seq,
        now_us=time.time_ns() // 1000,
        first_event=moment.first_event,
        last_event=moment.last_event,
        floors={topic.topic: topic.floor for topic in moment.topics if topic.floor > moment.first_seq},
    )


# Runs.


def runs(place: Place, stream: str, first: int, last: int, wanted: Wanted) -> Iterator[Run]:
    """The runs that hold any of first..last, without the runs that have no wanted topic."""
    if place.is_live:
        found = _live_event_runs(place) if stream == "events" else _chunk_runs(place, first, last, wanted)
    else:
        found = _event_runs(place) if stream == "events" else _shard_runs(place)
    for run in found:
        if run.first <= last and run.last >= first and (run.lost or wanted.any_of(run.topics)):
            yield run


def _shard_runs(place: Place) -> Iterator[Run]:
    for shard in place.shards:
        yield Run(
            file=f"{place.path}/{shard.file}",
            first=shard.first_seq,
            last=shard.last_seq,
            rows=shard.rows,
            first_us=shard.first_ts_us,
            last_us=shard.last_ts_us,
            topics=shard.topics,
            holes=shard.holes,
            lost=shard.lost,
            sha256=shard.sha256,
            size=shard.bytes,
        )


def _event_runs(place: Place) -> Iterator[Run]:
    for shard in place.events:
        yield Run(
            file=f"{place.path}/{shard.file}",
            first=shard.first,
            last=shard.last,
            rows=shard.rows,
            first_us=shard.first_ts_us,
            last_us=shard.last_ts_us,
            sha256=shard.sha256,
            size=shard.bytes,
        )


def _live_event_runs(place: Place) -> Iterator[Run]:
    if place.last_event >= place.first_event:
        count = place.last_event - place.first_event + 1
        yield Run(place.path, place.first_event, place.last_event, count, 0, _FOREVER)


def _chunk_runs(place: Place, first: int, last: int, wanted: Wanted) -> Iterator[Run]:
    """A live journal as runs: its chunks, by their summaries, and the open chunk as one run at the end."""
    seq, known_us = max(first, place.first_seq), 0
    with closing(open_environment(Path(place.path), readonly=True)) as environment:
        tables = open_tables(environment)
        more = True
        while more and seq <= min(last, place.last_seq):
            with environment.begin(buffers=True) as txn:
                found, more = _summaries(txn, tables, seq, with_topics=not wanted.is_everything)
            for first_seq, last_seq, first_us, last_us, topics in found:
                if first_seq > seq:  # a hole that took its summary with it, or a summary that was lost
                    yield Run(place.path, seq, first_seq - 1, first_seq - seq, known_us, first_us)
                yield Run(place.path, first_seq, last_seq, last_seq - first_seq + 1, first_us, last_us, topics)
                seq, known_us = last_seq + 1, last_us
    if seq <= place.last_seq:
        yield Run(place.path, seq, place.last_seq, place.last_seq - seq + 1, known_us, _FOREVER)


_Summary = tuple[int, int, int, int, tuple[str, ...] | None]


def _summaries(txn: Reading, tables: Tables, seq: int, *, with_topics: bool) -> tuple[list[_Summary], bool]:
    """Summaries from the chunk that holds seq on, and whether there are more."""
    cursor = txn.cursor(tables.chunks)
    more = seek(cursor, seq) or cursor.set_range(seq_key(seq))
    found: list[_Summary] = []
    while more and len(found) < _CHUNKS_PER_STEP:
        try:
            chunk = Chunk.decode(cursor.key(), cursor.value())
        except JournalDamaged:  # it is derived from its blocks, which are read all the same
            more = cursor.next()
            continue
        if chunk.last_seq >= seq:
            topics = tuple(chunk.names) if with_topics and not chunk.damaged else None
            found.append((chunk.first_seq, chunk.last_seq, chunk.first_ts_us, chunk.last_ts_us, topics))
        more = cursor.next()
    return found, more and bool(found)


# The part of a place that a query reads.


def span_of_query(place: Place, options: Options) -> Span:
    """First and last seq (or number of an event) to be read; what was asked for by seq and is gone is an error."""
    first, last = place.extent(options.stream)
    if options.start_seq > 0:
        if options.start_seq < first and options.fail_on_data_loss:
            raise SourceError(
                f"{options.start_seq}..{first - 1} were asked for and are gone from {place.path}, which begins at"
                f" {first}",
                _RETENTION,
            )
        first = max(first, options.start_seq)
    return max(first, options.low), min(last, options.end_seq - 1)


def in_time(run: Run, options: Options) -> bool:
    """Whether something in a run can be of the wanted time. Times never decrease along a journal."""
    return (options.start_us is None or run.last_us >= options.start_us) and (
        options.end_us is None or run.first_us < options.end_us
    )


def first_at(place: Place, stream: str, start_us: int) -> int:
    """A seq (or number) below which all is older than a time; not much below the first that is not."""
    first, last = place.extent(stream)
    for run in runs(place, stream, first, last, Wanted()):
        if run.last_us >= start_us:
            return max(run.first, first)
    return last + 1
