"""The systemd unit: its settings are known to systemd, its command runs, and its limits fit those of the hub.

With FABRIC_SYSTEMD=1, as root, a systemd of its own runs the unit in namespaces, with all the hardening.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from fabric.cli import EXIT_DAMAGED, EXIT_USAGE, main
from fabric.hub.notify import EXTEND_S, STATUS_S, STOPPING_S
from fabric.hub.options import HubOptions
from tests.deploy.manager import Manager
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

FOLDER: Final = ROOT / "deploy/systemd"
UNIT: Final = FOLDER / "fabric-hub.service"
COMMAND: Final = "/opt/fabric/bin/fabric"
TRIAL: Final = "FABRIC_SYSTEMD"


def settings() -> dict[str, list[str]]:
    """The settings of the unit, each with its values."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def seconds(value: str) -> float:
    return 60 * float(value[:-3]) if value.endswith("min") else float(value)


def hub_options() -> list[str]:
    (line,) = settings()["ExecStart"]
    command, name, *options = shlex.split(line)
    assert (command, name) == (COMMAND, "hub")
    return options


def variables(path: Path) -> dict[str, str]:
    """The variables of an env file, also those that are commented out."""
    return dict(re.findall(r"^#?(FABRIC_\w+)=(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_its_options_are_options_of_the_hub() -> None:
    command = main.get_command(click.Context(main), "hub")
    assert command is not None
    assert command.make_context("hub", hub_options()).params["data"] == Path("/var/lib/fabric")


def test_the_variables_of_the_example_are_options_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    command = main.get_command(click.Context(main), "hub")
    assert command is not None
    known = {str(name): option.name for option in command.params for name in (option.envvar or ())}
    example = variables(FOLDER / "hub.env")
    assert example
    assert set(example) <= set(known)
    for name, value in example.items():
        monkeypatch.setenv(name, value)
    context = command.make_context("hub", [])
    sources = [context.get_parameter_source(str(known[name])) for name in example]
    assert {source and source.name for source in sources} == {"ENVIRONMENT"}


def test_its_command_runs_and_is_ready(tmp_path: Path) -> None:
    options = [option.replace("/var/lib/fabric", str(tmp_path / "journal")) for option in hub_options()]
    data = Path(options[options.index("--data") + 1])
    with tempfile.TemporaryDirectory(prefix="fab") as short, Manager(f"{short}/notify") as manager:
        service = manager.start_hub(
            data, "--bind", f"ipc://{short}/hub", watchdog_s=seconds(*settings()["WatchdogSec"])
        )
        assert manager.receive()["READY"] == "1"
        service.send_signal(getattr(signal, settings()["KillSignal"][0]))
        assert service.wait(PATIENCE_S) == 0


def test_its_times_fit_those_of_the_hub() -> None:
    unit = settings()
    assert unit["Type"] == ["notify"]
    assert seconds(*unit["WatchdogSec"]) >= 3 * STATUS_S, "two lost signs do not end a hub"
    assert seconds(*unit["TimeoutStopSec"]) > HubOptions().drain_s + EXTEND_S > STOPPING_S
    assert unit["Restart"] == ["always"]
    assert unit["RestartPreventExitStatus"] == [f"{EXIT_USAGE} {EXIT_DAMAGED}"]
    assert unit["StateDirectory"] == ["fabric"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_systemd_knows_all_settings(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text(encoding="utf-8").replace(COMMAND, sys.executable), encoding="utf-8")
    run = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    about_it = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (about_it, done.returncode) == ([], 0), done.stderr
    unit.write_text(unit.read_text(encoding="utf-8").replace("WatchdogSec", "WatchDogs"), encoding="utf-8")
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "WatchDogs" in done.stderr, "a wrong name is noticed"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze on this machine")
def test_it_is_exposed_little(tmp_path: Path) -> None:
    run = ["systemd-analyze", "security", "--offline=yes", "--json=short", "--threshold=20", str(UNIT)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze of this machine cannot read a file")
    assert done.returncode == 0, [row for row in json.loads(done.stdout) if row.get("exposure")]


# A systemd in namespaces of its own.

TARGETS: Final = ("sysinit", "basic", "shutdown", "network-online", "umount", "final", "local-fs-pre", "local-fs")
DROP_IN: Final = """\
[Service]
User=nobody
Group=nogroup
WatchdogSec=2
ExecStart=
ExecStart=/usr/bin/python3 -m fabric {options}
Environment=PYTHONPATH={paths} PYTHONDONTWRITEBYTECODE=1
Environment=FABRIC_HUB_BIND=tcp://0.0.0.0:7171
StandardError=file:{folder}/hub.log
"""
NAMESPACES: Final = """\
mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs tmpfs /run && mount --bind {folder}/lib /var/lib || exit 1
export container=trial SYSTEMD_UNIT_PATH={folder}/units
export SYSTEMD_GENERATOR_PATH=/nonexistent SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/nonexistent
exec /lib/systemd/systemd --system --unit=default.target --show-status=0
"""
Systemctl = Callable[..., str]


@pytest.fixture
def systemctl() -> Iterator[Systemctl]:
    """Runs systemctl of a systemd that has the unit alone. It ends with all its processes."""
    if os.environ.get(TRIAL) != "1" or os.geteuid() or not Path("/lib/systemd/systemd").exists():
        pytest.skip(f"{TRIAL}=1, as root on a machine with systemd, runs the unit in namespaces")
    with tempfile.TemporaryDirectory(prefix="fab", dir="/opt") as name:  # PrivateTmp hides /tmp
        folder = Path(name)
        folder.chmod(0o755)
        _make_units(folder)
        flags = ["-C", "-m", "-n", "-p", "-f", "-i", "-u", "--kill-child", "--propagation", "private", "--mount-proc"]
        process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", NAMESPACES.format(folder=folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")

        def run(*arguments: str) -> str:
            child = children.read_text().split()
            if not child:
                return ""  # not there yet
            inside = ["nsenter", "-t", child[0], "-m", "-p", "-C", "-i", "-u"]
            command = [*inside, "systemctl", *arguments, "fabric-hub.service"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            return done.stdout.strip()

        try:
            yield run
        finally:
            with contextlib.suppress(OSError, IndexError):
                os.kill(int(children.read_text().split()[0]), signal.SIGKILL)  # PID 1 of its namespace: all end
            process.kill()
            process.wait(PATIENCE_S)


def _make_units(folder: Path) -> None:
    units = folder / "units"
    (units / f"{UNIT.name}.d").mkdir(parents=True)
    (folder / "lib").mkdir()
    for target in TARGETS:
        (units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (units / "default.target").write_text(f"[Unit]\nDefaultDependencies=no\nWants={UNIT.name}\n")
    shutil.copy(UNIT, units)
    paths = os.pathsep.join(path for path in sys.path if (path and Path(path, "zmq").exists()) or path in _sources())
    options = shlex.join(["hub", *hub_options()])
    (units / f"{UNIT.name}.d" / "trial.conf").write_text(DROP_IN.format(options=options, paths=paths, folder=folder))


def _sources() -> tuple[str, ...]:
    return str(ROOT), str(ROOT / "clients/python")


def shown(systemctl: Systemctl, wanted: dict[str, str]) -> None:
    """Wait until the unit has these properties."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = {name: systemctl("show", "--value", "-p", name) for name in wanted}
        if found == wanted:
            return
        assert time.monotonic() < end, found
        time.sleep(0.1)


def test_a_systemd_runs_it_watches_it_and_stops_it(systemctl: Systemctl) -> None:
    shown(systemctl, {"SubState": "running", "StatusText": "HEALTHY, last seq 0", "NRestarts": "0"})
    systemctl("kill", "--signal=SIGSTOP")
    shown(systemctl, {"NRestarts": "1", "SubState": "running", "StatusText": "HEALTHY, last seq 0"})
    systemctl("stop")
    shown(systemctl, {"SubState": "dead", "Result": "success", "ExecMainStatus": "0"})
