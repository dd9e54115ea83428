"""Tables on terminals of any width: the first columns are always shown, the others as far as there is room."""

import importlib
from typing import Any, Final

import click
import pytest

from fabric.cli.support.tables import Column, print_table
from tests.cli.conftest import Fabric

GROUP: Final = "invoices.of.the.whole.company"
ROWS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "group": ("group", {"group": GROUP, "patterns": ["orders.*"], "members": 12, "ready": 123_456_789,
                            "outstanding": 8_192, "redelivering": 3, "dead_letters": 7, "oldest_age_ms": 7_000,
                            "state": "no consumers"}),
    "queue": ("queue", {"queue": GROUP, "msgs": 1_234_567, "bytes": 9 << 30, "members": 3, "outstanding": 4,
                            "redelivering": 5, "dead_letters": 6, "max_msgs": 10_000_000}),
    "topic": ("topic", {"topic": GROUP, "msgs": 1_234_567, "bytes": 9 << 30, "keep": "last_per_key",
                            "max_age_ms": 1, "max_msgs": 7, "max_bytes": 8, "on_full": "drop_old", "dedupe": "slide"}),
    "session": ("client", {"session": 12, "client": GROUP, "channels": 3, "outstanding": 4}),
    "schedule": ("topic", {"id": 17, "name": "daily", "due_us": 1, "topic": GROUP, "count": 2, "bytes": 3,
                               "every_ms": 60_000, "cron": "0 6 * * mon-fri", "ttl_ms": 1000}),
    "dlq": ("group", {"group": GROUP, "count": 1_234_567, "first_seq": 123_456_789}),
}  # fmt: skip


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes standard output a terminal of a width."""

    def make(width: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")

    return make


@pytest.mark.parametrize("width", [30, 40, 60, 80, 200])
@pytest.mark.parametrize("module", ROWS)
def test_a_table_has_its_key_at_any_width(
    module: str, width: int, terminal: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    key, row = ROWS[module]
    columns: tuple[Column, ...] = importlib.import_module(f"fabric.cli.commands.{module}").COLUMNS
    terminal(width)
    print_table([row], columns)
    shown, said = map(click.unstyle, capsys.readouterr())
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= width
    title = next(column.title for column in columns if column.key == key)
    at = lines[0].find(title)
    assert at >= 0, shown
    following = [column.title for column in columns if lines[0].find(column.title) > at]
    end = min((lines[0].find(other) for other in following), default=None)
    name = "".join(line[at:end].strip() for line in lines[1:])
    assert GROUP in name or width < 80, shown
    assert all(letter in name for letter in set(GROUP)), shown
    missing = [column.title for column in columns if column.title not in lines[0]]
    assert said == (f"not shown: {', '.join(missing)}; a wider terminal or --json shows them\n" if missing else "")
    assert not missing or width < 200


def test_the_group_and_how_much_is_ready_stay(terminal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    columns: tuple[Column, ...] = importlib.import_module("fabric.cli.commands.group").COLUMNS
    titles = {}
    for width in (40, 60, 80, 200):
        terminal(width)
        print_table([ROWS["group"][1]], columns)
        titles[width] = click.unstyle(capsys.readouterr().out).splitlines()[0].split()
    assert titles[40] == ["GROUP", "READY", "DEAD"]
    assert titles[60] == ["GROUP", "CONSUMERS", "READY", "DEAD", "STATE"]
    assert titles[80] == ["GROUP", "PATTERNS", "CONSUMERS", "READY", "DEAD", "OLDEST", "STATE"]
    assert len(titles[200]) == len(" ".join(column.title for column in columns).split())


def test_nothing_is_folded_or_left_out_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    key, row = ROWS["group"]
    columns: tuple[Column, ...] = importlib.import_module("fabric.cli.commands.group").COLUMNS
    print_table([{**row, key: "g" * 500}], columns)
    shown, said = capsys.readouterr()
    assert len(shown.splitlines()) == 2
    assert "g" * 500 in shown
    assert said == ""


def test_a_folded_row_keeps_its_columns(terminal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(36)
    rows = [{"a": "x" * 20, "n": 5, "b": "word and word"}, {"a": "y", "n": 1_000, "b": "z"}]
    print_table(rows, (Column("A", "a", folds=True, rank=0), Column("N", "n", rank=0), Column("B", "b", rank=0)))
    assert [line.rstrip() for line in click.unstyle(capsys.readouterr().out).splitlines()] == [
        "A                   N  B",
        "xxxxxxxxxxxxxx      5  word and word",
        "xxxxxx",
        "y               1,000  z",
    ]


def test_no_rows_are_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([], (Column("A", "a"),))
    assert capsys.readouterr().out == ""


def test_wide_letters_are_counted_by_their_width(terminal: Any, capsys: pytest.CaptureFixture[str]) -> None:
    terminal(40)
    print_table([{"a": "日本語" * 4, "b": "x"}], (Column("A", "a"), Column("B", "b", rank=0)))
    assert click.unstyle(capsys.readouterr().out).splitlines()[1].split() == ["日本語" * 4, "x"]


def test_a_narrow_terminal_shows_all_of_one_group(talk: Fabric, terminal: Any) -> None:
    talk("group", "create", GROUP, "orders.*")
    shown = talk("group", "show", GROUP, "-o", "table").stdout
    assert GROUP in shown
