"""`fabric request` and `fabric respond` against a real hub."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from tests.cli.conftest import Fabric, wait_until
from tests.patience import PATIENCE_S

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def ask(hub: HubProcess, talk: Fabric) -> Callable[..., Any]:
    """Sends a request, again while there is no responder yet."""

    def run(*arguments: str) -> Any:
        results: list[Any] = []

        def answered() -> bool:
            results.append(talk("request", *arguments))
            return bool(results[-1].exit_code != 4)

        wait_until(answered)
        return results[-1]

    return run


def test_a_command_answers(hub: HubProcess, start: Start, ask: Callable[..., Any]) -> None:
    process = start("respond", "text.*", "--exec", "tr a-z A-Z", "--count", "2", "--url", hub.url)
    assert ask("text.upper", "hello").stdout == "HELLO\n"
    row = json.loads(ask("text.upper", '{"a": 1}', "--json").stdout)
    assert (row["topic"], row["data"], row["final"]) == ("text.upper", '{"A": 1}', True)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said.startswith(b"text.upper  5 B -> 5 B  ")


def test_a_command_that_fails_fails_the_request(hub: HubProcess, start: Start, ask: Callable[..., Any]) -> None:
    start("respond", "a", "--exec", "echo no such item >&2; exit 4", "--url", hub.url)
    result = ask("a", "x")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: exit code 4: no such item\nhint: ")


def test_an_echo_and_a_text(hub: HubProcess, start: Start, ask: Callable[..., Any]) -> None:
    start("respond", "echo", "--echo", "--quiet", "--url", hub.url)
    start("respond", "fixed", "--reply", "always this", "--url", hub.url)
    assert ask("echo", "hello").stdout == "hello\n"
    assert ask("fixed", "whatever").stdout == "always this\n"


def test_a_request_without_a_responder(talk: Fabric) -> None:
    result = talk("request", "a", "x")
    assert result.exit_code == 4
    assert (
        result.stderr
        == "error: no responder answers requests to topic 'a'\nhint: start a responder with 'fabric respond'\n"
    )


def test_no_answer_in_time(hub: HubProcess, talk: Fabric) -> None:
    with fabric_client.connect(hub.url) as fab, fab.serve("a"):
        result = talk("request", "a", "x", "--timeout", "100ms")
    assert result.exit_code == 3
    assert "hint: give a longer --timeout" in result.stderr


def test_responders_end_when_nothing_comes(talk: Fabric) -> None:
    assert talk("respond", "a", "--echo", "--timeout", "50ms").exit_code == 0
    assert talk("respond", "a", "--echo", "--timeout", "50ms", "--count", "1").exit_code == 8


def test_each_line_is_a_reply(hub: HubProcess, start: Start, ask: Callable[..., Any]) -> None:
    start("respond", "list", "--exec", "printf 'one\ntwo\nthree'", "--lines", "--url", hub.url)
    rows = [json.loads(line) for line in ask("list", "?", "--replies", "10", "--json").stdout.splitlines()]
    assert [row["data"] for row in rows] == ["one", "two", "three"]
    assert ask("list", "?", "--replies", "2").stdout == "one\ntwo\n"
