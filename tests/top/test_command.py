"""`fabric top` against a real hub: one view as text and as JSON, and a live view under a pseudo terminal."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fabric_client
from fabric.cli import main
from fabric.cli.support.hub_process import HubProcess
from tests.patience import PATIENCE_S
from tests.top.pseudo_terminal import PseudoTerminal

Open = Callable[..., PseudoTerminal]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubProcess]:
    for name in [name for name in os.environ if name.startswith("FABRIC_") and name != "FABRIC_SEED"]:
        monkeypatch.delenv(name)
    with HubProcess(tmp_path / "journal") as running:
        monkeypatch.setenv("FABRIC_URL", running.url)
        with fabric_client.connect(running.url) as fab:
            fab.admin.groups.create("billing", "orders.*")
            fab.admin.topics.create("prices", keep="last_per_key")
            fab.publish_many("orders.new", [{"id": i} for i in range(5)])
            fab.admin.groups.create("audit", "orders.*", start="new")
        yield running


@pytest.fixture
def terminal() -> Iterator[Open]:
    opened: list[PseudoTerminal] = []

    def run(*arguments: str, **options: int) -> PseudoTerminal:
        opened.append(PseudoTerminal("top", "--interval", "100ms", *arguments, **options))  # type: ignore[arg-type]
        return opened[-1]

    yield run
    for each in opened:
        each.close()


def top(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["top", "--interval", "100ms", *arguments], prog_name="fabric")


def test_one_view_as_json(hub: HubProcess) -> None:
    result = top("--once", "-o", "json", "--sort", "group")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["schema"], found["url"]) == ("fabric.top.v1", hub.url)
    assert [row["group"] for row in found["groups"]] == ["audit", "billing"]
    assert found["groups"][1]["ready"] == 5
    assert {row["topic"] for row in found["topics"]} >= {"orders.new", "prices"}
    assert "fabric-top" in [row["client"] for row in found["sessions"]]
    assert found["hub"]["last_seq"] == 5
    assert found["hub"]["in_per_s"] == 0.0


def test_one_view_as_text(hub: HubProcess) -> None:
    result = top("--once", "-o", "table", "--filter", "BILL")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.stdout
    head, *_, last = result.stdout.splitlines()
    assert head.startswith(f"fabric top  {hub.url}")
    assert last.split()[0] == "billing"
    assert "audit" not in result.stdout
    assert "prices" in top("--once", "-o", "table", "--page", "topics").stdout
    assert "fabric-top" in top("--once", "-o", "table", "--page", "sessions").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--sort", "speed"), "has no column 'speed'; --sort takes group, in_per_s"),
        (("--page", "topics", "--sort", "ready"), "has no column 'ready'"),
        (("--interval", "1ms"), "--interval must be 100ms or more"),
        (("--timeout", "0"), "--timeout must be more than 0"),
        (("--timeout", "100ms"), "--timeout must be longer than --interval"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], told: str) -> None:
    result = top("--once", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_no_hub(tmp_path: Path) -> None:
    result = top("--once", "--url", f"ipc://{tmp_path}/none", "--connect-timeout", "9m", "--timeout", "200ms")
    assert result.exit_code == 3
    assert "no hub at" in result.stderr


def test_a_hub_that_hangs_does_not_hold_one_view(hub: HubProcess) -> None:
    os.kill(hub.pid, signal.SIGSTOP)
    try:
        result = top("--once", "--timeout", "300ms", "--connect-timeout", "9m")
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    assert result.exit_code == 3


def test_a_pipe_gets_a_document_at_each_interval_until_it_is_interrupted(hub: HubProcess) -> None:
    command = [sys.executable, "-m", "fabric", "top", "--interval", "100ms"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(3):
            assert json.loads(process.stdout.readline())["schema"] == "fabric.top.v1"
        process.terminate()
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read().strip() == b""  # click ends the line of ^C


def test_keys(hub: HubProcess, terminal: Open) -> None:
    view = terminal()
    lines = view.has("billing")
    assert lines[5].split()[0] == "billing"  # more messages wait than in audit
    assert lines[-1].startswith("q quit")
    view.type("r")
    view.wait(lambda lines: lines[5].startswith("audit") and lines[6].startswith("billing"))
    view.type("r/bil")
    view.wait(lambda lines: "filter: bil_" in lines[3] and "audit" not in "".join(lines))
    view.type("\r\x1b[B\r")
    view.has("group billing")
    view.type("\x1b")
    view.has_not("group billing")
    view.type("\x1b")
    view.has("audit")
    view.type("?")
    view.has("this help")
    view.type("?2")
    view.has("prices")
    view.type("\t")
    view.has("fabric-top")
    view.type("p")
    view.has("PAUSED")
    with fabric_client.connect(hub.url, name="newcomer"):
        view.type("r")
        view.has("reversed by")
        view.has_not("newcomer")
        view.type(" ")
        view.has("newcomer")
    view.has_not("newcomer")  # its session has ended
    view.type("q")
    assert view.end() == 0


def test_the_window_changes_its_size(hub: HubProcess, terminal: Open) -> None:
    view = terminal(width=80, height=24)
    view.wait(lambda lines: "DRAIN" in lines[4] and "billing" in "".join(lines))
    view.resize(40, 10)
    view.wait(lambda lines: lines[2].split() == ["GROUP", "READY", "OLDEST", "DEAD"] and lines[9].startswith("q quit"))
    view.resize(120, 30)
    view.wait(lambda lines: "STATE" in lines[4] and lines[29].startswith("q quit"))
    view.type("q")
    assert view.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(hub: HubProcess, terminal: Open, number: int) -> None:
    view = terminal()
    view.has("billing")
    if number == signal.SIGINT:
        view.type("\x03")
    else:
        view.process.send_signal(number)
    assert view.end() == 130


def test_an_exception_leaves_the_terminal_as_it_was(
    hub: HubProcess, terminal: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import fabric.top.loop\ndef fail(self, link, now_s): raise OSError(5, 'the terminal is broken')\n"
        "fabric.top.loop.Top._draw = fail\n"
    )
    paths = [str(tmp_path), *sys.path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    view = terminal()
    assert view.end() == 1
    assert view.process.stderr is not None
    assert b"the terminal is broken" in view.process.stderr.read()


def test_the_shell_may_stop_the_view_and_continue_it(hub: HubProcess, terminal: Open) -> None:
    view = terminal()
    view.has("billing")
    view.process.send_signal(signal.SIGTSTP)
    _, status = os.waitpid(view.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    view.read()
    assert view.written.rstrip().endswith("\x1b[?1049l")
    view.process.send_signal(signal.SIGCONT)
    view.wait(lambda lines: lines[5].startswith("billing"))
    view.type("q")
    assert view.end() == 0


def test_without_a_keyboard_there_are_no_keys(hub: HubProcess, terminal: Open) -> None:
    view = terminal(keys=False)
    view.has("standard input is not a terminal")
    view.has("billing")
    view.process.terminate()
    assert view.end() == 130


def test_a_hub_that_dies_and_comes_back(hub: HubProcess, terminal: Open) -> None:
    view = terminal()
    view.has("billing")
    hub.kill()
    view.has("NO ANSWER")
    view.type("2")  # keys are obeyed meanwhile
    view.has("prices")
    hub.start()
    view.has_not("NO ANSWER")
    with fabric_client.connect(hub.url) as fab:
        fab.admin.topics.create("news")
    view.has("news")
    view.type("q")
    assert view.end() == 0
    assert view.process.stderr is not None
    assert view.process.stderr.read() == b""


def test_a_view_of_a_dead_hub_ends_at_once(hub: HubProcess, terminal: Open) -> None:
    view = terminal()
    view.has("billing")
    hub.kill()
    view.has("NO ANSWER")
    view.type("q")
    assert view.end() == 0


def test_a_hub_that_hangs_after_its_first_answer(hub: HubProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --timeout each answer has its own time; with it, the whole command."""

    async def hang(self: object, timeout_s: float) -> None:
        raise fabric_client.Timeout("no answer to info('hub')", "is it busy?")

    monkeypatch.setattr("fabric.top.source.Source.ask", hang)
    for arguments in ((), ("--timeout", "5s")):
        result = top("--once", *arguments)
        assert (result.exit_code, "no answer to info" in result.stderr) == (3, True), result.stderr
