"""Blocks to Arrow: the columns of many blocks become the columns of one batch, without a look at single rows.

A block's arrays have Arrow's shape already, so this is concatenation: offsets are shifted and copied by numpy, bytes
are joined, and names become places in one dictionary for the batch. What is not asked for is not touched.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fabric.block import Block, Sections
from fabric.columns import TEXT_BIT, header_places, items
from fabric_spark.topics import Wanted

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 16 << 20

_NO_FLOORS: Final[Mapping[str, int]] = {}

Numbers = np.ndarray[Any, np.dtype[Any]]


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


class Rows:
    """The rows of one batch: cuts of blocks, one after the other."""

    def __init__(self, cuts: Sequence[Cut], hub: str) -> None:
        self.cuts = cuts
        self.hub = hub
        self.counts = np.array([cut.stop - cut.start for cut in cuts], np.int64)
        self.count = int(self.counts.sum())
        self.names = Names()
        self._topics: Numbers | None = None

    def topics(self) -> Numbers:
        """For each row the number of its topic in `names`."""
        if self._topics is None:
            numbers = np.empty(self.count, np.int32)
            at = 0
            for block, start, stop in self.cuts:
                own = [self.names[topic] for topic in block.topics]
                after = at + stop - start
                if len(own) == 1:
                    numbers[at:after] = own[0]
                else:
                    places = np.frombuffer(block.raw, "<u2", stop - start, block.sections.topic_idx + 2 * start)
                    numbers[at:after] = np.array(own, np.int32)[places]
                at = after
            self._topics = numbers
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
    """A column of byte strings out of those of the blocks; blocks without one have empty strings."""
    offsets = np.zeros(rows.count + 1, np.int32)
    pieces: list[memoryview] = []
    at = size = 0
    for block, start, stop in rows.cuts:
        after = at + stop - start
        if (pos := place(block.sections)) < 0:
            offsets[at + 1 : after + 1] = size
        else:
            size += _join(block.raw, pos, block.count, start, stop, offsets[at + 1 : after + 1], size, pieces)
        at = after
    return offsets, b"".join(pieces)


def _join(
    raw: bytes, pos: int, count: int, start: int, stop: int, out: Numbers, size: int, pieces: list[memoryview]
) -> int:
    """Add items start..stop-1 of a column: their offsets to `out`, their bytes to `pieces`; how many bytes it were."""
    own = np.frombuffer(raw, "<i4", stop - start + 1, pos + 4 * start)  # a block is small enough for signed ones
    first, last = int(own[0]), int(own[-1])
    np.add(own[1:], size - first, out=out)
    data = pos + 4 * (count + 1)
    pieces.append(memoryview(raw)[data + first : data + last])
    return last - first


def _headers(rows: Rows, kind: pa.DataType) -> pa.Array:
    """Headers as a map, or as a list of (name, value, is it text): the pairs of all messages, and where each begins."""
    ends = np.zeros(rows.count + 1, np.int32)
    names = Names()
    places: list[Numbers] = []
    texts: list[Numbers] = []
    value_ends: list[Numbers] = [np.zeros(1, np.int32)]
    pieces: list[memoryview] = []
    at = pairs = size = 0
    for block, start, stop in rows.cuts:
        after = at + stop - start
        pos = block.sections.headers
        if pos < 0:
            ends[at + 1 : after + 1] = pairs
        else:
            n_names, n_pairs, at_names, at_idx, at_values = header_places(block.raw, pos, block.count)
            own = np.frombuffer(block.raw, "<i4", stop - start + 1, pos + 8 + 4 * start)
            first, last = int(own[0]), int(own[-1])
            np.add(own[1:], pairs - first, out=ends[at + 1 : after + 1])
            pairs += last - first
            if last > first:
                numbers = np.array([names[n.decode()] for n in items(block.raw, at_names, n_names)], np.int32)
                index = np.frombuffer(block.raw, "<u2", last - first, at_idx + 2 * first)
                places.append(numbers[index & ~np.uint16(TEXT_BIT)])
                texts.append(index >= TEXT_BIT)
                shifted = np.empty(last - first, np.int32)
                size += _join(block.raw, at_values, n_pairs, first, last, shifted, size, pieces)
                value_ends.append(shifted)
        at = after
    numbers = np.concatenate(places) if places else np.zeros(0, np.int32)
    keys = names.array().take(pa.array(numbers))
    values = variable(pa.binary(), np.concatenate(value_ends), b"".join(pieces))
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(pa.array(ends), keys, values).cast(kind)
    flags = pa.array(np.concatenate(texts) if texts else np.zeros(0, bool))
    pair = pa.StructArray.from_arrays([keys, values, flags], fields=list(kind.value_type))
    return pa.ListArray.from_arrays(pa.array(ends), pair, type=kind)


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
}
