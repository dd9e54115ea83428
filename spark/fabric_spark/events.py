"""Blocks of delivery events to Arrow, as `arrow` does with blocks of messages; and groups, which are few."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from fabric.event_block import Columns, columns, extent_of
from fabric_protocol.errors import BlockError
from fabric_protocol.messages import Happening
from fabric_spark.arrow import BATCH_ROWS, Names, Numbers, fixed
from fabric_spark.catalog import Place
from fabric_spark.rows import Piece, Rules, event_blocks, lose

KINDS: Final = tuple(kind.name.lower() for kind in sorted(Happening))


class _Part(NamedTuple):
    """Some events of a block: `picked` are their places."""

    block: Columns
    picked: Numbers


def event_batches(pieces: Sequence[Piece], rules: Rules, schema: pa.Schema, hub: str) -> Iterator[pa.RecordBatch]:
    """The events of some pieces, in batches."""
    parts: list[_Part] = []
    rows = 0
    for piece in pieces:
        for first, raw in event_blocks(piece, rules):
            part = _part(piece, rules, first, raw)
            if part is None or not len(part.picked):
                continue
            parts.append(part)
            rows += len(part.picked)
            if rows >= BATCH_ROWS:
                yield _batch(parts, schema, hub)
                parts, rows = [], 0
    if parts:
        yield _batch(parts, schema, hub)


def _part(piece: Piece, rules: Rules, first: int, raw: bytes) -> _Part | None:
    try:
        if not raw:
            raise BlockError("the row does not match its checksum")
        if extent_of(raw).last < piece.first:
            return None
        block = columns(raw)
        if block.first != first:
            raise BlockError(f"the events from {block.first} on are in its place")
    except BlockError as error:
        lose(
            f"the delivery events from number {first} on in {piece.file} are damaged: {error}",
            "read another snapshot, or set failOnDataLoss=false to leave them out",
            rules,
        )
        return None
    numbers = np.arange(block.first, block.first + len(block.kind))
    mask = (numbers >= piece.first) & (numbers <= piece.last)
    times = np.frombuffer(block.ts_us, "<i8")
    if rules.start_us is not None:
        mask &= times >= rules.start_us
    if rules.end_us is not None:
        mask &= times < rules.end_us
    return _Part(block, np.flatnonzero(mask))


def _batch(parts: Sequence[_Part], schema: pa.Schema, hub: str) -> pa.RecordBatch:
    count = sum(len(part.picked) for part in parts)
    arrays = []
    for field in schema:
        if field.name == "hub":
            arrays.append(pa.array([hub], field.type).take(pa.array(np.zeros(count, np.int32))))
        else:
            arrays.append(_MAKERS[field.name](parts, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(name: str, dtype: str, target: str) -> Callable[[Sequence[_Part], pa.DataType], pa.Array]:
    def make(parts: Sequence[_Part], kind: pa.DataType) -> pa.Array:
        values = [np.frombuffer(getattr(part.block, name), dtype)[part.picked] for part in parts]
        return fixed(np.concatenate(values).astype(target), kind)

    return make


def _named(table: str, places: str) -> Callable[[Sequence[_Part], pa.DataType], pa.Array]:
    def make(parts: Sequence[_Part], kind: pa.DataType) -> pa.Array:
        names = Names()
        found = []
        for part in parts:
            own = np.array([names[name] for name in getattr(part.block, table)], np.int32)
            found.append(own[np.frombuffer(getattr(part.block, places), "<u2")[part.picked]])
        return names.array().take(pa.array(np.concatenate(found)))

    return make


def _number(parts: Sequence[_Part], kind: pa.DataType) -> pa.Array:
    return fixed(np.concatenate([part.picked + part.block.first for part in parts]).astype("<i8"), kind)


def _kind(parts: Sequence[_Part], kind: pa.DataType) -> pa.Array:
    values = np.concatenate([np.frombuffer(part.block.kind, "u1")[part.picked] for part in parts])
    known = [*KINDS, *(f"kind-{n}" for n in range(len(KINDS), int(values.max()) + 1))]  # a newer hub may have more
    return pa.array(known, kind).take(pa.array(values.astype(np.int32)))


_MAKERS: Final[dict[str, Callable[[Sequence[_Part], pa.DataType], pa.Array]]] = {
    "number": _number,
    "ts": _plain("ts_us", "<i8", "<i8"),
    "kind": _kind,
    "group": _named("groups", "group_idx"),
    "client": _named("clients", "client_idx"),
    "attempt": _plain("attempt", "<u2", "<i4"),
    "first_seq": _plain("first_seq", "<u8", "<i8"),
    "last_seq": _plain("last_seq", "<u8", "<i8"),
}


def group_rows(place: Place) -> list[dict[str, Any]]:
    """The groups of a place as rows of table `groups`."""
    return [
        {
            "hub": place.hub,
            "group": state.group,
            "patterns": list(state.settings.patterns),
            "settings": json.dumps({k: v for k, v in state.settings._asdict().items() if k != "patterns"}),
            "cursor": state.cursor,
            "floor": state.floor,
            "pending": sum(last - first + 1 for first, last in state.open),
            "open": [{"first": first, "last": last} for first, last in state.open],
            "paused": state.paused,
            "failures": [
                {"first": f.first, "last": f.last, "failures": f.failures, "due": f.due_us or None, "reason": f.reason}
                for f in state.failures
            ],
            "last_seq": place.last_seq,
            "ts": place.now_us,
        }
        for state in place.groups
    ]
