"""Blocks of delivery events: rows are kept, adjacent rows are merged, damage is found."""

import struct
import zlib
from contextlib import suppress

import pytest

from fabric import event_block as events
from fabric.event_block import Event, OpenEventBlock
from fabric_protocol.errors import BlockError
from fabric_protocol.messages import Happening
from tests.seeds import seeded

SOME = [
    Event(7, 1_000, Happening.DELIVER, "mail", "worker-1", 1, 10, 19),
    Event(8, 1_000, Happening.DELIVER, "audit", "worker-ü", 1, 10, 12),
    Event(9, 2_000, Happening.ACK, "mail", "worker-1", 1, 10, 18),
    Event(10, 2_000, Happening.LAPSE, "mail", "", 70_000, 19, 19),
]


def test_events_come_back() -> None:
    raw = events.encode(7, SOME)
    assert list(events.rows(raw)) == [*SOME[:3], SOME[3]._replace(attempt=events.ATTEMPT_MAX)]
    assert events.extent_of(raw) == (7, 10)
    assert events.time_of(raw) == 2_000


def test_columns_are_views_that_lie_on_multiples_of_eight() -> None:
    raw = events.encode(7, SOME)
    block = events.columns(raw)
    assert (block.first, block.groups, block.clients) == (7, ["mail", "audit"], ["worker-1", "worker-ü", ""])
    assert block.first_seq.tolist() == [10, 10, 10, 19]
    assert block.kind.tolist() == [0, 0, 1, 4]
    assert [view.format for view in block[3:]] == ["Q", "Q", "q", "H", "H", "H", "B"]
    assert len(raw) % 8 == 0
    assert events.columns(memoryview(raw)) == block, "as bytes that LMDB lends"


def test_what_is_adjacent_at_the_same_time_is_one_event() -> None:
    block = OpenEventBlock()
    for first, last in ((1, 4), (5, 9), (11, 12), (13, 13)):
        block.add((1_000, Happening.ACK, "mail", "w", 1), first, last)
    block.add((1_000, Happening.ACK, "mail", "w", 2), 14, 14)
    block.add((1_000, Happening.ACK, "mail", "v", 1), 14, 14)
    block.add((1_000, Happening.DELIVER, "mail", "w", 1), 14, 14)
    block.add((2_000, Happening.ACK, "mail", "w", 1), 14, 15)
    assert [(e.kind, e.client, e.attempt, e.first_seq, e.last_seq) for e in events.rows(block.encode(1))] == [
        (1, "w", 1, 1, 9),
        (1, "w", 1, 11, 13),
        (1, "w", 2, 14, 14),
        (1, "v", 1, 14, 14),
        (0, "w", 1, 14, 14),
        (1, "w", 1, 14, 15),
    ]


def test_merging_loses_nothing() -> None:
    chance = seeded("merging")
    block, told = OpenEventBlock(), set()
    for _ in range(2_000):
        sort = (chance.randrange(8), chance.choice("ab"), chance.choice("cd"), chance.randrange(1, 3))
        ts_us, first = chance.randrange(5), chance.randrange(100)
        last = first + chance.randrange(5)
        block.add((ts_us, *sort), first, last)
        told |= {(ts_us, *sort, seq) for seq in range(first, last + 1)}
    found = set()
    for event in events.rows(block.encode(1)):
        found |= {(*event[1:6], seq) for seq in range(event.first_seq, event.last_seq + 1)}
    assert found == told


def test_every_flipped_bit_is_noticed() -> None:
    raw = bytearray(events.encode(7, SOME))
    for at in range(len(raw)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            with pytest.raises(BlockError):
                events.columns(bytes(raw))
            raw[at] ^= 1 << bit


def test_every_prefix_is_noticed() -> None:
    raw = events.encode(7, SOME)
    for size in range(len(raw)):
        with pytest.raises(BlockError):
            events.columns(raw[:size])
        if size < events.HEAD_BYTES:
            with pytest.raises(BlockError):
                events.time_of(raw[:size])


def test_a_lie_with_a_right_checksum_is_still_one() -> None:
    """The offsets and places of a block are proved, not believed."""
    raw = bytearray(events.encode(7, SOME))
    chance = seeded("lies")
    for _ in range(2_000):
        lie = bytearray(raw)
        for _ in range(chance.randrange(1, 4)):
            lie[chance.randrange(8, len(lie))] = chance.randrange(256)
        struct.pack_into("<I", lie, events.HEAD_BYTES - 4, _crc(lie))
        with suppress(BlockError):
            list(events.rows(bytes(lie)))


def _crc(raw: bytearray) -> int:
    return zlib.crc32(raw[events.HEAD_BYTES :], zlib.crc32(raw[: events.HEAD_BYTES - 4]))


def test_the_layout_is_frozen() -> None:
    """What is on disk stays readable: another layout needs another version, and a reader of both."""
    raw = events.encode(7, SOME)
    head = "46455631 01000000 04000000 02000000 03000000 00000000 0700000000000000 c0000000 83befa84"
    assert raw[:40] == bytes.fromhex(head)
    assert zlib.crc32(raw) == 0x8E9DDA1A
