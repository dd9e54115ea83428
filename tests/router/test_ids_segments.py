"""Segments: how keys get to disk and back, and when they go. Everything is made small, so that segments are full
soon."""

import os
from array import array

import pytest

from fabric.records import TopicSettings
from fabric.router.publish.dedupe import index as ids
from fabric.router.publish.dedupe import segment as segments_module
from fabric.router.publish.dedupe.segment import Places, Segment
from fabric_protocol.block import Block, encode
from fabric_protocol.errors import ProtocolError
from tests.router.ids_disk import HOUR_MS, Disk, make_small


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    make_small(monkeypatch)
    return Disk()


def kinds(disk: Disk) -> set[str]:
    """What kinds of rows there are."""
    names = {segments_module.PAGE: "page", segments_module.BUCKET: "bucket", segments_module.FILTER: "filter"}
    return {
        "head" if number & 0xFFFF == segments_module.HEAD else names[number & 0xC000]
        for number in disk.reader.ids
    }  # fmt: skip


def filled(disk: Disk, count: int, word: str = "k") -> dict[str, int]:
    """Many keys, a few in each turn."""
    known: dict[str, int] = {}
    for at in range(0, count, 3):
        known |= disk.put(*(f"{word}{i}" for i in range(at, min(at + 3, count))))
        disk.turn()
    return known


def test_a_full_era_is_written_out_and_found_on_disk(disk: Disk) -> None:
    known = filled(disk, 200)
    disk.settle_down()
    assert len(disk.segments) == 4
    assert [segment.buckets is None for segment in disk.segments] == [True, True, True, False]
    assert kinds(disk) == {"page", "bucket", "filter", "head"}
    assert disk.put(*known) == known
    disk.crash()
    assert [segment.buckets is None for segment in disk.segments] == [True, True, True, False]
    assert disk.put(*known) == known
    assert disk.put("new") == {"new": 201}


def test_pages_go_when_their_era_is_on_disk(disk: Disk) -> None:
    filled(disk, 70)
    disk.settle_down()
    full, last = disk.segments
    assert {number >> 16 for number in disk.reader.ids if number & 0xFFFF < segments_module.BUCKET} == {last.number}
    assert sum(len(v) for n, v in disk.reader.ids.items() if n >> 16 == last.number) == 32 * last.count
    assert sum(len(v) for n, v in disk.reader.ids.items() if 0x4000 <= n & 0xFFFF < 0x8000) == 32 * full.count


def test_buckets_stay_in_memory_until_their_rows_are_on_disk(disk: Disk) -> None:
    known: dict[str, int] = {}
    for i in range(70):
        known |= disk.put(f"k{i}")
        disk.seal()  # sealed, and the disk is slow
    for _ in range(40):
        disk.ids.sweep()
        disk.seal()
    assert not disk.reader.ids
    assert disk.put(*known) == known
    while disk.sealed:
        disk.commit()
        assert disk.put(*known) == known
    assert disk.segments[0].buckets is None


def test_a_crash_at_any_turn_keeps_what_was_on_disk(disk: Disk) -> None:
    known: dict[str, int] = {}
    for i in range(150):
        mine = disk.put(f"k{i}", f"l{i}")
        if i % 2:
            disk.turn()
            known |= mine
        else:
            disk.seal()
            disk.crash()  # before this turn is on disk
    assert len(disk.segments) > 2
    assert disk.put(*known) == known
    assert disk.put("k0") == {"k0": disk.seq - 1}


def test_segments_go_when_their_windows_are_over(disk: Disk) -> None:
    known = filled(disk, 130)
    disk.settle_down()
    disk.wait(599_999_999)
    disk.ids.sweep()
    assert disk.put(*known) == known
    disk.wait(1)
    disk.settle_down()
    assert disk.segments == []
    assert disk.reader.ids == {}
    disk.crash()
    assert disk.put("k0") == {"k0": 131}


def test_a_crash_while_an_era_is_removed_leaves_nothing_behind(disk: Disk) -> None:
    filled(disk, 130)
    disk.settle_down()
    disk.wait(600_000_000)
    turns = 0
    while disk.reader.ids:
        for _ in range(turns := turns + 1):
            disk.ids.sweep()
            disk.turn()
        disk.crash()
    disk.settle_down()
    assert disk.put("k0") == {"k0": 131}


def test_an_era_that_is_not_full_ends_with_its_window(disk: Disk) -> None:
    disk.put("a")
    disk.turn()
    disk.wait(600_000_001)
    disk.ids.sweep()
    disk.put("b")
    disk.turn()
    assert [segment.number for segment in disk.segments] == [4]
    disk.settle_down()
    assert {number >> 16 for number in disk.reader.ids} == {4}


def test_restarts_do_not_make_segments(disk: Disk) -> None:
    for i in range(30):
        disk.put(f"k{i}")
        disk.turn()
        disk.crash()
    assert len(disk.segments) == 1


def test_few_long_windows_do_not_keep_the_short_ones(disk: Disk) -> None:
    disk.settings["long"] = TopicSettings(dedupe_ms=100 * HOUR_MS)
    for i in range(0, 200, 2):
        disk.put(f"k{i}", f"k{i + 1}")
        if i % 20 == 0:
            disk.put(f"k{i}", topic="long")
        disk.turn()
    disk.settle_down()
    assert len(disk.segments) == 5
    disk.wait(600_000_000)
    disk.settle_down()
    assert [segment.number & 1 for segment in disk.segments] == [1]
    disk.crash()
    assert disk.put("k0", topic="long") == {"k0": 3}
    assert disk.put("k0")["k0"] > 200


def test_a_block_of_short_and_long_windows(disk: Disk) -> None:
    disk.settings["long"] = TopicSettings(dedupe_ms=100 * HOUR_MS)
    raw = [b"1", b"2", b"3"]
    block = Block(encode(["t", "long", "t"], raw, ids=raw))
    disk.ids.remember(disk.ids.check(block), 1)
    assert disk.ids.check(block).rows(4) == ((0, 1), (1, 2), (2, 3))
    assert sorted(segment.count for segment in disk.segments) == [1, 2]


def test_the_latest_entry_counts_wherever_it_is(disk: Disk) -> None:
    disk.settings["s"] = TopicSettings(dedupe="slide", dedupe_ms=10_000)
    assert disk.put("x", topic="s") == {"x": 1}
    for i in range(100):
        disk.wait(9_999_999)
        assert disk.put("x", topic="s") == {"x": 1}
        disk.put(f"fill{i}", topic="other")
        disk.turn()
    disk.wait(10_000_000)
    assert disk.put("x", topic="s")["x"] > 1


def test_the_latest_entry_counts_when_windows_are_changed(disk: Disk) -> None:
    disk.put("first")
    disk.settings["c"] = TopicSettings(dedupe_ms=2 * HOUR_MS)
    assert disk.put("x", topic="c") == {"x": 2}
    disk.wait(2 * HOUR_MS * 1000)
    disk.settings["c"] = TopicSettings(dedupe_ms=1000)
    assert disk.put("x", topic="c") == {"x": 3}  # in an older segment than the entry before
    assert [segment.count for segment in disk.segments] == [2, 1]
    assert disk.put("x", topic="c") == {"x": 3}


def test_an_era_that_is_over_before_it_was_written_out_goes_all_the_same(disk: Disk) -> None:
    filled(disk, 66)
    disk.wait(600_000_000)
    disk.settle_down()
    assert (disk.segments, disk.reader.ids) == ([], {})


def test_more_keys_than_memory_are_refused_until_some_are_over(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "SEGMENTS_MAX", 3)
    with pytest.raises(ProtocolError, match="dedupe_ms") as refused:
        filled(disk, 1000)
    assert refused.value.fields["retry_ms"] == ids.RETRY_MS
    assert disk.ids.count >= 3 * 64
    disk.settle_down()
    disk.wait(600_000_000)
    disk.settle_down()
    filled(disk, 30, "again")


# SegmentFilters.


def test_full_segments_are_asked_through_filters(disk: Disk) -> None:
    known = filled(disk, 500)
    disk.settle_down()
    assert [len(filter_.segments) for filter_ in disk.ids._filters._filters] == [3, 3, 1]
    assert disk.ids._filters.loose == disk.segments[-1:]
    assert disk.put(*known) == known
    disk.crash()
    assert disk.ids._filters.loose == disk.segments
    assert disk.put(*known) == known
    disk.settle_down()
    assert disk.ids._filters.loose == disk.segments[-1:]
    assert disk.put(*known) == known


def test_a_filter_goes_with_its_last_segment(disk: Disk) -> None:
    filled(disk, 200)
    disk.wait(300_000_000)
    known = filled(disk, 200, "later")
    disk.settle_down()
    disk.wait(300_000_000)
    disk.settle_down()
    assert [len(filter_.segments) for filter_ in disk.ids._filters._filters] == [3]
    assert disk.put(*known) == known
    disk.wait(300_000_000)
    disk.settle_down()
    assert (disk.segments, disk.ids._filters.loose, disk.ids._filters._filters) == ([], [], [])


# Hashes.


def test_hashes_that_share_everything_the_index_looks_at_first_are_told_apart() -> None:
    """Same filter bits, same bucket: only the whole hash decides."""
    segment, hashes = Segment(2), [bytes(8) + bytes([i]) + bytes(7) for i in range(1, 40)]
    for seq, digest in enumerate(hashes[:20]):
        segment.add(Places([digest]), array("Q", [seq]), array("Q", [99]), 99)
    places = Places(hashes)
    assert len(set(places.buckets())) == 1
    assert len(set(places.masks)) == 1
    assert found_in(segment, hashes) == {i: (i, 99) for i in range(20)}


def test_a_hash_that_lies_across_two_keys_is_not_found() -> None:
    segment = Segment(2)
    one = bytes(16) + b"seq.....until..."
    other = bytes(12) + b"\1\2\3\0" + b"seq.....until..."
    keys = one + other
    segment.buckets = [bytearray(keys) for _ in range(segments_module.BUCKETS)]
    entry = int.from_bytes(b"seq.....", "little"), int.from_bytes(b"until...", "little")
    segment._filter = array("Q", b"\xff" * segments_module.FILTER_BYTES)
    for at in range(48):
        assert found_in(segment, [keys[at : at + 16]]) == ({0: entry} if at % 32 == 0 else {})


def found_in(segment: Segment, hashes: list[bytes]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    segment.find(Places(hashes), None, lambda number: b"", found.__setitem__)
    return found


def test_a_filter_lets_all_of_its_own_through_and_few_others() -> None:
    segment = Segment(2)
    mine = [os.urandom(16) for _ in range(20_000)]
    for at in range(0, len(mine), 1000):
        part = mine[at : at + 1000]
        segment.add(Places(part), array("Q", [at] * 1000), array("Q", [1] * 1000), 1)
    assert len(found_in(segment, mine)) == len(mine)
    others = [os.urandom(16) for _ in range(20_000)]
    looked_at: list[int] = []

    def row(number: int) -> bytes:
        looked_at.append(number)
        return b""

    segment.buckets = None
    segment.find(Places(others), None, row, lambda *_: None)
    assert len(looked_at) < 40


def test_damaged_rows_cost_only_what_was_in_them(disk: Disk) -> None:
    known = filled(disk, 140)
    disk.settle_down()
    number = next(
        n
        for n in disk.reader.ids
        if segments_module.BUCKET <= n & 0xFFFF < segments_module.FILTER and disk.reader.ids[n]
    )
    lost = len(disk.reader.ids[number]) // 32
    disk.reader.ids[number] = b""
    for number in [n for n in disk.reader.ids if segments_module.FILTER <= n & 0xFFFF < segments_module.HEAD]:
        disk.reader.ids[number] = b""  # costs time only
    disk.crash()
    again = disk.put(*known)
    assert sum(again[name] != seq for name, seq in known.items()) == lost
