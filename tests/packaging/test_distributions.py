"""The two distributions, built as wheels and installed into empty environments."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import fabric
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.xdist_group("distributions")  # the wheels are built once
# Publishes, consumes and acks one message, with a hub whose journal is in the folder given.
SMOKE = """
import sys
import fabric_client
from fabric.hub import Hub, HubOptions

with Hub(sys.argv[1], HubOptions(binds=["inproc://hub"])) as hub:
    with fabric_client.connect("inproc://hub", context=hub.context) as fab:
        fab.publish("a", "hello")
        (message,) = fab.fetch("a", group="g", timeout=60)
        message.settle()
        print(message.data)
"""
CLIENT_ALONE = """
import importlib.util
import fabric_client

print([name for name in ("fabric", "lmdb", "click", "rich") if importlib.util.find_spec(name)])
print(fabric_client.connect.__module__)
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both wheels by the name of their distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT / "clients/python", ROOT)
    found = {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}
    assert set(found) == {"fabricmq", "fabricmq_client"}
    return found


def run(*command: object, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_TARGET"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment_with(folder: Path, wheels: Sequence[Path]) -> Path:
    """The Python of a new environment that has these wheels and what they need."""
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin/python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", *wheels)
    return python


def packages_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" not in name}


def test_each_package_is_in_one_wheel(wheels: dict[str, Path]) -> None:
    assert packages_in(wheels["fabricmq_client"]) == {"fabric_client", "fabric_protocol"}
    assert packages_in(wheels["fabricmq"]) == {"fabric", "fabric_spark"}


def test_the_hub_asks_for_the_client_of_its_own_version() -> None:
    (version,) = re.findall(r'"fabricmq-client==([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert version == fabric.__version__


def test_the_client_alone_needs_nothing_of_the_hub(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env", [wheels["fabricmq_client"]])
    assert run(python, "-c", CLIENT_ALONE, cwd=tmp_path).splitlines() == ["[]", "fabric_client.sync.client"]


def test_both_wheels_are_a_hub_and_a_client(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment_with(tmp_path / "env", list(wheels.values()))
    assert run(python, "-c", SMOKE, tmp_path / "journal", cwd=tmp_path) == "hello\n"
    assert run(python.with_name("fabric"), "--version", cwd=tmp_path) == f"fabric {fabric.__version__}\n"


def test_the_ssh_tool_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    """Its files lie among ours when both are installed into one environment."""
    package = tmp_path / "fabric"
    package.mkdir()
    (package / "__init__.py").write_text((ROOT / "fabric/__init__.py").read_text(encoding="utf-8"))
    (package / "connection.py").write_text("")
    paths = f"{tmp_path}{os.pathsep}{ROOT / 'clients/python'}"
    done = subprocess.run(
        [sys.executable, "-c", "import fabric"], env={"PYTHONPATH": paths}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert "installed over each other" in done.stderr.splitlines()[-1]
