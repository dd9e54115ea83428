"""`fabric journal …`: figures on stdout, errors with a hint and an exit code, nothing changed by accident."""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from fabric.cli import main
from fabric.cli.commands.journal import journal as command
from fabric.journal.journal import Journal
from fabric.journal.rows import seq_key
from tests.journal.sample import Pen, rows_in


@pytest.fixture
def data(tmp_path: Path) -> Path:
    journal = Journal.open(tmp_path / "data")
    journal.commit(Pen().blocks(10, count=5))
    journal.close()
    return tmp_path / "data"


def fabric(*arguments: object, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, ["journal", *(str(a) for a in arguments)])
    assert result.exit_code == expect, (result.output, result.exception)
    return result


def test_stats_are_the_same_figures_as_json_and_as_a_table(data: Path) -> None:
    figures = json.loads(fabric("stats", "--data", data, "--json").stdout)
    assert figures["schema"] == "fabric.journal.stats.v1"
    assert (figures["messages"], figures["blocks"], figures["first_seq"], figures["last_seq"]) == (50, 10, 1, 50)
    again = json.loads(fabric("stats", "--data", data).stdout)  # not a terminal, so JSON
    assert again == {**figures, "disk_free_bytes": again["disk_free_bytes"]}  # the disk has other users
    table = fabric("stats", "--data", data, "-o", "table").stdout
    for name in figures.keys() - {"schema"}:
        assert name in table


def test_a_sound_journal_is_verified(data: Path) -> None:
    report = json.loads(fabric("verify", "--data", data).stdout)
    assert (report["schema"], report["messages"], report["findings"]) == ("fabric.journal.verify.v1", 50, [])


def test_a_damaged_journal_is_exit_code_9_and_names_the_seqs(data: Path) -> None:
    journal = Journal.open(data)
    with journal.writing() as txn:
        txn.put(seq_key(21), bytes(99), db=journal.tables.blocks)
    journal.close()
    result = fabric("verify", "--data", data, expect=9)
    finding = json.loads(result.stdout)["findings"][0]
    assert (finding["table"], finding["first_seq"], finding["last_seq"]) == ("blocks", 21, 25)
    assert "1 findings, 5 messages lost" in result.stderr
    assert "hint: restore" in result.stderr
    assert "blocks 21..25: not a block" in fabric("verify", "--data", data, "-o", "table", expect=9).stdout


def test_backup_restore_and_compact_round_trip(data: Path, tmp_path: Path) -> None:
    backup = json.loads(fabric("backup", tmp_path / "copy", "--data", data).stdout)
    assert (backup["messages"], backup["target"]) == (50, str(tmp_path / "copy"))
    fabric("backup", tmp_path / "copy", "--data", data, expect=6)
    assert json.loads(fabric("restore", tmp_path / "copy", "--data", tmp_path / "new").stdout)["epoch"] == 2
    compact = json.loads(fabric("compact", "--data", tmp_path / "new").stdout)
    assert compact["after_bytes"] <= compact["before_bytes"]
    journal = Journal.open(tmp_path / "new")
    assert [row.seq for row in rows_in(journal)] == list(range(1, 51))
    assert journal.epoch == 2
    journal.close()


def test_restore_replaces_a_journal_only_when_told_to(data: Path, tmp_path: Path) -> None:
    fabric("backup", tmp_path / "copy", "--data", data)
    before = (data / "data.mdb").read_bytes()
    assert "would restore" in fabric("restore", tmp_path / "copy", "--data", data, "--dry-run").stdout
    assert "--yes" in fabric("restore", tmp_path / "copy", "--data", data, expect=6).stderr
    assert (data / "data.mdb").read_bytes() == before
    fabric("restore", tmp_path / "copy", "--data", data, "--yes")
    assert (data / "data.mdb.replaced").read_bytes() == before


@pytest.mark.parametrize("name", ["stats", "verify", "compact", "backup"])
def test_a_missing_journal_is_exit_code_4(tmp_path: Path, name: str) -> None:
    target = [tmp_path / "copy"] if name == "backup" else []
    result = fabric(name, *target, "--data", tmp_path / "nothing", expect=4)
    assert result.stderr.startswith(f"error: there is no journal in {tmp_path / 'nothing'}\nhint: ")


def test_a_journal_in_use_is_not_compacted(data: Path) -> None:
    journal = Journal.open(data)
    result = fabric("compact", "--data", data, expect=1)
    assert "in use by process" in result.stderr
    journal.close()


def test_the_directory_may_come_from_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FABRIC_DATA", str(data))
    assert json.loads(fabric("stats").stdout)["messages"] == 50


def test_every_command_shows_examples() -> None:
    assert isinstance(command, click.Group)
    for name in ("", *command.commands):
        help_text = fabric(*filter(None, [name]), "--help").stdout
        assert re.search(r"Examples:\n +fabric journal " + name, help_text), help_text


def test_help_does_not_load_lmdb() -> None:
    heavy = ("lmdb", "msgpack", "rich")
    script = f"import sys, fabric.cli.commands.journal; sys.exit(any(m in sys.modules for m in {heavy}))"
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
