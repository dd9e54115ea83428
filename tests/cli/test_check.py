"""`fabric check`: the judgement and its line, and the exit codes against a hub, a frozen hub and no hub."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import fabric_client
from fabric.cli.support.check_result import Figure, Result, judged, line_of
from fabric.cli.support.hub_process import HubProcess
from fabric.hub.hub import Hub, HubOptions
from fabric.journal.journal import Limits
from tests.cli.conftest import Fabric, wait_until
from tests.patience import PATIENCE_S

LINE = re.compile(r"FABRIC (OK|WARNING|CRITICAL|UNKNOWN) - [^|\n]+( \| ('[^']+'=[0-9.]+[sB]?;[0-9.]*;[0-9.]*;0 ?)+)?\n")
HEALTHY = {"health": "HEALTHY", "reasons": [], "measured": {"commit_p99_s": 0.004, "memory_bytes": 1000}}


@pytest.mark.parametrize(
    ("value", "result"), [(4, Result.OK), (5, Result.WARNING), (9, Result.WARNING), (10, Result.CRITICAL)]
)
def test_a_figure_is_judged_by_its_thresholds(value: int, result: Result) -> None:
    assert Figure("lag", value, "", 5, 10).result is result
    assert Figure("lag", value).result is Result.OK


def test_the_line_has_the_format_of_plugins() -> None:
    result, line = judged(HEALTHY, [Figure("oldest g", 12.5, "s", 300, None)], "1 group")
    assert result is Result.OK
    assert line == (
        "FABRIC OK - HEALTHY, 1 group, commits take 4.0 ms"
        " | 'commit'=0.004s;;;0 'memory'=1000B;;;0 'oldest g'=12.5s;300;;0"
    )
    result, line = judged(HEALTHY, [Figure("oldest g", 400, "s", 300, 3600)], "1 group")
    assert result is Result.WARNING
    assert line.startswith("FABRIC WARNING - HEALTHY, oldest g 6m40s (threshold 5m) |")
    assert line_of(Result.UNKNOWN, ["a | b\nc"]) == "FABRIC UNKNOWN - a / b c"
    assert "and 2 more" in line_of(Result.OK, map(str, range(10)))


def test_the_health_of_the_hub_counts() -> None:
    for health, result in (("DEGRADED", Result.WARNING), ("UNHEALTHY", Result.CRITICAL), ("?", Result.UNKNOWN)):
        answer = {"health": health, "reasons": [{"text": "the disk is slow"}], "measured": {}}
        found, line = judged(answer, [], "")
        assert found is result
        assert "the disk is slow" in line


def test_against_a_hub(talk: Fabric, hub: HubProcess) -> None:
    result = talk("check")
    assert result.exit_code == 0, result.output
    assert LINE.fullmatch(result.output), result.output
    with fabric_client.connect(hub.url) as fab:
        fab.admin.groups.create("g", "a")
        fab.publish("a", b"1")
        fab.publish("a", b"2")
    for options, code in (
        (["--warn-lag", "2"], 1), (["--warn-lag", "1", "--crit-lag", "2"], 2), (["--warn-lag", "3"], 0),
        (["--warn-oldest", "1ms"], 1), (["--crit-oldest", "1ms"], 2), (["--warn-oldest", "1h"], 0),
        (["--group", "g", "--crit-lag", "2"], 2), (["--group", "nothing"], 3), (["--warn-dead", "1"], 0),
    ):  # fmt: skip
        result = talk("check", *options)
        assert result.exit_code == code, (options, result.output)
        assert LINE.fullmatch(result.output), result.output
    with fabric_client.connect(hub.url) as fab:
        for message in fab.fetch(group="g", count=2, timeout=PATIENCE_S):
            message.ack()
    assert talk("check", "--crit-oldest", "1ms", "--crit-lag", "1").exit_code == 0


def test_a_hub_that_answers_is_alive_whatever_its_health(tmp_path: Path, fabric: Fabric) -> None:
    url = f"ipc://{tmp_path}/hub"
    with Hub(tmp_path / "journal", HubOptions(binds=[url], limits=Limits(quota_bytes=1))):
        wait_until(lambda: fabric("check", "--url", url).exit_code == 2)
        result = fabric("check", "--alive", "--url", url)
        assert result.exit_code == 0
        assert result.output.startswith("FABRIC CRITICAL - UNHEALTHY"), "a person sees how it is"
        assert LINE.fullmatch(result.output), result.output
    assert fabric("check", "--alive", "--url", url, "--timeout", "300ms").exit_code == 2


def test_wrong_usage_is_unknown(fabric: Fabric) -> None:
    assert fabric("check", "--warn-lag", "many").exit_code == 3
    assert fabric("check", "--no-such-option").exit_code == 3


def test_no_hub_is_critical(fabric: Fabric) -> None:
    result = fabric("check", "--url", "tcp://127.0.0.1:1", "--timeout", "300ms")
    assert result.exit_code == 2
    assert result.output.startswith("FABRIC CRITICAL - the hub at tcp://127.0.0.1:1 does not answer")


def test_a_frozen_hub_is_critical_and_the_command_ends_in_time(talk: Fabric, hub: HubProcess) -> None:
    assert talk("check").exit_code == 0
    os.kill(hub.pid, signal.SIGSTOP)
    try:
        begun = time.monotonic()
        result = talk("check", "--timeout", "500ms")
        assert result.exit_code == 2, result.output
        assert time.monotonic() - begun < PATIENCE_S
    finally:
        os.kill(hub.pid, signal.SIGCONT)
    wait_until(lambda: talk("check", "--timeout", "5s").exit_code in (0, 1))


def test_info_health_is_shown(talk: Fabric, hub: HubProcess) -> None:
    assert '"health": "HEALTHY"' in talk("info", "health").output
