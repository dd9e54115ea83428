"""`fabric snapshot …`: figures on stdout, errors with a hint and an exit code, nothing changed by accident."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import fabric_client
from fabric.cli import main
from fabric.cli.commands.snapshot import snapshot as command
from fabric.cli.support.hub_process import HubProcess
from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from fabric.snapshot import load
from fabric.snapshot.folder import claim
from tests.journal.sample import Pen
from tests.snapshot.sample import content, damage_block, fill
from tests.test_house import FENCE, ROOT


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("FABRIC_DATA", raising=False)
    monkeypatch.delenv("FABRIC_URL", raising=False)
    fill(tmp_path / "j", Pen())
    return tmp_path / "j"


def fabric(*arguments: object, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, ["snapshot", *(str(a) for a in arguments)])
    assert result.exit_code == expect, (result.output, result.exception)
    return result


def told(*arguments: object, expect: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(fabric(*arguments, expect=expect).stdout)
    assert document.pop("schema") == f"fabric.snapshot.{arguments[0]}.v1"
    return document


def test_create_list_verify_push_and_rm(data: Path, tmp_path: Path) -> None:
    there = tmp_path / "s"
    first = told("create", there, "--data", data, "--shard-size", "64KiB")
    assert (first["messages"], first["first_seq"], first["last_seq"], first["shards"]) == (175, 1, 175, 5)
    assert (first["reused"], first["lost"], first["removed"]) == (0, 0, [])
    assert Path(first["path"]).parent == there
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-175", Path(first["path"]).name)
    assert len(content(Path(first["path"]))) == 175
    second = told("create", there, "--data", data)
    assert (second["reused"], second["written_bytes"]) == (5, 0)
    rows = told("list", there)["snapshots"]
    assert [row["path"] for row in rows] == [first["path"], second["path"]]
    assert rows[0]["created"].endswith("Z")
    report = told("verify", there)
    assert (report["path"], report["findings"], report["quick"]) == (second["path"], [], False)
    assert told("verify", first["path"], "--quick")["quick"]
    pushed = told("push", there, tmp_path / "away")
    assert (pushed["files"], pushed["sent"], pushed["skipped"]) == (5, 5, 0)
    assert told("push", there, tmp_path / "away")["skipped"] == 5
    assert told("rm", first["path"], "--yes")["removed"] == [first["path"]]
    assert [row["path"] for row in told("list", there)["snapshots"]] == [second["path"]]
    assert told("verify", there)["findings"] == []


def test_tables_say_the_same(data: Path, tmp_path: Path) -> None:
    made = fabric("create", tmp_path / "s", "--data", data, "-o", "table").stdout
    assert re.search(r"messages +175", made)
    listed = fabric("list", tmp_path / "s", "-o", "table").stdout
    assert re.search(r"SNAPSHOT .*LAST SEQ", listed)
    assert re.search(r"Z-175 .* 175 ", listed)
    assert re.search(r"findings +0", fabric("verify", tmp_path / "s", "-o", "table").stdout)
    assert "1 shard, 1 sent" in fabric("push", tmp_path / "s", tmp_path / "away", "-o", "table").stdout
    (path,) = (tmp_path / "s").glob("2*")
    assert fabric("rm", path, "--yes", "-o", "table").stdout == f"{path}: removed\n"
    assert "there are no snapshots" in fabric("list", tmp_path / "s", "-o", "table").stdout


def test_only_the_newest_are_kept(data: Path, tmp_path: Path) -> None:
    paths = [told("create", tmp_path / "s", "--data", data)["path"] for _ in range(3)]
    last = told("create", tmp_path / "s", "--data", data, "--keep", "2")
    assert last["removed"] == [Path(path).name for path in paths[:2]]
    assert [row["path"] for row in told("list", tmp_path / "s")["snapshots"]] == [paths[2], last["path"]]
    assert told("verify", tmp_path / "s", "--quick")["findings"] == []
    assert fabric("create", tmp_path / "s", "--data", data, "--keep", "0", expect=2)


def test_full_and_rate(data: Path, tmp_path: Path) -> None:
    told("create", tmp_path / "s", "--data", data)
    assert told("create", tmp_path / "s", "--data", data, "--full", "--rate", "1GB", "--no-progress")["reused"] == 0
    assert "not a size" in fabric("create", tmp_path / "s", "--data", data, "--rate", "much", expect=2).stderr
    wrong = fabric("create", tmp_path / "s", "--data", data, "--shard-size", "1KB", expect=1)
    assert "the size of a shard is 1,000 bytes" in wrong.stderr


def test_a_damaged_snapshot_is_exit_code_9_and_names_the_seqs(data: Path, tmp_path: Path) -> None:
    path = Path(told("create", tmp_path / "s", "--data", data)["path"])
    file = damage_block(path, load(path), 91)
    result = fabric("verify", path, expect=9)
    findings = json.loads(result.stdout)["findings"]
    assert findings[1] == {**findings[1], "file": file, "first_seq": 91, "last_seq": 95}
    assert "2 findings" in result.stderr
    assert "hint: use another snapshot" in result.stderr
    assert re.search(r"91 +95 +", fabric("verify", path, "-o", "table", expect=9).stdout)


def test_a_damaged_journal_gives_a_snapshot_and_exit_code_9(data: Path, tmp_path: Path) -> None:
    journal = Journal.open(data)
    with journal.writing() as txn:
        txn.put(seq_key(21), bytes(99), db=journal.tables.blocks)
    journal.close()
    result = fabric("create", tmp_path / "s", "--data", data, expect=9)
    assert json.loads(result.stdout)["lost"] == 5
    assert "5 messages lost" in result.stderr
    assert len(told("list", tmp_path / "s")["snapshots"]) == 1


def test_a_missing_shard_is_listed_as_a_problem(data: Path, tmp_path: Path) -> None:
    path = Path(told("create", tmp_path / "s", "--data", data)["path"])
    (path / load(path).shards[0].file).unlink()
    (row,) = told("list", tmp_path / "s")["snapshots"]
    assert "is missing" in row["problem"]
    assert "is missing" in fabric("list", tmp_path / "s", "-o", "table").stdout
    assert "is missing" in fabric("verify", path, "-o", "table", expect=9).stdout
    assert "is not whole" in fabric("push", path, tmp_path / "away", expect=9).stderr
    fabric("rm", path, "--yes")


def test_all_snapshots_of_a_folder_are_verified(data: Path, tmp_path: Path) -> None:
    paths = [Path(told("create", tmp_path / "s", "--data", data, "--full")["path"]) for _ in range(2)]
    (paths[0] / load(paths[0]).shards[0].file).unlink()
    assert told("verify", tmp_path / "s")["findings"] == []
    result = fabric("verify", tmp_path / "s", "--all", expect=9)
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    assert [len(report["findings"]) for report in reports] == [1, 0]
    assert str(paths[0]) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "s", "--data", "nothing"], 4, "there is no journal in nothing"),
        (["create", "s", "--data", "j", "--url", "tcp://127.0.0.1:1"], 2, "not both"),
        (["list", "nothing"], 4, "there is no folder nothing"),
        (["verify", "nothing"], 4, "there is no snapshot in nothing"),
        (["push", "nothing", "away"], 4, "there is no snapshot in nothing"),
        (["rm", "j", "--yes"], 4, "j is not a snapshot"),
        (["rm", "--yes"], 2, "Missing argument"),
    ],
)
def test_errors_have_a_hint_and_a_code(
    data: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(data.parent)
    result = fabric(*arguments, expect=code)
    assert result.stderr.startswith("error: ")
    assert said in result.stderr
    assert "hint: " in result.stderr
    assert (data / "data.mdb").exists()


def test_rm_asks_and_a_second_create_is_refused(data: Path, tmp_path: Path) -> None:
    path = told("create", tmp_path / "s", "--data", data)["path"]
    assert "confirm with --yes" in fabric("rm", path, expect=6).stderr
    assert Path(path).exists()
    with claim(tmp_path / "s"):
        assert "makes or removes a snapshot" in fabric("create", tmp_path / "s", "--data", data, expect=6).stderr


def test_the_directory_may_come_from_the_environment(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_DATA", str(data))
    assert told("create", tmp_path / "s")["messages"] == 175


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    running = HubProcess(tmp_path / "hub")
    with running:
        yield running


def test_a_running_hub_is_asked_where_its_journal_is(
    hub: HubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FABRIC_DATA", str(tmp_path / "elsewhere"))  # what is asked for by name comes first
    with fabric_client.connect(hub.url) as fab:
        for i in range(10):
            fab.publish("a.b", b"%d" % i)
        fab.flush()
        assert fab.info("hub")["path"] == str((tmp_path / "hub").resolve())
    made = told("create", tmp_path / "s", "--url", hub.url)
    assert made["messages"] == 10
    assert [row.payload for row in content(Path(made["path"]))] == [b"%d" % i for i in range(10)]


def test_the_journal_of_a_hub_elsewhere_is_not_mistaken_for_one_here(
    hub: HubProcess, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub on another machine may have its journal under a path that exists here, too."""
    real = fabric_client.Client.info
    for place in (data, tmp_path / "nothing"):
        monkeypatch.setattr(
            fabric_client.Client, "info", lambda self, what, place=place: {**real(self, what), "path": str(place)}
        )
        result = fabric("create", tmp_path / "s", "--url", hub.url, expect=4)
        assert "not on this machine" in result.stderr
    assert not (tmp_path / "s").exists()


def test_every_command_shows_examples() -> None:
    assert isinstance(command, click.Group)
    for name in ("", *command.commands):
        help_text = fabric(*filter(None, [name]), "--help").stdout
        assert re.search(r"Examples:\n +fabric snapshot " + name, help_text), help_text


def test_help_does_not_load_lmdb() -> None:
    heavy = ("lmdb", "msgpack", "rich")
    script = f"import sys, fabric.cli.commands.snapshot; sys.exit(any(m in sys.modules for m in {heavy}))"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


def test_the_python_of_the_page_runs(data: Path, tmp_path: Path) -> None:
    told("create", tmp_path / "s", "--data", data, "--shard-size", "64KiB")
    (code,) = FENCE.findall((ROOT / "docs/snapshots.md").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    exec(compile(code, "<example>", "exec"), names)
    found = names["payloads"](str(tmp_path / "s"), 38, 83)
    assert [int(payload.partition(b":")[0]) for payload in found] == list(range(38, 84))
