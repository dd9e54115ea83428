"""The manifest: the contents of a snapshot. A folder without a manifest is no snapshot.

    <snapshot>/manifest.json                                            written last
    <snapshot>/shards/<first_seq>-<last_seq>-<sha256, 16 digits>.mdb    rows of the journal's tables blocks, origins
    <snapshot>/shards/events-<first>-<last>-<sha256, 16 digits>.mdb     blocks of delivery events

Shards are consecutive: seqs that are in no block are in `holes` (removed by retention of single topics) or in `lost`
(damaged or missing in the journal). Groups and topics are in their state when `last_seq` was the last seq of the
journal. Programs of the same format may add fields, so unknown fields are ignored; a manifest of a newer format is
refused.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from fabric.errors import SnapshotDamaged, SnapshotError
from fabric.records import GroupSettings, TopicSettings

FORMAT: Final = 1
MANIFEST_FILE: Final = "manifest.json"
SHARDS_DIR: Final = "shards"
MANIFEST_BYTES_MAX: Final = 1 << 30  # a larger file is no manifest; a shard of 128 MiB takes some kilobytes
TOPICS_MAX: Final = 10_000  # topics listed for a shard
_AGAIN: Final = "take a new snapshot with 'fabric snapshot create', or copy this snapshot again"
_NAME: Final = re.compile(r"[0-9a-zA-Z][0-9a-zA-Z._-]*\.mdb")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")

Span = tuple[int, int]  # first and last


class NotASnapshot(SnapshotError):
    """The folder has no manifest."""


class Shard(NamedTuple):
    """A file with blocks of messages. Each seq from first to last is in a block, in `holes` or in `lost`."""

    file: str  # within the snapshot, as shards/….mdb
    first_seq: int
    last_seq: int
    first_ts_us: int  # of the first block; the next field: of the last block
    last_ts_us: int
    rows: int  # readable messages
    blocks: int
    bytes: int  # of the file
    sha256: str
    topics: tuple[str, ...] | None  # None: more than TOPICS_MAX
    holes: tuple[Span, ...]
    lost: tuple[Span, ...] = ()  # damaged or missing when the snapshot was taken
    closed: bool = False  # full: later snapshots of the journal link the same file
    origins: int = 0  # blocks that another journal had first; a file without them has no table of origins


class EventShard(NamedTuple):
    """A file with blocks of delivery events, by their numbers."""

    file: str
    first: int
    last: int
    rows: int
    blocks: int
    first_ts_us: int
    last_ts_us: int
    bytes: int
    sha256: str
    closed: bool = False


class Failure(NamedTuple):
    """Messages that have failed in a group and are no dead letters yet."""

    first: int
    last: int
    failures: int
    due_us: int
    reason: str


class GroupState(NamedTuple):
    """A group at last_seq. Messages below `cursor` are settled but for the `open` seqs; a priority may have a lane."""

    group: str
    settings: GroupSettings
    cursor: int
    floor: int  # messages up to here are settled, in all priorities
    open: tuple[Span, ...]
    lanes: tuple[Span, ...]  # (priority, cursor)
    paused: bool
    refresh: tuple[int, int, int]  # number, target, phase
    failures: tuple[Failure, ...]


class TopicState(NamedTuple):
    """A topic with settings or with a floor. Messages below the floor were removed, although their block may exist."""

    topic: str
    settings: TopicSettings
    floor: int
    msgs: int  # at or above the floor; -1: the hub was counting them
    bytes: int
    deleted: bool


class Manifest(NamedTuple):
    format: int
    fabric: str  # the version of the program that made the snapshot
    journal: str  # uuid, as 32 hexadecimal digits
    epoch: int
    created_us: int
    first_seq: int
    last_seq: int  # first_seq - 1 without messages
    messages: int
    bytes: int  # of all shards
    shards: tuple[Shard, ...]
    events: tuple[EventShard, ...]
    groups: tuple[GroupState, ...]
    topics: tuple[TopicState, ...]
    floor: int = 0  # what lies below is removed, though the first block may still hold some of it

    @property
    def begins_at(self) -> int:
        """The first seq that a reader gives; `first_seq` is where the first block begins."""
        return max(self.first_seq, self.floor)

    @property
    def floors(self) -> dict[str, int]:
        """The floors of topics that were purged or trimmed: a reader skips messages below them."""
        return {state.topic: state.floor for state in self.topics if state.floor > self.first_seq}

    @property
    def files(self) -> "list[Shard | EventShard]":
        return [*self.shards, *self.events]


def load(path: str | os.PathLike[str], *, check_files: bool = True) -> Manifest:
    """The manifest of a snapshot, checked; with `check_files`, all shards must exist with their sizes."""
    folder = Path(path)
    file = folder / MANIFEST_FILE
    try:
        if file.stat().st_size > MANIFEST_BYTES_MAX:
            raise SnapshotDamaged(f"{file} has more than {MANIFEST_BYTES_MAX} bytes", _AGAIN)
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotASnapshot(
            f"there is no snapshot in {folder}: it has no {MANIFEST_FILE}",
            "check the path; 'fabric snapshot list' shows the snapshots of a folder",
        ) from None
    except OSError as error:
        raise SnapshotError(f"cannot read {file}: {error.strerror}", "check owner and permissions") from error
    manifest = decode(text, str(file))
    if check_files:
        for shard in manifest.files:
            problem = problem_with(folder, shard)
            if problem:
                raise SnapshotDamaged(f"the snapshot in {folder} is not whole: {problem}", _AGAIN)
    return manifest


def problem_with(folder: Path, shard: Shard | EventShard) -> str:
    """The defect of a shard's file: missing or of another size; empty without a defect."""
    try:
        size = (folder / shard.file).stat().st_size
    except OSError as error:
        return f"{shard.file} is missing" if isinstance(error, FileNotFoundError) else f"{shard.file}: {error.strerror}"
    return "" if size == shard.bytes else f"{shard.file} has {size} bytes, not {shard.bytes}"


# Encoding and decoding.


def encode(manifest: Manifest) -> bytes:
    fields = manifest._asdict()
    fields["shards"] = [shard._asdict() for shard in manifest.shards]
    fields["events"] = [shard._asdict() for shard in manifest.events]
    fields["groups"] = [
        {
            "group": state.group,
            **state.settings._asdict(),
            **{name: value for name, value in state._asdict().items() if name not in ("group", "settings")},
            "failures": [failure._asdict() for failure in state.failures],
        }
        for state in manifest.groups
    ]
    fields["topics"] = [
        {"topic": state.topic, **state.settings._asdict(), **dict(zip(state._fields[2:], state[2:], strict=True))}
        for state in manifest.topics
    ]
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(text: bytes, where: str) -> Manifest:
    """A manifest from its JSON; `where` names it in errors."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise SnapshotDamaged(f"{where} is not JSON: {error}", _AGAIN) from error
    if not isinstance(fields, dict) or type(fields.get("format")) is not int:
        raise SnapshotDamaged(f"{where} is not the manifest of a snapshot: it has no format", _AGAIN)
    if fields["format"] > FORMAT:
        raise SnapshotError(
            f"{where} has format {fields['format']}, and this program knows up to {FORMAT}", "upgrade fabricmq"
        )
    try:
        manifest = _Decoder(where).manifest(fields)
    except _Wrong as error:
        raise SnapshotDamaged(f"{where} is damaged: {error}", _AGAIN) from error
    return manifest


class _Wrong(Exception):
    pass


class _Decoder:
    """Decodes JSON; an error names the field by its path."""

    def __init__(self, where: str) -> None:
        self._where = where

    def manifest(self, fields: dict[str, Any]) -> Manifest:
        plain = _plain(Manifest, fields, "", ("shards", "events", "groups", "topics"))
        manifest = Manifest(
            **plain,
            shards=tuple(self._each(fields, "shards", self._shard)),
            events=tuple(self._each(fields, "events", self._event_shard)),
            groups=tuple(self._each(fields, "groups", self._group)),
            topics=tuple(self._each(fields, "topics", self._topic)),
        )
        _require_whole(manifest)
        return manifest

    def _each(self, fields: Mapping[str, Any], name: str, make: "Callable[[Any, str], Any]") -> list[Any]:
        rows = _taken(fields, name, list, "")
        return [make(_dict(row, f"{name}[{i}]"), f"{name}[{i}]") for i, row in enumerate(rows)]

    def _shard(self, row: dict[str, Any], at: str) -> Shard:
        topics = row.get("topics")
        return Shard(
            **_plain(Shard, row, at, ("topics", "holes", "lost")),
            topics=None if topics is None else tuple(_strings(topics, f"{at}.topics")),
            holes=_spans(row, "holes", at),
            lost=_spans(row, "lost", at) if "lost" in row else (),
        )

    def _event_shard(self, row: dict[str, Any], at: str) -> EventShard:
        return EventShard(**_plain(EventShard, row, at))

    def _group(self, row: dict[str, Any], at: str) -> GroupState:
        known = {name: row[name] for name in GroupSettings._fields if name in row}
        known["patterns"] = tuple(_strings(row.get("patterns"), f"{at}.patterns"))
        failures = _taken(row, "failures", list, at)
        refresh = row.get("refresh", [0, 0, 0])
        return GroupState(
            **_plain(GroupState, row, at, ("settings", "open", "lanes", "refresh", "failures")),
            settings=GroupSettings(**known),
            open=_spans(row, "open", at),
            lanes=_spans(row, "lanes", at),
            refresh=tuple(refresh),
            failures=tuple(
                Failure(**_plain(Failure, _dict(f, at), f"{at}.failures[{i}]")) for i, f in enumerate(failures)
            ),
        )

    def _topic(self, row: dict[str, Any], at: str) -> TopicState:
        known = {name: row[name] for name in TopicSettings._fields if name in row}
        return TopicState(**_plain(TopicState, row, at, ("settings",)), settings=TopicSettings(**known))


_KINDS: Final = {int: "a number", str: "text", bool: "true or false", list: "a list"}


def _plain(kind: Any, row: Mapping[str, Any], at: str, others: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a NamedTuple that are numbers, texts or booleans."""
    defaults = kind._field_defaults
    values = {}
    for name in kind._fields:
        if name in others:
            continue
        if name not in row and name in defaults:
            continue
        value = values[name] = _taken(row, name, kind.__annotations__[name], at)
        if name == "file":
            path = PurePosixPath(value)
            if path.parent != PurePosixPath(SHARDS_DIR) or not _NAME.fullmatch(path.name):
                raise _Wrong(f"{at}.file is {value!r}, which is not a file in {SHARDS_DIR}/")
        elif name == "sha256" and not _SHA256.fullmatch(value):
            raise _Wrong(f"{at}.sha256 is {value!r}")
    return values


def _taken(row: Mapping[str, Any], name: str, kind: type, at: str) -> Any:
    place = f"{at}.{name}" if at else name
    if name not in row:
        raise _Wrong(f"{place} is missing")
    if type(row[name]) is not kind:
        raise _Wrong(f"{place} is {str(row[name])[:60]!r}, not {_KINDS[kind]}")
    return row[name]


def _dict(row: Any, at: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise _Wrong(f"{at} is not a map")
    return row


def _strings(values: Any, at: str) -> list[str]:
    if not isinstance(values, list) or any(type(value) is not str for value in values):
        raise _Wrong(f"{at} is not a list of names")
    return values


def _spans(row: Mapping[str, Any], name: str, at: str) -> tuple[Span, ...]:
    values = _taken(row, name, list, at)
    for value in values:
        if not isinstance(value, list) or len(value) != 2 or any(type(n) is not int for n in value):
            raise _Wrong(f"{at}.{name} is not a list of pairs")
    return tuple((first, last) for first, last in values)


def _require_whole(manifest: Manifest) -> None:
    """Check that shards are consecutive from the first seq to the last, and that the sums are right."""
    seq = manifest.first_seq
    for i, shard in enumerate(manifest.shards):
        if shard.first_seq != seq or shard.last_seq < shard.first_seq:
            raise _Wrong(f"shards[{i}] has seqs {shard.first_seq}..{shard.last_seq}, and should begin at {seq}")
        seq = shard.last_seq + 1
    if seq != manifest.last_seq + 1:
        raise _Wrong(f"the shards end at seq {seq - 1}, not at {manifest.last_seq}")
    if sum(shard.rows for shard in manifest.shards) != manifest.messages:
        raise _Wrong(f"the shards have {sum(s.rows for s in manifest.shards)} messages, not {manifest.messages}")
    if sum(shard.bytes for shard in manifest.files) != manifest.bytes:
        raise _Wrong(f"the shards have {sum(s.bytes for s in manifest.files)} bytes, not {manifest.bytes}")
    number = 0
    for i, events in enumerate(manifest.events):
        if events.first <= number or events.last < events.first:
            raise _Wrong(f"events[{i}] has numbers {events.first}..{events.last}, after {number}")
        number = events.last
