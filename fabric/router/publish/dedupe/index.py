"""Idempotency keys: a message whose id is known on its topic is not stored again; its first seq is answered.

`check` finds the duplicates among the ids of a block and changes nothing; `remember` takes the others down under
their seqs; `rows` gives what must be on disk with the turn. So ids and messages are on disk together or not at all.

Keys are kept in eras (see `id_era`), in order of time: the last one grows, full ones are written out in small steps
over the turns that follow, and an era goes when the last of its windows is over. Long windows have eras of their own,
or a few of them would keep all the others. How long a key counts is decided when its message is stored, by the
settings of the topic at that time. The latest entry of a key is the one that counts, so renewing a key is adding an
entry; nothing is ever changed.
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
from fabric.router.publish.dedupe.segment import BUCKET, BUCKETS, ERA_KEYS, FILTER_BYTES, HASH_BYTES, HEAD, Era, Places
from fabric.router.publish.dedupe.segment_filter import SPAN_BYTES, SPAN_ERAS, Spans
from fabric_protocol.block import Block
from fabric_protocol.block_parts import select
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.runs import runs_of

# Memory for what is known of keys: the filters of all eras and spans, nine bytes for each key. (The era that grows, and
# the one before it until it is on disk, have some 17 MiB more each.) 128 eras are 60 million keys: ten minutes of
# 100,000 a second. Beyond it publishes with ids are refused: a key is not forgotten before its time.
MEMORY_BYTES_MAX: Final = 512 << 20
ERAS_MAX: Final = MEMORY_BYTES_MAX // (FILTER_BYTES + SPAN_BYTES // SPAN_ERAS)
# Rows of a full era written with one turn, some 8 KB each; more when the turn has so many keys that the next era
# would be full before this one is on disk.
STEP_ROWS: Final = 128
KEPT_ROWS: Final = BUCKETS  # as many as one era has: 15 MiB
STEP_BUCKETS: Final = 32  # absorbed into a span at a time: two milliseconds
# Keys absorbed for each new one; and when several eras wait, after a restart, as they are asked one by one until then.
ABSORBED: Final = 2
ABSORBED_LATE: Final = 6
LONG_US: Final = 3600 * 1_000_000  # a longer window is a long one
RETRY_MS: Final = 1000
FLOOR: Final = "ids."  # and a topic: the name of the row that tells which of its keys were forgotten
FOREVER_US: Final = (1 << 63) - 1


class IdReader(Protocol):
    """Rows of the index on disk."""

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        """The first row at or after a number; an empty one when it is damaged."""
        ...


class Checked(NamedTuple):
    """What is to be done with a block."""

    block: Block | None  # what is left to be stored
    known: list[tuple[int, int]]  # (index in the block, seq) of duplicates,
    twins: list[tuple[int, int]]  # and (index in the block, place in what is left) of those whose first is there
    places: Places  # of what is left and has an id,
    at: Sequence[int]  # its places in what is left,
    untils: "array[int]"  # and until when it counts
    renewed: dict[bytes, tuple[int, int]]  # hash -> (seq, until_us) of duplicates that start their window anew

    def rows(self, first_seq: int) -> tuple[tuple[int, int], ...]:
        """(index, seq) of all duplicates, when what is left begins at a seq."""
        return tuple(sorted(self.known + [(index, first_seq + place) for index, place in self.twins]))


class Ids(Part):
    def __init__(
        self,
        reader: IdReader,
        clock: Clock,
        settings_of: Callable[[str], TopicSettings],
        is_over: Callable[[str, int], bool],  # whether nobody waits for a message (topic, seq) any more
        saved: Iterable[SaveSetting] = (),
    ) -> None:
        self._reader = reader
        self._clock = clock
        self._settings_of = settings_of
        self._is_over = is_over
        self._eras: list[Era] = []
        self._open: dict[int, Era] = {}  # those that take new keys: 0 for short windows, 1 for long ones
        self._last_numbers = [0, 1]  # of the eras of short and long windows: the last bit tells them apart
        self._spans = Spans(self._row, self._kept_row)
        self._kept: dict[int, bytes] = {}  # rows of buckets that were searched lately
        self._writing: deque[tuple[Era, Iterator[tuple[int, bytes]]]] = deque()  # full ones, and their rows to come
        self._removing: deque[Iterator[int]] = deque()  # numbers of rows
        self._turns: deque[list[Era]] = deque()  # for each turn that is not on disk: the eras that it completes
        self._added = 0  # keys of this turn
        # topic -> the seq below which its keys were forgotten, and the numbers of the last eras that may have some
        self._floors: dict[str, list[int]] = {
            row.name.removeprefix(FLOOR): row.value for row in saved if row.name.startswith(FLOOR)
        }
        self._moved: dict[str, None] = {}  # those of them to be written with this turn
        self.is_due = False  # something must be written, though no message is
        self._restore()

    def _restore(self) -> None:
        at = 0
        while (found := self._reader.next_ids(at)) is not None:
            era = Era.restored(found[0] >> 16, self._row, self._reader.next_ids)
            self._enter(era)
            self._last_numbers[era.number & 1] = era.number
            self._open.pop(era.number & 1, None)
            if era.buckets is None:
                self._spans.admit(era)
                if (found[0] & HEAD) < BUCKET:  # it has pages still
                    self._removing.append(era.page_numbers())
            elif era.is_full:
                self._close(era)
            else:
                self._open[era.number & 1] = era
            at = (era.number + 1) << 16

    def _enter(self, era: Era) -> None:
        self._eras.append(era)
        self._spans.add(era)

    def _close(self, era: Era) -> None:
        """A full era is written turn, and absorbed by a span. Its pages hold it until then."""
        self._writing.append((era, era.rows()))
        self._spans.admit(era)

    def _row(self, number: int) -> bytes:
        found = self._reader.next_ids(number)
        return found[1] if found is not None and found[0] == number else b""

    def _kept_row(self, number: int) -> bytes:
        """The same for buckets, which never change: who sends old messages again sends many of the same time."""
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
        """Keys in memory and on disk, also those that do not count any more but are not removed yet."""
        return sum(era.count for era in self._eras)

    # A publish.

    def check(self, block: Block) -> Checked:
        """Find the duplicates of a block that has ids. Nothing changes."""
        if len(self._eras) > ERAS_MAX:
            raise ProtocolError(
                Code.BUSY, f"{self.count:,} idempotency keys are in their windows; shorten dedupe_ms", retry_ms=RETRY_MS
            )
        hashes, named = _hashes(block)
        places = Places(hashes)
        found = self._find(places)
        untils = self._untils(block, named)
        if not found and len(set(hashes)) == len(hashes):
            return Checked(block, [], [], places, named, untils, {})
        return self._sorted_out(block, hashes, named, untils, found)

    def _find(self, places: Places) -> dict[int, tuple[int, int]]:
        """(seq, until_us) by index, of those that were ever put down and are not removed."""
        found: dict[int, tuple[int, int]] = {}

        def note(index: int, entry: tuple[int, int]) -> None:
            if index not in found or entry > found[index]:  # the latest: by seq, or the window was renewed
                found[index] = entry

        self._spans.find(places, note)
        return found

    def _untils(self, block: Block, named: Sequence[int]) -> "array[int]":
        """Until when each message that has an id will count."""
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
        """The slow way, message by message, for a block with at least one that may be a duplicate."""
        topics = block.topic_names()
        known: dict[int, int] = {}  # index in the block -> seq
        twins: dict[int, int] = {}  # index in the block -> index of the first one
        firsts: dict[bytes, int] = {}
        renewed: dict[bytes, tuple[int, int]] = {}
        now_us, rules = self._now_us, {topic: self._settings_of(topic).dedupe for topic in block.topics}
        plain = not self._floors and set(rules.values()) == {"window"}  # a key counts as long as its window
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
        """Whether a key whose window is not over makes a message a duplicate."""
        if self._floors and seq < self._floors.get(topic, [0])[0]:
            return False
        return rule != "until_ack" or not self._is_over(topic, seq)

    def remember(self, checked: Checked, first_seq: int) -> None:
        """What is left of a checked block is stored, beginning at a seq."""
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
        era = self._open_era(int(last_us > border_us), now_us)
        era.longest_us = max(era.longest_us, last_us - now_us)
        era.add(places, seqs, untils, last_us)
        self._added += len(seqs)
        if era.is_full:
            del self._open[era.number & 1]
            self._close(era)

    def resent(self, block: Block, first_seq: int) -> tuple[tuple[int, int], ...]:
        """For a block that was taken before, at a seq: (index, seq) of the messages that were duplicates then."""
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

    def forget(self, topic: str, next_seq: int) -> None:
        """All messages of a topic below a seq were removed on purpose: they may be published again."""
        if self._eras:
            self._floors[topic] = [next_seq, *self._last_numbers]
            self._moved[topic] = None
            self.is_due = True

    # Eras.

    def _open_era(self, kind: int, now_us: int) -> Era:
        era = self._open.get(kind)
        if era is None:
            self._last_numbers[kind] += 2
            era = self._open[kind] = Era(self._last_numbers[kind])
            self._enter(era)
        if not era.since_us:
            era.since_us, era.longest_us = now_us, max(era.until_us - now_us, 0)
        return era

    def sweep(self) -> None:
        """From time to time: close eras that are old and not full, and let go of those whose time is over."""
        now_us = self._now_us
        for kind in list(self._open):
            era = self._open_era(kind, now_us)
            if now_us - era.since_us >= era.longest_us:
                del self._open[kind]
        for era in [era for era in self._eras if era.until_us <= now_us]:
            if self._open.get(era.number & 1) is not era:
                self._eras.remove(era)
                self._spans.remove(era)
                self._removing.append(era.row_numbers())
        for topic, (_, *last) in list(self._floors.items()):
            if not any(era.number <= last[era.number & 1] for era in self._eras):
                del self._floors[topic]
                self._moved[topic] = None
        if self._writing or self._removing or self._moved:
            self.is_due = True
        self._spans.step(STEP_BUCKETS)

    # The turn.

    def rows(self) -> list[Record]:
        """What must be on disk with this turn: new keys, and a step of what is to be written turn, then removed."""
        records: list[Record] = []
        completed: list[Era] = []
        if self._added or self.is_due:
            for era in self._eras:
                if era.is_dirty:
                    records += [SaveIds(number, page) for number, page in era.new_pages()]
            step = max(STEP_ROWS, 4 * BUCKETS * self._added // ERA_KEYS)
            while self._writing and step > 0:
                era, rows = self._writing[0]
                part = [SaveIds(number, value) for number, value in islice(rows, step)]
                records += part
                step -= len(part)
                if step > 0:
                    self._writing.popleft()
                    completed.append(era)
                    self._removing.append(era.page_numbers())
            while self._removing and step > 0:
                numbers = [DropIds(number) for number in islice(self._removing[0], step)]
                records += numbers
                step -= len(numbers)
                if step > 0:
                    self._removing.popleft()
            share = ABSORBED_LATE if self._spans.waiting > 2 else ABSORBED
            self._spans.step(max(STEP_BUCKETS, share * BUCKETS * self._added // ERA_KEYS))
            records += [SaveSetting(FLOOR + topic, self._floors.get(topic)) for topic in self._moved]
            self._moved.clear()
            self._added, self.is_due = 0, False
        self._turns.append(completed)
        return records

    def committed(self) -> None:
        """The oldest turn is on disk: what it completed is looked up there from now on."""
        for era in self._turns.popleft():
            era.buckets = None


def _hashes(block: Block) -> tuple[list[bytes], Sequence[int]]:
    """Hashes of topic and id, and the indexes of the messages that have an id."""
    ids = block.ids()
    named: Sequence[int] = range(block.count)
    if b"" in ids:
        named = [index for index, value in enumerate(ids) if value]
        ids = [value for value in ids if value]
    # A hash that has begun is copied, which takes half the time of a new one. No topic has the byte that ends it here.
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
    """The block of these messages alone; None when there are none."""
    if len(kept) == block.count:
        return block
    return Block(select(block, runs_of(kept))) if kept else None
