from collections.abc import Iterator
from pathlib import Path

import pytest

import fabric_client
from fabric.hub import Hub, HubOptions
from fabric_client import Client, spans
from tests.clients.model_hub import Served
from tests.clients.real_hub import HubProcess
from tests.clients.tracing import BIND, Asyncio, Blocking, Face, Traces


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


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    """Every span of the client is sampled, and kept in memory."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    monkeypatch.setattr(spans, "tracer", provider.get_tracer("fabric_client"))
    monkeypatch.setattr(spans, "live", True)
    monkeypatch.setattr(spans, "quiet", None)
    return Traces(provider, memory)


@pytest.fixture
def traced_hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "data", HubOptions(binds=[BIND])) as hub:
        yield hub


@pytest.fixture(params=[Blocking, Asyncio])
def face(request: pytest.FixtureRequest, traced_hub: Hub) -> Iterator[Face]:
    """Each of the clients."""
    face: Face = request.param(traced_hub, name="tests")
    yield face
    face.close()
