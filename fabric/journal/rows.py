"""The journal's rows: keys, values, checksums, the format version.

`blocks` and `chunks` are keyed by sequence number and grow only at the end; `groups`, `producers` and `meta` hold a few
rows that are written again and again; `state` has the other tables. LMDB keeps no checksums, so each row has its own: a
block has two in its head, all other rows have one over key and value, so that no row can pass for another.

To change the format: raise FORMAT, let `open_tables` and the decoders read the old format too, and keep a journal of
the old format as a test fixture. A program never opens a format newer than its own.

    format 1    blocks, chunks, groups, producers, meta
    format 2    the tables of `state`, holes among the blocks, more settings in a group's row
"""

import struct
import zlib
from array import array
from collections.abc import Iterable
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple

import msgpack

from fabric.errors import JournalDamaged
from fabric.records import GroupSettings, SaveGroup, SaveProducer

FORMAT: Final = 2

_PAIR: Final = struct.Struct(">QQ")
_SEQ: Final = struct.Struct(">Q")  # big-endian, so that LMDB's byte order is the order of numbers
_CRC: Final = struct.Struct("<I")
SEQ_MAX: Final = (1 << 64) - 1

seq_key = _SEQ.pack
pair_key = _PAIR.pack


def key_seq(key: bytes | memoryview) -> int:
    try:
        seq: int = _SEQ.unpack(key)[0]
    except struct.error:
        raise JournalDamaged(f"{bytes(key).hex()} is not the key of a block") from None
    return seq


def name_key(name: str) -> bytes:
    """The key of a named row: a hash, because names may be longer than LMDB's keys (511 bytes)."""
    return blake2b(name.encode(), digest_size=16).digest()


def seal(key: bytes, value: bytes) -> bytes:
    """The row for a value: the value and a checksum over key and value."""
    return value + _CRC.pack(zlib.crc32(value, zlib.crc32(key)))


def unseal(key: bytes | memoryview, row: bytes | memoryview) -> memoryview:
    """The value of a row, or JournalDamaged."""
    view = memoryview(row)
    value = view[:-4]
    if len(view) < 4 or _CRC.unpack(view[-4:])[0] != zlib.crc32(value, zlib.crc32(key)):
        raise JournalDamaged(f"row {bytes(key).hex()} does not match its checksum")
    return value


class Meta(NamedTuple):
    """Identity and extent of a journal. (uuid, epoch, seq) names a message: a restored copy has a new epoch."""

    uuid: bytes
    epoch: int
    created_us: int
    clean: bool  # closed cleanly; False while it is open
    first_seq: int  # seqs below were removed by retention; missing seqs above are lost
    last_seq: int  # the last seq when the journal was closed cleanly
    removed: int = 0  # messages in holes, at or above first_seq; format 1 has no holes
    floor: int = 0  # messages below are not delivered, although their block is not removed yet


FORMAT_KEY: Final = b"format"  # a row of its own, in plain text, so that every later program can read it
META_KEY: Final = b"journal"


def encode_format() -> bytes:
    return seal(FORMAT_KEY, str(FORMAT).encode())


def decode_format(row: bytes | memoryview) -> int:
    return int(bytes(unseal(FORMAT_KEY, row)))


def encode_meta(meta: Meta) -> bytes:
    return seal(META_KEY, pack(list(meta)))


def decode_meta(row: bytes | memoryview) -> Meta:
    return Meta(*unpack(unseal(META_KEY, row)))


def encode_group(group: SaveGroup) -> tuple[bytes, bytes]:
    key = name_key(group.name)
    name, settings, cursor, ranges, lanes, paused, refresh, untold, handed, idle_us, paced_us, ahead = group
    row = [FORMAT, name, list(settings), cursor, _flat(ranges), _flat(lanes), paused, list(refresh), untold]
    if handed is not None:
        row += [_flat(handed), idle_us, paced_us]
        if ahead is not None:
            row.append(list(ahead))
    return key, seal(key, pack(row))


def decode_group(key: bytes | memoryview, raw: bytes | memoryview) -> SaveGroup:
    row = unpack(unseal(key, raw))
    if isinstance(row[0], str):  # format 1 has no number in front
        name, patterns, lease_ms, attempts_max, level, cursor, ranges = row
        return SaveGroup(name, GroupSettings(tuple(patterns), lease_ms, attempts_max, level), cursor, _pairs(ranges))
    _, name, settings, cursor, ranges, lanes, paused, refresh, *later = row
    settings = GroupSettings(tuple(settings[0]), *settings[1:])
    untold = tuple((first, last, why) for first, last, why in later[0]) if later else ()
    handed = _pairs(later[1]) if len(later) > 1 else None
    place = (cursor, _pairs(ranges), _pairs(lanes))
    ahead = (later[4][0], later[4][1]) if len(later) > 4 else None
    saved = SaveGroup(name, settings, *place, paused, tuple(refresh), untold, handed, *later[2:4])
    return saved._replace(ahead=ahead)


def encode_producer(producer: SaveProducer) -> tuple[bytes, bytes]:
    key = name_key(producer.name)
    name, epoch, last_pseq, recent, seen_us, since_pseq, blocks, jumps, spans = producer
    row = [name, epoch, last_pseq, array("Q", recent).tobytes(), seen_us, since_pseq, blocks]
    if jumps:
        row += (jumps, spans)
    return key, seal(key, pack(row))


def decode_producer(key: bytes | memoryview, row: bytes | memoryview) -> SaveProducer:
    name, epoch, last_pseq, recent, seen_us, *later = unpack(unseal(key, row))  # rows of older programs end here
    return SaveProducer(name, epoch, last_pseq, tuple(_numbers(recent)), seen_us, *later[:4])


def _pairs(raw: bytes) -> tuple[tuple[int, int], ...]:
    numbers = _numbers(raw)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


# A group may have many ranges, and its row is written with every commit: 64-bit numbers are the fastest to write.


def _flat(tuples: Iterable[tuple[int, ...]]) -> bytes:
    return array("Q", chain.from_iterable(tuples)).tobytes()


def _numbers(raw: bytes) -> "array[int]":
    numbers = array("Q")
    numbers.frombytes(raw)
    return numbers


def pack(value: list[Any]) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(raw: memoryview) -> Any:
    """Decode a value whose checksum matches. If that fails, another program has written the row."""
    try:
        return msgpack.unpackb(raw, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise JournalDamaged(f"a row cannot be decoded: {error}") from error
