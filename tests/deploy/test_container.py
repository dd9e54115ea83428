"""The image: its steps are done in an empty folder, its command runs, its health check and its stop signal work."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.image import Image, ignored, instructions
from tests.patience import PATIENCE_S
from tests.test_house import ROOT

CONTAINERFILE: Final = ROOT / "deploy/container/Containerfile"
IGNORE: Final = ROOT / ".containerignore"
pytestmark = pytest.mark.xdist_group("image")  # it is built once


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    with tempfile.TemporaryDirectory(prefix="fab") as folder:  # short: the path of the hub's socket has 107 bytes
        image = Image(CONTAINERFILE, ROOT, Path(folder))
        image.build()
        yield image


def start(image: Image, binds: str) -> "subprocess.Popen[str]":
    environment = image.environment(FABRIC_HUB_BIND=binds)
    return subprocess.Popen(image.command, env=environment, stderr=subprocess.PIPE, text=True)


def run_hub(image: Image) -> "subprocess.Popen[str]":
    """The image's command with any free port; a hub that does not know keys gets loopback, and its socket."""
    network = image.variables["FABRIC_HUB_BIND"].replace(":7171", ":*")
    service = start(image, network)
    assert service.stderr is not None
    if "refusing to listen" in service.stderr.readline():
        service.communicate(timeout=PATIENCE_S)
        service = start(image, f"tcp://127.0.0.1:* ipc://{image.here('/var/lib/fabric/hub.sock')}")
    return service


def test_the_image_runs_is_checked_and_stops(image: Image) -> None:
    service = run_hub(image)
    try:
        end = time.monotonic() + PATIENCE_S
        while (checked := image.run(*image.health)).returncode:
            assert service.poll() is None
            assert time.monotonic() < end, checked.stdout + checked.stderr
        assert checked.stdout.startswith("FABRIC OK - HEALTHY")
        service.send_signal(getattr(signal, image.stop_signal))
        _, log = service.communicate(timeout=PATIENCE_S)
        assert service.returncode == 0
        assert '"event": "hub stopped"' in log
    finally:
        service.kill()
        service.wait(PATIENCE_S)
    assert image.run(*image.health).returncode, "no hub, not healthy"
    (volume,) = image.volumes
    assert Path(image.here(volume), "data.mdb").exists(), "the journal is in the volume"


def test_the_image_is_not_of_root_and_needs_no_engine_of_ours(image: Image) -> None:
    user, _, group = image.user.partition(":")
    assert int(user) > 0, "a number, so that Kubernetes can see that it is not root"
    assert int(group) > 0
    assert image.run("fabric", "--version").stdout.startswith("fabric ")
    assert image.run("python", "-c", "import fabric_client").returncode == 0


def test_only_what_is_needed_goes_to_the_build() -> None:
    assert not ignored("fabric/hub/hub.py", IGNORE)
    assert not ignored("clients/python/pyproject.toml", IGNORE)
    for path in (".git/config", ".venv/bin/python", "tests/pages.py", "fabric/__pycache__/a.pyc", "secrets/key.toml"):
        assert ignored(path, IGNORE), path
    assert (CONTAINERFILE.parent / "Containerfile.dockerignore").read_bytes() == IGNORE.read_bytes()


def test_all_stages_have_the_same_python() -> None:
    bases = {step.text.partition(" AS ")[0] for step in instructions(CONTAINERFILE) if step.name == "FROM"}
    assert len(bases) == 1
