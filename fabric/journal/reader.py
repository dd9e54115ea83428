"""Reads the journal while it is written. Each thread that reads has a Reader of its own.

Every call is one short read transaction that ends before the call returns; bytes are copied out. The end of the open
chunk is read before the transaction begins: blocks are committed first and published in memory second, so the
transaction sees every published block. The first seq is read within the transaction: it is published before blocks are
removed, so every block above it is there. Blocks are returned whole, also a block that begins below the journal's first
seq; positions are never below that seq.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import lmdb

from fabric.errors import JournalDamaged
from fabric.journal.blocks import Damaged, blocks_from, check_block, load_block
from fabric.journal.environment import Cursor, Reading, as_journal_error, seek
from fabric.journal.rows import SEQ_MAX, key_seq, seq_key
from fabric.journal.tables.chunks import Chunk, OpenChunk, Wanted
from fabric.journal.tables.event_table import EventReader
from fabric.journal.tables.holes import Hole, hole_of, span_of
from fabric.journal.tables.origins import origin_at
from fabric.journal.tables.schedule_table import ScheduleReader
from fabric.journal.tables.state import next_ids
from fabric_protocol.block import Block, Stamp
from fabric_protocol.block_contents import Contents, contents_of
from fabric_protocol.errors import BlockError

if TYPE_CHECKING:
    from fabric.journal.journal import Journal

# Bounds for one call of next_block, so that it takes the router thread a millisecond or two.
_TOPICS_PER_CALL: Final = 1024
_CHUNKS_PER_CALL: Final = 64
_OPEN_BLOCKS_PER_CALL: Final = 64
# Bounds for what a reader caches between calls.
_CACHED_TOPICS: Final = 50_000
_CACHED_MASKS: Final = 1024
# Bound for one call of `contents`, in rows: about a millisecond. A block of several topics costs as much as some rows.
_CONTENTS_WORK: Final = 384
_MESSAGES_PER_ROW: Final = 64
LATEST_KEYS_MAX: Final = 100_000  # keys that latest_per_key remembers, some 20 MB


class Reader:
    """Finds blocks by seq, by topic and by time. Used by one thread."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self._tables = journal.tables
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._cached_topics = 0
        self._masks: OrderedDict[tuple[int, int, Wanted, int], int] = OrderedDict()
        self.events = EventReader(self._transaction, journal.tables)
        self.schedules = ScheduleReader(self._transaction, journal.tables, journal.page_release)

    @property
    def begins_at(self) -> int:
        """The first seq of the first block on disk. The journal thread moves it."""
        return self._journal.first_block_seq

    def next_ids(self, number: int) -> tuple[int, bytes] | None:
        """The first row of the index of idempotency keys at or after a number; empty bytes when the row is damaged."""
        with self._transaction() as txn:
            return next_ids(txn, self._tables, number)

    def next_event(self) -> int:
        """The number of the next delivery event."""
        return self.events.next_number()

    def first_event(self) -> int:
        """The number of the first delivery event; `next_event` when there is none."""
        return self.events.first_number()

    def event_blocks(self, number: int, count: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Some blocks of delivery events, from the block that holds a number on."""
        return self.events.blocks_from(number, count, bytes_max)

    def block_at(self, seq: int) -> Block | Damaged | None:
        """The block that holds seq, whole; None when the block is removed or not written yet.

        That a block is here does not say that retention has left seq in it: the caller compares seq with the first seq
        that it was told of. Between a new first seq and that news, a message that is given up becomes a dead letter
        out of this block; without the block it would have to be reported as lost.
        """
        last_seq = self._journal.open_chunk.last_seq
        if seq > last_seq:
            return None
        with self._transaction() as txn:
            if seq < self._journal.first_block_seq:
                return None
            cursor = txn.cursor(self._tables.blocks)
            if not seek(cursor, seq):
                return Damaged(seq, key_seq(cursor.key()) - 1 if cursor.first() else last_seq, "the block is missing")
            base, raw = key_seq(cursor.key()), bytes(cursor.value())
            end = key_seq(cursor.key()) - 1 if cursor.next() else last_seq
            origin = origin_at(txn, self._tables, base)
        if (hole := hole_of(base, raw)) is not None:
            return None if seq <= hole.last_seq else Damaged(hole.last_seq + 1, end, "the block is missing")
        block = check_block(raw, base)
        if isinstance(block, str):
            return Damaged(base, end, block)
        block.origin = origin
        return block if seq <= block.last_seq else Damaged(block.last_seq + 1, end, "the block is missing")

    def next_block(self, seq: int, wanted: Wanted) -> tuple[Block | Damaged | None, int]:
        """The first block at or after seq that holds a wanted topic, and the seq at which to go on.

        None with a seq: no wanted block below that seq. The journal ends there, or the call has reached its bounds.
        `wanted` must always answer the same for the same topic, because the answer is cached.
        """
        open_chunk = self._journal.open_chunk
        committed = open_chunk.committed
        with self._transaction() as txn:
            seq = max(seq, self._journal.first_block_seq)
            topics_left = _TOPICS_PER_CALL
            for _ in range(_CHUNKS_PER_CALL):
                if seq >= open_chunk.first_seq:
                    return self._next_in_open(txn, open_chunk, committed, seq, wanted)
                if topics_left <= 0:
                    break
                chunk = self._chunk(txn, seq, open_chunk.first_seq)
                bits = self._mask(chunk, wanted) >> (place := chunk.place_of(seq))
                if bits:
                    place += (bits & -bits).bit_length() - 1
                    block, seq = self._load(txn, *chunk.range_of(place))
                    if block is not None:
                        return block, seq
                else:
                    seq = chunk.last_seq + 1
                topics_left -= len(chunk.names) + 1
        return None, seq

    def contents(self, seq: int, *, sizes: bool = False) -> tuple[list[Contents], int]:
        """What the next blocks from seq on have, and the seq at which to go on; no body is copied or checked.

        Damaged blocks and holes are left out. The list is empty at the end of the journal only.
        """
        last_seq, found = self._journal.open_chunk.last_seq, list[Contents]()
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.blocks)
            more, work = seek(cursor, seq) or cursor.first(), _CONTENTS_WORK
            while more and work > 0 and (base := key_seq(cursor.key())) <= last_seq:
                raw, last = cursor.value(), base
                with suppress(BlockError):
                    last = span_of(base, raw).last_seq
                    if last >= seq and hole_of(base, raw) is None:
                        found.append(contents_of(memoryview(raw), sizes=sizes))
                        if len(found[-1].topics) > 1:
                            work -= len(found[-1].topics) + (last - base) // _MESSAGES_PER_ROW
                seq, work, more = max(seq, last + 1), work - 1, cursor.next()
        return found, seq if work <= 0 else max(seq, last_seq + 1)

    def time_of(self, seq: int) -> int:
        """When the block with seq was accepted, without reading its body; 0 when it is not on disk."""
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.blocks)
            with suppress(BlockError):
                if seek(cursor, seq) and (stamp := span_of(key_seq(cursor.key()), cursor.value())).last_seq >= seq:
                    return stamp.ts_us
        return 0

    def seek_time(self, ts_us: int) -> int:
        """The first seq that was accepted at or after a time; last_seq + 1 when there is none.

        Times never decrease, so this is a binary search over blocks; low..high-1 are the seqs not decided yet.
        """
        high = self._journal.open_chunk.last_seq + 1
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.blocks)
            low = self._journal.first_seq
            while low < high:
                middle = (low + high) // 2
                found = self._readable(cursor, middle, low)
                if found is None:  # all blocks from low to the middle are damaged
                    low = middle + 1
                elif found.ts_us < ts_us:
                    low = found.last_seq + 1
                else:
                    high = found.base_seq
        return low

    def last_match(self, wanted: Wanted, before: int | None = None) -> int | None:
        """The seq of the last message with a wanted topic, in blocks that begin before a seq if one is given."""
        for block in self.backwards(wanted, SEQ_MAX if before is None else before):
            if (seq := _last_in(block, wanted)) is not None:
                return seq if seq >= self._journal.first_seq else None
        return None

    def previous_block(self, before: int, wanted: Wanted) -> tuple[Block | None, int]:
        """The last block that begins before a seq and holds a wanted topic, and the seq before which to go on.

        None with a seq: no wanted block from that seq on. At or below the journal's first seq the search is over.
        """
        open_chunk = self._journal.open_chunk
        if before > open_chunk.first_seq and open_chunk.committed:
            place = open_chunk.place_of(before - 1)
            for entry in reversed(open_chunk.entries[max(place + 1 - _OPEN_BLOCKS_PER_CALL, 0) : place + 1]):
                before = entry.base_seq
                if entry.topics is None or any(wanted(open_chunk.names[number]) for number in entry.topics):
                    return self._fetch(before, entry.last_seq), before
            return None, before
        stop = min(before, open_chunk.first_seq)
        if stop <= self._journal.first_seq:
            return None, stop
        with self._transaction() as txn:
            chunk = self._chunk(txn, stop - 1, stop)
        bits = self._mask(chunk, wanted) & ((1 << chunk.place_of(stop - 1) + 1) - 1)
        if not bits:
            return None, chunk.first_seq
        base, end = chunk.range_of(bits.bit_length() - 1)
        return self._fetch(base, end) if end >= self._journal.first_seq else None, base

    def latest_per_key(self, wanted: Wanted, limit: int = LATEST_KEYS_MAX) -> Iterator[list[int]]:
        """The seqs of the latest message of each topic and key, newest first, a list for each step of the search.

        A message without a key counts as a message with an empty key. Lists may be empty: a step is a chunk or a
        block, and the caller may do other work between two steps. The search ends after `limit` keys, because all of
        them are held in memory.
        """
        seen: set[tuple[str, bytes]] = set()
        for block in self.backwards(wanted):
            found: list[int] = []
            if block is not None:
                hits = [wanted(topic) for topic in block.topics]
                keys, places = block.keys(), block.topic_idx()
                for i in range(block.count - 1, max(self._journal.first_seq - block.base_seq, 0) - 1, -1):
                    if hits[place := places[i]] and (key := (block.topics[place], keys[i])) not in seen:
                        seen.add(key)
                        found.append(block.base_seq + i)
                        if len(seen) >= limit:
                            yield found
                            return
            yield found

    def topic_names(self, limit: int, chunks_max: int = _CHUNKS_PER_CALL) -> tuple[list[str], bool]:
        """Topics of the latest messages, at most `limit`, from `chunks_max` chunks; and whether these are all."""
        open_chunk = self._journal.open_chunk
        numbers = {n for entry in open_chunk.entries[: open_chunk.committed] for n in entry.topics or ()}
        names = dict.fromkeys(open_chunk.names[number] for number in sorted(numbers))
        stop = open_chunk.first_seq
        for _ in range(chunks_max):
            if stop <= self._journal.first_seq or len(names) > limit:
                break
            with self._transaction() as txn:
                chunk = self._chunk(txn, stop - 1, stop)
            names.update(dict.fromkeys(chunk.names))
            stop = chunk.first_seq
        return list(names)[:limit], stop <= self._journal.first_seq and len(names) <= limit

    def backwards(self, wanted: Wanted, before: int = SEQ_MAX) -> Iterator[Block | None]:
        """Blocks with a wanted topic that begin before a seq, the newest first.

        None stands for a chunk without such a block, or for a damaged block. No transaction is open between two blocks,
        so the caller may be slow.
        """
        while before > self._journal.first_seq:
            block, before = self.previous_block(before, wanted)
            yield block

    def _fetch(self, base_seq: int, last_seq: int) -> Block | None:
        with self._transaction() as txn:
            block, _ = self._load(txn, base_seq, last_seq)
        return block if isinstance(block, Block) else None

    def forget(self, wanted: Wanted) -> None:
        """Drop the cached answers of `wanted`, which answers differently from now on."""
        for key in [key for key in self._masks if key[2] == wanted]:
            del self._masks[key]

    # Parts of the methods above.

    def _next_in_open(
        self, txn: Reading, chunk: OpenChunk, committed: int, seq: int, wanted: Wanted
    ) -> tuple[Block | Damaged | None, int]:
        if not committed or seq > chunk.entries[committed - 1].last_seq:
            return None, seq
        start = chunk.place_of(seq)
        known: dict[int, bool] = {}
        for entry in chunk.entries[start : min(committed, start + _OPEN_BLOCKS_PER_CALL)]:
            if entry.last_seq < seq:  # within the hole that was found just now
                continue
            hit = entry.topics is None
            for number in entry.topics or ():
                if (answer := known.get(number)) is None:
                    answer = known[number] = wanted(chunk.names[number])
                if answer:
                    hit = True
                    break
            if hit:
                block, seq = self._load(txn, entry.base_seq, entry.last_seq)
                if block is not None:
                    return block, seq
            else:
                seq = entry.last_seq + 1
        return None, seq

    def _load(self, txn: Reading, base_seq: int, last_seq: int) -> tuple[Block | Damaged | None, int]:
        """A block and the seq after it; None and the seq after the hole if the block is in a hole."""
        block = load_block(txn, self._tables, base_seq, last_seq)
        if isinstance(block, Hole):
            return None, block.last_seq + 1
        if isinstance(block, Block):
            self._journal.page_release.touched(len(block.raw))
        return block, last_seq + 1

    def _readable(self, cursor: Cursor, seq: int, low: int) -> Stamp | None:
        """The stamp of the block or hole that holds seq, or else of the nearest good one before it that reaches low."""
        found = seek(cursor, seq)
        while found:
            base = key_seq(cursor.key())
            with suppress(BlockError):
                stamp = span_of(base, cursor.value())
                if stamp.base_seq == base:
                    return stamp if stamp.last_seq >= low else None
            found = base > low and cursor.prev()
        return None

    def _chunk(self, txn: Reading, seq: int, stop: int) -> Chunk:
        """The summary of the closed chunk that holds seq; rebuilt from the blocks when it is damaged."""
        cursor = txn.cursor(self._tables.chunks)
        if seek(cursor, seq):
            first_seq = key_seq(cursor.key())
            cached = self._chunks.get(first_seq)
            if cached is not None and cached.first_seq <= seq <= cached.last_seq:
                self._chunks.move_to_end(first_seq)
                return cached
            try:
                chunk = Chunk.decode(cursor.key(), cursor.value())
                if chunk.first_seq <= seq <= chunk.last_seq:
                    return self._remember(chunk)
            except JournalDamaged:
                pass
        if cursor.set_range(seq_key(seq + 1)):
            stop = min(stop, key_seq(cursor.key()))
        rebuilt = OpenChunk(seq)
        for found in blocks_from(txn, self._tables, seq, stop):
            rebuilt.add(*found)
            if found.topics == []:  # a hole is a chunk of its own: it may be longer than a summary can hold
                break
        return self._remember(Chunk.of(rebuilt))

    def _remember(self, chunk: Chunk) -> Chunk:
        if (replaced := self._chunks.pop(chunk.first_seq, None)) is not None:
            self._cached_topics -= len(replaced.names) + 1
        self._chunks[chunk.first_seq] = chunk
        self._cached_topics += len(chunk.names) + 1  # 1: a chunk that is a hole has no topics, and takes room
        while self._cached_topics > _CACHED_TOPICS and len(self._chunks) > 1:
            _, dropped = self._chunks.popitem(last=False)
            self._cached_topics -= len(dropped.names) + 1
        return chunk

    def _mask(self, chunk: Chunk, wanted: Wanted) -> int:
        if not chunk.names:  # a hole may have the seqs of the chunk that it replaces
            return chunk.damaged
        key = chunk.first_seq, chunk.last_seq, wanted, len(chunk.offsets)
        bits = self._masks.get(key)
        if bits is None:
            bits = self._masks[key] = chunk.mask(wanted)
            if len(self._masks) > _CACHED_MASKS:
                self._masks.popitem(last=False)
        return bits

    @contextmanager
    def _transaction(self) -> Iterator[Reading]:
        self._journal.require_same_process()
        try:
            with self._journal.mapping, self._journal.environment.begin(buffers=True) as txn:
                yield txn
        except lmdb.Error as error:
            raise as_journal_error("cannot read the journal", error) from error


def _last_in(block: Block | None, wanted: Wanted) -> int | None:
    """The seq of a block's last message with a wanted topic."""
    if block is None:
        return None
    hits = [wanted(topic) for topic in block.topics]
    places = block.topic_idx()
    for i in range(block.count - 1, -1, -1):
        if hits[places[i]]:
            return block.base_seq + i
    return None
