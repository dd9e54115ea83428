"""Bytes that are not a block give a BlockError with the right code, never another exception."""

import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_protocol import block as b
from fabric_protocol.block import HEAD_BYTES, Block
from fabric_protocol.errors import BlockError, Code
from tests.protocol import twin as t
from tests.protocol.twin import Twin, checked, encode, parsed, resealed, with_u32
from tests.seeds import seeded

ONE = encode([Twin("ab", b"payload")])
TWO = encode([Twin("ab", b"first"), Twin("cd", b"second")])
KEYED = encode([Twin("ab", b"x", b"key"), Twin("ab", b"y", b"kez")])
NAMED = encode([Twin("ab", b"x", headers={"n": "text"}), Twin("ab", b"y", headers={"m": b"\xff"})])
FULL = encode([Twin("a", b"1", b"k", b"i", {"h": "v", "g": b"w"}), Twin("b", b"22", b"", b"j", {})])

# Places in the bodies above. ONE and KEYED: topics 3 x u32 would be for two; for one it is 2 x u32 + "ab" + padding.
AFTER_TOPIC = 16
AFTER_TWO_TOPICS = 16
TWO_PAYLOADS = AFTER_TWO_TOPICS + 8


def body(raw: bytes) -> bytes:
    return raw[HEAD_BYTES:]


def changed(raw: bytes, at: int, data: bytes) -> bytes:
    old = body(raw)
    return resealed(raw, old[:at] + data + old[at + len(data) :])


BAD: dict[str, tuple[Callable[[], bytes], Code]] = {
    "nothing": (lambda: b"", Code.BAD_BLOCK),
    "less than a head": (lambda: ONE[:55], Code.BAD_BLOCK),
    "a head alone": (lambda: ONE[:56], Code.BAD_BLOCK),
    "a head alone that says so": (lambda: resealed(ONE, b""), Code.BAD_BLOCK),
    "truncated": (lambda: ONE[:-8], Code.BAD_BLOCK),
    "truncated and sealed again": (lambda: resealed(ONE, body(ONE)[:-8]), Code.BAD_BLOCK),
    "something after it": (lambda: ONE + bytes(8), Code.BAD_BLOCK),
    "something after it, sealed": (lambda: resealed(ONE, body(ONE) + bytes(8)), Code.BAD_BLOCK),
    "body not a multiple of eight": (lambda: resealed(ONE, body(ONE) + b"x"), Code.BAD_BLOCK),
    "over the size": (lambda: bytes(b.BLOCK_BYTES_MAX + 8), Code.TOO_LARGE),
    "magic": (lambda: resealed(ONE, magic=b"FAB2"), Code.BAD_BLOCK),
    "version 0": (lambda: resealed(ONE, version=0), Code.UNSUPPORTED_VERSION),
    "version 2": (lambda: resealed(ONE, version=2), Code.UNSUPPORTED_VERSION),
    "unknown flag": (lambda: resealed(ONE, flags=16), Code.BAD_BLOCK),
    "keys that are not there": (lambda: resealed(ONE, flags=b.KEYS), Code.BAD_BLOCK),
    "ids that are not there": (lambda: resealed(ONE, flags=b.IDS), Code.BAD_BLOCK),
    "headers that are not there": (lambda: resealed(ONE, flags=b.HEADERS), Code.BAD_BLOCK),
    "keys that no flag tells of": (lambda: resealed(KEYED, flags=0), Code.BAD_BLOCK),
    "priority 10": (lambda: resealed(ONE, priority=10), Code.BAD_BLOCK),
    "expiry before 1970": (lambda: resealed(ONE, expires_us=-1), Code.BAD_BLOCK),
    "count 0": (lambda: resealed(ONE, count=0), Code.BAD_BLOCK),
    "count too small": (lambda: resealed(TWO, count=1, n_topics=1), Code.BAD_BLOCK),
    "count too large": (lambda: resealed(ONE, count=2), Code.BAD_BLOCK),
    "count beyond all": (lambda: resealed(ONE, count=b.COUNT_MAX + 1), Code.BAD_BLOCK),
    "count of four billion": (lambda: resealed(ONE, count=0xFFFFFFFF), Code.BAD_BLOCK),
    "no topic": (lambda: resealed(ONE, n_topics=0), Code.BAD_BLOCK),
    "more topics than messages": (lambda: resealed(ONE, n_topics=2), Code.BAD_BLOCK),
    "one topic too few": (lambda: resealed(TWO, n_topics=1), Code.BAD_BLOCK),
    "body_len": (lambda: resealed(ONE, body_len=8), Code.BAD_BLOCK),
    "body CRC": (lambda: resealed(ONE, body_crc=zlib.crc32(body(ONE)) ^ 1), Code.BAD_BLOCK),
    "a flipped bit": (lambda: ONE[:-9] + bytes([ONE[-9] ^ 1]) + ONE[-8:], Code.BAD_BLOCK),
    "topic offset does not start at 0": (lambda: with_u32(ONE, 0, 1), Code.BAD_BLOCK),
    "topic runs out of the block": (lambda: with_u32(ONE, 4, 5000), Code.BAD_BLOCK),
    "topic of four gigabytes": (lambda: with_u32(ONE, 4, 0xFFFFFFFF), Code.BAD_BLOCK),
    "topic offsets decrease": (lambda: with_u32(TWO, 4, 3000), Code.BAD_BLOCK),
    "topic named twice": (lambda: changed(TWO, 12, b"abab"), Code.BAD_BLOCK),
    "topic not UTF-8": (lambda: changed(ONE, 8, b"\xff\xfe"), Code.BAD_TOPIC),
    "topic too long": (lambda: _long_topic(), Code.BAD_TOPIC),
    "topic index outside": (lambda: changed(TWO, AFTER_TWO_TOPICS, struct.pack("<HH", 0, 2)), Code.BAD_BLOCK),
    "topic that no message has": (lambda: changed(TWO, AFTER_TWO_TOPICS, bytes(4)), Code.BAD_BLOCK),
    "payload offset does not start at 0": (lambda: with_u32(TWO, TWO_PAYLOADS, 1), Code.BAD_BLOCK),
    "payload offsets decrease": (lambda: with_u32(TWO, TWO_PAYLOADS + 4, 12), Code.BAD_BLOCK),
    "payloads end early": (lambda: with_u32(TWO, TWO_PAYLOADS + 8, 0), Code.BAD_BLOCK),
    "payloads end late": (lambda: with_u32(TWO, TWO_PAYLOADS + 8, 40), Code.BAD_BLOCK),
    "key offsets decrease": (lambda: with_u32(KEYED, AFTER_TOPIC + 4, 99), Code.BAD_BLOCK),
    "keys too long": (lambda: _long(b.KEYS, 256), Code.BAD_BLOCK),
    "ids too long": (lambda: _long(b.IDS, 201), Code.BAD_BLOCK),
    "header names beyond all": (lambda: with_u32(NAMED, AFTER_TOPIC, 40_000), Code.BAD_BLOCK),
    "header pairs beyond all": (lambda: with_u32(NAMED, AFTER_TOPIC + 4, 1 << 20), Code.BAD_BLOCK),
    "header pairs do not fit": (lambda: with_u32(NAMED, AFTER_TOPIC + 4, 2000), Code.BAD_BLOCK),
    "header pairs do not start at 0": (lambda: with_u32(NAMED, AFTER_TOPIC + 8, 1), Code.BAD_BLOCK),
    "header pairs decrease": (lambda: with_u32(NAMED, AFTER_TOPIC + 12, 9), Code.BAD_BLOCK),
    "header pairs end early": (lambda: with_u32(NAMED, AFTER_TOPIC + 16, 1), Code.BAD_BLOCK),
    "header name twice": (lambda: _in_names(b"nn"), Code.BAD_BLOCK),
    "header name not UTF-8": (lambda: _in_names(b"n\xff"), Code.BAD_BLOCK),
    "header name index outside": (lambda: _name_idx(0x8000, 2), Code.BAD_BLOCK),
    "header text not UTF-8": (lambda: _name_idx(0x8000, 0x8001), Code.BAD_BLOCK),
}


def _long_topic() -> bytes:
    """255 bytes are a topic, 256 are not; the padding of the column leaves room for one more."""
    raw = encode([Twin("t" * 255, b"")])
    return changed(with_u32(raw, 4, 256), 8 + 255, b"t")


def _long(flag: int, size: int) -> bytes:
    """One message with a key or id of `size` bytes, built by hand since encode refuses it."""
    section = struct.pack("<II", 0, size) + bytes(size)
    section += bytes(-len(section) % 8)
    plain = body(ONE)
    return resealed(ONE, plain[:AFTER_TOPIC] + section + plain[AFTER_TOPIC:], flags=flag)


def _in_names(names: bytes) -> bytes:
    at = AFTER_TOPIC + 24 + 12  # n_names, n_pairs, first_pair[3], padded; then three offsets of the names
    assert body(NAMED)[at : at + 2] == b"nm"
    return changed(NAMED, at, names)


def _name_idx(first: int, second: int) -> bytes:
    at = AFTER_TOPIC + 24 + 16
    assert body(NAMED)[at : at + 4] == struct.pack("<HH", 0x8000, 1)
    return changed(NAMED, at, struct.pack("<HH", first, second))


@pytest.mark.parametrize("what", BAD)
def test_malformed_block_is_refused_with_its_code(what: str) -> None:
    make, code = BAD[what]
    with pytest.raises(BlockError) as caught:
        parsed(make())
    assert caught.value.code is code


def test_the_samples_are_good_before_they_are_bent() -> None:
    for raw in (ONE, TWO, KEYED, NAMED, FULL):
        t.touch_everything(parsed(raw))
        assert parsed(resealed(raw)).raw == raw


def test_every_truncation_is_refused() -> None:
    for size in range(len(FULL)):
        for raw in (FULL[:size], resealed(FULL, body(FULL)[: size - HEAD_BYTES]) if size > HEAD_BYTES else b""):
            with pytest.raises(BlockError):
                parsed(raw)


def test_every_flipped_bit_of_a_stamped_block_is_noticed() -> None:
    stamped = b.stamp(FULL, 3, 4)
    for place in range(len(stamped) * 8):
        bent = bytearray(stamped)
        bent[place // 8] ^= 1 << place % 8
        with pytest.raises(BlockError):
            _read_as_a_consumer(bytes(bent))


def _read_as_a_consumer(raw: bytes) -> None:
    block = Block(raw)
    block.verify_stamp()
    block.verify()


@checked
@given(st.binary(max_size=300))
def test_any_bytes_are_a_block_or_a_block_error(data: bytes) -> None:
    for raw in (data, resealed(FULL, data)):
        _judge(raw)


U32_LURES = (0, 1, 2, 3, 7, 8, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0xFFFFFFF8, 0xFFFFFFFF)


def test_a_block_that_passes_can_be_read_whatever_was_done_to_it() -> None:
    rng = seeded("mutated blocks")
    passed = sum(_judge(_bent(rng, rng.choice((ONE, TWO, KEYED, NAMED, FULL)))) for _ in range(30_000))
    assert passed > 1_000, "too few mutants pass the checks for this test to mean something"


def _judge(raw: bytes) -> bool:
    try:
        block = parsed(raw)
    except BlockError:
        return False
    t.touch_everything(block)
    return True


def _bent(rng: random.Random, raw: bytes) -> bytes:
    """One to three mutations; most of them sealed again, so that they get past the CRC."""
    bent = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        kind, at = rng.randrange(5), rng.randrange(4, len(bent)) if len(bent) > 4 else 0
        if kind == 0:
            bent[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            at &= ~3
            bent[at : at + 4] = struct.pack("<I", rng.choice((*U32_LURES, rng.randrange(64))))
        elif kind == 2:
            del bent[at & ~7 : (at & ~7) + 8 * rng.randint(1, 3)]
        elif kind == 3:
            bent[at & ~7 : at & ~7] = rng.randbytes(8)
        else:
            bent[at : at + 1] = bytes([bent[at] ^ 1 << rng.randrange(8)]) if at < len(bent) else b""
    if len(bent) < HEAD_BYTES or rng.random() < 0.1:
        return bytes(bent)
    return resealed(bytes(bent), bytes(bent[HEAD_BYTES:]))
