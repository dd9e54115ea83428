"""`fabric pub` and `fabric sub` against a real hub."""

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from tests.cli.conftest import Fabric, wait_until
from tests.patience import PATIENCE_S

IDLE = "300ms"


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_what_was_published_is_received(talk: Fabric) -> None:
    published = talk("pub", "orders.created", '{"id": 1}', "-H", "source:web", "--key", "c7")
    assert published.exit_code == 0
    told = {"topic": "orders.created", "seq": 1, "bytes": 9, "level": "journaled", "duplicate": False}
    assert json.loads(published.stdout) == told
    received = talk("sub", "orders.#", "--start", "first", "--count", "1")
    assert received.exit_code == 0
    (row,) = rows(received.stdout)
    assert row.pop("time").endswith("Z")
    assert row == {
        "seq": 1,
        "topic": "orders.created",
        "attempt": 1,
        "key": "c7",
        "headers": {"source": "web", "content-type": "application/json"},
        "data": {"id": 1},
    }


def test_only_json_is_marked_as_json(talk: Fabric) -> None:
    for data in ("[1", "plain", "42"):
        talk("pub", "a", data)
    talk("pub", "a", '{"x": 1}', "--no-json")
    talk("pub", "a", "42", "--json")
    found = rows(talk("sub", "a", "--start", "first", "--count", "5").stdout)
    assert [row["data"] for row in found] == ["[1", "plain", "42", '{"x": 1}', 42]


def test_pub_says_what_it_did(talk: Fabric) -> None:
    assert talk("pub", "a", "x", "-o", "seq").stdout == "1\n"
    assert talk("pub", "a", "x", "-o", "text").stdout.startswith("a #2  1 B  stored in ")
    assert talk("pub", "a", "x", "-o", "text", "--level", "received").stdout.startswith("a #3  1 B  received in ")


def test_an_id_is_stored_once(talk: Fabric) -> None:
    assert talk("pub", "a", "x", "--id", "one", "-o", "seq").stdout == "1\n"
    again = json.loads(talk("pub", "a", "other", "--id", "one").stdout)
    assert (again["seq"], again["duplicate"]) == (1, True)
    assert (
        talk("pub", "a", "x", "--id", "one", "-o", "text").stdout
        == "a #1  1 B  a duplicate: the id was stored before\n"
    )
    assert talk("get", "a", "--all", "-f", "%v").stdout == "x"


def test_urgent_messages_come_first(talk: Fabric) -> None:
    talk("group", "create", "g", "a")
    for priority in ("0", "4", "9"):
        talk("pub", "a", priority, "--priority", priority)
    assert talk("sub", "--group", "g", "--count", "3", "-f", "%v").stdout == "940"


def test_what_has_expired_does_not_come(talk: Fabric) -> None:
    talk("pub", "a", "soon gone", "--ttl", "1ms")
    talk("pub", "a", "stays", "--ttl", "1h")
    time.sleep(0.05)  # for the clock of the wall
    assert talk("sub", "a", "--start", "first", "--count", "1", "-f", "%v").stdout == "stays"


def test_standard_input_is_the_message(talk: Fabric) -> None:
    body = bytes(range(256))
    talk("pub", "a", stdin=body)
    talk("pub", "a", "-", stdin=b"two\nlines\n")
    first, second = rows(talk("sub", "a", "--start", "first", "--count", "2").stdout)
    assert base64.b64decode(first["base64"]) == body
    assert second["data"] == "two\nlines\n"


def test_each_line_is_a_message(talk: Fabric) -> None:
    lines = [f"line {n}" for n in range(5_000)] + ["", "last without newline"]
    result = talk("pub", "a", "--lines", stdin="\n".join(lines))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["published"] == len(lines)
    received = talk("sub", "a", "--start", "first", "--count", str(len(lines)), "-f", r"%v\n")
    assert received.stdout.splitlines() == lines


def test_no_lines_are_no_messages(talk: Fabric) -> None:
    result = talk("pub", "a", "--lines", stdin="")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["published"] == 0


def test_a_message_is_repeated(talk: Fabric) -> None:
    result = talk("pub", "a", "x", "--count", "100", "-o", "text")
    assert result.stdout.startswith("a  published 100 messages, 100 B")
    assert len(rows(talk("sub", "a", "--start", "first", "--count", "100").stdout)) == 100


def test_a_bad_topic_is_wrong_usage(talk: Fabric) -> None:
    result = talk("pub", "a..b", "x")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: topic 'a..b'")


def test_a_bad_pattern_is_wrong_usage(talk: Fabric) -> None:
    result = talk("sub", "a.**")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: pattern 'a.**'")


def test_a_group_takes_each_message_once(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n3\n4\n5\n")
    first = talk("sub", "a", "--group", "g", "--count", "2", "-f", r"%v\n")
    assert (first.exit_code, first.stdout) == (0, "1\n2\n")
    rest = talk("sub", "a", "--group", "g", "--timeout", IDLE, "-f", r"%v\n")
    assert (rest.exit_code, rest.stdout) == (0, "3\n4\n5\n")
    nothing = talk("sub", "a", "--group", "g", "--timeout", IDLE)
    assert (nothing.exit_code, nothing.stdout) == (7, "")


def test_without_an_ack_messages_go_back(talk: Fabric) -> None:
    talk("pub", "a", "x")
    looked = talk("sub", "a", "--group", "g", "--count", "1", "--no-ack", "-f", "%v %a")
    assert looked.stdout == "x 1"
    taken = talk("sub", "a", "--group", "g", "--count", "1", "-f", "%v")
    assert taken.stdout == "x"


def test_less_than_wanted_is_8(talk: Fabric) -> None:
    talk("pub", "a", "x")
    assert talk("sub", "a", "--start", "first", "--count", "2", "--timeout", IDLE).exit_code == 8


def test_other_settings_of_a_group_are_a_conflict(talk: Fabric) -> None:
    talk("pub", "a", "x")
    talk("sub", "a", "--group", "g", "--count", "1", "--attempts", "3")
    result = talk("sub", "a", "--group", "g", "--attempts", "4")
    assert result.exit_code == 6
    assert result.stderr.startswith("error: ")


def test_a_start_position_is_kept_to(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n3\n")
    for start, expected in (("seq:2", "23"), ("last", "3"), ("1h", "123"), ("1970-01-01T00:00Z", "123")):
        found = talk("sub", "a", "--start", start, "--timeout", IDLE, "-f", "%v")
        assert found.stdout == expected, start


def test_every_field_of_a_format(talk: Fabric) -> None:
    talk("pub", "a.b", "v", "-H", "h:1", "--key", "k")
    result = talk("sub", "a.*", "--group", "g", "--count", "1", "-f", r"%t|%s|%v|%k|%h|%a|%S|%g|%%|\t\\|\q")
    assert result.stdout == 'a.b|1|v|k|{"h": "1"}|1|1|g|%|\t\\|\\q'
    time_only = talk("sub", "a.*", "--start", "first", "--count", "1", "-f", "%T")
    assert time_only.stdout.endswith("Z")


def test_json_is_one_document(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n")
    several = talk("sub", "a", "--start", "first", "--timeout", IDLE, "-o", "json")
    assert [row["data"] for row in json.loads(several.stdout)] == ["1", "2"]
    none = talk("sub", "b", "--start", "first", "--timeout", IDLE, "-o", "json")
    assert none.exit_code == 7
    assert json.loads(none.stdout) == []


def test_text_cannot_move_the_cursor(talk: Fabric) -> None:
    talk("pub", "a", "\x1b[2J\nü\t.")
    talk("pub", "a", stdin=b"\xff\x00")
    result = talk("sub", "a", "--start", "first", "--count", "2", "-o", "text")
    assert result.stdout == "#1 a  \\x1b[2J\\nü\t.\n#2 a  b'\\xff\\x00'\n"


def test_ctrl_c_prints_a_summary_and_keeps_the_acks(
    hub: HubProcess, talk: Fabric, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n")
    with fabric_client.connect(hub.url) as fab:
        for runs, number in enumerate((signal.SIGINT, signal.SIGTERM), start=1):
            process = start("sub", "a", "--group", number.name, "-f", r"%v\n", "--url", hub.url)
            assert process.stdout is not None
            assert process.stdout.readline() == b"1\n"
            assert process.stdout.readline() == b"2\n"
            wait_until(lambda runs=runs: fab.info("counters").get("settled", 0) >= 2 * runs)  # type: ignore[misc]
            process.send_signal(number)
            _, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
            assert b"received 2 in " in said
            assert fab.fetch(group=number.name, count=5, timeout=0.1) == []


def test_a_reader_that_leaves_ends_the_stream(
    hub: HubProcess, talk: Fabric, start: Callable[..., "subprocess.Popen[bytes]"]
) -> None:
    talk("pub", "a", "x" * 1000, "--count", "5000")
    process = start("sub", "a", "--start", "first", "--url", hub.url)
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(PATIENCE_S) == 0


def test_a_message_that_comes_again_says_so(talk: Fabric) -> None:
    talk("pub", "a", "x")
    failed = talk("sub", "a", "--group", "g", "--backoff-base", "0", "--count", "1", "--exec", "exit 3")
    assert failed.exit_code == 8
    assert "#1 a attempt 1: exit code 3" in failed.stderr
    assert talk("sub", "--group", "g", "--count", "1", "-o", "text").stdout == "#1 a (attempt 2)  x\n"


def test_a_command_for_each_message(talk: Fabric) -> None:
    talk("pub", "a.b", "hello", "--key", "k", "-H", "h:1")
    script = 'cat; echo "|$FABRIC_TOPIC|$FABRIC_SEQ|$FABRIC_KEY|$FABRIC_ATTEMPT|$FABRIC_GROUP|$FABRIC_HEADERS"'
    done = talk("sub", "a.*", "--group", "g", "--exec", script, "--count", "1")
    assert (done.exit_code, done.stdout) == (0, 'hello|a.b|1|k|1|g|{"h": "1"}\n')
    assert talk("sub", "--group", "g", "--timeout", IDLE).exit_code == 7  # it was acked
    without = talk("sub", "a.*", "--start", "first", "--exec", "cat; exit 1", "--count", "1")
    assert without.exit_code == 8


@pytest.mark.parametrize("verdict", ["retry", "reject", "release", "ack"])
def test_what_becomes_of_a_message_whose_command_fails(talk: Fabric, verdict: str) -> None:
    talk("pub", "a", "x")
    talk("sub", "a", "--group", "g", "--exec", "echo why >&2; exit 3", "--on-error", verdict, "--count", "1")

    def outcome() -> tuple[list[str], int, int, bool]:
        letters = json.loads(talk("dlq", "list", "g").stdout)["letters"]
        group = json.loads(talk("group", "show", "g").stdout)
        return [letter["error"] for letter in letters], group["redelivering"], group["failed"], group["floor"] > 0

    expected = {
        "retry": ([], 1, 1, False),
        "reject": (["exit code 3: why"], 0, 0, True),
        "release": ([], 0, 0, False),
        "ack": ([], 0, 0, True),
    }
    wait_until(lambda: outcome() == expected[verdict])


def test_several_commands_at_once(talk: Fabric) -> None:
    talk("pub", "a", "--lines", stdin="1\n2\n3\n4\n")
    # Each waits until all four have begun.
    script = 'read n; touch "$0.$n"; while [ $(ls "$0".* | wc -l) -lt 4 ]; do sleep 0.02; done; echo $n'
    with tempfile.TemporaryDirectory() as folder:
        script = script.replace("$0", f"{folder}/x")
        done = talk("sub", "a", "--group", "g", "--exec", script, "--concurrency", "4", "--count", "4")
    assert sorted(done.stdout.split()) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_commands_end_with_us_and_nothing_is_counted(
    hub: HubProcess, talk: Fabric, start: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path, number: int
) -> None:
    talk("pub", "a", "x")
    begun = tmp_path / "begun"
    process = start("sub", "a", "--group", "g", "--exec", f"touch {begun}; sleep 100; true", "--url", hub.url)
    wait_until(begun.exists)
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert b"received 1 in " in said
    again = talk("sub", "--group", "g", "--count", "1", "-o", "text")
    assert again.stdout == "#1 a  x\n"
    assert json.loads(talk("group", "show", "g").stdout)["failed"] == 0


def test_a_group_is_joined_by_its_name(talk: Fabric) -> None:
    talk("group", "create", "g", "a.*")
    talk("pub", "a.b", "x")
    assert talk("sub", "--group", "g", "--count", "1", "-f", "%v").stdout == "x"
    unknown = talk("sub", "--group", "other", "--timeout", IDLE)
    assert unknown.exit_code == 2
    assert "hint: give PATTERNS for the new group other" in unknown.stderr


def test_headers_are_shown_on_demand(talk: Fabric) -> None:
    talk("pub", "a", "x", "-H", "colour:red")
    shown = talk("sub", "a", "--start", "first", "--count", "1", "-o", "text", "--headers")
    assert shown.stdout == "#1 a  x\n    colour: red\n"


def test_a_gap_is_told(talk: Fabric, hub: HubProcess) -> None:
    talk("group", "create", "g", "a")
    talk("pub", "a", "gone")
    talk("topic", "purge", "a", "--yes")
    talk("pub", "a", "stays")
    found = talk("sub", "--group", "g", "--count", "1", "-f", "%v")
    assert found.stdout == "stays"
    assert "warning: messages 1..1 are gone" in found.stderr


def test_nothing_there_is_said_to_people(talk: Fabric) -> None:
    talk("group", "create", "g", "a")
    for words, said in (
        (["get", "a", "-o", "text"], "there are no such messages\n"),
        (["sub", "a", "--timeout", "10ms", "-o", "text"], "no message came in 10 ms\n"),
        (["dlq", "peek", "g", "-o", "text"], "group g has no dead letters\n"),
    ):
        result = talk(*words)
        assert (result.exit_code, result.stdout, result.stderr) == (7, "", said)
        assert talk(*words[:-1], "ndjson").stderr == ""


PICTURE = bytes(range(256)) * 3  # with newlines and zeros, and without one at its end


def test_raw_adds_nothing_to_the_bytes(talk: Fabric, tmp_path: Path) -> None:
    talk("pub", "images.new", stdin=PICTURE)
    talk("pub", "images.new", stdin=PICTURE)
    assert talk("get", "images.new", "-n", "1", "-o", "raw").stdout_bytes == PICTURE
    assert talk("get", "images.new", "-o", "raw").stdout_bytes == PICTURE * 2
    assert talk("sub", "images.*", "--start", "first", "--count", "2", "-o", "raw").stdout_bytes == PICTURE * 2


def test_a_command_that_has_waited_long_enough_does_not_wait_again(
    talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    close = fabric_client.Client.close

    def spy(self: fabric_client.Client, timeout: float | None = 10.0) -> None:
        closed.append(timeout)
        close(self, timeout)

    def too_late(*args: object, **options: object) -> None:
        raise fabric_client.Timeout("not confirmed in 2 s")

    monkeypatch.setattr(fabric_client.Client, "close", spy)
    monkeypatch.setattr(fabric_client.Client, "publish", too_late)
    assert talk("pub", "a", "x", "--timeout", "2s").exit_code == 3
    assert closed == [0.0]


def publisher(hub: HubProcess) -> "subprocess.Popen[bytes]":
    """`fabric pub --lines`, with its standard input open."""
    command = [sys.executable, "-m", "fabric", "pub", "a", "--lines", "--url", hub.url]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def is_stored(hub: HubProcess, count: int) -> Callable[[], bool]:
    def look() -> bool:
        with fabric_client.connect(hub.url) as fab:
            return bool(fab.info("hub")["last_seq"] >= count)

    return look


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_publisher_says_what_is_stored(hub: HubProcess, number: int) -> None:
    process = publisher(hub)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n3\n")
    wait_until(is_stored(hub, 3))
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert said.decode().strip() == "interrupted: 3 of 3 messages stored"
    assert process.returncode == 130


def test_an_interrupted_publisher_says_what_is_not_confirmed(
    hub: HubProcess, talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1"
        wait_until(is_stored(hub, 1))
        os.kill(hub.pid, signal.SIGSTOP)
        yield b"2"
        yield b"3"
        raise KeyboardInterrupt

    monkeypatch.setattr("fabric.cli.commands.pub._lines", lines)
    try:
        result = talk("pub", "a", "--lines")
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    assert (
        "interrupted: 1 of 3 messages stored, 1 not confirmed: these may be stored or not, 1 never sent"
        in result.stderr
    )
    assert result.exit_code == 130


def test_a_publisher_that_gives_up_says_what_is_stored(
    hub: HubProcess, talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1"
        wait_until(is_stored(hub, 1))
        os.kill(hub.pid, signal.SIGSTOP)
        yield b"2"
        yield b"3"

    monkeypatch.setattr("fabric.cli.commands.pub._lines", lines)
    try:
        result = talk("pub", "a", "--lines", "--timeout", "500ms")
        alone = talk("pub", "a", "x", "--timeout", "500ms", "--connect-timeout", "1s")
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    assert "1 of 3 messages stored; 1 message sent and not confirmed, 1 message not sent: no answer" in result.stderr
    assert result.exit_code == 8
    assert alone.exit_code == 3


def test_a_stream_gives_up_when_the_hub_does_not_answer_any_more(
    hub: HubProcess, talk: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1"
        wait_until(is_stored(hub, 1))
        os.kill(hub.pid, signal.SIGSTOP)
        while True:
            yield b"more"

    monkeypatch.setattr("fabric.cli.commands.pub._lines", lines)
    monkeypatch.setattr("fabric.cli.commands.pub.UNCONFIRMED_MAX", 5_000)
    try:
        result = talk("pub", "a", "--lines", "--timeout", "300ms")
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    assert result.exit_code == 8
    assert "error: 1 of " in result.stderr
    assert "messages stored; no message was confirmed for 300 ms" in result.stderr
