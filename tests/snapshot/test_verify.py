"""Verify finds damage, and names the messages in it."""

import os
from pathlib import Path

import pytest

from fabric import event_block as ev
from fabric.records import SaveEvents
from fabric.snapshot import Manifest, create, verify
from fabric_protocol.messages import Happening
from tests.journal.sample import Pen
from tests.snapshot.sample import SHARD, damage_block, delete_row, fill, rewrite


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[Path, Manifest]:
    fill(tmp_path / "j", Pen())
    return tmp_path / "s", create(tmp_path / "j", tmp_path / "s", None, SHARD)


def test_a_sound_snapshot(snapshot: tuple[Path, Manifest]) -> None:
    path, manifest = snapshot
    steps: list[tuple[int, int]] = []
    report = verify(path, lambda done, total: steps.append((done, total)))
    assert report.findings == ()
    assert (report.first_seq, report.last_seq, report.messages, report.shards) == (1, 175, 175, 5)
    assert report.bytes == manifest.bytes
    assert steps[-1] == (175, 175)
    assert verify(path, quick=True) == report._replace(quick=True)
    assert verify(path.parent).path == str(path)  # the newest of a folder


def test_a_damaged_payload_is_reported_by_its_seqs(snapshot: tuple[Path, Manifest]) -> None:
    path, manifest = snapshot
    file = damage_block(path, manifest, 91)
    digest, damage = verify(path).findings
    assert digest == (file, 0, 0, "the file does not match its sha256")
    assert damage[:3] == (file, 91, 95)
    assert "CRC" in damage.why
    assert verify(path, quick=True).findings == ()  # payloads are not its business


def test_a_damaged_head_is_found_by_the_quick_walk_too(snapshot: tuple[Path, Manifest]) -> None:
    path, manifest = snapshot
    file = damage_block(path, manifest, 116, at=20)  # the last of its shard
    for quick, number in ((True, 0), (False, 1)):
        finding = verify(path, quick=quick).findings[number]
        assert finding[:3] == (file, 116, 120)
        assert "head" in finding.why


@pytest.mark.parametrize(("seq", "last"), [(41, 45), (61, 65), (76, 80)])
def test_a_missing_block_is_a_gap(snapshot: tuple[Path, Manifest], seq: int, last: int) -> None:
    path, manifest = snapshot
    shard = manifest.shards[1]
    delete_row(path, shard.file, seq)
    size = (path / shard.file).stat().st_size
    rewrite(path, lambda f: (f["shards"][1].update(bytes=size), f.update(bytes=f["bytes"] - shard.bytes + size)))
    assert verify(path, quick=True).findings == ((shard.file, seq, last, "the block is missing"),)


def test_missing_and_cut_files(snapshot: tuple[Path, Manifest]) -> None:
    path, manifest = snapshot
    gone, cut = manifest.shards[0], manifest.shards[2]
    (path / gone.file).unlink()
    os.truncate(path / cut.file, 4096)
    assert verify(path).findings == (
        (gone.file, 1, 40, "is missing"),
        (cut.file, 81, 120, f"has 4096 bytes, not {cut.bytes}"),
    )


def test_a_file_that_kills_its_reader_is_a_finding(snapshot: tuple[Path, Manifest]) -> None:
    """Whatever LMDB makes of a broken structure, the others are still checked and the process lives."""
    path, manifest = snapshot
    shard, later = manifest.shards[1], manifest.shards[3]
    with (path / shard.file).open("r+b") as data:
        for offset in range(8192, shard.bytes, 4096):
            data.seek(offset)
            data.write(b"\xff" * 64)
    damage_block(path, manifest, later.first_seq)
    for quick in (False, True):
        findings = verify(path, quick=quick).findings
        assert {finding.file for finding in findings} == ({shard.file} if quick else {shard.file, later.file})


def test_time_must_not_go_back(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    create(tmp_path / "j", tmp_path / "s", None, SHARD)
    rewrite(tmp_path / "s", lambda f: f["shards"][2].update(first_ts_us=5))
    (finding,) = verify(tmp_path / "s", quick=True).findings
    assert finding[1:] == (
        81,
        120,
        "the first message of the shard is older than the last message of the shard before it",
    )


def test_the_manifest_must_count_right(snapshot: tuple[Path, Manifest]) -> None:
    path, _ = snapshot
    rewrite(path, lambda f: f["shards"][2].update(blocks=7))
    (finding,) = verify(path, quick=True).findings
    assert "it has 8 blocks, 40 messages and 0 holes" in finding.why


def test_a_group_cannot_be_ahead_of_the_journal(snapshot: tuple[Path, Manifest]) -> None:
    path, _ = snapshot
    group = {"group": "g", "patterns": ["#"], "cursor": 177, "floor": 176, "open": [], "lanes": [], "paused": False}
    rewrite(path, lambda f: f["groups"].append({**group, "failures": []}))
    (finding,) = verify(path).findings
    assert (finding.file, finding.first_seq) == ("manifest.json", 0)
    assert "group 'g' is at seq 177" in finding.why


def test_damaged_events_are_found(tmp_path: Path) -> None:
    events = [ev.Event(i, i, Happening.ACK, "g", "c", 1, i, i) for i in range(1, 101)]
    fill(tmp_path / "j", Pen(), 3, SaveEvents(1, 100, ev.encode(1, events)))
    manifest = create(tmp_path / "j", tmp_path / "s")
    (shard,) = manifest.events
    assert verify(tmp_path / "s").findings == ()
    file = tmp_path / "s" / shard.file
    data = bytearray(file.read_bytes())
    data[data.index(ev.encode(1, events)) + 100] ^= 1
    file.write_bytes(data)
    digest, damage = verify(tmp_path / "s").findings
    assert digest.file == damage.file == shard.file
    assert damage[1:3] == (1, 1)
    assert "CRC" in damage.why
