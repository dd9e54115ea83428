"""A snapshot that is killed while it is made is never used, and the next snapshot removes its files."""

import os
import signal
from pathlib import Path

import pytest

from fabric.errors import SnapshotError
from fabric.snapshot import Busy, create_in, find, snapshots, verify
from fabric.snapshot.builder import Pace
from fabric.snapshot.folder import claim, remove, scan, superseded
from tests.journal.sample import Pen, start_python
from tests.snapshot.sample import SHARD, content, fill

PACE = Pace(shard_bytes=SHARD)
# Takes a snapshot, and stops for ever at a call of some function, after so many.
STOPPING = """
    import importlib, time
    from fabric.snapshot import Pace, builder, create_in, folder, shards
    create = importlib.import_module('fabric.snapshot.create')
    where, name, calls = {where}, {name!r}, {calls}
    real, seen = getattr(where, name), []
    def stop(*args, **options):
        seen.append(1)
        if len(seen) > calls:
            print("here", flush=True)
            time.sleep(600)
        return real(*args, **options)
    setattr(where, name, stop)
    create_in(path / "j", path / "s", pace=Pace({shard}))
"""


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.parametrize(
    ("where", "name", "calls"),
    [
        ("shards.ShardWriter", "finish", 0),
        ("shards.ShardWriter", "finish", 3),
        ("builder.os", "replace", 2),
        ("create", "_write_durably", 0),
        ("create", "settle", 0),
        ("folder.os", "rename", 0),
    ],
)
def test_killed_in_the_middle(tmp_path: Path, where: str, name: str, calls: int) -> None:
    rows = fill(tmp_path / "j", Pen())
    script = STOPPING.format(where=where, name=name, calls=calls, shard=SHARD)
    child = start_python(script, tmp_path)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    with pytest.raises(Busy, match="another process") as caught:  # one at a time
        create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert "wait" in caught.value.hint
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert visible(tmp_path / "s") == []
    assert any(path.name.startswith(".making-") for path in (tmp_path / "s").iterdir())
    assert snapshots(tmp_path / "s") == []
    with pytest.raises(SnapshotError, match="no snapshot"):
        find(tmp_path / "s")
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert content(made.path) == rows
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [".snapshots.lock", made.path.name]
    assert verify(made.path).findings == ()


def test_a_kill_at_any_time_leaves_whole_snapshots_only(tmp_path: Path) -> None:
    pen = Pen()
    rows = fill(tmp_path / "j", pen, 80)
    script = f"""
        from fabric.snapshot import Pace, create_in
        while True:
            create_in(path / "j", path / "s", pace=Pace({SHARD}), full=True)
            print("made", flush=True)
        """
    for _ in range(4):
        child = start_python(script, tmp_path)
        assert child.stdout is not None
        child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    found = scan(tmp_path / "s")
    assert len(found) >= 4
    assert [content(path) == rows for path in found] == [True] * len(found)
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert visible(tmp_path / "s") == sorted(path.name for path in [*found, made.path])
    assert not [path for path in (tmp_path / "s").iterdir() if path.name.startswith(".making-")]


def test_removing_leaves_the_shards_of_others(tmp_path: Path) -> None:
    pen = Pen()
    fill(tmp_path / "j", pen)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    rows = fill(tmp_path / "j", pen, 10)
    second = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    assert superseded(tmp_path / "s", 1, second.manifest.journal) == [first.path]
    assert superseded(tmp_path / "s", 2, second.manifest.journal) == []
    remove(first.path)
    assert content(second.path) == rows
    assert verify(second.path).findings == ()
    assert visible(tmp_path / "s") == [second.path.name]


def test_what_was_half_removed_is_cleared_away(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    made.path.rename(tmp_path / "s" / ".removing-x")
    assert snapshots(tmp_path / "s") == []
    with claim(tmp_path / "s"):
        assert [path.name for path in (tmp_path / "s").iterdir()] == [".snapshots.lock"]


def test_only_snapshots_are_removed(tmp_path: Path) -> None:
    fill(tmp_path / "j", Pen())
    made = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    (tmp_path / "link").symlink_to(made.path)
    for path in (tmp_path / "j", tmp_path / "s", tmp_path / "nothing", tmp_path / "link", Path("/")):
        with pytest.raises(SnapshotError, match="is not a snapshot"):
            remove(path)
    for stranger in ("notes.txt", "shards/thesis.doc"):
        (made.path / stranger).write_text("precious")
        with pytest.raises(SnapshotError, match=f"has files that do not belong to a snapshot: {stranger}"):
            remove(made.path)
        (made.path / stranger).unlink()
    (made.path / made.manifest.shards[0].file).unlink()  # a broken one may go
    remove(made.path)
    assert visible(tmp_path / "s") == []
