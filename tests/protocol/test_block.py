"""A block holds the messages that were put in, whole or in parts, and agrees with a list of messages."""

import struct
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_protocol import block as b
from fabric_protocol.block import Block
from fabric_protocol.block_parts import cut, join, pick
from fabric_protocol.errors import BlockError, Code
from tests.protocol import twin as t
from tests.protocol.twin import Twin, checked, decode, encode, parsed

THREE = [
    Twin("order.new", b"one", b"k1", b"id1", {"kind": "text", "raw": b"\xff"}),
    Twin("order.paid", b"", b"", b"id2"),
    Twin("order.new", b"three", b"k3", b"", {"kind": "other"}),
]


@checked
@given(t.batches, st.integers(0, 9), st.integers(0, 2**62))
def test_a_block_says_what_its_twin_says(batch: list[Twin], priority: int, expires_us: int) -> None:
    block = parsed(encode(batch, priority=priority, expires_us=expires_us))
    assert decode(block) == batch
    assert (block.count, block.priority, block.expires_us) == (len(batch), priority, expires_us)
    assert (block.base_seq, block.ts_us) == (0, 0)
    assert [block.topics[i] for i in block.topic_idx()] == [twin.topic for twin in batch]
    t.touch_everything(block)


@checked
@given(t.batches, st.integers(1, 2**63), st.integers(-(2**62), 2**62))
def test_a_stamp_changes_the_hubs_fields_only(batch: list[Twin], base_seq: int, ts_us: int) -> None:
    raw = encode(batch)
    block = parsed(b.stamp(raw, base_seq, ts_us))
    block.verify_stamp()
    assert (block.base_seq, block.ts_us, block.last_seq) == (base_seq, ts_us, base_seq + len(batch) - 1)
    before, after = t.head_of(raw), t.head_of(block.raw)
    assert {name for name in before if before[name] != after[name]} <= {"base_seq", "ts_us", "head_crc"}
    assert raw[b.HEAD_BYTES :] == block.raw[b.HEAD_BYTES :]


@checked
@given(t.batches)
def test_a_glance_and_a_stamped_copy_agree_with_the_parsed_block(batch: list[Twin]) -> None:
    plain = parsed(encode(batch, priority=4, expires_us=5))
    copy, block = plain.stamped(77, 88), parsed(b.stamp(plain.raw, 77, 88))
    assert all(getattr(copy, slot) == getattr(block, slot) for slot in Block.__slots__)
    topics = [topic.encode() for topic in block.topics]
    assert b.glance(block.raw) == ((block.base_seq, block.last_seq, block.ts_us), topics)
    for raw in (block.raw, memoryview(block.raw)):
        assert b.stamp_of(raw) == (block.base_seq, block.last_seq, block.ts_us)
    with pytest.raises(BlockError):
        b.stamp_of(block.raw[:16] + b"\xff" + block.raw[17:])


@checked
@given(t.batches, st.data())
def test_a_cut_is_a_slice_of_the_twin(batch: list[Twin], data: st.DataObject) -> None:
    whole = Block(b.stamp(encode(batch, priority=3), 100, 5))
    start = data.draw(st.integers(0, len(batch) - 1))
    stop = data.draw(st.integers(start + 1, len(batch)))
    piece = parsed(cut(whole, start, stop))
    piece.verify_stamp()
    assert decode(piece) == batch[start:stop]
    assert (piece.base_seq, piece.ts_us, piece.priority) == (100 + start, 5, 3)
    assert not piece.flags & b.SPARSE


@checked
@given(t.batches, st.data())
def test_a_pick_is_the_chosen_runs_of_the_twin(batch: list[Twin], data: st.DataObject) -> None:
    whole = Block(b.stamp(encode(batch), 100, 5))
    edges = sorted(data.draw(st.sets(st.integers(0, len(batch)), min_size=2)))
    runs = list(zip(edges[::2], edges[1::2], strict=False))
    picked = parsed(pick(whole, runs))
    picked.verify_stamp()
    assert decode(picked) == [twin for start, stop in runs for twin in batch[start:stop]]
    assert picked.base_seq == 100 + runs[0][0]
    assert bool(picked.flags & b.SPARSE) == (len(runs) > 1)


@checked
@given(st.lists(t.batches, min_size=1, max_size=5))
def test_joined_blocks_are_the_concatenated_twins(batches: list[list[Twin]]) -> None:
    joined = parsed(join([Block(encode(batch, priority=2, expires_us=9)) for batch in batches]))
    assert decode(joined) == [twin for batch in batches for twin in batch]
    assert (joined.priority, joined.expires_us) == (2, 9)


def test_one_message_is_a_block_of_one() -> None:
    assert decode(parsed(b.encode("a", [b"x"]))) == [Twin("a", b"x")]


def test_a_block_may_hold_nothing_but_empty_payloads() -> None:
    assert parsed(b.encode("a", [b"", b"", b""])).payloads() == [b"", b"", b""]


@pytest.mark.parametrize("size", [0, 1, 7, 128])
@pytest.mark.parametrize("count", [1, 2, 1024, 1025, 5000])
def test_payloads_of_one_size_are_told_apart(count: int, size: int) -> None:
    payloads = [(b"%d" % i).ljust(size, b".")[:size] for i in range(count)]
    assert parsed(b.encode("a", payloads)).payloads() == payloads


def test_sections_start_on_multiples_of_eight() -> None:
    block = Block(encode(THREE))
    assert len(block.raw) % 8 == 0
    assert all(place % 8 == 0 for place in block.sections)


def test_equal_topics_need_no_index() -> None:
    assert b.encode(["a.b"] * 3, [b"1", b"2", b"3"]) == b.encode("a.b", [b"1", b"2", b"3"])


def test_a_whole_cut_is_the_block_itself() -> None:
    block = Block(b.stamp(encode(THREE), 1, 1))
    assert cut(block, 0, 3) is block.raw
    assert pick(block, [(0, 3)]) is block.raw


def test_a_cut_leaves_topics_behind_that_it_does_not_use() -> None:
    block = Block(b.stamp(encode(THREE), 1, 1))
    assert parsed(cut(block, 1, 2)).topics == ("order.paid",)
    assert parsed(pick(block, [(0, 1), (2, 3)])).topics == ("order.new",)


def test_a_piece_of_a_sparse_block_is_sparse() -> None:
    block = Block(b.stamp(encode(THREE), 10, 1))
    sparse = Block(pick(block, [(0, 1), (2, 3)]))
    assert parsed(cut(sparse, 1, 2)).flags & b.SPARSE


def test_join_drops_stamps_and_missing_columns() -> None:
    block = Block(b.stamp(encode(THREE), 10, 1))
    sparse = Block(pick(block, [(0, 1), (2, 3)]))
    joined = parsed(join([sparse, block]))
    assert not joined.flags & b.SPARSE
    assert (joined.base_seq, joined.ts_us) == (0, 0)


def test_what_a_producer_writes_into_the_hubs_fields_is_overwritten() -> None:
    forged = b.stamp(encode(THREE), 999, 999)
    assert b.stamp(forged, 1, 2) == b.stamp(encode(THREE), 1, 2)


def test_a_sparse_block_verifies_and_says_so() -> None:
    """Whether SPARSE may be there is for the receiver to judge: in a DELIVER it may, in a PUB it may not."""
    forged = parsed(t.resealed(encode(THREE), flags=b.KEYS | b.IDS | b.HEADERS | b.SPARSE))
    assert forged.flags & b.SPARSE
    assert decode(forged) == THREE


def test_the_last_header_of_a_name_wins() -> None:
    """A block may carry a name twice in one message; a map cannot. Encoded here by hand."""
    raw = b.encode("a", [b"x"], headers=[{"n": "1", "m": "2"}])
    at = raw.index(struct.pack("<HH", 0x8000, 0x8001))
    twice = t.resealed(raw, (raw[:at] + struct.pack("<HH", 0x8000, 0x8000) + raw[at + 4 :])[b.HEAD_BYTES :])
    assert parsed(twice).headers() == [{"n": "2"}]


def test_spare_fields_and_padding_are_not_looked_at() -> None:
    raw = b.encode("abc", [b"x"])
    body = bytearray(raw[b.HEAD_BYTES :])
    body[-1] = 0xFF
    assert decode(parsed(t.resealed(raw, bytes(body), spare1=1, spare2=2, spare3=3))) == [Twin("abc", b"x")]


BIG = 1 << 20

REFUSED: dict[str, tuple[Callable[[], bytes], Code]] = {
    "no message": (lambda: b.encode("a", []), Code.BAD_BLOCK),
    "too many messages": (lambda: b.encode("a", [b""] * (b.COUNT_MAX + 1)), Code.BAD_BLOCK),
    "topics do not match messages": (lambda: b.encode(["a", "b"], [b"x"]), Code.BAD_BLOCK),
    "keys do not match messages": (lambda: b.encode("a", [b"x"], keys=[b"", b""]), Code.BAD_BLOCK),
    "ids do not match messages": (lambda: b.encode("a", [b"x"], ids=[]), Code.BAD_BLOCK),
    "headers do not match messages": (lambda: b.encode("a", [b"x"], headers=[]), Code.BAD_BLOCK),
    "long topic": (lambda: b.encode("a" * 256, [b"x"]), Code.BAD_TOPIC),
    "long topic among others": (lambda: b.encode(["a", "ä" * 128], [b"x", b"y"]), Code.BAD_TOPIC),
    "topic that is not Unicode": (lambda: b.encode("\ud800", [b"x"]), Code.BAD_TOPIC),
    "long key": (lambda: b.encode("a", [b"x"], keys=[b"k" * 256]), Code.BAD_BLOCK),
    "long id": (lambda: b.encode("a", [b"x"], ids=[b"k" * 201]), Code.BAD_BLOCK),
    "priority": (lambda: b.encode("a", [b"x"], priority=10), Code.BAD_BLOCK),
    "negative priority": (lambda: b.encode("a", [b"x"], priority=-1), Code.BAD_BLOCK),
    "negative expiry": (lambda: b.encode("a", [b"x"], expires_us=-1), Code.BAD_BLOCK),
    "expiry beyond i64": (lambda: b.encode("a", [b"x"], expires_us=1 << 63), Code.BAD_BLOCK),
    "too large": (lambda: b.encode("a", [bytes(BIG)] * 16), Code.TOO_LARGE),
    "beyond u32": (lambda: b.encode("a", [bytes(BIG)] * 4096), Code.TOO_LARGE),
    "header value": (lambda: b.encode("a", [b"x"], headers=[{"n": 5}]), Code.BAD_BLOCK),  # type: ignore[dict-item]
    "header name": (lambda: b.encode("a", [b"x"], headers=[{5: "n"}]), Code.BAD_BLOCK),  # type: ignore[dict-item]
    "header text": (lambda: b.encode("a", [b"x"], headers=[{"n": "\ud800"}]), Code.BAD_BLOCK),
    "header names": (lambda: b.encode("a", [b"x"], headers=[{str(i): "" for i in range(70_000)}]), Code.BAD_BLOCK),
    "headers": (lambda: b.encode("a", [b""] * 9000, headers=[{str(i): "" for i in range(30)}] * 9000), Code.BAD_BLOCK),
    "joined priorities": (
        lambda: join([Block(encode(THREE)), Block(encode(THREE, priority=1))]),
        Code.BAD_BLOCK,
    ),
    "joined expiries": (
        lambda: join([Block(encode(THREE)), Block(encode(THREE, expires_us=1))]),
        Code.BAD_BLOCK,
    ),
    "too many joined": (lambda: join([Block(b.encode("a", [b""] * 40_000))] * 2), Code.BAD_BLOCK),
    "too much joined": (lambda: join([Block(b.encode("a", [bytes(9 * BIG)]))] * 2), Code.TOO_LARGE),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_block_is_refused_when_it_is_made(what: str) -> None:
    make, code = REFUSED[what]
    with pytest.raises(BlockError) as caught:
        make()
    assert caught.value.code is code


def test_the_largest_values_fit() -> None:
    twins = [Twin("t" * 255, b"x", b"k" * 255, b"i" * 200, {"n" * 1000: "v" * 100_000})]
    assert decode(parsed(encode(twins, priority=9, expires_us=(1 << 63) - 1))) == twins
    full = b.encode([str(i) for i in range(b.TOPICS_MAX)], [b""] * b.TOPICS_MAX)
    assert len(parsed(full).topics) == b.TOPICS_MAX
    assert parsed(b.encode("a", [b""] * b.COUNT_MAX)).count == b.COUNT_MAX
    largest = b.encode("a", [bytes(b.BLOCK_BYTES_MAX - b.HEAD_BYTES - 16 - 8)])
    assert len(parsed(largest).raw) == b.BLOCK_BYTES_MAX


def test_more_topics_than_a_table_holds_are_refused() -> None:
    with pytest.raises(BlockError):
        b.encode([str(i) for i in range(b.COUNT_MAX)], [b""] * b.COUNT_MAX)


def test_machine_arrays_have_the_widths_that_the_layout_needs() -> None:
    assert (array("I").itemsize, array("H").itemsize, b.HEAD_BYTES) == (4, 2, 56)
