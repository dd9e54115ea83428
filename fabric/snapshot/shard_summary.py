"""Collects the manifest's entry about a shard, row by row, while the shard is written.

Every block is checked against its checksums. A damaged block is copied unchanged, because parts of it may be readable,
and its seqs are listed as lost.
"""

from typing import Final, Protocol, TypeVar

from fabric.event_block import EVENTS_MAX, columns, extent_of
from fabric.journal.blocks import check_block
from fabric.journal.tables.holes import hole_of
from fabric.snapshot.manifest import TOPICS_MAX, EventShard, Shard, Span
from fabric.snapshot.shards import BLOCKS, EVENTS
from fabric_protocol.errors import BlockError

Entry_co = TypeVar("Entry_co", covariant=True)


class Summary(Protocol[Entry_co]):
    """The interface of both kinds of summaries."""

    first: int
    next: int  # the first seq or number of the next row

    @property
    def table(self) -> bytes: ...
    @property
    def prefix(self) -> str: ...  # of the file's name
    def add(self, number: int, raw: bytes, origin: bytes = b"") -> None: ...
    def close(self, last: int) -> None: ...
    def entry(self, file: str, size: int, sha256: str, closed: bool) -> Entry_co: ...


class BlockSummary:
    """The summary of a shard of messages."""

    table: Final = BLOCKS
    prefix: Final = ""

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self._rows = self._blocks = 0
        self._first_ts_us = self._last_ts_us = 0
        self._origins = 0
        self._topics: set[str] = set()
        self._holes: list[Span] = []
        self._lost: list[Span] = []

    def add(self, number: int, raw: bytes, origin: bytes = b"") -> None:
        """Add a row. A gap before it comes from a damaged or missing block."""
        self._lose(self.next, number - 1)
        self._origins += bool(origin)
        hole = hole_of(number, raw)
        if hole is not None:
            self._holes.append((number, hole.last_seq))
            self.next = hole.last_seq + 1
            self._saw(hole.ts_us)
            return
        self._blocks += 1
        block = check_block(raw, number)
        if isinstance(block, str):  # its last seq is known when the next row comes
            self._lose(number, number)
            self.next = number + 1
            return
        self._rows += block.count
        self.next = block.last_seq + 1
        self._saw(block.ts_us)
        if len(self._topics) <= TOPICS_MAX:
            self._topics.update(block.topics)

    def close(self, last: int) -> None:
        """End the shard at `last`."""
        self._lose(self.next, last)
        self.next = max(self.next, last + 1)

    def entry(self, file: str, size: int, sha256: str, closed: bool) -> Shard:
        return Shard(
            file=file,
            first_seq=self.first,
            last_seq=self.next - 1,
            first_ts_us=self._first_ts_us,
            last_ts_us=self._last_ts_us,
            rows=self._rows,
            blocks=self._blocks,
            bytes=size,
            sha256=sha256,
            topics=tuple(sorted(self._topics)) if len(self._topics) <= TOPICS_MAX else None,
            holes=tuple(self._holes),
            lost=tuple(self._lost),
            closed=closed,
            origins=self._origins,
        )

    def _lose(self, first: int, last: int) -> None:
        if first > last:
            return
        if self._lost and self._lost[-1][1] + 1 == first:
            first = self._lost.pop()[0]
        self._lost.append((first, last))

    def _saw(self, ts_us: int) -> None:
        self._first_ts_us = self._first_ts_us or ts_us
        self._last_ts_us = ts_us


class EventSummary:
    """The summary of a shard of delivery events."""

    table: Final = EVENTS
    prefix: Final = "events-"

    def __init__(self, first: int) -> None:
        self.first = self.next = first
        self._rows = self._blocks = 0
        self._first_ts_us = self._last_ts_us = 0

    def add(self, number: int, raw: bytes, origin: bytes = b"") -> None:
        self._blocks += 1
        self.next = event_end(number, raw) + 1
        try:
            times = columns(raw).ts_us
        except BlockError:
            return
        self._rows += len(times)
        self._first_ts_us = min(self._first_ts_us or times[0], times[0])
        self._last_ts_us = max(self._last_ts_us, times[-1])

    def close(self, last: int) -> None:
        self.next = max(self.next, last + 1)

    def entry(self, file: str, size: int, sha256: str, closed: bool) -> EventShard:
        return EventShard(
            file=file,
            first=self.first,
            last=self.next - 1,
            rows=self._rows,
            blocks=self._blocks,
            first_ts_us=self._first_ts_us,
            last_ts_us=self._last_ts_us,
            bytes=size,
            sha256=sha256,
            closed=closed,
        )


def event_end(number: int, raw: bytes) -> int:
    """The last number of a block of events; a damaged block counts as full."""
    try:
        return extent_of(raw).last
    except BlockError:
        return number + EVENTS_MAX - 1
