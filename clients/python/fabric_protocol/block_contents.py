"""Contents of a block: how many messages of each topic it has, without a copy of the block.

The hub counts the messages of a long journal with this. It reads the head, the topic table and the topic indexes of a
block; the head's CRC is checked, and the body's CRC is not, because a count is not worth reading all payloads.
"""

import struct
from collections import Counter
from itertools import pairwise
from typing import Final, NamedTuple

from fabric_protocol.block import HEAD, HEAD_BYTES, HEADERS, IDS, KEYS, verify_stamp
from fabric_protocol.columns import aligned, column_end, headers_end
from fabric_protocol.errors import BlockError

_PAIR: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")


class TopicCount(NamedTuple):
    """The messages of one topic in a block."""

    topic: str
    messages: int
    bytes: int  # of their payloads; 0 when sizes were not asked for
    first: int = 0  # the place of the first of them; 0 when sizes were not asked for
    last: int = 0  # the place of the last of them; 0 when sizes were not asked for


class Contents(NamedTuple):
    """What a stamped block has."""

    base_seq: int
    last_seq: int
    ts_us: int
    priority: int
    topics: tuple[TopicCount, ...]


def contents_of(raw: memoryview, *, sizes: bool = False) -> Contents:
    """The contents of a stamped block, with the bytes of the payloads if `sizes`; BlockError when it is damaged."""
    verify_stamp(raw)
    _, _, flags, priority, _, count, n_topics, _, base_seq, ts_us, *_ = HEAD.unpack_from(raw)
    try:
        if n_topics == 1:
            start = HEAD_BYTES + _PAIR.size
            name = str(raw[start : start + _PAIR.unpack_from(raw, HEAD_BYTES)[1]], "utf-8")
            size = _payload_bytes(raw, flags, count, column_end(raw, HEAD_BYTES, 1)) if sizes else 0
            topics: tuple[TopicCount, ...] = (TopicCount(name, count, size, 0, count - 1 if sizes else 0),)
        else:
            topics = _several(raw, flags, count, n_topics, sizes=sizes)
    except (struct.error, UnicodeDecodeError, IndexError, TypeError) as error:
        raise BlockError(f"the body is damaged: {error}") from None
    return Contents(base_seq, base_seq + count - 1, ts_us, priority, topics)


def _several(raw: memoryview, flags: int, count: int, n_topics: int, *, sizes: bool) -> tuple[TopicCount, ...]:
    """The counts of a block of several topics."""
    offsets = struct.unpack_from(f"<{n_topics + 1}I", raw, HEAD_BYTES)
    start, index_at = HEAD_BYTES + 4 * (n_topics + 1), column_end(raw, HEAD_BYTES, n_topics)
    table = bytes(raw[start : start + offsets[-1]])
    index = raw[index_at : index_at + 2 * count].cast("H")
    messages, bytes_by_topic = Counter(index), dict[int, int]()
    first, last = dict[int, int](), dict[int, int]()
    if sizes:
        at = _payload_at(raw, flags, count, aligned(index_at + 2 * count))
        ends = struct.unpack_from(f"<{count + 1}I", raw, at)
        for topic, (a, b) in zip(index, pairwise(ends), strict=True):
            bytes_by_topic[topic] = bytes_by_topic.get(topic, 0) + b - a
        last = {topic: place for place, topic in enumerate(index)}
        first = {index[place]: place for place in range(count - 1, -1, -1)}
    return tuple(
        TopicCount(
            table[offsets[topic] : offsets[topic + 1]].decode(),
            number,
            bytes_by_topic.get(topic, 0),
            first.get(topic, 0),
            last.get(topic, 0),
        )
        for topic, number in sorted(messages.items())
    )


def _payload_at(raw: memoryview, flags: int, count: int, at: int) -> int:
    """Where the payloads start; `at` is the end of the topic indexes."""
    for flag in (KEYS, IDS):
        if flags & flag:
            at = column_end(raw, at, count)
    return headers_end(raw, at, count) if flags & HEADERS else at


def _payload_bytes(raw: memoryview, flags: int, count: int, at: int) -> int:
    size: int = _U32.unpack_from(raw, _payload_at(raw, flags, count, at) + 4 * count)[0]
    return size
