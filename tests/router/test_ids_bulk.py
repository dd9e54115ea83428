"""Very many keys that are known: each bucket is read once, and the answers are those of one search for each key."""

from array import array
from hashlib import blake2b
from typing import Any

import pytest

from fabric.router.publish.dedupe.segment import BUCKET, BUCKETS, HASH_BYTES, Places, Segment
from tests.seeds import seeded


def digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=HASH_BYTES).digest()


@pytest.fixture
def stored() -> tuple[Segment, dict[int, bytes]]:
    """A segment of which some keys were put down twice, and the rows of its buckets, as on disk."""
    segment = Segment(1)
    hashes = [digest(f"id {n % 3_000}") for n in range(4_000)]
    # Two keys that agree in the first half of their hashes.
    hashes += [bytes(8) + digest("one")[8:], bytes(8) + digest("other")[8:]]
    numbers = array("Q", range(1, len(hashes) + 1))
    segment.add(Places(hashes), numbers, array("Q", [n + 10**6 for n in numbers]), 10**9)
    rows = {1 << 16 | BUCKET + number: bytes(segment.bucket(number, lambda _: b"")) for number in range(BUCKETS)}
    segment.buckets = None
    return segment, rows


def found(segment: Segment, rows: dict[int, bytes], hashes: list[bytes], read: list[int]) -> dict[int, Any]:
    notes: dict[int, Any] = {}

    def row(number: int) -> bytes:
        read.append(number)
        return rows[number]

    segment.find(Places(hashes), None, row, notes.__setitem__)
    return notes


def test_many_are_found_as_one_by_one(stored: tuple[Segment, dict[int, bytes]]) -> None:
    segment, rows = stored
    rng = seeded("bulk ids")
    hashes = [digest(f"id {rng.randrange(5_000)}") for _ in range(6_000)]
    hashes += [bytes(8) + digest(word)[8:] for word in ("one", "other", "neither")]
    singly, bulk = list[int](), list[int]()
    expected = {i: entry for i, one in enumerate(hashes) for entry in found(segment, rows, [one], singly).values()}
    assert found(segment, rows, hashes, bulk) == expected
    assert len(expected) > 3_000
    assert len(bulk) == len(set(bulk)), "each bucket is read once"
    assert len(singly) > len(bulk)
