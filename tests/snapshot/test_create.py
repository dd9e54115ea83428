"""Snapshots equal the journal, share unchanged shards, and follow retention."""

import lzma
import os
from pathlib import Path
from typing import Any

import pytest

from fabric import event_block as ev
from fabric.errors import JournalError, SnapshotError
from fabric.journal.journal import Journal, Limits
from fabric.journal.rows import seq_key
from fabric.journal.tools.backup import backup, restore
from fabric.records import Discard, GroupSettings, SaveEvents, SaveFailure, SaveGroup, SaveTopic, TopicSettings
from fabric.snapshot import Pace, create, create_in, find, journal_view, load, snapshots, verify
from fabric.snapshot.folder import superseded
from fabric.snapshot.manifest import TOPICS_MAX
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Happening
from tests.journal.sample import Pen, rows_in, start_python
from tests.journal.test_format import FIXTURE
from tests.snapshot.sample import SHARD, commit, content, events_in, fill, groups_of, inodes, pen_blocks

PACE = Pace(shard_bytes=SHARD)


def test_a_snapshot_holds_what_the_journal_holds(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    rows = fill(tmp_path / "j", Pen())
    manifest = create(tmp_path / "j", tmp_path / "s", None, SHARD, lambda done, total: steps.append((done, total)))
    assert content(tmp_path / "s") == rows
    assert (manifest.first_seq, manifest.last_seq, manifest.messages, manifest.epoch) == (1, 175, 175, 1)
    journal = Journal.open(tmp_path / "j")
    assert manifest.journal == journal.uuid.hex()
    journal.close()
    assert load(tmp_path / "s") == manifest
    assert [shard.last_seq for shard in manifest.shards] == [40, 80, 120, 160, 175]
    assert [shard.closed for shard in manifest.shards] == [True, True, True, True, False]
    for shard in manifest.shards:
        mine = [row for row in rows if shard.first_seq <= row.seq <= shard.last_seq]
        assert (shard.rows, shard.blocks, shard.topics) == (len(mine), len(mine) // 5, ("a.b",))
        assert (shard.first_ts_us, shard.last_ts_us) == (mine[0].ts_us, mine[-1].ts_us)
        assert (shard.holes, shard.lost) == ((), ())
        assert shard.file == f"shards/{shard.first_seq}-{shard.last_seq}-{shard.sha256[:16]}.mdb"
    assert steps[-1] == (175, 175)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".snapshots.lock", "j", "s"]
    assert verify(tmp_path / "s").findings == ()


def test_an_empty_journal_gives_an_empty_snapshot(tmp_path: Path) -> None:
    Journal.open(tmp_path / "j").close()
    manifest = create(tmp_path / "j", tmp_path / "s")
    assert (manifest.first_seq, manifest.last_seq, manifest.shards, manifest.events) == (1, 0, (), ())
    assert verify(tmp_path / "s").findings == ()
    fill(tmp_path / "j", Pen())
    assert len(content(_again(tmp_path, tmp_path / "s"))) == 175


def _again(tmp_path: Path, previous: Path) -> Path:
    create(tmp_path / "j", tmp_path / "again", previous, SHARD)
    return tmp_path / "again"


def test_closed_shards_are_shared_and_the_open_one_grows(tmp_path: Path) -> None:
    pen = Pen()
    fill(tmp_path / "j", pen)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    rows = fill(tmp_path / "j", pen, 20)
    second = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert (first.reused, second.reused, len(second.manifest.shards)) == (0, 4, 7)
    assert second.manifest.shards[:4] == first.manifest.shards[:4]
    before, after = inodes(first.path), inodes(second.path)
    assert [after[Path(shard.file).name] for shard in first.manifest.shards[:4]] == [
        before[Path(shard.file).name] for shard in first.manifest.shards[:4]
    ]
    assert second.written_bytes == sum(shard.bytes for shard in second.manifest.shards[4:])
    assert content(second.path) == rows
    assert content(first.path) == rows[:175]
    assert [snapshot.path for snapshot in snapshots(tmp_path / "s")] == [first.path, second.path]
    assert find(tmp_path / "s").path == second.path
    assert find(first.path).manifest == first.manifest


def test_a_snapshot_of_a_journal_at_rest_writes_no_shard(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    commit(tmp_path / "j", SaveGroup("g", GroupSettings(("#",)), 9, ()))
    second = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert (second.reused, second.written_bytes, inodes(second.path)) == (5, 0, inodes(first.path))
    assert (len(first.manifest.groups), len(second.manifest.groups)) == (0, 1)


def test_where_files_cannot_be_linked_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(tmp_path / "j", Pen())
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)

    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    second = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert second.reused == 5
    assert set(inodes(first.path).values()).isdisjoint(inodes(second.path).values())
    assert content(second.path) == rows


def test_full_shares_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    second = create_in(tmp_path / "j", tmp_path / "s", pace=PACE, full=True)
    assert second.reused == 0
    assert set(inodes(first.path).values()).isdisjoint(inodes(second.path).values())
    assert [s.sha256 for s in second.manifest.shards] == [s.sha256 for s in first.manifest.shards]


def test_another_journal_or_another_epoch_shares_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    rows = fill(tmp_path / "other", Pen(ts_us=5_000_000))
    made = create_in(tmp_path / "other", tmp_path / "s", pace=PACE)
    assert made.reused == 0
    assert content(made.path) == rows
    assert [path.name for path in superseded(tmp_path / "s", 1, made.manifest.journal)] == []
    backup(tmp_path / "other", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "other", replace=True)
    made = create_in(tmp_path / "other", tmp_path / "s", pace=PACE)
    assert (made.manifest.epoch, made.reused) == (2, 0)
    assert create_in(tmp_path / "other", tmp_path / "s", pace=PACE).reused == 5


def test_a_journal_put_back_by_hand_is_noticed(tmp_path: Path) -> None:
    """The same journal with other messages under the same seqs: copies of files made by hand can lead to that."""
    Journal.open(tmp_path / "j").close()
    data = (tmp_path / "j" / "data.mdb").read_bytes()
    fill(tmp_path / "j", Pen())
    create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    (tmp_path / "j" / "data.mdb").write_bytes(data)
    rows = fill(tmp_path / "j", Pen(ts_us=9_000_000), 40)
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert (made.reused, content(made.path)) == (0, rows)


def test_a_shard_that_is_missing_is_made_again(tmp_path: Path) -> None:
    rows = fill(tmp_path / "j", Pen())
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    (first.path / first.manifest.shards[1].file).unlink()
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert made.reused == 4
    assert content(made.path) == rows
    assert made.manifest.shards == first.manifest.shards


# Retention.


def trim(path: Path, messages: int) -> int:
    journal = Journal.open(path, Limits(max_messages=messages))
    while journal.trim_step(0) is not None:
        pass
    first_seq = journal.first_seq
    journal.close()
    return first_seq


def test_retention_takes_whole_shards_and_the_first_is_written_again(tmp_path: Path) -> None:
    pen = Pen()
    rows = fill(tmp_path / "j", pen)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    first_seq = trim(tmp_path / "j", 100)
    assert first.manifest.shards[1].first_seq < first_seq <= first.manifest.shards[1].last_seq
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert made.manifest.first_seq == first_seq
    assert content(made.path) == [row for row in rows if row.seq >= first_seq]
    assert [shard.last_seq for shard in made.manifest.shards] == [s.last_seq for s in first.manifest.shards[1:]]
    assert made.reused == len(made.manifest.shards) - 1
    assert content(first.path) == rows


def test_holes_are_told_and_shards_with_new_ones_are_written_again(tmp_path: Path) -> None:
    rows = fill(tmp_path / "j", Pen(), 35, Discard((21, 26, 46)))
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert [shard.holes for shard in first.manifest.shards[:2]] == [((21, 30), (46, 50)), ()]
    assert first.manifest.messages == 160
    assert content(first.path) == rows
    assert verify(first.path).findings == ()
    boundary = first.manifest.shards[1].last_seq
    commit(tmp_path / "j", Discard(tuple(range(boundary - 9, boundary + 11, 5))))  # over the end of a shard
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    gone = range(boundary - 9, boundary + 11)
    assert content(made.path) == [row for row in rows if row.seq not in gone]
    assert [shard.holes for shard in made.manifest.shards[1:3]] == [
        ((gone[0], boundary),),
        ((boundary + 1, gone[-1]),),
    ]
    assert [shard.last_seq for shard in made.manifest.shards] == [s.last_seq for s in first.manifest.shards]
    assert made.reused == 2
    assert verify(made.path).findings == ()
    assert create_in(tmp_path / "j", tmp_path / "s", pace=PACE).reused == 4


def test_a_hole_in_the_midst_of_a_shard_is_noticed(tmp_path: Path) -> None:
    rows = fill(tmp_path / "j", Pen())
    create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    commit(tmp_path / "j", Discard((61,)))
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert (made.reused, made.manifest.shards[1].holes) == (4, ((61, 65),))
    assert content(made.path) == [row for row in rows if not 61 <= row.seq <= 65]


def test_a_shard_may_be_all_hole(tmp_path: Path) -> None:
    rows = fill(tmp_path / "j", Pen(), 35)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    shard = first.manifest.shards[1]
    commit(tmp_path / "j", Discard(tuple(range(shard.first_seq, shard.last_seq + 1, 5))))
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    empty = made.manifest.shards[1]
    assert (empty.rows, empty.blocks, empty.holes) == (0, 0, ((shard.first_seq, shard.last_seq),))
    assert content(made.path) == [row for row in rows if not shard.first_seq <= row.seq <= shard.last_seq]
    assert verify(made.path).findings == ()


def test_a_snapshot_overtaken_by_retention_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trim the journal between two steps, by a program of its own because LMDB is opened once for each process."""
    path = tmp_path / "j"
    rows = fill(path, Pen(), 60)
    monkeypatch.setattr(journal_view.Source.blocks, "__defaults__", (30_000,))
    trimmed: list[int] = []

    def overtake(done: int, total: int) -> None:
        if done > 100 and not trimmed:
            script = """
                journal = Journal.open(path, Limits(max_messages=50))
                while journal.trim_step(0) is not None:
                    pass
                print(journal.first_seq)
                journal.close()
                """
            trimmed.append(int(start_python(script, path).communicate()[0]))

    manifest = create(path, tmp_path / "s", None, SHARD, overtake)
    assert trimmed[0] > 150
    assert (manifest.first_seq, manifest.last_seq) == (trimmed[0], 300)
    assert content(tmp_path / "s") == [row for row in rows if row.seq >= trimmed[0]]
    assert sorted(file.name for file in (tmp_path / "s/shards").iterdir()) == sorted(
        Path(shard.file).name for shard in manifest.shards
    )
    assert verify(tmp_path / "s").findings == ()


def test_retention_that_is_always_faster_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "j", Pen())

    def overtaken(*_: object) -> Any:
        raise journal_view.Overtaken

    monkeypatch.setattr(journal_view.Source, "blocks", overtaken)
    with pytest.raises(SnapshotError, match="faster than they can be copied"):
        create(tmp_path / "j", tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_journal_that_is_written_and_trimmed_meanwhile(tmp_path: Path) -> None:
    writer = start_python(
        """
        journal, pen = Journal.open(path, Limits(max_messages=3000)), Pen()
        while True:
            turn = pen.blocks(8, count=5, size=1200)
            journal.commit([*turn, SaveGroup("g", GroupSettings(("#",)), pen.seq, ())])
            journal.trim_step(0)
            print(pen.seq - 1, flush=True)
        """,
        tmp_path / "j",
    )
    assert writer.stdout is not None
    try:
        confirmed = int(writer.stdout.readline())
        for _ in range(6):
            made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
            manifest = made.manifest
            assert manifest.last_seq >= confirmed
            confirmed = manifest.last_seq
            assert [group.cursor for group in manifest.groups] == [manifest.last_seq + 1]  # one moment, not two
            assert [row.seq for row in content(made.path)] == list(range(manifest.first_seq, manifest.last_seq + 1))
            assert verify(made.path).findings == ()
    finally:
        writer.kill()
        writer.communicate()


def test_what_comes_while_it_is_copied_is_for_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pen = Pen()
    rows = fill(tmp_path / "j", pen, 35, SaveGroup("g", GroupSettings(("#",)), 7, ()))
    monkeypatch.setattr(journal_view.Source.blocks, "__defaults__", (30_000,))
    script = f"""
        journal, pen = Journal.open(path), Pen({pen.seq}, {pen.ts_us})
        journal.commit([*pen.blocks(9, count=5, size=1200), SaveGroup("g", GroupSettings(("#",)), 200, ())])
        journal.close()
        """
    written: list[int] = []

    def write(done: int, total: int) -> None:
        if not written:
            writer = start_python(script, tmp_path / "j")
            writer.communicate()
            written.append(writer.returncode)

    manifest = create(tmp_path / "j", tmp_path / "s", None, SHARD, write)
    assert written == [0]
    assert (manifest.last_seq, [group.cursor for group in manifest.groups]) == (175, [7])
    assert content(tmp_path / "s") == rows
    manifest = create(tmp_path / "j", tmp_path / "t", tmp_path / "s", SHARD)
    assert (manifest.last_seq, [group.cursor for group in manifest.groups]) == (220, [200])
    assert [row.seq for row in content(tmp_path / "t")] == list(range(1, 221))


# State and events.


def test_groups_and_topics_are_as_they_were_at_the_last_seq(tmp_path: Path) -> None:
    settings = GroupSettings(("a.*", "b.#"), 5_000, 3, order="key")
    group = SaveGroup("g", settings, 90, ((10, 12), (40, 40)), ((9, 80),), True, (2, 50, 1))
    fresh = SaveGroup("h", GroupSettings(("#",)), 176, ())
    failure = SaveFailure("g", 10, 12, 2, 77_000_000, "out of paper")
    topic = SaveTopic("a.b", TopicSettings(max_msgs=5), 100, 76, 7_600)
    fill(tmp_path / "j", Pen(), 35, group, fresh, failure, topic)
    manifest = create(tmp_path / "j", tmp_path / "s")
    assert load(tmp_path / "s") == manifest
    g, h = manifest.groups
    assert (g.group, g.settings, g.cursor, g.floor) == ("g", settings, 90, 9)
    assert (g.open, g.lanes, g.paused, g.refresh) == (((10, 12), (40, 40)), ((9, 80),), True, (2, 50, 1))
    assert g.failures == ((10, 12, 2, 77_000_000, "out of paper"),)
    assert (h.group, h.cursor, h.floor, h.failures) == ("h", 176, 175, ())
    (state,) = manifest.topics
    assert (state.topic, state.settings, state.floor, state.msgs) == ("a.b", TopicSettings(max_msgs=5), 100, 76)
    assert manifest.floors == {"a.b": 100}
    assert groups_of(tmp_path / "j") == (group, fresh) or groups_of(tmp_path / "j") == (fresh, group)


def happening(number: int) -> ev.Event:
    return ev.Event(number, 1_000_000 + number, Happening.DELIVER, "g", "client", 1, number, number + 2)


def save(first: int, count: int) -> SaveEvents:
    return SaveEvents(first, count, ev.encode(first, [happening(first + i) for i in range(count)]))


def test_events_come_along_and_are_shared_too(tmp_path: Path) -> None:
    blocks = [save(1 + 300 * i, 300) for i in range(20)]
    fill(tmp_path / "j", Pen(), 5, *blocks)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert events_in(first.path) == [happening(i) for i in range(1, 6001)]
    assert len(first.manifest.events) > 2
    one = first.manifest.events[0]
    assert one.file == f"shards/events-1-{one.last}-{one.sha256[:16]}.mdb"
    assert (one.first, one.rows, one.first_ts_us, one.last_ts_us) == (1, one.last, 1_000_001, 1_000_000 + one.last)
    commit(tmp_path / "j", save(6001, 100))
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert made.manifest.events[:-1][: len(first.manifest.events) - 1] == first.manifest.events[:-1]
    assert events_in(made.path) == [happening(i) for i in range(1, 6101)]
    assert verify(made.path).findings == ()


def test_events_that_retention_has_removed_are_gone(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen(), 5, *[save(1 + 300 * i, 300) for i in range(20)])
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    journal = Journal.open(tmp_path / "j")
    with journal.writing() as txn:
        for i in range(3):
            txn.delete(seq_key(1 + 300 * i), db=journal.tables.events)
    journal.close()
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert events_in(made.path) == [happening(i) for i in range(901, 6001)]
    assert made.manifest.events[0].first == 901
    assert made.manifest.events[-1] == first.manifest.events[-1]


# The odd cases.


def test_damage_is_copied_and_told(tmp_path: Path) -> None:
    rows = fill(tmp_path / "j", Pen())
    journal = Journal.open(tmp_path / "j")
    with journal.writing() as txn:
        raw = bytearray(txn.get(seq_key(51), db=journal.tables.blocks) or b"")
        raw[-20] ^= 1
        txn.put(seq_key(51), bytes(raw), db=journal.tables.blocks)
        txn.delete(seq_key(101), db=journal.tables.blocks)
    journal.close()
    manifest = create(tmp_path / "j", tmp_path / "s")
    (shard,) = manifest.shards
    assert (shard.lost, shard.rows, shard.blocks, manifest.messages) == (((51, 55), (101, 105)), 165, 34, 165)
    assert len(rows) == 175
    for quick in (False, True):
        report = verify(tmp_path / "s", quick=quick)
        assert [finding[1:3] for finding in report.findings] == [(51, 55), (101, 105)]
        assert "in the journal" in report.findings[0].why


def test_too_many_topics_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.snapshot.shard_summary.TOPICS_MAX", 3)
    pen = Pen()
    commit(tmp_path / "j", *[pen.block(f"t.{i}") for i in range(4)])
    assert create(tmp_path / "j", tmp_path / "s").shards[0].topics is None
    assert load(tmp_path / "s").shards[0].topics is None
    assert TOPICS_MAX == 10_000


def test_what_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    create(tmp_path / "j", tmp_path / "s")
    with pytest.raises(SnapshotError, match="already") as caught:
        create(tmp_path / "j", tmp_path / "s")
    assert "choose a new folder" in caught.value.hint
    with pytest.raises(JournalError, match="no journal"):
        create(tmp_path / "nothing", tmp_path / "t")
    with pytest.raises(SnapshotError, match="no snapshot"):
        create(tmp_path / "j", tmp_path / "t", tmp_path / "nothing")
    for size in (1, 1 << 40):
        with pytest.raises(SnapshotError, match="the size of a shard is"):
            create(tmp_path / "j", tmp_path / "t", shard_bytes=size)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".snapshots.lock", "j", "s"]


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "j", Pen())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FabricError, match="No space left") as caught:
        create(tmp_path / "j", tmp_path / "s")
    assert "--keep" in caught.value.hint
    assert sorted(path.name for path in tmp_path.iterdir()) == [".snapshots.lock", "j"]


def test_the_disk_of_the_journal_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub refuses publishes when its disk is nearly full; a snapshot must not bring that about."""
    fill(tmp_path / "j", Pen())
    monkeypatch.setattr("fabric.snapshot.builder.DISK_FLOOR_SHARE", 1.0)
    with pytest.raises(SnapshotError, match="the hub needs them") as caught:
        create(tmp_path / "j", tmp_path / "s")
    assert "another disk" in caught.value.hint
    assert not (tmp_path / "s").exists()


def test_a_journal_of_format_1_has_snapshots_too(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "data.mdb").write_bytes(lzma.decompress(FIXTURE.read_bytes()))
    manifest = create(tmp_path / "j", tmp_path / "s")
    assert (manifest.messages, len(manifest.groups), manifest.topics, manifest.events) == (48, 2, (), ())
    assert verify(tmp_path / "s").findings == ()
    journal = Journal.open(tmp_path / "j")
    assert content(tmp_path / "s") == rows_in(journal)
    journal.close()


def test_the_rate_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "j", Pen())
    monkeypatch.setattr(journal_view.Source.blocks, "__defaults__", (50_000,))
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    create(tmp_path / "j", tmp_path / "s", rate_bytes=1_000_000)
    size = sum(shard.bytes for shard in load(tmp_path / "s").shards)
    assert waits == sorted(waits)
    assert 0 < waits[-1] <= size / 1_000_000


def test_a_snapshot_of_the_running_journal_of_this_process_is_refused(tmp_path: Path) -> None:
    """LMDB opens a file once for each process; the error says so instead of harming the hub."""
    journal = Journal.open(tmp_path / "j")
    with pytest.raises(JournalError, match="already open in this process"):
        create(tmp_path / "j", tmp_path / "s")
    journal.commit(pen_blocks(Pen(), 3))
    assert len(rows_in(journal)) == 15
    journal.close()
