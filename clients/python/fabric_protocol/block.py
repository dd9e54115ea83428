"""The block: a batch of messages as columns, on the wire, on disk and in the consumer alike.

A producer encodes a block once. The hub stamps four head fields and otherwise passes the bytes on without encoding them
again. The one idea to hold while reading: every variable-length column is `u32[n+1] offsets | bytes`, and every array
starts on a multiple of eight, so that a reader may map it without copying.

Layout, little-endian (fields marked * are the hub's):

    head 56  magic "FAB1" | version u8 | flags u8 | priority u8 | spare u8 | count u32 | n_topics u16 | spare u16
             base_seq u64 * | ts_us i64 * | expires_us i64 | body_len u32 | body_crc u32 | spare u32 | head_crc u32 *
    body     topics      column of n_topics
             topic_idx   u16[count]                           absent when n_topics == 1
             keys        column of count                      absent unless KEYS
             ids         column of count                      absent unless IDS
             headers     absent unless HEADERS:
                         n_names u32 | n_pairs u32 | first_pair u32[count+1] | names column of n_names
                         name_idx u16[n_pairs], top bit set when the value is text | values column of n_pairs
             payload     column of count

Spare fields and padding are written as zeros and ignored by readers. `columns` encodes columns and headers; this module
puts them into blocks. Standard library only: hub, client and Spark use these files.
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from fabric_protocol.columns import (
    Headers,
    HeaderValue,
    aligned,
    check_column,
    check_headers,
    column,
    column_end,
    decode_headers,
    encode_headers,
    headers_end,
    items,
    longest,
    padded,
)
from fabric_protocol.errors import BlockError, Code
from fabric_protocol.origin import Origin

if sys.byteorder != "little":
    raise ImportError("fabric blocks are little-endian; this machine is big-endian and cannot map them")

MAGIC: Final = b"FAB1"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sBBBBIHHQqqIIII")
HEAD_BYTES: Final = HEAD.size  # 56
_BODY_CRC_AT: Final = 44
_HEAD_CRC_AT: Final = HEAD_BYTES - 4
_STAMP: Final = struct.Struct("<Qq")
_STAMP_AT: Final = 16
_GLANCE: Final = struct.Struct("<8xIH2xQq")  # count, n_topics, base_seq, ts_us
_EXPIRES_AT: Final = 32
_I64: Final = struct.Struct("<q")
_U32: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<II")
_ONE_TOPIC_AT: Final = HEAD_BYTES + _PAIR.size  # where the topic's bytes start in a block of one topic

# The flag bits: which parts the body has.
KEYS: Final = 1
IDS: Final = 2
HEADERS: Final = 4
SPARSE: Final = 8  # picked messages: seq of message i is not base_seq + i; the DELIVER frame lists the seqs
_KNOWN_FLAGS: Final = KEYS | IDS | HEADERS | SPARSE

# Bounds. Three processes hold a whole block in memory, so its size is limited; the rest follows from field widths.
BLOCK_BYTES_MAX: Final = 16 << 20
COUNT_MAX: Final = 65_536
TOPICS_MAX: Final = 65_535
TOPIC_BYTES_MAX: Final = 255
KEY_BYTES_MAX: Final = 255
ID_BYTES_MAX: Final = 200
PRIORITY_MAX: Final = 9  # delivered first
PRIORITY_DEFAULT: Final = 4


def encode(
    topics: str | Sequence[str],
    payloads: Sequence[bytes],
    *,
    keys: Sequence[bytes] | None = None,
    ids: Sequence[bytes] | None = None,
    headers: Sequence[Headers | None] | None = None,
    priority: int = PRIORITY_DEFAULT,
    expires_us: int = 0,
) -> bytes:
    """Encode messages as an unstamped block. `topics` is one name for all, or one name for each message."""
    count = len(payloads)
    _require(1 <= count <= COUNT_MAX, f"a block holds 1..{COUNT_MAX} messages, not {count}")
    _require(0 <= priority <= PRIORITY_MAX, f"priority is 0..{PRIORITY_MAX}, not {priority}")
    _require(0 <= expires_us < 1 << 63, f"expires_us is a time after 1970, not {expires_us}")
    if isinstance(topics, str):
        table, index = [_topic(topics)], None
    else:
        _require(len(topics) == count, "one topic for each message")
        names, index = intern_topics(topics)
        table = [_topic(name) for name in names]
    flags = 0
    sections = [column(table)]
    if index is not None:
        sections.append(padded(index.tobytes()))
    for bit, name, limit, values in ((KEYS, "key", KEY_BYTES_MAX, keys), (IDS, "id", ID_BYTES_MAX, ids)):
        if values is not None:
            _require(len(values) == count, f"one {name} for each message")
            _require(max(map(len, values)) <= limit, f"a {name} is at most {limit} bytes")
            flags |= bit
            sections.append(column(values))
    if headers is not None:
        _require(len(headers) == count, "one header map, or None, for each message")
        flags |= HEADERS
        sections.append(encode_headers(headers))
    sections.append(column(payloads))
    return seal(flags, priority, count, len(table), expires_us, sections)


def stamp(raw: bytes, base_seq: int, ts_us: int) -> bytes:
    """The same block with the hub's fields set."""
    head = b"".join((raw[:_STAMP_AT], _STAMP.pack(base_seq, ts_us), raw[_STAMP_AT + _STAMP.size : _HEAD_CRC_AT]))
    return b"".join((head, _U32.pack(zlib.crc32(head)), memoryview(raw)[HEAD_BYTES:]))


def expiring(raw: bytes, expires_us: int) -> bytes:
    """The same unstamped block with another expiry."""
    return b"".join((raw[:_EXPIRES_AT], _I64.pack(expires_us), memoryview(raw)[_EXPIRES_AT + _I64.size :]))


def verify_stamp(raw: bytes | memoryview) -> None:
    """Check the head's CRC, which the hub wrote."""
    if len(raw) < HEAD_BYTES or zlib.crc32(memoryview(raw)[:_HEAD_CRC_AT]) != _U32.unpack_from(raw, _HEAD_CRC_AT)[0]:
        raise BlockError("the head does not match its CRC")


class Stamp(NamedTuple):
    """The seqs of a stamped block, and the time of the stamp."""

    base_seq: int
    last_seq: int
    ts_us: int


def stamp_of(raw: bytes | memoryview) -> Stamp:
    """The stamp of a block. Checks the head's CRC, and does not read the body."""
    verify_stamp(raw)
    count, _, base_seq, ts_us = _GLANCE.unpack_from(raw)
    return Stamp(base_seq, base_seq + count - 1, ts_us)


def glance(raw: bytes) -> tuple[Stamp, list[bytes]]:
    """Stamp and topics (as bytes) of a block that was checked before, at a fraction of the cost of parsing it."""
    count, n_topics, base_seq, ts_us = _GLANCE.unpack_from(raw)
    if n_topics == 1:
        start = HEAD_BYTES + 8
        topics = [raw[start : start + _U32.unpack_from(raw, start - 4)[0]]]
    else:
        topics = items(raw, HEAD_BYTES, n_topics)
    return Stamp(base_seq, base_seq + count - 1, ts_us), topics


class Sections(NamedTuple):
    """Where each part of the body starts, from the start of the block; -1 when absent."""

    topic_idx: int
    keys: int
    ids: int
    headers: int
    payload: int


class Block:
    """A parsed block. The constructor checks the head and the outline; `verify` checks everything else.

    Columns are decoded on demand, so a hub that only passes blocks on never decodes a message.
    """

    __slots__ = (
        *("base_seq", "body_crc", "count", "expires_us", "flags"),
        *("n_topics", "origin", "priority", "raw", "sections", "topics", "ts_us"),
    )

    def __init__(self, raw: bytes) -> None:
        size = len(raw)
        if size < HEAD_BYTES:
            raise BlockError(f"a block has a head of {HEAD_BYTES} bytes; this has {size} in all")
        if size > BLOCK_BYTES_MAX:
            raise BlockError(f"a block is at most {BLOCK_BYTES_MAX} bytes, not {size}", Code.TOO_LARGE)
        head = HEAD.unpack_from(raw)
        magic, version, flags, priority, _, count, n_topics, _, seq, ts, expires, body_len, body_crc, _, _ = head
        if magic != MAGIC:
            raise BlockError("not a block: the magic is missing")
        if version != VERSION:
            raise BlockError(f"block version {version} is not known here", Code.UNSUPPORTED_VERSION)
        if flags & ~_KNOWN_FLAGS:
            raise BlockError(f"unknown flags {flags:#x}")
        if priority > PRIORITY_MAX:
            raise BlockError(f"priority {priority} is over {PRIORITY_MAX}")
        if not 1 <= count <= COUNT_MAX:
            raise BlockError(f"count {count} is not in 1..{COUNT_MAX}")
        if not 1 <= n_topics <= min(count, TOPICS_MAX):
            raise BlockError(f"{n_topics} topics for {count} messages")
        if expires < 0:
            raise BlockError(f"expires_us {expires} is before 1970")
        if body_len != size - HEAD_BYTES or body_len % 8:
            raise BlockError(f"body_len {body_len} does not fit {size - HEAD_BYTES} bytes of body")
        self.raw = raw
        self.flags: int = flags
        self.priority: int = priority
        self.count: int = count
        self.n_topics: int = n_topics
        self.base_seq: int = seq
        self.ts_us: int = ts
        self.expires_us: int = expires
        self.body_crc: int = body_crc
        self.topics, self.sections = self._outline()
        self.origin: Origin | None = None  # beside the bytes: where the block was born, if not in this journal

    @property
    def last_seq(self) -> int:
        return self.base_seq + self.count - 1

    def origin_of(self, place: int) -> Origin | None:
        """The origin of the message at a place; None if it was published in this journal."""
        return self.origin.shifted(place) if self.origin is not None else None

    def stamped(self, base_seq: int, ts_us: int) -> "Block":
        """This block with the hub's fields set, without parsing it again."""
        block = object.__new__(Block)
        block.raw = stamp(self.raw, base_seq, ts_us)
        block.base_seq, block.ts_us = base_seq, ts_us
        block.flags, block.priority, block.count = self.flags, self.priority, self.count
        block.n_topics, block.expires_us, block.body_crc = self.n_topics, self.expires_us, self.body_crc
        block.topics, block.sections, block.origin = self.topics, self.sections, self.origin
        return block

    def verify(self) -> None:
        """Check the body's CRC and every offset, so that every later access stays inside the block."""
        raw, count, at = self.raw, self.count, self.sections
        self.verify_body()
        if at.topic_idx >= 0:
            used = set(self.topic_idx())
            # Every topic must be used too: the hub routes by the table alone.
            if max(used) >= self.n_topics or len(used) != self.n_topics:
                raise BlockError("topic indexes and topic table do not match")
        for name, pos, limit in (("key", at.keys, KEY_BYTES_MAX), ("id", at.ids, ID_BYTES_MAX)):
            if pos >= 0:
                offsets = check_column(raw, pos, count)
                if longest(offsets) > limit:
                    raise BlockError(f"a {name} is longer than {limit} bytes")
        if at.headers >= 0:
            check_headers(raw, at.headers, count)
        check_column(raw, at.payload, count)

    def verify_body(self) -> None:
        """Check the body's CRC only: enough for bytes whose offsets were checked on arrival."""
        raw = self.raw
        if zlib.crc32(memoryview(raw)[HEAD_BYTES:]) != self.body_crc:
            raise BlockError("the body does not match its CRC")

    def verify_stamp(self) -> None:
        """Check the head's CRC, which the hub wrote."""
        verify_stamp(self.raw)

    def payloads(self) -> list[bytes]:
        return items(self.raw, self.sections.payload, self.count)

    def payload_bytes(self) -> int:
        """Bytes of all payloads together, without decoding them."""
        size: int = _U32.unpack_from(self.raw, self.sections.payload + 4 * self.count)[0]
        return size

    def topic_idx(self) -> Sequence[int]:
        """For each message the index of its topic in `topics`."""
        at = self.sections.topic_idx
        if at < 0:
            return bytes(self.count)
        return memoryview(self.raw)[at : at + 2 * self.count].cast("H")

    def topic_names(self) -> list[str]:
        topics = self.topics
        if self.n_topics == 1:
            return [topics[0]] * self.count
        return [topics[i] for i in self.topic_idx()]

    def keys(self) -> list[bytes]:
        """Ordering keys; empty for messages without one."""
        at = self.sections.keys
        return [b""] * self.count if at < 0 else items(self.raw, at, self.count)

    def ids(self) -> list[bytes]:
        """Idempotency keys; empty for messages without one."""
        at = self.sections.ids
        return [b""] * self.count if at < 0 else items(self.raw, at, self.count)

    def headers(self) -> list[dict[str, HeaderValue]]:
        at = self.sections.headers
        return [{} for _ in range(self.count)] if at < 0 else decode_headers(self.raw, at, self.count)

    def _outline(self) -> tuple[tuple[str, ...], Sections]:
        """The start of each section, found by their lengths only; the sections must fill the body exactly."""
        raw, count, flags = self.raw, self.count, self.flags
        topics = _topics(raw, self.n_topics)
        pos = column_end(raw, HEAD_BYTES, self.n_topics)
        topic_idx = keys = ids = headers = -1
        if self.n_topics > 1:
            topic_idx, pos = pos, aligned(pos + 2 * count)
        if flags & KEYS:
            keys, pos = pos, column_end(raw, pos, count)
        if flags & IDS:
            ids, pos = pos, column_end(raw, pos, count)
        if flags & HEADERS:
            headers, pos = pos, headers_end(raw, pos, count)
        payload = pos
        if column_end(raw, pos, count) != len(raw):
            raise BlockError("the sections do not fill the body")
        return topics, Sections(topic_idx, keys, ids, headers, payload)


def _topics(raw: bytes, n: int) -> tuple[str, ...]:
    """The checked topic table. A table of one topic, by far the most frequent, has a fast path."""
    offsets = _PAIR.unpack_from(raw, HEAD_BYTES) if n == 1 and len(raw) >= _ONE_TOPIC_AT else ()
    try:
        if offsets and offsets[0] == 0 and offsets[1] <= min(TOPIC_BYTES_MAX, len(raw) - _ONE_TOPIC_AT):
            return (raw[_ONE_TOPIC_AT : _ONE_TOPIC_AT + offsets[1]].decode(),)
        offsets = check_column(raw, HEAD_BYTES, n)
        if longest(offsets) > TOPIC_BYTES_MAX:
            raise BlockError(f"a topic is longer than {TOPIC_BYTES_MAX} bytes", Code.BAD_TOPIC)
        start = HEAD_BYTES + 4 * (n + 1)
        data = raw[start : start + offsets[-1]]
        if data.isascii():  # then offsets of bytes are offsets of characters, and the table is decoded at once
            text = data.decode()
            names = tuple([text[a:b] for a, b in pairwise(offsets)])
        else:
            names = tuple([data[a:b].decode() for a, b in pairwise(offsets)])
    except UnicodeDecodeError:
        raise BlockError("a topic is not UTF-8", Code.BAD_TOPIC) from None
    if len(set(names)) != n:
        raise BlockError("the topic table names a topic twice")
    return names


def _topic(name: str) -> bytes:
    try:
        topic = name.encode()
    except UnicodeEncodeError:
        raise BlockError(f"topic {name!r:.80} is not text that UTF-8 can hold", Code.BAD_TOPIC) from None
    if len(topic) > TOPIC_BYTES_MAX:
        raise BlockError(f"a topic is at most {TOPIC_BYTES_MAX} bytes, not {len(topic)}", Code.BAD_TOPIC)
    return topic


def intern_topics(topics: Sequence[str]) -> tuple[list[str], "array[int] | None"]:
    """The table of distinct topics and, if there are several, the index of each message's topic."""
    places: dict[str, int] = {}
    index = [places.setdefault(t, len(places)) for t in topics]
    _require(len(places) <= TOPICS_MAX, f"a block has at most {TOPICS_MAX} topics")
    return list(places), array("H", index) if len(places) > 1 else None


def seal(flags: int, priority: int, count: int, n_topics: int, expires_us: int, sections: Sequence[bytes]) -> bytes:
    size, crc = sum(map(len, sections)), 0
    if HEAD_BYTES + size > BLOCK_BYTES_MAX:
        raise BlockError(f"a block is at most {BLOCK_BYTES_MAX} bytes, not {HEAD_BYTES + size}", Code.TOO_LARGE)
    for section in sections:
        crc = zlib.crc32(section, crc)
    head = HEAD.pack(MAGIC, VERSION, flags, priority, 0, count, n_topics, 0, 0, 0, expires_us, size, crc, 0, 0)
    return b"".join((head, *sections))


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BlockError(message)
