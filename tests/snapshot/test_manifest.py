"""The manifest of a snapshot; each error in it is reported with a hint."""

import json
from pathlib import Path
from typing import Any

import pytest

from fabric.errors import SnapshotDamaged, SnapshotError
from fabric.records import GroupSettings, SaveFailure, SaveGroup, SaveTopic, TopicSettings
from fabric.snapshot import NotASnapshot, create, find, load
from fabric.snapshot.manifest import decode, encode
from fabric_protocol.errors import FabricError
from tests.journal.sample import Pen
from tests.snapshot.sample import SHARD, fill, rewrite


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    group = SaveGroup("g", GroupSettings(("a.*",)), 90, ((10, 12),), ((9, 80),))
    failure = SaveFailure("g", 10, 12, 2, 77, "why")
    fill(tmp_path / "j", Pen(), 35, group, failure, SaveTopic("a.b", TopicSettings(), 3, 1, 2))
    create(tmp_path / "j", tmp_path / "s", None, SHARD)
    return tmp_path / "s"


def test_a_manifest_is_what_it_was_written_as(snapshot: Path) -> None:
    manifest = load(snapshot)
    assert decode(encode(manifest), "here") == manifest
    fields = json.loads((snapshot / "manifest.json").read_bytes())
    assert list(fields) == list(manifest._fields)
    assert fields["groups"][0]["lease_ms"] == 30_000
    assert fields["groups"][0]["failures"] == [
        {"first": 10, "last": 12, "failures": 2, "due_us": 77, "reason": "why"},
    ]
    assert fields["topics"][0]["on_full"] == "refuse"


def test_fields_that_are_not_known_are_passed_over(snapshot: Path) -> None:
    manifest = load(snapshot)

    def add(fields: dict[str, Any]) -> None:
        fields["weather"] = "fine"
        for rows in ("shards", "groups", "topics"):
            fields[rows][0]["weather"] = "fine"

    rewrite(snapshot, add)
    assert load(snapshot) == manifest


def test_a_folder_without_a_manifest_is_no_snapshot(snapshot: Path, tmp_path: Path) -> None:
    (snapshot / "manifest.json").unlink()
    for path in (snapshot, tmp_path / "nothing", tmp_path / "j" / "data.mdb"):
        with pytest.raises(NotASnapshot, match=r"has no manifest\.json") as caught:
            load(path)
        assert "fabric snapshot list" in caught.value.hint


def test_a_newer_format_is_refused(snapshot: Path) -> None:
    rewrite(snapshot, lambda fields: fields.update(format=2, shards="something else"))
    with pytest.raises(SnapshotError, match="has format 2, and this program knows up to 1") as caught:
        load(snapshot)
    assert caught.value.hint == "upgrade fabricmq"


def test_a_missing_or_cut_shard_is_named(snapshot: Path) -> None:
    shards = load(snapshot).shards
    with (snapshot / shards[1].file).open("r+b") as file:
        file.truncate(8192)
    with pytest.raises(SnapshotDamaged, match=rf"{shards[1].file} has 8192 bytes, not {shards[1].bytes}") as caught:
        load(snapshot)
    assert "fabric snapshot create" in caught.value.hint
    (snapshot / shards[1].file).unlink()
    with pytest.raises(SnapshotDamaged, match=rf"{shards[1].file} is missing"):
        load(snapshot)
    assert load(snapshot, check_files=False).shards == shards
    with pytest.raises(SnapshotDamaged, match="is missing"):  # and is not passed over in favour of nothing
        find(snapshot.parent)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: f.pop("epoch"), "epoch is missing"),
        (lambda f: f.update(epoch="1"), "epoch is '1', not a number"),
        (lambda f: f.update(epoch=True), "epoch is 'True', not a number"),
        (lambda f: f.update(shards={}), r"shards is '\{\}', not a list"),
        (lambda f: f["shards"].pop(1), r"shards\[1\] has seqs 81\.\.120, and should begin at 41"),
        (lambda f: f["shards"].pop(), "the shards end at seq 160, not at 175"),
        (lambda f: f["shards"][2].pop("rows"), r"shards\[2\]\.rows is missing"),
        (lambda f: f["shards"][2].update(rows=1), "the shards have 136 messages, not 175"),
        (lambda f: f["shards"][2].update(bytes=1), "bytes, not"),
        (lambda f: f["shards"][2].update(holes=[[1]]), r"shards\[2\]\.holes is not a list of pairs"),
        (lambda f: f["shards"][2].update(topics=[1]), r"shards\[2\]\.topics is not a list of names"),
        (lambda f: f["shards"][2].update(file="shards/../../../etc/passwd"), "not a file in shards/"),
        (lambda f: f["shards"][2].update(file="/etc/passwd"), "not a file in shards/"),
        (lambda f: f["shards"][2].update(sha256="../x"), "sha256 is"),
        (lambda f: f["groups"].append(1), r"groups\[1\] is not a map"),
        (lambda f: f["groups"][0].pop("cursor"), r"groups\[0\]\.cursor is missing"),
        (lambda f: f["groups"][0]["failures"].append({}), r"groups\[0\]\.failures\[1\]\.first is missing"),
        (lambda f: f.pop("format"), "it has no format"),
    ],
)
def test_what_is_wrong_is_named(snapshot: Path, change: Any, why: str) -> None:
    rewrite(snapshot, change)
    with pytest.raises(SnapshotDamaged, match=why):
        load(snapshot)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"format": "1"}'])
def test_junk_is_no_manifest(snapshot: Path, text: bytes) -> None:
    (snapshot / "manifest.json").write_bytes(text)
    with pytest.raises(FabricError, match="is not"):
        load(snapshot)
