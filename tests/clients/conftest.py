from collections.abc import Iterator
from pathlib import Path

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client import Client
from tests.clients.model_hub import Served
from tests.clients.real_hub import HubProcess


@pytest.fixture
def served() -> Iterator[Served]:
    """A model hub behind a real socket."""
    served = Served()
    yield served
    served.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """A real hub in this process."""
    with Hub(tmp_path / "data", HubOptions(binds=["inproc://hub", "tcp://127.0.0.1:*"])) as hub:
        yield hub


@pytest.fixture
def fab(hub: Hub) -> Iterator[Client]:
    with fabric_client.connect("inproc://hub", context=hub.context, name="tests") as fab:
        yield fab


@pytest.fixture
def hub_process(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub that can be killed."""
    process = HubProcess(tmp_path)
    yield process
    process.kill()
