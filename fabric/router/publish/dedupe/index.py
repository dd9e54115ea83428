"""Idempotency keys: a message with an id that is known on its topic is not stored again; the first seq is answered.

`check` finds the duplicates among the ids of a block and changes nothing; `remember` notes the other ids with their
seqs; `rows` returns the rows for the turn. So ids and messages are on disk together or not at all.

Keys are kept in segments (see `segment`), in order of time: the last segment grows, a full segment is written in small
steps over the following turns, and a segment is removed when the last of its windows has ended. Long windows have
segments of their own, because a few long windows would keep a whole segment. The settings of the topic at the time of
the publish decide how long a key counts. The latest entry of a key counts, so a key is renewed by a new entry, and no
entry is ever changed.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice, repeat
from operator import itemgetter
from typing import Final, NamedTuple, Protocol

from fabric.records import DropIds, Record, SaveIds, SaveSetting, TopicSettings
from fabric.router.clock import Clock
from fabric.router.part import Part
from fabric.router.publish.dedupe.segment import (
    BUCKET,
    BUCKETS,
    FILTER_BYTES,
    HASH_BYTES,
    HEAD,
    SEGMENT_KEYS,
    Places,
    Segment,
)
from fabric.router.publish.dedupe.segment_filter import FILTER_SEGMENTS, SHARED_BYTES, SegmentFilters
from fabric_protocol.block import Block
from fabric_protocol.block_parts import select
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.runs import runs_of

# Memory for keys: the filters of all segments, alone and combined, nine bytes for each key. (The segment that grows,
# and the segment before it until it is on disk, have some 17 MiB more each.) 128 segments are 60 million keys: ten
# minutes of 100,000 a second. Above it publishes with ids are refused: a key is not forgotten before its window ends.
MEMORY_BYTES_MAX: Final = 512 << 20
SEGMENTS_MAX: Final = MEMORY_BYTES_MAX // (FILTER_BYTES + SHARED_BYTES // FILTER_SEGMENTS)
# Rows of a full segment written with one turn, some 8 KB each; more when the next segment would be full before.
STEP_ROWS: Final = 128
KEPT_ROWS: Final = BUCKETS  # rows in memory, as many as one segment has: 15 MiB
STEP_BUCKETS: Final = 32  # absorbed into a combined filter at a time: two milliseconds
# Keys absorbed for each new key; more when several segments wait after a restart, since each is searched alone.
ABSORBED: Final = 2
ABSORBED_LATE: Final = 6
LONG_US: Final = 3600 * 1_000_000  # a longer window is a long one
RETRY_MS: Final = 1000
FLOOR: Final = "ids."  # with a topic: the name of the row that tells which keys of the topic were forgotten
FOREVER_US: Final = (1 << 63) - 1


class IdReader(Protocol):
    """Rows of the index on disk."""

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        """The first row at or after a number; an empty row when it is damaged."""
        ...


class Checked(NamedTuple):
    """A checked block: its duplicates, and the messages to store."""

    block: Block | None  # the messages to store; None: all are duplicates
    known: list[tuple[int, int]]  # (index in the block, seq) of duplicates of stored messages
    twins: list[tuple[int, int]]  # (index in the block, place in `block` of the first) of duplicates within the block
    places: Places  # of messages to store that have an id
    at: Sequence[int]  # their places in `block`
    untils: "array[int]"  # until when their keys count
    renewed: dict[bytes, tuple[int, int]]  # hash -> (seq, until_us) of duplicates that start their window anew

    def rows(self, first_seq: int) -> tuple[tuple[int, int], ...]:
        """(index, seq) of all duplicates, when the messages to store begin at first_seq."""
        return tuple(sorted(self.known + [(index, first_seq + place) for index, place in self.twins]))


class Ids(Part):
    def __init__(
        self,
        reader: IdReader,
        clock: Clock,
        settings_of: Callable[[str], TopicSettings],
        is_over: Callable[[str, int], bool],  # whether all groups have settled a message (topic, seq)
        saved: Iterable[SaveSetting] = (),
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._settings_of = settings_of
        self._is_over = is_over
        self._segments: list[Segment] = []
        self._open: dict[int, Segment] = {}  # segments that accept new keys: 0 for short windows, 1 for long windows
        self._last_numbers = [0, 1]  # of the segments of short and long windows: the last bit tells them apart
        self._filters = SegmentFilters(self._row, self._kept_row)
        self._kept: dict[int, bytes] = {}  # rows of buckets that were searched recently
        self._writing: deque[tuple[Segment, Iterator[tuple[int, bytes]]]] = deque()  # full segments and their next rows
        self._removing: deque[Iterator[int]] = deque()  # numbers of rows to remove
        self._turns: deque[list[Segment]] = deque()  # for each turn that is not on disk: the segments that it completes
        self._added = 0  # keys of this turn
        # topic -> the seq below which its keys were forgotten, and the numbers of the last segments that may have some
        self._floors: dict[str, list[int]] = {
            row.name.removeprefix(FLOOR): row.value for row in saved if row.name.startswith(FLOOR)
        }
        self._moved: dict[str, None] = {}  # topics with a floor that is written with this turn
        self.is_due = False  # rows must be written, even if the turn has no message
        self._restore()

    def _restore(self) -> None:
        at = 0
        while (found := self._reader.next_ids(at)) is not None:
            segment = Segment.restored(found[0] >> 16, self._row, self._reader.next_ids)
            self._enter(segment)
            self._last_numbers[segment.number & 1] = segment.number
            self._open.pop(segment.number & 1, None)
            if segment.buckets is None:
                self._filters.admit(segment)
                if (found[0] & HEAD) < BUCKET:  # its pages were not removed
                    self._removing.append(segment.page_numbers())
            elif segment.is_full:
                self._close(segment)
            else:
                self._open[segment.number & 1] = segment
            at = (segment.number + 1) << 16

    def _enter(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._filters.add(segment)

    def _close(self, segment: Segment) -> None:
        """Write a full segment in steps, and absorb it into a combined filter. Its pages are on disk until then."""
        self._writing.append((segment, segment.rows()))
        self._filters.admit(segment)

    def _row(self, number: int) -> bytes:
        found = self._reader.next_ids(number)
        return found[1] if found is not None and found[0] == number else b""

    def _kept_row(self, number: int) -> bytes:
        """The row of a bucket, which never changes. A client that resends old messages resends many of the same
        time."""
        row = self._kept.get(number)
        if row is None:
            if len(self._kept) >= KEPT_ROWS:
                del self._kept[next(iter(self._kept))]
            row = self._kept[number] = self._row(number)
        return row

    @property
    def _now_us(self) -> int:
        return self._clock.wall_us(self._clock.now)

    @property
    def count(self) -> int:
        """Keys in memory and on disk, also keys that do not count any more and are not removed yet."""
        return sum(segment.count for segment in self._segments)

    # A publish.

    def check(self, block: Block) -> Checked:
        """Find the duplicates of a block that has ids. Nothing changes."""
        if len(self._segments) > SEGMENTS_MAX:
            raise ProtocolError(
                Code.BUSY,
                f"{self.count:,} idempotency keys are the limit of the hub; publish later, or shorten dedupe_ms",
                retry_ms=RETRY_MS,
            )
        hashes, named = _hashes(block)
        places = Places(hashes)
        found = self._find(places)
        untils = self._untils(block, named)
        if not found and len(set(hashes)) == len(hashes):
            return Checked(block, [], [], places, named, untils, {})
        return self._sorted_out(block, hashes, named, untils, found)

    def _find(self, places: Places) -> dict[int, tuple[int, int]]:
        """(seq, until_us) by index, of hashes that are in a segment."""
        found: dict[int, tuple[int, int]] = {}

        def note(index: int, entry: tuple[int, int]) -> None:
            if index not in found or entry > found[index]:  # the entry of a later message or of a renewed window
                found[index] = entry

        self._filters.find(places, note)
        return found

    def _untils(self, block: Block, named: Sequence[int]) -> "array[int]":
        """Until when the key of each message with an id counts."""
        by_topic = [self._until(topic) for topic in block.topics]
        if len(by_topic) == 1:
            return array("Q", by_topic) * len(named)
        index = block.topic_idx()
        return array("Q", [by_topic[index[i]] for i in named])

    def _until(self, topic: str) -> int:
        window_ms = self._settings_of(topic).dedupe_ms
        return self._now_us + window_ms * 1000 if window_ms else FOREVER_US

    def _sorted_out(
        self,
        block: Block,
        hashes: Sequence[bytes],
        named: Sequence[int],
        untils: "array[int]",
        found: dict[int, tuple[int, int]],
    ) -> Checked:
        """Check message by message, for a block in which a message may be a duplicate."""
        topics = block.topic_names()
        known: dict[int, int] = {}  # index in the block -> seq
        twins: dict[int, int] = {}  # index in the block -> index of the first message with the key
        firsts: dict[bytes, int] = {}
        renewed: dict[bytes, tuple[int, int]] = {}
        now_us, rules = self._now_us, {topic: self._settings_of(topic).dedupe for topic in block.topics}
        plain = not self._floors and set(rules.values()) == {"window"}  # a key counts until its window ends
        for i, (digest, index) in enumerate(zip(hashes, named, strict=True)):
            entry = found.get(i)
            if (
                entry is not None
                and entry[1] > now_us
                and (plain or self._counts(topics[index], entry[0], rules[topics[index]]))
            ):
                known[index] = entry[0]
                if not plain and untils[i] > entry[1] and rules[topics[index]] == "slide":
                    renewed[digest] = entry[0], untils[i]
            elif digest in firsts:
                twins[index] = firsts[digest]
            else:
                firsts[digest] = index
        kept = [index for index in range(block.count) if index not in known and index not in twins]
        place = {index: at for at, index in enumerate(kept)}
        left = [i for i, index in enumerate(named) if index in place]
        return Checked(
            _selected(block, kept),
            list(known.items()),
            [(index, place[first]) for index, first in twins.items()],
            Places([hashes[i] for i in left]),
            [place[named[i]] for i in left],
            array("Q", [untils[i] for i in left]),
            renewed,
        )

    def _counts(self, topic: str, seq: int, rule: str) -> bool:
        """Whether a key in its window makes a message a duplicate."""
        if self._floors and seq < self._floors.get(topic, [0])[0]:
            return False
        return rule != "until_ack" or not self._is_over(topic, seq)

    def remember(self, checked: Checked, first_seq: int) -> None:
        """Note the keys of a checked block; its messages begin at first_seq."""
        if checked.at:
            at = checked.at
            if isinstance(at, range):
                seqs = array("Q", range(first_seq, first_seq + len(at)))
            else:
                seqs = array("Q", [first_seq + place for place in at])
            self._add(checked.places, seqs, checked.untils)
        if checked.renewed:
            seqs, untils = (array("Q", map(itemgetter(i), checked.renewed.values())) for i in (0, 1))
            self._add(Places(list(checked.renewed)), seqs, untils)
            self.is_due = True

    def _add(self, places: Places, seqs: "array[int]", untils: "array[int]") -> None:
        now_us, distinct = self._now_us, set(untils)
        border_us, last_us = now_us + LONG_US, max(distinct)
        if min(distinct) <= border_us < last_us:  # a block of several topics
            for is_long in (False, True):
                chosen = [i for i, until_us in enumerate(untils) if (until_us > border_us) == is_long]
                numbers = (array("Q", [column[i] for i in chosen]) for column in (seqs, untils))
                self._add(Places([places.hashes[i] for i in chosen]), *numbers)
            return
        segment = self._open_segment(int(last_us > border_us), now_us)
        segment.longest_us = max(segment.longest_us, last_us - now_us)
        segment.add(places, seqs, untils, last_us)
        self._added += len(seqs)
        if segment.is_full:
            del self._open[segment.number & 1]
            self._close(segment)

    def resent(self, block: Block, first_seq: int) -> tuple[tuple[int, int], ...]:
        """(index, seq) of the messages that were duplicates when a resent block was stored at first_seq."""
        hashes, named = _hashes(block)
        found = {named[i]: seq for i, (seq, _) in self._find(Places(hashes)).items()}
        rows = []
        for index in range(block.count):
            seq = found.get(index, first_seq)
            if seq == first_seq:
                first_seq += 1
            else:
                rows.append((index, seq))
        return tuple(rows)

    def forget(self, topic: str, below: int) -> None:
        """Forget the keys of a topic below a seq: an administrator has removed these messages."""
        if self._segments:
            self._floors[topic] = [max(below, self._floors.get(topic, [0])[0]), *self._last_numbers]
            self._moved[topic] = None
            self.is_due = True

    # Eras.

    def _open_segment(self, kind: int, now_us: int) -> Segment:
        segment = self._open.get(kind)
        if segment is None:
            self._last_numbers[kind] += 2
            segment = self._open[kind] = Segment(self._last_numbers[kind])
            self._enter(segment)
        if not segment.since_us:
            segment.since_us, segment.longest_us = now_us, max(segment.until_us - now_us, 0)
        return segment

    def sweep(self) -> None:
        """Close segments that are old and not full, and remove segments without a key that counts."""
        now_us = self._now_us
        for kind in list(self._open):
            segment = self._open_segment(kind, now_us)
            if now_us - segment.since_us >= segment.longest_us:
                del self._open[kind]
        for segment in [segment for segment in self._segments if segment.until_us <= now_us]:
            if self._open.get(segment.number & 1) is not segment:
                self._segments.remove(segment)
                self._filters.remove(segment)
                self._removing.append(segment.row_numbers())
        for topic, (_, *last) in list(self._floors.items()):
            if not any(segment.number <= last[segment.number & 1] for segment in self._segments):
                del self._floors[topic]
                self._moved[topic] = None
        if self._writing or self._removing or self._moved:
            self.is_due = True
        self._filters.step(STEP_BUCKETS)

    # The turn.

    def rows(self) -> list[Record]:
        """The rows to write with this turn: new keys, and one step of writing full segments and of removing rows."""
        records: list[Record] = []
        completed: list[Segment] = []
        if self._added or self.is_due:
            for segment in self._segments:
                if segment.is_dirty:
                    records += [SaveIds(number, page) for number, page in segment.new_pages()]
            step = max(STEP_ROWS, 4 * BUCKETS * self._added // SEGMENT_KEYS)
            while self._writing and step > 0:
                segment, rows = self._writing[0]
                part = [SaveIds(number, value) for number, value in islice(rows, step)]
                records += part
                step -= len(part)
                if step > 0:
                    self._writing.popleft()
                    completed.append(segment)
                    self._removing.append(segment.page_numbers())
            while self._removing and step > 0:
                numbers = [DropIds(number) for number in islice(self._removing[0], step)]
                records += numbers
                step -= len(numbers)
                if step > 0:
                    self._removing.popleft()
            share = ABSORBED_LATE if self._filters.waiting > 2 else ABSORBED
            self._filters.step(max(STEP_BUCKETS, share * BUCKETS * self._added // SEGMENT_KEYS))
            records += [SaveSetting(FLOOR + topic, self._floors.get(topic)) for topic in self._moved]
            self._moved.clear()
            self._added, self.is_due = 0, False
        self._turns.append(completed)
        return records

    def committed(self) -> None:
        """The oldest sealed turn is on disk: segments that it has completed are read from disk."""
        for segment in self._turns.popleft():
            segment.buckets = None


def _hashes(block: Block) -> tuple[list[bytes], Sequence[int]]:
    """Hashes of topic and id, and the indexes of the messages with an id."""
    ids = block.ids()
    named: Sequence[int] = range(block.count)
    if b"" in ids:
        named = [index for index, value in enumerate(ids) if value]
        ids = [value for value in ids if value]
    # The hash of a topic is computed once and copied, which takes half the time of a new hash. No topic has a zero
    # byte.
    begun = [blake2b(topic.encode() + b"\0", digest_size=HASH_BYTES).copy for topic in block.topics]
    topics = block.topic_idx()
    copies = repeat(begun[0]) if len(begun) == 1 else map(begun.__getitem__, map(topics.__getitem__, named))
    hashes = []
    for value, copy in zip(ids, copies, strict=False):
        digest = copy()
        digest.update(value)
        hashes.append(digest.digest())
    return hashes, named


def _selected(block: Block, kept: Sequence[int]) -> Block | None:
    """A block of the kept messages; None when there are none."""
    if len(kept) == block.count:
        return block
    return Block(select(block, runs_of(kept))) if kept else None
