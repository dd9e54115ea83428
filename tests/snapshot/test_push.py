"""Pushing: shards first, the manifest last, no file twice; to folders, and to the stores of fsspec."""

import importlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fabric.errors import SnapshotDamaged, SnapshotError
from fabric.snapshot import Busy, Made, Pace, create_in, load, push, verify
from tests.journal.sample import Pen, Row
from tests.snapshot.sample import SHARD, content, fill, inodes

PACE = Pace(shard_bytes=SHARD)
MODULE = importlib.import_module("fabric.snapshot.push")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Made, Made, list[Row]]:
    """Two snapshots of a journal that grew in between."""
    pen = Pen()
    fill(tmp_path / "j", pen)
    first = create_in(tmp_path / "j", tmp_path / "s", pace=PACE)
    rows = fill(tmp_path / "j", pen, 10)
    return first, create_in(tmp_path / "j", tmp_path / "s", pace=PACE), rows


def test_a_folder_gets_what_it_does_not_have(two: tuple[Made, Made, list[Row]], tmp_path: Path) -> None:
    first, second, rows = two
    there = tmp_path / "there"
    steps: list[tuple[int, int]] = []
    done = push(first.path, str(there), lambda *step: steps.append(step))
    assert done == (f"{there}/{first.path.name}", 5, 5, 0, 0, first.manifest.bytes)
    assert steps[-1] == (first.manifest.bytes, first.manifest.bytes)
    assert load(there / first.path.name) == first.manifest
    assert push(first.path, str(there))[2:] == (0, 0, 5, 0)
    done = push(tmp_path / "s", f"file://{there}")  # of a folder, the newest
    assert (done.files, done.sent, done.copied, done.skipped) == (6, 2, 4, 0)
    assert content(there / second.path.name) == rows
    assert verify(there / second.path.name).findings == ()
    shared = set(inodes(there / first.path.name).values()) & set(inodes(there / second.path.name).values())
    assert len(shared) == 4
    assert not list(there.rglob("*.partial"))


def test_a_push_that_broke_off_is_no_snapshot_until_it_is_run_again(
    two: tuple[Made, Made, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, there = two[0], tmp_path / "there"

    def fail(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push(first.path, str(there), fail)
    with pytest.raises(SnapshotError, match="no snapshot"):
        load(there / first.path.name)
    arrived = sorted((there / first.path.name / "shards").iterdir())
    arrived[0].write_bytes(b"half")  # as an interrupted transfer would leave it on some stores
    done = push(first.path, str(there))
    assert (done.sent, done.skipped) == (5 - len(arrived) + 1, len(arrived) - 1)
    assert verify(there / first.path.name).findings == ()


def test_damage_is_not_sent(two: tuple[Made, Made, list[Row]], tmp_path: Path) -> None:
    first = two[0]
    file = first.path / first.manifest.shards[2].file
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.unlink()
    file.write_bytes(data)
    with pytest.raises(SnapshotDamaged, match="does not match its sha256"):
        push(first.path, str(tmp_path / "there"))
    assert not (tmp_path / "there" / first.path.name / "manifest.json").exists()


def test_another_snapshot_of_that_name_is_left_alone(two: tuple[Made, Made, list[Row]], tmp_path: Path) -> None:
    first, second, _ = two
    there = tmp_path / "there"
    push(first.path, str(there))
    (there / first.path.name / "manifest.json").write_bytes((second.path / "manifest.json").read_bytes())
    with pytest.raises(Busy, match="another snapshot with the name"):
        push(first.path, str(there))


class Memory:
    """As much of a file system of fsspec as is needed, in a dictionary."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.said: list[str] = []

    def info(self, path: str) -> dict[str, Any]:
        return {"size": len(self.cat_file(path))}

    def cat_file(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def glob(self, pattern: str, detail: bool) -> dict[str, dict[str, Any]]:
        assert detail
        prefix = pattern.partition("*")[0]
        return {p: self.info(p) for p in self.files if p.startswith(prefix) and p.endswith(".mdb")}

    def makedirs(self, path: str, exist_ok: bool) -> None:
        raise PermissionError("no folders here")

    def put_file(self, source: str, path: str) -> None:
        self.said.append(f"put {path.rpartition('/')[2]}")
        self.files[path] = Path(source).read_bytes()

    def cp_file(self, source: str, path: str) -> None:
        self.said.append(f"copy {path.rpartition('/')[2]}")
        self.files[path] = self.files[source]

    def pipe_file(self, path: str, data: bytes) -> None:
        self.said.append(f"write {path.rpartition('/')[2]}")
        self.files[path] = data


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """An object store behind the name fsspec."""
    fs = Memory()
    core = SimpleNamespace(url_to_fs=lambda url: (fs, url.partition("://")[2]))
    monkeypatch.setattr(MODULE.importlib, "import_module", lambda name: SimpleNamespace(core=core))
    return fs


def test_an_object_store(two: tuple[Made, Made, list[Row]], tmp_path: Path, memory: Memory) -> None:
    first, second, rows = two
    assert push(first.path, "s3://bucket/snapshots/")[2:5] == (5, 0, 0)
    assert memory.said[-1] == "write manifest.json"
    memory.said.clear()
    done = push(second.path, "s3://bucket/snapshots")
    assert done[1:5] == (6, 2, 4, 0)
    assert done.target == f"s3://bucket/snapshots/{second.path.name}"
    assert [word.partition(" ")[0] for word in memory.said] == ["copy"] * 4 + ["put"] * 2 + ["write"]
    for path, data in memory.files.items():
        target = tmp_path / "back" / path.removeprefix("bucket/snapshots/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    assert content(tmp_path / "back" / second.path.name) == rows
    assert verify(tmp_path / "back" / first.path.name).findings == ()


def test_what_goes_wrong_there_is_said(
    two: tuple[Made, Made, list[Row]], memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, path: str) -> None:
        raise RuntimeError("AccessDenied")

    monkeypatch.setattr(memory, "put_file", refuse)
    with pytest.raises(SnapshotError, match="s3://bucket/x: AccessDenied") as caught:
        push(two[0].path, "s3://bucket/x")
    assert "credentials" in caught.value.hint
    monkeypatch.setattr(memory, "put_file", lambda source, path: memory.pipe_file(path, b"half"))
    with pytest.raises(SnapshotError, match="is not whole after the copy"):
        push(two[0].path, "s3://bucket/y")


def test_without_fsspec_a_url_is_refused(two: tuple[Made, Made, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(MODULE.importlib, "import_module", missing)
    with pytest.raises(SnapshotError, match="needs fsspec, which is not installed") as caught:
        push(two[0].path, "s3://bucket/x")
    assert "pip install fsspec" in caught.value.hint


def test_the_real_fsspec(two: tuple[Made, Made, list[Row]], tmp_path: Path) -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    first, second, rows = two
    for made, expected in ((first, (5, 5, 0, 0)), (second, (6, 2, 4, 0)), (second, (6, 0, 0, 6))):
        assert push(made.path, f"local://{tmp_path}/there")[1:5] == expected
    assert content(tmp_path / "there" / second.path.name) == rows
    with pytest.raises(SnapshotError, match="fsspec cannot open"):
        push(first.path, "nonsense://x")
    shutil.rmtree(tmp_path / "there")
    assert len(rows) == 225
