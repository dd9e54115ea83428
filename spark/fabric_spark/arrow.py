"""Blocks to Arrow: the columns of many blocks become the columns of one batch, with no step for each row.

A block's arrays have Arrow's shape already, so this is concatenation: offsets are shifted and copied by numpy, bytes
are joined, and names become places in one dictionary for the batch. Columns that the query does not need are not read.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fabric_protocol.block import COUNT_MAX, Block, Sections
from fabric_protocol.columns import TEXT_BIT, header_places, items
from fabric_protocol.origin import Origin
from fabric_spark.topics import Wanted

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 16 << 20

_NO_FLOORS: Final[Mapping[str, int]] = {}

Numbers = np.ndarray[Any, np.dtype[Any]]

_ZEROS: Final = np.zeros(COUNT_MAX, np.int32)
_SHORT_ZEROS: Final = np.zeros(COUNT_MAX, np.uint16)


class Cut(NamedTuple):
    """Messages start..stop-1 of a block."""

    block: Block
    start: int
    stop: int


class Names(dict[str, int]):
    """Numbers names in the order of their first appearance."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number

    def array(self) -> pa.Array:
        return pa.array(list(self), pa.string())


class Tables:
    """The name tables of many blocks. Most blocks have the same table, so each table is decoded once."""

    def __init__(self) -> None:
        self.names = Names()
        self._bases: dict[Hashable, int] = {}
        self._numbers: list[int] = []

    def find(self, key: Hashable) -> int | None:
        """The place of a block's table in the joined table, if it is known; `key` identifies the table."""
        return self._bases.get(key)

    def add(self, key: Hashable, names: Iterable[str]) -> int:
        at = self._bases[key] = len(self._numbers)
        self._numbers += [self.names[name] for name in names]
        return at

    def numbers(self, places: Numbers, bases: Sequence[int], counts: Sequence[int] | Numbers) -> Numbers:
        """The numbers of names, out of places in the blocks' own tables: counts[i] of them in the one at bases[i]."""
        shifts = np.repeat(np.array(bases, np.int32), np.asarray(counts, np.int64))
        found: Numbers = np.array(self._numbers, np.int32)[places.astype(np.int32) + shifts]
        return found


class Ends:
    """Offsets into a column from the offsets of its pieces, each shifted by the size of the pieces before it."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Numbers] = []
        self._shifts: list[int] = []

    def add(self, own: Numbers) -> tuple[int, int]:
        """Append n items by their n + 1 offsets; returns the first and the last offset."""
        first, last = int(own[0]), int(own[-1])
        self._pieces.append(own[1:])
        self._shifts.append(self.size - first)
        self.size += last - first
        return first, last

    def skip(self, count: int) -> None:
        """Append empty items."""
        self._pieces.append(_ZEROS[:count])
        self._shifts.append(self.size)

    def offsets(self) -> Numbers:
        counts = [len(piece) for piece in self._pieces]
        out = np.zeros(sum(counts) + 1, np.int32)
        if counts:
            np.concatenate(self._pieces, out=out[1:])
            out[1:] += np.repeat(np.array(self._shifts, np.int32), counts)
        return out


class Rows:
    """The rows of one batch: cuts of blocks, one after the other."""

    def __init__(self, cuts: Sequence[Cut], hub: str) -> None:
        self.cuts = cuts
        self.hub = hub
        self.counts = np.array([cut.stop - cut.start for cut in cuts], np.int64)
        self.count = int(self.counts.sum())
        self.has_origins = any(cut.block.origin is not None for cut in cuts)
        self._tables = Tables()
        self.names = self._tables.names
        self._topics: Numbers | None = None

    def foreign(self) -> pa.Buffer | None:
        """Which rows have an origin."""
        return validity(np.repeat(np.array([cut.block.origin is not None for cut in self.cuts]), self.counts))

    def topics(self) -> Numbers:
        """For each row the number of its topic in `names`."""
        if self._topics is None:
            tables, bases = self._tables, []
            places: list[Numbers] = []
            for block, start, stop in self.cuts:
                at = tables.find(block.topics)
                bases.append(tables.add(block.topics, block.topics) if at is None else at)
                pos = block.sections.topic_idx
                if pos < 0:
                    places.append(_SHORT_ZEROS[: stop - start])
                else:
                    places.append(np.frombuffer(block.raw, "<u2", stop - start, pos + 2 * start))
            self._topics = tables.numbers(np.concatenate(places), bases, self.counts)
        return self._topics


def record_batch(
    cuts: Sequence[Cut], wanted: Wanted, schema: pa.Schema, hub: str = "", floors: Mapping[str, int] = _NO_FLOORS
) -> pa.RecordBatch:
    """The wanted rows of some cuts of blocks. The bytes are copied; nothing points into the blocks afterwards.

    What lies below the floor of its topic was removed, though other messages kept its block.
    """
    rows = Rows(cuts, hub)
    mask = _mask(rows, wanted, floors)
    arrays = [_MAKERS[field.name](rows, field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return batch if mask is None else batch.filter(pa.array(mask))


def _mask(rows: Rows, wanted: Wanted, floors: Mapping[str, int]) -> Numbers | None:
    """Which rows are wanted; None when all are."""
    if wanted.is_everything and not floors:
        return None
    numbers = rows.topics()
    hits = np.array([wanted(name) for name in rows.names])
    mask: Numbers = hits[numbers]
    first = min(cut.block.base_seq for cut in rows.cuts)
    if any(floors.get(name, 0) > first for name in rows.names):
        mask = mask & (_seqs(rows) >= np.array([floors.get(name, 0) for name in rows.names], np.int64)[numbers])
    return None if mask.all() else mask


# One maker for each column.


def _seqs(rows: Rows) -> Numbers:
    return np.concatenate([np.arange(b.base_seq + start, b.base_seq + stop) for b, start, stop in rows.cuts])


def _seq(rows: Rows, kind: pa.DataType) -> pa.Array:
    return fixed(_seqs(rows), kind)


def _of_block(value: Callable[[Block], int], dtype: str) -> Callable[[Rows, pa.DataType], pa.Array]:
    """A column whose value is the same for all messages of a block."""

    def make(rows: Rows, kind: pa.DataType) -> pa.Array:
        values = np.repeat(np.array([value(cut.block) for cut in rows.cuts], dtype), rows.counts)
        return fixed(values, kind)

    return make


def _expires(rows: Rows, kind: pa.DataType) -> pa.Array:
    values = np.repeat(np.array([cut.block.expires_us for cut in rows.cuts], np.int64), rows.counts)
    return pa.Array.from_buffers(kind, len(values), [validity(values > 0), pa.py_buffer(values)])


def _of_origin(value: Callable[[Origin], int]) -> Callable[[Rows, pa.DataType], pa.Array]:
    """A column of a number of the origin, the same for all messages of a block; null without an origin."""

    def make(rows: Rows, kind: pa.DataType) -> pa.Array:
        if not rows.has_origins:
            return pa.nulls(rows.count, kind)
        origins = [cut.block.origin for cut in rows.cuts]
        values = np.array([0 if origin is None else value(origin) for origin in origins], np.int64)
        buffers = [rows.foreign(), pa.py_buffer(np.repeat(values, rows.counts))]
        return pa.Array.from_buffers(kind, rows.count, buffers)

    return make


def _origin_seq(rows: Rows, kind: pa.DataType) -> pa.Array:
    """The seq of each message in the journal of its origin: as far behind the first one as in its block."""
    if not rows.has_origins:
        return pa.nulls(rows.count, kind)
    firsts = [0 if block.origin is None else block.origin.seq for block, _, _ in rows.cuts]
    seqs = [np.arange(first + start, first + stop) for first, (_, start, stop) in zip(firsts, rows.cuts, strict=True)]
    return pa.Array.from_buffers(kind, rows.count, [rows.foreign(), pa.py_buffer(np.concatenate(seqs))])


def _origin_journal(rows: Rows, kind: pa.DataType) -> pa.Array:
    if not rows.has_origins:
        return pa.nulls(rows.count, kind)
    names = Names()
    places = [-1 if cut.block.origin is None else names[cut.block.origin.journal.hex()] for cut in rows.cuts]
    numbers = np.repeat(np.array(places, np.int32), rows.counts)
    return names.array().take(pa.array(numbers, mask=numbers < 0))


def _topic(rows: Rows, kind: pa.DataType) -> pa.Array:
    numbers = rows.topics()
    return rows.names.array().take(pa.array(numbers))


def _hub(rows: Rows, kind: pa.DataType) -> pa.Array:
    return pa.array([rows.hub], kind).take(pa.array(np.zeros(rows.count, np.int32)))


def _payload(rows: Rows, kind: pa.DataType) -> pa.Array:
    offsets, data = _column(rows, lambda at: at.payload)
    return variable(kind, offsets, data)


def _payload_len(rows: Rows, kind: pa.DataType) -> pa.Array:
    pieces = []
    for block, start, stop in rows.cuts:
        offsets = np.frombuffer(block.raw, "<i4", stop - start + 1, block.sections.payload + 4 * start)
        pieces.append(offsets[1:] - offsets[:-1])
    return pa.array(np.concatenate(pieces), kind)


def _optional(place: Callable[[Sections], int]) -> Callable[[Rows, pa.DataType], pa.Array]:
    """A column of bytes that messages may lack: empty stands for absent, in a block and here."""

    def make(rows: Rows, kind: pa.DataType) -> pa.Array:
        if all(place(cut.block.sections) < 0 for cut in rows.cuts):
            return pa.nulls(rows.count, kind)
        offsets, data = _column(rows, place)
        return variable(kind, offsets, data, validity(offsets[1:] > offsets[:-1]))

    return make


def _column(rows: Rows, place: Callable[[Sections], int]) -> tuple[Numbers, bytes]:
    """A column of byte strings from the columns of the blocks; a block without the column has empty strings."""
    ends, pieces = Ends(), []
    for block, start, stop in rows.cuts:
        if (pos := place(block.sections)) < 0:
            ends.skip(stop - start)
        else:
            pieces.append(_join(block.raw, pos, block.count, start, stop, ends))
    return ends.offsets(), b"".join(pieces)


def _join(raw: bytes, pos: int, count: int, start: int, stop: int, ends: Ends) -> memoryview:
    """The bytes of items start..stop-1 of a column; a block is small enough for signed offsets."""
    first, last = ends.add(np.frombuffer(raw, "<i4", stop - start + 1, pos + 4 * start))
    data = pos + 4 * (count + 1)
    return memoryview(raw)[data + first : data + last]


def _headers(rows: Rows, kind: pa.DataType) -> pa.Array:
    """Headers as a map, or as a list of (name, value, is it text): the pairs of all messages, and where each begins."""
    tables, ends, value_ends = Tables(), Ends(), Ends()
    places: list[Numbers] = []
    bases: list[int] = []
    pieces: list[memoryview] = []
    for block, start, stop in rows.cuts:
        raw, pos = block.raw, block.sections.headers
        if pos < 0:
            ends.skip(stop - start)
            continue
        n_names, n_pairs, at_names, at_idx, at_values = header_places(raw, pos, block.count)
        first, last = ends.add(np.frombuffer(raw, "<i4", stop - start + 1, pos + 8 + 4 * start))
        if last > first:
            places.append(np.frombuffer(raw, "<u2", last - first, at_idx + 2 * first))
            key = n_names, raw[at_names:at_idx]
            at = tables.find(key)
            bases.append(tables.add(key, _decoded(raw, at_names, n_names)) if at is None else at)
            pieces.append(_join(raw, at_values, n_pairs, first, last, value_ends))
    index = np.concatenate(places) if places else _SHORT_ZEROS[:0]
    numbers = tables.numbers(index & ~np.uint16(TEXT_BIT), bases, [len(piece) for piece in places])
    keys = tables.names.array().take(pa.array(numbers))
    values = variable(pa.binary(), value_ends.offsets(), b"".join(pieces))
    starts = pa.array(ends.offsets())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(starts, keys, values).cast(kind)
    pair = pa.StructArray.from_arrays([keys, values, pa.array(index >= TEXT_BIT)], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(starts, pair, type=kind)


def _decoded(raw: bytes, at: int, count: int) -> list[str]:
    return [name.decode() for name in items(raw, at, count)]


# Arrow arrays around numpy's.


def fixed(values: Numbers, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def variable(kind: pa.DataType, offsets: Numbers, data: bytes, valid: pa.Buffer | None = None) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def validity(valid: Numbers) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


_MAKERS: Final[dict[str, Callable[[Rows, pa.DataType], pa.Array]]] = {
    "hub": _hub,
    "seq": _seq,
    "topic": _topic,
    "ts": _of_block(lambda block: block.ts_us, "<i8"),
    "key": _optional(lambda at: at.keys),
    "id": _optional(lambda at: at.ids),
    "headers": _headers,
    "payload": _payload,
    "payload_len": _payload_len,
    "priority": _of_block(lambda block: block.priority, "<i4"),
    "expires": _expires,
    "origin_journal": _origin_journal,
    "origin_epoch": _of_origin(lambda origin: origin.epoch),
    "origin_seq": _origin_seq,
    "origin_ts": _of_origin(lambda origin: origin.time_us),
}
