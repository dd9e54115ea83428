"""A block as a list of messages, each a tuple. The columns of a block must agree with it."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from fabric_protocol import block as b
from fabric_protocol import block_parts
from fabric_protocol.block import Block

HEAD_FIELDS = [
    *("magic", "version", "flags", "priority", "spare1", "count", "n_topics", "spare2"),
    *("base_seq", "ts_us", "expires_us", "body_len", "body_crc", "spare3", "head_crc"),
]

# No deadline: the machine may be busy, and a slow example is not a wrong one.
checked = settings(deadline=None, max_examples=150, print_blob=True)


class Twin(NamedTuple):
    topic: str
    payload: bytes
    key: bytes = b""
    id: bytes = b""
    headers: dict[str, str | bytes] = {}  # noqa: RUF012 - never changed


def encode(twins: Sequence[Twin], **options: int) -> bytes:
    """The twins as an unstamped block. Unused columns are left out, as a client does."""
    topics: str | list[str] = [t.topic for t in twins]
    if len(set(topics)) == 1:
        topics = topics[0]
    return b.encode(
        topics,
        [t.payload for t in twins],
        keys=[t.key for t in twins] if any(t.key for t in twins) else None,
        ids=[t.id for t in twins] if any(t.id for t in twins) else None,
        headers=[t.headers or None for t in twins] if any(t.headers for t in twins) else None,
        **options,
    )


def decode(block: Block) -> list[Twin]:
    rows = zip(block.topic_names(), block.payloads(), block.keys(), block.ids(), block.headers(), strict=True)
    return [Twin(*row) for row in rows]


def parsed(raw: bytes) -> Block:
    """A block that has been through every check a receiver makes of an unstamped one."""
    block = Block(raw)
    block.verify()
    return block


def touch_everything(block: Block) -> None:
    """Call all that a verified block offers; none of it may fail."""
    twins = decode(block)
    assert len(twins) == block.count
    assert {t.topic for t in twins} == set(block.topics)
    assert block.payload_bytes() == sum(len(t.payload) for t in twins)
    stamped = Block(b.stamp(block.raw, 7, 8))
    stamped.verify_stamp()
    assert decode(parsed(block_parts.cut(stamped, 0, 1))) == twins[:1]
    assert decode(parsed(block_parts.pick(stamped, [(0, 1), (block.count - 1, block.count)]))) == [twins[0], twins[-1]]
    if 2 * len(block.raw) < b.BLOCK_BYTES_MAX and 2 * block.count <= b.COUNT_MAX:
        assert decode(parsed(block_parts.join([block, block]))) == twins * 2


def head_of(raw: bytes) -> dict[str, Any]:
    return dict(zip(HEAD_FIELDS, b.HEAD.unpack_from(raw), strict=True))


def resealed(raw: bytes, body: bytes | None = None, **fields: Any) -> bytes:
    """The block with another body and other head fields, and a CRC that fits, as a hostile client would make it."""
    if body is None:
        body = raw[b.HEAD_BYTES :]
    head = head_of(raw) | {"body_len": len(body), "body_crc": zlib.crc32(body)} | fields
    return b.HEAD.pack(*head.values()) + body


def with_u32(raw: bytes, at: int, value: int) -> bytes:
    """The block with one u32 of its body replaced (`at` counts from the start of the body)."""
    body = bytearray(raw[b.HEAD_BYTES :])
    struct.pack_into("<I", body, at, value)
    return resealed(raw, bytes(body))


words = st.text(st.characters(codec="utf-8", exclude_characters=".*#>"), min_size=1, max_size=6)
topics = st.lists(words, min_size=1, max_size=4).map(".".join)
values = st.one_of(st.text(max_size=8), st.binary(max_size=8))
twins = st.builds(
    Twin,
    topic=st.one_of(st.sampled_from(["order.paid", "order.new", "ж.日"]), topics),
    payload=st.one_of(st.binary(max_size=40), st.just(b"same size")),
    key=st.binary(max_size=9),
    id=st.binary(max_size=9),
    headers=st.dictionaries(st.text(max_size=5), values, max_size=3),
)
plain_twins = st.builds(Twin, topic=st.just("a.b"), payload=st.binary(max_size=40))
batches = st.one_of(st.lists(twins, min_size=1, max_size=20), st.lists(plain_twins, min_size=1, max_size=20))
