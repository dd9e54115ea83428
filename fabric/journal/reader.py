"""Reading the journal while it is being written: one Reader for each thread that reads.

Every call is one short read transaction, ended before it returns; bytes are copied out. How far the open chunk goes is
noted before the transaction begins: blocks are committed first and published in memory second, so whatever the memory
spoke of then, the transaction can see. Where the journal begins is asked within the transaction: that is published
before blocks are removed, so whatever lies above it must be there.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import lmdb

from fabric.block import Block, Stamp, glance, stamp_of
from fabric.errors import BlockError, JournalDamaged
from fabric.journal.chunks import BLOCKS_MAX, Chunk, OpenChunk, Wanted
from fabric.journal.environment import Cursor, Reading, Tables, as_journal_error
from fabric.journal.records import key_seq, seq_key

if TYPE_CHECKING:
    from fabric.journal.store import Journal

# What one call of next_block may look at, so that the router thread is back within a millisecond or two.
_TOPICS_PER_CALL: Final = 4096
_CHUNKS_PER_CALL: Final = 64
_OPEN_BLOCKS_PER_CALL: Final = 64
# What a reader remembers between calls.
_CACHED_TOPICS: Final = 50_000
_CACHED_MASKS: Final = 1024


class Damaged(NamedTuple):
    """Messages that cannot be read any more."""

    first_seq: int
    last_seq: int
    why: str


def check_block(raw: bytes | memoryview, base_seq: int) -> Block | str:
    """The block from its row, checked against its checksums and its key; or what is wrong with it."""
    try:
        block = Block(bytes(raw))
        block.verify_stamp()
        block.verify_body()
    except BlockError as error:
        return str(error)
    return block if block.base_seq == base_seq else f"the block of seq {block.base_seq} is in its place"


def load_block(txn: Reading, tables: Tables, base_seq: int, last_seq: int) -> Block | Damaged:
    """The block that is known to hold base_seq..last_seq."""
    raw = txn.get(seq_key(base_seq), db=tables.blocks)
    block = check_block(raw, base_seq) if raw is not None else "the block is missing"
    if isinstance(block, str):
        return Damaged(base_seq, last_seq, block)
    if block.last_seq != last_seq:
        return Damaged(base_seq, last_seq, f"the block ends at seq {block.last_seq}")
    return block


class Found(NamedTuple):
    """A block as it was found on disk, or the place of one that is missing."""

    base_seq: int
    last_seq: int
    ts_us: int
    size: int
    topics: list[bytes] | None  # None: it is damaged, or missing


def blocks_from(txn: Reading, tables: Tables, seq: int, stop: int, limit: int = BLOCKS_MAX) -> Iterator[Found]:
    """The blocks that hold seq..stop-1, checked in full; they leave no gap."""
    cursor = txn.cursor(tables.blocks)
    more = seek(cursor, seq)
    if not more:  # the first blocks are missing
        more = cursor.first()
        yield Found(seq, (min(key_seq(cursor.key()), stop) if more else stop) - 1, 0, 0, None)
    while more and limit > 0 and (base := key_seq(cursor.key())) < stop:
        raw = bytes(cursor.value())
        more = cursor.next()
        end = (min(key_seq(cursor.key()), stop) if more else stop) - 1
        block = check_block(raw, base)
        if isinstance(block, str) or block.last_seq > end:
            yield Found(base, end, 0, len(raw), None)
        else:
            yield Found(base, block.last_seq, block.ts_us, len(raw), glance(raw)[1])
            if block.last_seq < end:  # a block is missing after this one
                yield Found(block.last_seq + 1, end, 0, 0, None)
                limit -= 1
        limit -= 1


def seek(cursor: Cursor, seq: int) -> bool:
    """Move to the last row whose key is not above seq; false when there is none."""
    if not cursor.set_range(seq_key(seq)):
        return cursor.last()
    return key_seq(cursor.key()) == seq or cursor.prev()


class Reader:
    """Finds blocks by seq, by topic and by time. Used by one thread."""

    def __init__(self, journal: "Journal") -> None:
        self._journal = journal
        self._tables = journal.tables
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._cached_topics = 0
        self._masks: OrderedDict[tuple[int, int, Wanted], int] = OrderedDict()

    def block_at(self, seq: int) -> Block | Damaged | None:
        """The block that holds seq; None when retention has removed it or it is not written yet."""
        last_seq = self._journal.open_chunk.last_seq
        if seq > last_seq:
            return None
        with self._transaction() as txn:
            if seq < self._journal.first_seq:
                return None
            cursor = txn.cursor(self._tables.blocks)
            if not seek(cursor, seq):
                return Damaged(seq, key_seq(cursor.key()) - 1 if cursor.first() else last_seq, "the block is missing")
            base, raw = key_seq(cursor.key()), bytes(cursor.value())
            end = key_seq(cursor.key()) - 1 if cursor.next() else last_seq
        block = check_block(raw, base)
        if isinstance(block, str):
            return Damaged(base, end, block)
        return block if seq <= block.last_seq else Damaged(block.last_seq + 1, end, "the block is missing")

    def next_block(self, seq: int, wanted: Wanted) -> tuple[Block | Damaged | None, int]:
        """The first block at or after seq that holds a wanted topic, and the seq at which to go on.

        None with a seq means: nothing up to there, whether because there is no more or because this call has done
        its share. `wanted` must always answer the same for the same topic, because the answer is remembered.
        """
        open_chunk = self._journal.open_chunk
        committed = open_chunk.committed
        with self._transaction() as txn:
            seq = max(seq, self._journal.first_seq)
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
                    return self._load(txn, *chunk.range_of(place))
                seq = chunk.last_seq + 1
                topics_left -= len(chunk.names)
        return None, seq

    def seek_time(self, ts_us: int) -> int:
        """The first seq that was accepted at or after a time; last_seq + 1 when there is none.

        Times never decrease, so this is a binary search over blocks: low..high-1 are the seqs still in question.
        """
        high = self._journal.open_chunk.last_seq + 1
        with self._transaction() as txn:
            cursor = txn.cursor(self._tables.blocks)
            low = self._journal.first_seq
            while low < high:
                middle = (low + high) // 2
                found = self._readable(cursor, middle, low)
                if found is None:  # all from low to the middle is damaged: go on above it
                    low = middle + 1
                elif found.ts_us < ts_us:
                    low = found.last_seq + 1
                else:
                    high = found.base_seq
        return low

    def last_match(self, wanted: Wanted) -> int | None:
        """The seq of the last message with a wanted topic."""
        open_chunk = self._journal.open_chunk
        for entry in reversed(open_chunk.entries[: open_chunk.committed]):
            if entry.topics is None or any(wanted(open_chunk.names[number]) for number in entry.topics):
                with self._transaction() as txn:
                    block, _ = self._load(txn, entry.base_seq, entry.last_seq)
                if (seq := _last_in(block, wanted)) is not None:
                    return seq
        stop = open_chunk.first_seq
        while stop > self._journal.first_seq:
            with self._transaction() as txn:  # one for each chunk: the search may be long, a transaction may not
                chunk = self._chunk(txn, stop - 1, stop)
                bits = self._mask(chunk, wanted)
                while bits:
                    place = bits.bit_length() - 1
                    bits ^= 1 << place
                    base, end = chunk.range_of(place)
                    if self._journal.first_seq <= base < stop:
                        seq = _last_in(self._load(txn, base, end)[0], wanted)
                        if seq is not None:
                            return seq
                stop = chunk.first_seq
        return None

    # Parts of the above.

    def _next_in_open(
        self, txn: Reading, chunk: OpenChunk, committed: int, seq: int, wanted: Wanted
    ) -> tuple[Block | Damaged | None, int]:
        if not committed or seq > chunk.entries[committed - 1].last_seq:
            return None, seq
        start = chunk.place_of(seq)
        known: dict[int, bool] = {}
        for entry in chunk.entries[start : min(committed, start + _OPEN_BLOCKS_PER_CALL)]:
            if entry.topics is None:
                return self._load(txn, entry.base_seq, entry.last_seq)
            for number in entry.topics:
                if (hit := known.get(number)) is None:
                    hit = known[number] = wanted(chunk.names[number])
                if hit:
                    return self._load(txn, entry.base_seq, entry.last_seq)
            seq = entry.last_seq + 1
        return None, seq

    def _load(self, txn: Reading, base_seq: int, last_seq: int) -> tuple[Block | Damaged, int]:
        block = load_block(txn, self._tables, base_seq, last_seq)
        if isinstance(block, Block):
            self._journal.residence.touched(len(block.raw))
        return block, last_seq + 1

    def _readable(self, cursor: Cursor, seq: int, low: int) -> Stamp | None:
        """The stamp of the block that holds seq, or of the nearest good one before it that is not below low."""
        found = seek(cursor, seq)
        while found and (base := key_seq(cursor.key())) >= low:
            with suppress(BlockError):
                stamp = stamp_of(cursor.value())
                if stamp.base_seq == base:
                    return stamp
            found = cursor.prev()
        return None

    def _chunk(self, txn: Reading, seq: int, stop: int) -> Chunk:
        """The summary of the closed chunk that holds seq; made again from its blocks when it is damaged."""
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
        return self._remember(Chunk.of(rebuilt))

    def _remember(self, chunk: Chunk) -> Chunk:
        if (replaced := self._chunks.pop(chunk.first_seq, None)) is not None:
            self._cached_topics -= len(replaced.names)
        self._chunks[chunk.first_seq] = chunk
        self._cached_topics += len(chunk.names)
        while self._cached_topics > _CACHED_TOPICS and len(self._chunks) > 1:
            _, dropped = self._chunks.popitem(last=False)
            self._cached_topics -= len(dropped.names)
        return chunk

    def _mask(self, chunk: Chunk, wanted: Wanted) -> int:
        key = chunk.first_seq, chunk.last_seq, wanted
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


def _last_in(block: Block | Damaged | None, wanted: Wanted) -> int | None:
    """The seq of a block's last message with a wanted topic."""
    if block is None or isinstance(block, Damaged):
        return None
    hits = [wanted(topic) for topic in block.topics]
    places = block.topic_idx()
    for i in range(block.count - 1, -1, -1):
        if hits[places[i]]:
            return block.base_seq + i
    return None
