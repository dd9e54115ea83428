"""Blocks to batches: every column equals the result of the block's own decoder, for every part of a block."""

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'fabricmq[spark]'")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_protocol.block import Block, encode, stamp
from fabric_protocol.origin import Origin
from fabric_spark.arrow import Cut, record_batch
from fabric_spark.columns import TABLES, arrow_schema, spark_schema
from fabric_spark.options import parse
from fabric_spark.topics import Wanted, matches, parse_patterns

TIMES = ("ts", "expires", "origin_ts")
TOPICS = ["a", "a.b", "a.b.c", "ü.b", "$dlq.x"]
header_maps = st.dictionaries(
    st.sampled_from(["h1", "h2", "läng", ""]), st.one_of(st.text(max_size=6), st.binary(max_size=6)), max_size=3
)

origins = st.builds(
    Origin, st.sampled_from([b"j" * 16, b"k" * 16]), st.integers(1, 9), st.integers(1, 1 << 62), st.integers(0, 1 << 50)
)


def schema_of(headers: str, columns: str = ",".join(TABLES["journal"])) -> pa.Schema:
    options = parse({"path": "/x", "headers": headers, "columns": columns})
    return arrow_schema(spark_schema(options), options)


@st.composite
def blocks(draw: st.DrawFn, base_seq: int) -> Block:
    count = draw(st.integers(1, 6))

    def column(items: st.SearchStrategy[object]) -> object:
        return draw(st.none() | st.lists(items, min_size=count, max_size=count))

    topics = draw(st.sampled_from(TOPICS) | st.lists(st.sampled_from(TOPICS), min_size=count, max_size=count))
    raw = encode(
        topics,
        draw(st.lists(st.binary(max_size=9), min_size=count, max_size=count)),
        keys=column(st.binary(max_size=5)),  # type: ignore[arg-type]
        ids=column(st.binary(max_size=5)),  # type: ignore[arg-type]
        headers=column(st.none() | header_maps),  # type: ignore[arg-type]
        priority=draw(st.integers(0, 9)),
        expires_us=draw(st.sampled_from([0, 1_800_000_000_000_000])),
    )
    block = Block(stamp(raw, base_seq, draw(st.integers(0, 2_000_000_000_000_000))))
    block.origin = draw(st.none() | origins)
    return block


@st.composite
def cuts(draw: st.DrawFn) -> list[Cut]:
    found, seq = [], draw(st.integers(1, 1 << 40))
    for _ in range(draw(st.integers(1, 5))):
        block = draw(blocks(seq))
        start = draw(st.integers(0, block.count - 1))
        found.append(Cut(block, start, draw(st.integers(start + 1, block.count))))
        seq = block.last_seq + 1 + draw(st.integers(0, 3))
    return found


def expected(found: list[Cut], wanted: Wanted, floors: dict[str, int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for block, start, stop in found:
        names, keys, ids, payloads = block.topic_names(), block.keys(), block.ids(), block.payloads()
        headers = block.headers()
        rows += [
            {
                "hub": "berlin",
                "seq": block.base_seq + i,
                "topic": names[i],
                "ts": block.ts_us,
                "key": keys[i] or None,
                "headers": headers[i],
                "payload": payloads[i],
                "payload_len": len(payloads[i]),
                "id": ids[i] or None,
                "priority": block.priority,
                "expires": block.expires_us or None,
                "origin_journal": block.origin.journal.hex() if block.origin else None,
                "origin_epoch": block.origin.epoch if block.origin else None,
                "origin_seq": block.origin.seq + i if block.origin else None,
                "origin_ts": block.origin.time_us if block.origin else None,
            }
            for i in range(start, stop)
            if wanted(names[i]) and block.base_seq + i >= floors.get(names[i], 0)
        ]
    return rows


def plain(batch: pa.RecordBatch, headers: str) -> list[dict[str, object]]:
    """A batch as rows of the kind that `expected` gives."""
    times = {name: batch.column(name).cast(pa.int64()).to_pylist() for name in TIMES}
    rows: list[dict[str, object]] = batch.to_pylist()
    for i, row in enumerate(rows):
        row.update({name: times[name][i] for name in TIMES})
        pairs: Any = row["headers"]
        if headers == "raw":
            row["headers"] = {p["name"]: p["value"].decode() if p["text"] else p["value"] for p in pairs}
        else:
            row["headers"] = dict(pairs)
    return rows


@given(
    cuts(),
    st.sampled_from(["map", "raw"]),
    st.sampled_from(["", "a", "a.#", "a.*,ü.#", "$dlq.x", "#", "nothing"]),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 1 << 40), max_size=2),
)
@settings(deadline=None, max_examples=150)
def test_a_batch_has_what_its_blocks_have(found: list[Cut], headers: str, topics: str, floors: dict[str, int]) -> None:
    wanted = Wanted(parse_patterns(topics))
    batch = record_batch(found, wanted, schema_of(headers), "berlin", floors)
    batch.validate(full=True)
    rows = expected(found, wanted, floors)
    if headers == "map":
        for row in rows:
            row["headers"] = {
                name: value.encode() if isinstance(value, str) else value
                for name, value in row["headers"].items()  # type: ignore[attr-defined]
            }
    assert plain(batch, headers) == rows


def test_only_chosen_columns_are_made() -> None:
    block = Block(stamp(encode("a", [b"x"]), 7, 1))
    batch = record_batch([Cut(block, 0, 1)], Wanted(), schema_of("map", "topic,seq"))
    assert batch.schema.names == ["topic", "seq"]
    assert batch.to_pylist() == [{"topic": "a", "seq": 7}]


def test_a_batch_does_not_need_its_blocks_any_more() -> None:
    """Bytes are copied: a batch that outlives a transaction must not point into it."""
    raw = bytearray(stamp(encode("a.b", [b"payload"] * 3, keys=[b"key"] * 3, headers=[{"n": "v"}] * 3), 1, 1))
    block = Block(bytes(raw))
    batch = record_batch([Cut(block, 0, 3)], Wanted(), schema_of("map"))
    before = batch.to_pylist()
    held = block.raw
    del block
    assert batch.to_pylist() == before
    assert held == bytes(raw)


@pytest.mark.parametrize(
    ("pattern", "topic", "answer"),
    [
        ("a", "a", True),
        ("a", "a.b", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.*", "a", False),
        ("a.>", "a", False),
        ("a.>", "a.b.c", True),
        ("#.c", "a.b.c", True),
        ("#.c", "c", True),
        ("a.#.b.#.c", "a.x.b.b.y.c", True),
        ("a.#.b.#.c", "a.x.y.c", False),
        ("#", "$dlq.x", False),
        ("*.x", "$dlq.x", False),
        ("$dlq.#", "$dlq.x", True),
    ],
)
def test_patterns_match_as_in_a_subscription(pattern: str, topic: str, answer: bool) -> None:
    (canonical,) = parse_patterns(pattern)
    assert matches(canonical, topic) is answer
