"""--timeout bounds the whole command, with its connection and its end. The test checks how long each step may wait;
no clock is read."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from fabric.demo.run import Demo
from fabric_client.sync import caller_runs
from tests.cli.conftest import Fabric
from tests.patience import PATIENCE_S


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """How long `connect`, `flush` and `close` were allowed to wait, in order."""
    found: dict[str, list[Any]] = {"connect": [], "flush": [], "close": []}

    def spy(name: str, real: Any) -> Any:
        def call(*args: Any, timeout: Any = "default", **options: Any) -> Any:
            found[name].append(timeout if len(args) < 2 or name == "connect" else args[1])
            return real(*args, **options, **({} if timeout == "default" else {"timeout": timeout}))

        return call

    monkeypatch.setattr(fabric_client, "connect", spy("connect", fabric_client.connect))
    for name in ("flush", "close"):
        monkeypatch.setattr(fabric_client.Client, name, spy(name, getattr(fabric_client.Client, name)))
    return found


@pytest.mark.parametrize("arguments", [("pub", "a", "x"), ("pub", "a", "--lines"), ("request", "a", "x")])
def test_the_way_to_the_hub_is_a_part_of_it(
    fabric: Fabric, waits: dict[str, list[Any]], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    nowhere = f"ipc://{tmp_path}/none"
    result = fabric(*arguments, "--timeout", "100ms", "--connect-timeout", "9m", "--url", nowhere, stdin="1\n")
    assert result.exit_code == 3
    assert "no hub at" in result.stderr
    assert waits["connect"] == [0.1]


@pytest.mark.parametrize("failing", ["publish_nowait", "flush"])
def test_a_stream_that_has_waited_long_enough_does_not_wait_again(
    talk: Fabric, waits: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def too_late(*args: object, **options: object) -> None:
        raise fabric_client.Timeout("not confirmed in 2 s")

    monkeypatch.setattr(fabric_client.Client, failing, too_late)
    assert talk("pub", "a", "--lines", "--timeout", "2s", stdin="1\n").exit_code in (3, 8)
    assert waits["close"] == [0.0]


def test_a_request_that_has_waited_long_enough_does_not_wait_again(
    hub: HubProcess, talk: Fabric, waits: dict[str, list[Any]]
) -> None:
    with fabric_client.connect(hub.url) as other, other.serve("a"):
        result = talk("request", "a", "x", "--timeout", "300ms")
    assert result.exit_code == 3
    assert 0.0 in waits["close"]


def test_acks_are_waited_for_no_longer_than_messages(talk: Fabric, waits: dict[str, list[Any]]) -> None:
    talk("pub", "a", "x")
    waits["flush"].clear()
    assert talk("sub", "a", "--group", "g", "--timeout", "7s", "--count", "1").exit_code == 0
    assert waits["flush"][0] == 7.0
    waits["flush"].clear()
    assert talk("sub", "a", "--group", "g", "--timeout", "100ms").exit_code == 7
    assert waits["flush"][0] == 2.0


def test_a_hub_that_does_not_answer_is_a_reply_that_did_not_come(hub: HubProcess) -> None:
    with fabric_client.connect(hub.url) as fab:
        os.kill(hub.pid, signal.SIGSTOP)
        try:
            with pytest.raises(fabric_client.TimedOut, match=r"no reply within 0\.5 s"):
                fab.request("a", b"x", timeout=0.5)
            with pytest.raises(fabric_client.TimedOut, match=r"no reply within 0\.5 s"):
                next(fab.request("a", b"x", timeout=0.5, replies_max=3))
        finally:
            os.kill(hub.pid, signal.SIGCONT)


def test_an_interrupted_demo_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def show(figures: Any) -> None:
        looks.append(figures)
        if figures.confirmed:
            raise KeyboardInterrupt

    demo = Demo(seconds=PATIENCE_S, rate=500, kills=0, show=show, tell=lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        demo.run()
    assert looks
    for worker in (demo._producer, *demo._consumers):
        assert worker._client is not None
        assert worker._client._closed
        worker.join(PATIENCE_S)
        assert not worker.is_alive()


def test_a_program_waits_once_for_all_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends without close(), and the hub is gone."""
    now, allowed = [0.0], []

    def wait(settled: object, timeout: float) -> bool:
        allowed.append(timeout)
        now[0] += timeout
        return False

    publisher = SimpleNamespace(unconfirmed=1)
    one = SimpleNamespace(wait=wait, stop=lambda: None, session=SimpleNamespace(publisher=publisher, settled=False))
    monkeypatch.setattr(caller_runs, "_drivers", [one, one, one])
    monkeypatch.setattr(caller_runs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    caller_runs._at_exit()
    assert allowed == [caller_runs.EXIT_S, 0.0, 0.0]


ASKING = [("get", "a"), ("info",), ("group", "list"), ("group", "pause", "g"), ("topic", "list"), ("queue", "list"),
          ("dlq", "list"), ("schedule", "list"), ("session", "list"), ("setting", "list")]  # fmt: skip


@pytest.mark.parametrize("arguments", ASKING, ids=" ".join)
def test_commands_that_ask_have_a_timeout_for_the_hub_and_its_answers(
    fabric: Fabric, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    nowhere = f"ipc://{tmp_path}/none"
    result = fabric(*arguments, "--timeout", "100ms", "--connect-timeout", "9m", "--url", nowhere)
    assert result.exit_code == 3
    assert "no hub at" in result.stderr
    assert "for 0.1 s" in result.stderr
    assert fabric(*arguments, "--timeout", "0s", "--url", nowhere).exit_code == 2


def test_an_answer_that_does_not_come_in_time_has_its_exit_code(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabric.cli.support.connect.time", SimpleNamespace(monotonic=iter([0.0, 9.0, 9.0]).__next__))
    result = talk("group", "list", "--timeout", "5s")
    assert result.exit_code == 3
    assert "no answer to info" in result.stderr


def test_a_hub_that_is_gone_is_not_the_same_as_nothing_that_came(talk: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    assert talk("sub", "a", "--timeout", "10ms").exit_code == 7
    monkeypatch.setattr(fabric_client.Client, "connected", False)
    result = talk("sub", "a", "--timeout", "10ms")
    assert result.exit_code == 3
    assert "no message came, and the hub at tcp://" in result.stderr
