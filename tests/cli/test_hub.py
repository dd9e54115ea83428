"""`fabric hub` as a process: how it starts, ends and refuses."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fabric_client
from fabric.cli.support.hub_process import HubProcess
from fabric_protocol.errors import FabricError
from tests.cli.conftest import Fabric
from tests.patience import PATIENCE_S

Start = Callable[..., "subprocess.Popen[bytes]"]
EXIT_STORAGE = 70


def read_until(process: "subprocess.Popen[bytes]", word: str) -> str:
    """What it says on standard error, up to a word."""
    assert process.stderr is not None
    said = ""
    while word not in said:
        line = process.stderr.readline()
        assert line, f"it ended without saying {word!r}: {said}"
        said += line.decode()
    return said


@pytest.mark.parametrize(
    ("needed", "unneeded"),
    [
        (
            "fabric.cli, fabric.cli.commands.hub, fabric.hub",
            ("fabric_client", "fabric.snapshot", "fabric.bench", "rich", "asyncio", "bz2", "difflib"),
        ),
        (
            "fabric.journal.tools.verify",
            ("zmq", "fabric.router", "fabric.journal.reader", "fabric.event_block", "ctypes", "subprocess", "bz2"),
        ),
    ],
    ids=["the hub", "the check of its journal"],
)
def test_a_start_imports_only_what_it_needs(needed: str, unneeded: tuple[str, ...]) -> None:
    """What keeps it quick, without a clock in the test."""
    code = f"import sys, {needed}; print([name for name in {unneeded!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(start: Start, tmp_path: Path, number: int) -> None:
    process = start("hub", "--data", str(tmp_path / "journal"), "--bind", f"ipc://{tmp_path}/hub")
    said = read_until(process, "hub ready")
    assert f"zmq      ipc://{tmp_path}/hub" in said
    assert "ready. Ctrl-C to stop." in said
    process.send_signal(number)
    _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert b"hub stopped" in rest


def test_a_second_signal_does_not_wait_for_acks(start: Start, tmp_path: Path) -> None:
    url = f"ipc://{tmp_path}/hub"
    process = start("hub", "--data", str(tmp_path / "journal"), "--bind", url, "--drain", "1d")
    read_until(process, "hub ready")
    with fabric_client.connect(url) as fab:
        fab.publish("a", b"held")
        held = iter(fab.consume("a", group="g", start="first"))
        assert next(held).body == b"held"  # without a verdict, so a drain would wait for it
        process.send_signal(signal.SIGTERM)
        read_until(process, "draining outstanding=1")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        del held


def test_json_logs_are_json_from_the_first_line(start: Start, tmp_path: Path) -> None:
    options = ["--data", str(tmp_path / "journal"), "--bind", "tcp://127.0.0.1:*", "--log-format", "json"]
    process = start("hub", *options)
    said = read_until(process, "hub ready")
    events = [json.loads(line) for line in said.splitlines()]
    assert events[-1]["event"] == "hub ready"
    assert "*" not in events[-1]["binds"]


def test_one_journal_has_one_hub(hub: HubProcess, tmp_path: Path, fabric: Fabric) -> None:
    result = fabric("hub", "--data", str(tmp_path / "journal"), "--bind", f"ipc://{tmp_path}/second")
    assert result.exit_code == 1
    assert f"is in use by process {hub.pid}" in result.stderr
    assert "hint: stop the hub that uses it" in result.stderr


def test_a_taken_port_is_told(tmp_path: Path, fabric: Fabric) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = fabric("hub", "--data", str(tmp_path / "journal"), "--bind", f"tcp://127.0.0.1:{port}")
    assert result.exit_code == 1
    assert f"error: cannot listen at tcp://127.0.0.1:{port}" in result.stderr
    assert "hint: is another hub running there?" in result.stderr


def test_an_address_of_a_network_makes_keys_and_tells_the_next_step(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "j"
    process = start("hub", "--data", str(data), "--bind", "tcp://0.0.0.0:*")
    said = read_until(process, "hub ready")
    assert "(CURVE)" in said
    assert f"admin    ipc://{data}/hub.sock" in said
    assert f"access   {data}/access.toml: 0 principals" in said
    assert f"next     let a client join: fabric keys invite NAME --role client --data {data}\n" in said
    assert (data / "keys/hub.key").stat().st_mode & 0o777 == 0o600
    assert (data / "keys").stat().st_mode & 0o777 == 0o700
    assert (data / "hub.sock").stat().st_mode & 0o777 == 0o600
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert not (data / "hub.sock").exists()


def test_the_next_step_is_short_in_the_usual_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "fabric keys invite NAME --role client\n" in read_until(
        start("hub", "--bind", "tcp://0.0.0.0:*"), "hub ready"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_hub_runs_without_its_socket_where_there_can_be_none(start: Start, tmp_path: Path, host: str) -> None:
    (tmp_path / "j/hub.sock").mkdir(parents=True)  # as a file system without sockets
    said = read_until(start("hub", "--data", str(tmp_path / "j"), "--bind", f"tcp://{host}:*"), "hub ready")
    assert "no admin socket" in said
    assert "admin    ipc" not in said


def test_the_socket_is_the_one_that_was_given(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "j"
    said = read_until(start("hub", "--data", str(data), "--bind", f"ipc://{data}/../j/hub.sock"), "hub ready")
    assert "no admin socket" not in said
    assert (data / "hub.sock").is_socket()


def test_an_address_of_another_machine_is_refused(tmp_path: Path, fabric: Fabric) -> None:
    result = fabric("hub", "--data", str(tmp_path / "journal"), "--bind", "tcp://192.0.2.1:7171")
    assert result.exit_code == 1
    assert "error: cannot listen at tcp://192.0.2.1:7171" in result.stderr


def test_an_access_file_that_does_not_exist_is_refused(tmp_path: Path, fabric: Fabric) -> None:
    where = ["--data", str(tmp_path / "journal"), "--bind", "tcp://127.0.0.1:*"]
    result = fabric("hub", *where, "--access", str(tmp_path / "typo.toml"))
    assert result.exit_code == 1
    assert f"error: cannot read {tmp_path}/typo.toml" in result.stderr


def test_an_unknown_transport_is_refused(tmp_path: Path, fabric: Fabric) -> None:
    result = fabric("hub", "--data", str(tmp_path / "journal"), "--bind", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "error: --bind: cannot listen at http://" in result.stderr


@pytest.mark.parametrize("url", ["tcp://127.0.0.1", "tcp://127.0.0.1:", "tcp://127.0.0.1:99999", "tcp://127.0.0.1:x"])
def test_an_address_without_a_port_is_refused_before_a_journal_is_made(
    tmp_path: Path, fabric: Fabric, url: str
) -> None:
    result = fabric("hub", "--data", str(tmp_path / "journal"), "--bind", url)
    assert result.exit_code == 2
    assert f"error: --bind: cannot listen at {url}: it has no port" in result.stderr
    assert not (tmp_path / "journal").exists()


def test_a_journal_that_cannot_be_written_ends_it_with_70(start: Start, tmp_path: Path) -> None:
    """The limit on the file's size stands for a disk that fails."""
    url, data = f"ipc://{tmp_path}/hub", tmp_path / "journal"
    process = start("hub", "--data", str(data), "--bind", url)
    read_until(process, "hub ready")
    fab = fabric_client.connect(url)
    try:
        assert fab.publish("a", b"before").seq == 1
        size = (data / "data.mdb").stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
        with pytest.raises(FabricError):
            fab.publish("a", bytes(1 << 20), timeout=1.0)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == EXIT_STORAGE
        assert b"hub failed" in said
    finally:
        with pytest.raises(FabricError):
            fab.close(timeout=0.0)


def test_a_child_hub_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from fabric.cli.support.hub_process import HubProcess\n"
        f"hub = HubProcess(Path({str(tmp_path / 'journal')!r})).start()\n"
        "print(hub.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)  # it lives
    parent.kill()
    parent.communicate(timeout=PATIENCE_S)
    end = time.monotonic() + PATIENCE_S
    while _is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_child_hub_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FabricError, match="the hub did not start"):
        HubProcess(tmp_path / "file").start()


def test_a_child_hub_ends_in_good_order(hub: HubProcess) -> None:
    assert hub.stop() == 0
    assert hub.stop() == 0  # it does not run any more


def test_a_child_hub_is_measured_and_keeps_its_address(hub: HubProcess) -> None:
    before = hub.url
    assert hub.memory().own > 1 << 20
    assert hub.cpu_s() > 0
    hub.kill()
    hub.start()
    assert hub.url == before
    with fabric_client.connect(hub.url) as fab:
        assert fab.publish("a", b"x").seq == 1
