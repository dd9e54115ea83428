"""`fabric topic` and `fabric queue` against a real hub."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Fabric


def told(talk: Fabric, *arguments: str) -> dict[str, Any]:
    result = talk(*arguments)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    assert document.pop("schema") == f"fabric.{arguments[0]}.{arguments[1]}.v1"
    return document


def test_every_setting_of_a_topic(talk: Fabric) -> None:
    settings = {
        "--max-age": ("7d", "max_age_ms", 604_800_000),
        "--max-messages": ("1000", "max_msgs", 1000),
        "--max-bytes": ("1MB", "max_bytes", 1_000_000),
        "--on-full": ("drop-old", "on_full", "drop_old"),
        "--keep": ("last-per-key", "keep", "last_per_key"),
        "--dedupe": ("slide", "dedupe", "slide"),
        "--dedupe-window": ("1d", "dedupe_ms", 86_400_000),
    }
    told(
        talk, "topic", "create", "t", *(text for option, (value, _, _) in settings.items() for text in (option, value))
    )
    shown = told(talk, "topic", "show", "t")
    assert {name: shown[name] for _, name, _ in settings.values()} == {n: v for _, n, v in settings.values()}
    assert [row["topic"] for row in told(talk, "topic", "list")["topics"]] == ["t"]
    told(talk, "topic", "update", "t", "--max-age", "1h")
    assert told(talk, "topic", "show", "t")["max_age_ms"] == 3_600_000
    assert "1h" in talk("topic", "show", "t", "-o", "table").stdout


def test_a_full_topic_refuses(talk: Fabric) -> None:
    talk("topic", "create", "t", "--max-messages", "1")
    assert talk("pub", "t", "x").exit_code == 0
    full = talk("pub", "t", "x")
    assert full.exit_code == 1
    assert "hint: consume or purge its messages, or raise its limits with 'fabric topic update'" in full.stderr


def test_a_topic_is_emptied_when_confirmed(talk: Fabric) -> None:
    talk("pub", "t", "--lines", stdin="1\n2\n")
    assert talk("topic", "purge", "t").exit_code == 6
    told(talk, "topic", "purge", "t", "--yes")
    assert talk("get", "t").exit_code == 7
    talk("pub", "t", "3")
    assert talk("get", "t", "-f", "%v").stdout == "3"


def test_a_topic_is_deleted_when_confirmed(talk: Fabric) -> None:
    talk("topic", "create", "t", "--max-messages", "5")
    talk("pub", "t", "1")
    assert talk("topic", "delete", "t").exit_code == 6
    told(talk, "topic", "delete", "t", "--yes")
    assert talk("get", "t").exit_code == 7
    assert told(talk, "topic", "list")["topics"] == []
    assert talk("topic", "list", "-o", "table").stdout == "there are no topics\n"


def test_a_topic_without_settings_is_deleted(talk: Fabric) -> None:
    talk("pub", "a", "x")
    assert talk("topic", "delete", "a", "--yes", "-o", "table").stdout == "topic a: deleted, all messages removed\n"
    assert talk("get", "a").exit_code == 7
    assert talk("topic", "delete", "a", "--yes").exit_code == 4


def test_a_part_of_a_topic_is_purged(talk: Fabric) -> None:
    talk("pub", "t", "--lines", stdin="1\n2\n3\n")
    shown = talk("topic", "purge", "t", "--up-to", "1", "--yes", "-o", "table").stdout
    assert shown == "topic t: all messages up to seq 1 removed\n"
    assert talk("get", "t", "--all", "-f", "%v\\n").stdout == "2\n3\n"
    told(talk, "topic", "purge", "t", "--before", "1h", "--yes")
    assert talk("get", "t", "--all", "-f", "%v\\n").stdout == "2\n3\n"
    told(talk, "topic", "purge", "t", "--before", "2999-01-01T00:00Z", "--yes")
    assert talk("get", "t").exit_code == 7
    both = talk("topic", "purge", "t", "--up-to", "1", "--before", "1h", "--yes")
    assert (both.exit_code, "give --up-to or --before, not both" in both.stderr) == (2, True)


def test_a_dry_run_tells_what_a_purge_would_remove(talk: Fabric) -> None:
    talk("pub", "t", "--lines", stdin="1\n22\n333\n")
    plan = told(talk, "topic", "purge", "t", "--up-to", "2", "--dry-run")
    assert (plan["removed"], plan["bytes"], plan["up_to"], plan["dry_run"]) == (2, 3, 2, True)
    text = talk("topic", "purge", "t", "--dry-run", "-o", "table").stdout
    assert text == "would remove 3 messages (6 B) of the topic t up to seq 3\n"
    assert told(talk, "topic", "show", "t")["msgs"] == 3
    assert talk("topic", "purge", "unknown", "--dry-run").exit_code == 4
    talk("queue", "create", "q")
    talk("pub", "q", "1")
    text = talk("queue", "purge", "q", "--dry-run", "-o", "table").stdout
    assert text == "would remove 1 message (1 B) of the queue q up to seq 4\n"


def test_other_settings_of_a_topic_are_a_conflict(talk: Fabric) -> None:
    talk("topic", "create", "t", "--max-messages", "5")
    result = talk("topic", "create", "t", "--max-messages", "6")
    assert result.exit_code == 6
    assert "max_msgs" in result.stderr


def test_topics_without_settings_are_listed_with_their_numbers(talk: Fabric) -> None:
    talk("pub", "plain", "--lines", stdin="1\n22\n")
    listed = told(talk, "topic", "list")
    (row,) = listed["topics"]
    assert (row["topic"], row["msgs"], row["bytes"], row["configured"]) == ("plain", 2, 3, False)
    assert (listed["others"], listed["counting"], listed["overflowed"]) == (["plain"], False, False)
    heads, values = talk("topic", "list", "-o", "table").stdout.splitlines()
    assert heads.split() == ["TOPIC", "MESSAGES", "BYTES", "LAST"]
    assert values.split()[:4] == ["plain", "2", "3", "B"]
    shown = told(talk, "topic", "show", "plain")
    assert (shown["configured"], shown["first_seq"], shown["last_seq"], shown["msgs"]) == (False, 1, 2, 2)


@pytest.mark.parametrize(
    ("verb", "more"),
    [("show", []), ("info", []), ("purge", ["--yes"]), ("delete", ["--yes"])],
)
def test_an_unknown_topic_is_not_found(talk: Fabric, verb: str, more: list[str]) -> None:
    result = talk("topic", verb, "nope", *more)
    assert result.exit_code == 4
    assert result.stderr.endswith("hint: 'fabric topic list' shows the existing names\n")


def test_a_queue_keeps_what_is_not_done(talk: Fabric) -> None:
    told(talk, "queue", "create", "jobs", "--attempts", "3", "--max-messages", "100")
    talk("pub", "jobs", "--lines", stdin="1\n2\n")
    assert talk("sub", "--group", "jobs", "--count", "1", "-f", "%v").stdout == "1"
    (row,) = told(talk, "queue", "list")["queues"]
    assert (row["queue"], row["max_msgs"], row["attempts_max"]) == ("jobs", 100, 3)
    assert talk("queue", "purge", "jobs").exit_code == 6
    told(talk, "queue", "purge", "jobs", "--yes")
    assert talk("sub", "--group", "jobs", "--timeout", "300ms").exit_code == 7
    told(talk, "queue", "delete", "jobs", "--yes")
    assert told(talk, "queue", "list")["queues"] == []
    assert talk("queue", "delete", "jobs", "--yes").exit_code == 4


def test_a_narrow_terminal_shows_the_first_columns(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    talk("topic", "create", "logs.of.the.whole.company", "--max-age", "10d", "--max-messages", "1000000", "--on-full",
         "drop_old", "--dedupe", "slide", "--max-bytes", "10GB")  # fmt: skip
    wide = talk("topic", "show", "logs.of.the.whole.company", "-o", "table").stdout
    assert "9.3 GiB" in wide
    lines = talk("topic", "list", "-o", "table").stdout.splitlines()
    assert lines[0].startswith("TOPIC")
    assert "DEDUPE" not in lines[0]
    assert lines[1].startswith("logs.of.the")
    assert max(map(len, lines)) <= 80
