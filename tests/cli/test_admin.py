"""Groups, dead letters, schedules and sessions by command, against a real hub."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import fabric_client
from fabric.cli.commands import dlq as cli_dlq
from fabric.cli.commands import group as cli_group
from fabric.cli.commands import queue as cli_queue
from fabric.cli.commands import schedule as cli_schedule
from fabric.cli.commands import session as cli_session
from fabric.cli.commands import topic as cli_topic
from fabric.cli.support.hub_process import HubProcess
from fabric.cli.support.tables import Column, readable
from tests.cli.conftest import Fabric, wait_until
from tests.patience import PATIENCE_S

IDLE = "300ms"


def told(talk: Fabric, *arguments: str) -> dict[str, Any]:
    """The answer of a command that succeeds; its schema bears its name."""
    result = talk(*arguments)
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    noun, verb = arguments[:2]
    assert document.pop("schema") in (f"fabric.{noun}.{verb}.v1", "fabric.dlq.groups.v1", f"fabric.info.{verb}.v1")
    return document


def fail(talk: Fabric, group: str, count: int, how: str = "reject") -> None:
    """Let messages of a group die, and wait until that is on disk."""

    def dead() -> int:
        return int(json.loads(talk("dlq", "list", group).stdout)["count"])

    before = dead()
    talk("sub", "--group", group, "--count", str(count), "--exec", "echo sorry >&2; exit 3", "--on-error", how)
    wait_until(lambda: dead() == before + count)


# Groups.


def test_a_group_is_made_before_anybody_consumes(talk: Fabric) -> None:
    made = told(talk, "group", "create", "g", "a.*", "b", "--attempts", "8", "--backoff-base", "2s", "--jitter", "25")
    assert made["created"]
    shown = told(talk, "group", "show", "g")["settings"]
    assert (shown["patterns"], shown["attempts_max"], shown["backoff_ms"], shown["jitter_pct"]) == (
        ["a.*", "b"], 8, 2000, 25,
    )  # fmt: skip
    assert not told(talk, "group", "create", "g", "a.*", "b", "--attempts", "8")["created"]
    other = talk("group", "create", "g", "a.*", "b", "--attempts", "9")
    assert other.exit_code == 6
    assert other.stderr.startswith("error: group 'g' exists with attempts_max 8, not 9\nhint: ")


def test_every_setting_of_a_group(talk: Fabric) -> None:
    settings = {
        "--lease": ("2m", "lease_ms", 120_000),
        "--lease-max": ("2h", "lease_max_ms", 7_200_000),
        "--attempts": ("0", "attempts_max", 0),
        "--backoff": ("linear", "backoff", "linear"),
        "--backoff-base": ("1s", "backoff_ms", 1_000),
        "--backoff-max": ("1m", "backoff_max_ms", 60_000),
        "--jitter": ("0", "jitter_pct", 0),
        "--order": ("key", "order", "key"),
        "--ack": ("explicit", "ack", "explicit"),
        "--on-expire": ("dead", "on_expire", "dead"),
        "--level": ("received", "level", "received"),
    }
    options = [text for option, (value, _, _) in settings.items() for text in (option, value)]
    assert talk("sub", "a", "--group", "g", *options, "--timeout", "10ms").exit_code == 7
    shown = told(talk, "group", "show", "g")["settings"]
    assert {name: shown[name] for _, name, _ in settings.values()} == {n: v for _, n, v in settings.values()}
    assert talk("group", "create", "g", "a", *options).exit_code == 0


def test_a_group_is_changed(talk: Fabric) -> None:
    talk("group", "create", "g", "a")
    told(talk, "group", "update", "g", "--attempts", "2", "--pattern", "b", "--pattern", "c.#")
    shown = told(talk, "group", "show", "g")["settings"]
    assert (shown["attempts_max"], shown["patterns"]) == (2, ["b", "c.#"])
    refused = talk("group", "update", "g", "--order", "strict")
    assert refused.exit_code == 2
    assert "order of a group cannot be changed" in refused.stderr


def test_groups_are_listed(talk: Fabric) -> None:
    assert told(talk, "group", "list") == {"groups": []}
    assert talk("group", "list", "-o", "table").stdout == "there are no groups\n"
    for name in ("b", "a"):
        talk("group", "create", name, "x.*")
    talk("pub", "x.y", "1")
    fail(talk, "a", 1)
    rows = told(talk, "group", "list")["groups"]
    assert [(row["group"], row["dead_letters"], row["state"]) for row in rows] == [
        ("a", 1, "no consumers"), ("b", 0, "no consumers"),
    ]  # fmt: skip
    table = talk("groups", "ls", "-o", "table").stdout.splitlines()
    assert table[0].split()[:2] == ["GROUP", "PATTERNS"]
    assert [line.split()[0] for line in table[1:]] == ["a", "b"]


def test_a_group_is_moved(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n3\n")
    talk("sub", "a", "--group", "g", "--count", "3")
    moved = told(talk, "group", "seek", "g", "seq:2", "--yes")
    assert (moved["cursor"], moved["before"], moved["again"], moved["skipped"]) == (2, 4, 2, 0)
    assert talk("sub", "--group", "g", "--count", "2", "-f", "%v").stdout == "23"
    text = talk("group", "seek", "g", "first", "-o", "table", "--yes").stdout
    assert text == "group g: next seq 1; before it was 4, up to 3 messages again\n"
    assert talk("sub", "--group", "g", "--count", "3", "-f", "%v").stdout == "123"


def test_a_group_is_not_moved_before_it_was_confirmed(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n3\n")
    talk("group", "create", "g", "a")
    asked = talk("group", "seek", "g", "new")
    assert asked.exit_code == 6
    assert asked.stderr == (
        "error: not done: move the group g from seq 1 to seq 4, up to 3 messages skipped\nhint: confirm with --yes\n"
    )
    would = talk("group", "seek", "g", "new", "--dry-run", "-o", "table")
    assert would.stdout == "would move the group g from seq 1 to seq 4, up to 3 messages skipped\n"
    assert told(talk, "group", "seek", "g", "new", "--dry-run")["dry_run"] is True
    assert told(talk, "group", "show", "g")["cursor"] == 1
    assert talk("group", "seek", "g", "first").exit_code == 0, "nothing comes again and nothing is skipped"


def test_the_latest_of_each_key(talk: Fabric) -> None:
    for key, price in (("x", "1"), ("y", "2"), ("x", "3")):
        talk("pub", "prices", price, "--key", key)
    found = talk("sub", "prices", "--group", "g", "--start", "last_per_key", "--count", "2", "-f", "%k%v ")
    assert found.stdout == "y2 x3 "
    assert talk("get", "prices", "--by-key", "-f", "%k%v ").stdout == "y2 x3 "


def test_a_group_is_held_and_goes_on(talk: Fabric) -> None:
    talk("group", "create", "g", "a")
    talk("pub", "a", "x")
    assert told(talk, "group", "pause", "g")["paused"]
    assert talk("sub", "--group", "g", "--timeout", IDLE).exit_code == 7
    assert told(talk, "group", "show", "g")["state"] == "paused"
    assert not told(talk, "group", "resume", "g")["paused"]
    assert talk("sub", "--group", "g", "--count", "1").exit_code == 0


def test_a_group_is_deleted_when_confirmed(talk: Fabric) -> None:
    talk("group", "create", "g", "a")
    asked = talk("group", "delete", "g")
    assert asked.exit_code == 6
    assert asked.stderr == "error: not done: delete the group g with 0 consumers, 0 ready\nhint: confirm with --yes\n"
    assert told(talk, "group", "delete", "g", "--yes")["deleted"]
    assert told(talk, "group", "list") == {"groups": []}


def test_a_terminal_is_asked(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    talk("group", "create", "g", "a")
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    no = talk("group", "delete", "g", "-o", "table", stdin="n\n")
    assert no.exit_code == 6
    assert no.stderr.endswith("\nerror: not done\n")
    assert "delete the group g with 0 consumers, 0 ready? [y/N]" in no.stderr
    assert "deleted" in talk("group", "rm", "g", "-o", "table", stdin="y\n").stdout


def test_a_group_is_settled_up_to_a_seq_after_a_question(talk: Fabric) -> None:
    told(talk, "group", "create", "g", "a")
    for n in range(4):
        talk("pub", "a", str(n))
    assert "--yes" in talk("group", "settle", "g", "--up-to", "3").stderr
    would = talk("group", "settle", "g", "--up-to", "3", "--dry-run", "-o", "table").stdout
    assert "would settle up to 3 messages of the group g up to seq 3" in would
    assert told(talk, "group", "settle", "g", "--up-to", "3", "--dry-run")["dry_run"] is True
    assert told(talk, "group", "show", "g")["floor"] == 0
    assert told(talk, "group", "settle", "g", "--up-to", "3", "--yes")["settled"] == 3
    assert told(talk, "group", "show", "g")["floor"] == 3
    assert talk("group", "settle", "g", "--up-to", "2").exit_code == 0, "nothing is left to settle"


def test_limits_of_a_group_are_set_shown_and_removed(talk: Fabric) -> None:
    told(talk, "group", "create", "g", "a", "--rate", "10/min", "--max-in-flight", "5", "--expires", "1h")
    shown = talk("group", "show", "g", "-o", "table").stdout
    assert "10 in 1m" in shown
    told(talk, "group", "update", "g", "--rate", "0", "--max-in-flight", "0", "--expires", "0")
    found = told(talk, "group", "show", "g")
    assert (found["rate"], found["max_in_flight"], found["expires_ms"]) == (0, 0, 0)
    assert "write 100/s" in talk("group", "update", "g", "--rate", "fast").stderr


@pytest.mark.parametrize("verb", ["show", "update", "delete", "seek", "pause", "resume", "refresh"])
def test_an_unknown_group_is_not_found(talk: Fabric, verb: str) -> None:
    more = {"seek": ["first"], "delete": ["--yes"], "update": ["--attempts", "3"]}.get(verb, [])
    result = talk("group", verb, "nope", *more)
    assert result.exit_code == 4
    assert result.stderr == "error: there is no group 'nope'\nhint: 'fabric group list' shows the existing names\n"
    assert result.stdout == ""


def test_a_refresh_is_waited_for(talk: Fabric, hub: HubProcess) -> None:
    talk("group", "create", "g", "a")
    late = talk("group", "refresh", "g", "--timeout", "1s", "--wait")
    assert late.exit_code == 7
    assert json.loads(late.stdout)["phase"] == "degraded"
    with fabric_client.connect(hub.url) as fab, fab.consume("a", group="g", timeout=PATIENCE_S) as consumer:
        begun = told(talk, "group", "refresh", "g")
        assert (begun["refresh"], begun["phase"]) == (2, "syncing")
        talk("pub", "a", "the last one")
        for message in consumer:
            message.ack()
            break
    assert told(talk, "group", "show", "g")["refresh"][0] == 2


# Dead letters.


@pytest.fixture
def letters(talk: Fabric) -> Fabric:
    """Three of them, of two topics: the seqs 4 to 6."""
    talk("group", "create", "g", "a", "b", "--attempts", "1")
    for topic, text in (("a", "1"), ("b", "2"), ("a", "3")):
        talk("pub", topic, text)
    fail(talk, "g", 1)
    fail(talk, "g", 2, "retry")
    return talk


@pytest.mark.parametrize("name", ["g", "g.DLQ", "$dlq.g"])
def test_dead_letters_are_listed(letters: Fabric, name: str) -> None:
    found = told(letters, "dlq", "list", name)
    assert (found["group"], found["count"], found["more"]) == ("g", 3, False)
    rows = found["letters"]
    assert [(row["seq"], row["topic"], row["origin_seq"], row["error"]) for row in rows] == [
        (4, "a", 1, "exit code 3: sorry"), (5, "b", 2, "exit code 3: sorry"), (6, "a", 3, "exit code 3: sorry"),
    ]  # fmt: skip
    assert all(row["time"].endswith("Z") for row in rows)


def test_dead_letters_are_counted_by_group(letters: Fabric) -> None:
    assert told(letters, "dlq", "list")["groups"] == [{"group": "g", "count": 3, "first_seq": 4}]
    assert told(letters, "dlq", "list", "g", "-n", "2")["more"]
    table = letters("dlq", "list", "g", "-n", "2", "-o", "table")
    assert "and more: 3 in all" in table.stderr


def test_dead_letters_are_chosen(letters: Fabric) -> None:
    def seqs(*options: str) -> list[int]:
        return [row["seq"] for row in told(letters, "dlq", "list", "g", *options)["letters"]]

    reasons = {row["seq"]: row["reason"] for row in told(letters, "dlq", "list", "g")["letters"]}
    assert seqs("--topic", "b") == [5]
    assert seqs("--topic", "#") == [4, 5, 6]
    assert seqs("--reason", reasons[4]) == [4]
    assert seqs("--before", "1h") == []
    assert seqs("--before", "2999-01-01T00:00Z", "--topic", "a") == [4, 6]


def test_a_dead_letter_is_read_whole(letters: Fabric) -> None:
    oldest = json.loads(letters("dlq", "peek", "g").stdout)
    assert (oldest["seq"], oldest["data"], oldest["headers"]["fabric-topic"]) == (4, "1", "a")
    assert letters("dlq", "peek", "g.DLQ", "5", "6", "-f", "%v").stdout == "23"
    assert (
        letters("dlq", "peek", "g", "-n", "2", "-o", "text").stdout.count("    fabric-error: exit code 3: sorry\n") == 2
    )
    missing = letters("dlq", "peek", "g", "4", "99", "-f", "%v")
    assert (missing.exit_code, missing.stdout) == (8, "1")
    assert missing.stderr.startswith("error: group g has no dead letter 99\nhint: ")


def test_dead_letters_go_to_their_group_once_more(letters: Fabric) -> None:
    assert told(letters, "dlq", "redrive", "g", "5") == {"group": "g", "redriven": 1, "skipped": 0}
    assert letters("dlq", "redrive", "g", "--all").exit_code == 6
    assert told(letters, "dlq", "redrive", "g", "--all", "--dry-run")["would_be_redriven"] == 2
    done = letters("dlq", "redrive", "g", "--topic", "a", "--max", "1", "--yes", "-o", "table")
    assert done.stdout == "redriven 1 dead letter of g\n"
    assert told(letters, "dlq", "redrive", "$dlq.g", "--all", "--yes")["redriven"] == 1
    again = letters("sub", "--group", "g", "--count", "3", "-f", "%t%v ")
    assert again.stdout == "b2 a1 a3 "
    assert told(letters, "dlq", "list", "g")["count"] == 0


def test_what_dies_again_meanwhile_is_not_redriven_for_ever(letters: Fabric) -> None:
    for _ in range(2):
        assert told(letters, "dlq", "redrive", "g", "--all", "--yes")["redriven"] == 3
        fail(letters, "g", 3)
    parked = told(letters, "dlq", "redrive", "g", "--all", "--yes")
    assert (parked["redriven"], parked["skipped"]) == (0, 3)


def test_dead_letters_are_let_go(letters: Fabric) -> None:
    assert told(letters, "dlq", "discard", "g", "4")["discarded"] == 1
    assert told(letters, "dlq", "discard", "g", "--before", "1h", "--yes")["discarded"] == 0
    assert told(letters, "dlq", "discard", "g", "--topic", "b", "--yes")["discarded"] == 1
    assert told(letters, "dlq", "discard", "g", "--all", "--yes")["discarded"] == 1
    assert letters("dlq", "list", "g", "-o", "table").stdout == "group g has no dead letters\n"


@pytest.mark.parametrize("verb", ["list", "peek", "redrive", "discard"])
def test_dead_letters_of_an_unknown_group_are_not_found(talk: Fabric, verb: str) -> None:
    result = talk("dlq", verb, "nope", *(["--all", "--yes"] if verb in ("redrive", "discard") else []))
    assert result.exit_code == 4
    assert result.stderr.startswith("error: there is no group 'nope'")


# Schedules.


def test_a_message_for_later(talk: Fabric) -> None:
    published = json.loads(talk("pub", "a", "x", "--delay", "1h").stdout)
    assert published.pop("due").endswith("Z")
    assert published == {"topic": "a", "schedule": 1, "bytes": 1}
    text = talk("pub", "a", "x", "--at", "2h", "-o", "text").stdout
    assert text.startswith("a schedule 2  1 B  due 20")
    assert "(in " in text
    rows = told(talk, "schedule", "list")
    assert [row["id"] for row in rows["schedules"]] == [1, 2]
    assert rows["count"] == 2
    assert talk("get", "a").exit_code == 7


def test_a_message_comes_when_it_is_due(talk: Fabric) -> None:
    talk("pub", "a", "x", "--delay", "50ms")
    assert talk("sub", "a", "--start", "first", "--count", "1", "-f", "%v").stdout == "x"


def test_what_repeats_has_a_name_and_is_cancelled(talk: Fabric) -> None:
    talk("pub", "a", "x", "--cron", "0 6 * * mon-fri", "--name", "daily", "--ttl", "1h")
    talk("pub", "a", "y", "--every", "90s", "--name", "7")
    found = {row["name"]: row for row in told(talk, "schedule", "list")["schedules"]}  # at 05:59 daily is due first
    assert found.keys() == {"7", "daily"}
    assert found["7"]["every_ms"] == 90_000
    assert (found["daily"]["cron"], found["daily"]["ttl_ms"]) == ("0 6 * * mon-fri", 3_600_000)
    assert "daily" in talk("schedule", "list", "-o", "table").stdout
    assert told(talk, "schedule", "cancel", "daily")["cancelled"]
    assert told(talk, "schedule", "cancel", "7", "--name")["cancelled"]
    gone = talk("schedule", "cancel", "daily")
    assert gone.exit_code == 4
    assert gone.stderr.endswith("hint: 'fabric schedule list' shows the ids and names of the schedules that wait\n")
    assert talk("schedule", "cancel", "99").exit_code == 4
    assert talk("schedule", "list", "-o", "table").stdout == "there are no schedules\n"


def test_a_bad_calendar_is_refused_in_words(talk: Fabric) -> None:
    for cron, says in (("0 25 * * *", "cron hour '25'"), ("* * *", "3 fields, not 5"), ("0 0 31 2 *", "such a day")):
        result = talk("pub", "a", "x", "--cron", cron)
        assert result.exit_code == 2
        assert says in result.stderr.splitlines()[0]
        assert ".refusals" not in result.stderr


# Sessions and INFO.


def test_sessions_are_listed_and_ended(talk: Fabric, hub: HubProcess) -> None:
    with fabric_client.connect(hub.url, name="worker-7") as fab:
        names = [row["client"] for row in told(talk, "session", "list")["sessions"]]
        assert "worker-7" in names
        assert talk("session", "kick", "worker-7").exit_code == 6
        assert told(talk, "session", "kick", "worker-7", "--yes")["kicked"] == 1
        assert fab.info()["last_seq"] == 0  # it comes back
    assert talk("session", "kick", "worker-7", "--yes").exit_code == 4


def test_a_source_is_deleted_when_it_is_not_connected(talk: Fabric, hub: HubProcess) -> None:
    name = "kafka:c1:orders:0"
    with fabric_client.connect(hub.url, source=name) as fab:
        fab.publish_numbered(41, "a", b"x")
        refused = talk("producer", "delete", name, "--yes")
        assert refused.exit_code == 6
        assert "publishes as 'kafka:c1:orders:0'" in refused.stderr
    assert talk("producer", "delete", name).exit_code == 6
    answer = told(talk, "producer", "delete", name, "--yes")
    assert answer == {"name": name, "deleted": True, "last_pseq": 41, "jumps": True}
    assert talk("producer", "delete", name, "--yes").exit_code == 4
    with fabric_client.connect(hub.url, source=name) as fab:
        assert fab.position == 0


def test_settings_of_the_hub(talk: Fabric) -> None:
    assert {"setting": "events", "value": False} in told(talk, "setting", "list")["settings"]
    assert talk("setting", "set", "events", "on", "-o", "table").stdout == "setting events: on\n"
    assert told(talk, "setting", "set", "advisories", "off") == {"events": True, "advisories": False}
    unknown = talk("setting", "set", "weather", "on")
    assert unknown.exit_code == 4
    assert unknown.stderr == "error: there is no setting 'weather'\nhint: there are events, advisories\n"
    assert talk("setting", "set", "events", "maybe").exit_code == 2


def test_lengths_are_not_times(talk: Fabric) -> None:
    talk("pub", "a", "x")
    assert type(told(talk, "info", "counters")["commit_us"]) is int


@pytest.mark.parametrize("what", ["hub", "counters", "settings", "groups", "topics", "sessions", "schedules", "dlq"])
def test_what_the_hub_knows(talk: Fabric, what: str) -> None:
    talk("group", "create", "g", "a")
    assert told(talk, "info", what)
    assert talk("info", what, "-o", "table").exit_code == 0


def test_the_hub_is_what_is_asked_about(talk: Fabric) -> None:
    talk("pub", "a", "x")
    assert json.loads(talk("info").stdout)["last_seq"] == 1
    assert json.loads(talk("info", "group", "nope").stdout or "{}") == {}
    for what in ("group", "topic", "dlq", "schedules"):
        result = talk("info", what, "nope")
        assert (result.exit_code, result.stdout) == (4, ""), what
        assert "hint: " in result.stderr
    assert json.loads(talk("info", "topic", "a").stdout)["configured"] is False


@pytest.mark.parametrize(
    ("columns", "arguments", "name"),
    [
        (cli_group.COLUMNS, ("group", "list"), "groups"),
        (cli_dlq.LETTERS, ("dlq", "list", "g"), "letters"),
        (cli_dlq.COLUMNS, ("dlq", "list"), "groups"),
        (cli_schedule.COLUMNS, ("schedule", "list"), "schedules"),
        (cli_session.COLUMNS, ("session", "list"), "sessions"),
        (cli_topic.COLUMNS, ("topic", "list"), "topics"),
        (cli_queue.COLUMNS, ("queue", "list"), "queues"),
    ],
)
def test_a_table_shows_nothing_that_json_has_not(
    letters: Fabric, columns: Sequence[Column], arguments: tuple[str, ...], name: str
) -> None:
    letters("pub", "a", "x", "--delay", "1h")
    letters("topic", "create", "t")
    letters("queue", "create", "q")
    row = json.loads(letters(*arguments).stdout)[name][0]
    assert set(readable({column.key: 0 for column in columns})) <= set(row)
    shown = letters(*arguments, "-o", "table").stdout
    assert all(column.title in shown for column in columns if column.usual is ...)


@pytest.mark.parametrize(
    "arguments",
    [
        ("group", "list"), ("topic", "list"), ("queue", "create", "q"), ("dlq", "list", "g"), ("schedule", "list"),
        ("get", "a"), ("request", "a", "x"), ("respond", "a", "--echo"), ("info",), ("sub", "a"), ("pub", "a", "x"),
    ],
)  # fmt: skip
def test_without_a_hub_there_is_a_clear_error(fabric: Fabric, arguments: tuple[str, ...]) -> None:
    result = fabric(*arguments, "--url", "tcp://127.0.0.1:9", "--connect-timeout", "50ms")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.splitlines()[0].startswith("error: no hub at tcp://127.0.0.1:9")
    assert "hint: start one with 'fabric hub'" in result.stderr
    assert "Traceback" not in result.stderr
    assert sys.exc_info() == (None, None, None)
