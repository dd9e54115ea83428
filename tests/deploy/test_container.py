"""The image: its steps are done in an empty folder, its command runs, its health check and its stop signal work."""

import json
import re
import signal
import subprocess
import tempfile
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


def hub_of(image: Image, bind: str, **more: str) -> tuple["subprocess.Popen[str]", int]:
    """The image's command, and the port that it has found. With keys it has no principals yet."""
    environment = image.environment(FABRIC_HUB_BIND=bind, **more)
    service = subprocess.Popen(image.command, env=environment, stderr=subprocess.PIPE, text=True)
    assert service.stderr is not None
    for line in service.stderr:
        if (found := json.loads(line))["event"] == "hub ready":
            return service, int(re.findall(r"tcp://[^,]*:(\d+)", found["binds"])[0])
    raise AssertionError(f"the hub ended with {service.wait()}")


def test_the_image_runs_is_checked_and_stops(image: Image) -> None:
    service, port = hub_of(image, image.variables["FABRIC_HUB_BIND"].replace(":7171", ":*"))
    try:
        checked = image.run(*image.health)
        assert (checked.returncode, checked.stdout[:9]) == (0, "FABRIC OK"), checked.stdout + checked.stderr
        join_by_credentials(image, port)
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


def test_a_hub_without_keys_is_checked_in_the_same_way(image: Image) -> None:
    """As the neighbour of a program in one pod, which needs no network."""
    data = image.here("/var/lib/fabric/neighbour")
    service, _ = hub_of(image, "tcp://127.0.0.1:*", FABRIC_DATA=data)
    health = [word.replace("/fabric/hub.sock", "/fabric/neighbour/hub.sock") for word in image.health]
    try:
        checked = image.run(*health)
        assert (checked.returncode, checked.stdout[:9]) == (0, "FABRIC OK"), checked.stdout + checked.stderr
    finally:
        service.terminate()
        service.communicate(timeout=PATIENCE_S)
    assert image.run(*health).returncode


def join_by_credentials(image: Image, port: int) -> None:
    """As the workers of compose do: a file from the hub's container, named by FABRIC_CREDENTIALS."""
    file = image.here("/var/lib/fabric/billing.cred")
    owner = {"FABRIC_URL": f"ipc://{image.here('/var/lib/fabric/hub.sock')}"}
    make = ["fabric", "keys", "create", "billing", "--role", "client", "--address", f"127.0.0.1:{port}", "-o", file]
    done = image.run(*make, **owner)
    assert done.returncode == 0, done.stderr
    for command in (
        ["fabric", "pub", "orders.paid", "101"],
        ["fabric", "sub", "orders.*", "--group", "billing", "--start", "first", "--exec", "cat", "--count", "1"],
    ):
        done = image.run(*command, FABRIC_CREDENTIALS=file)
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "101"


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
