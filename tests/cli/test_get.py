"""`fabric get` against a real hub."""

import json

import pytest

from tests.cli.conftest import Fabric


@pytest.fixture
def stored(talk: Fabric) -> Fabric:
    for n in range(1, 13):
        talk("pub", "a.odd" if n % 2 else "a.even", str(n), "--key", f"k{n % 3}")
    return talk


def test_the_first_ten_unless_told(stored: Fabric) -> None:
    found = stored("get", "-o", "text")
    assert [line.split()[0] for line in found.stdout.splitlines()] == [f"#{n}" for n in range(1, 11)]
    assert found.stderr == "there are more: go on with --from 11, or --all\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--all"], "1 2 3 4 5 6 7 8 9 10 11 12 "),
        (["a.odd", "--all"], "1 3 5 7 9 11 "),
        (["a.*", "-n", "2"], "1 2 "),
        (["--from", "11"], "11 12 "),
        (["--from", "seq:12"], "12 "),
        (["a.even", "--from", "first", "-n", "1"], "2 "),
        (["--time", "1h", "-n", "1"], "1 "),
        (["a.odd", "--last", "-n", "2"], "9 11 "),
        (["--last", "-n", "1"], "12 "),
        (["a.odd", "--by-key"], "7 9 11 "),
    ],
)
def test_what_is_asked_for_is_read(stored: Fabric, arguments: list[str], expected: str) -> None:
    found = stored("get", *arguments, "-f", "%v ")
    assert (found.exit_code, found.stdout) == (0, expected)


def test_nothing_moves(stored: Fabric) -> None:
    for _ in range(2):
        assert stored("get", "-n", "1", "-f", "%v").stdout == "1"
    assert json.loads(stored("group", "list").stdout)["groups"] == []


def test_nothing_is_7(talk: Fabric) -> None:
    for output, expected in (("json", []), ("ndjson", None)):
        found = talk("get", "a", "-o", output)
        assert found.exit_code == 7
        assert found.stdout == "" if expected is None else json.loads(found.stdout) == expected


def test_json_is_one_document(stored: Fabric) -> None:
    rows = json.loads(stored("get", "--all", "--json").stdout)
    assert [row["seq"] for row in rows] == list(range(1, 13))
    assert rows[0]["key"] == "k1"


def test_a_bad_pattern_is_wrong_usage(talk: Fabric) -> None:
    result = talk("get", "a..b")
    assert result.exit_code == 2
    assert "a..b" in result.stderr.splitlines()[0]
