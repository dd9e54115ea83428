"""Reading a long journal must not increase the memory of the hub."""

from pathlib import Path

import pytest

from fabric.journal import page_release
from fabric.journal.journal import Journal
from fabric.journal.page_release import RELEASE_EVERY_BYTES, PageRelease
from fabric.records import Append
from fabric_protocol.block import encode, stamp

SMAPS = Path("/proc/self/smaps")


def resident_bytes(data_file: Path) -> int:
    """What this process has mapped of a file, as the system counts it."""
    total, inside = 0, False
    for line in SMAPS.read_text().splitlines():
        if not line[0].isupper():
            inside = line.endswith(str(data_file))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not SMAPS.exists(), reason="needs /proc, which only Linux has")
def test_pages_that_were_read_are_given_back(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "data")
    try:
        raw = encode("a", [bytes(1 << 20)])
        count = RELEASE_EVERY_BYTES * 2 // len(raw)
        for seq in range(1, count + 1):
            journal.commit([Append(stamp(raw, seq, seq))])
        reader, seq = journal.reader(), 1
        data_file = (tmp_path / "data" / "data.mdb").resolve()
        while seq <= count:
            block, seq = reader.next_block(seq, lambda topic: True)
            assert block is not None
            assert resident_bytes(data_file) < RELEASE_EVERY_BYTES * 3 // 2
        journal.rest()
        assert resident_bytes(data_file) < 1 << 20
    finally:
        journal.close()


def test_without_a_free_descriptor_pages_stay_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = PageRelease(tmp_path / "data.mdb")
    monkeypatch.setattr(page_release, "_MAPS", tmp_path / "no descriptor is free")
    kept.release()
