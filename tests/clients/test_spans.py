"""The headers of a trace pass through everything, and spans are made if OpenTelemetry is installed."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric.hub.hub import Hub, HubOptions
from fabric_client import spans
from tests.clients.real_hub import HubProcess
from tests.patience import PATIENCE_S

BIND = "inproc://spans"
TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=b",
    "baggage": "user=5",
}


def carried(message: Any) -> dict[str, Any]:
    return {name: message.headers[name] for name in TRACE}


def test_the_headers_pass_through_deliveries_dead_letters_redrives_and_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "tracer", None)
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        fab.publish("a", b"1", headers=TRACE)
        with fab.consume("a", group="g", start="first", timeout=PATIENCE_S) as consumer:
            message = next(iter(consumer))
            assert carried(message) == TRACE
            message.reject("no")
            fab.flush()
            (letter,) = fab.get("$dlq.g", seq=1)
            assert carried(letter) == TRACE
            fab.admin.dead_letters("g").redrive()
            again = next(iter(consumer))
            assert carried(again) == TRACE
            assert again.headers["fabric-redriven"] == "1"
            again.ack()
        seen: list[dict[str, Any]] = []

        def reply(request: fabric_client.Request) -> bytes:
            seen.append(carried(request))
            return b"done"

        with fabric_client.connect(BIND, context=hub.context) as other:
            responder = threading.Thread(target=other.respond, args=("ask", reply), kwargs={"count": 1})
            responder.start()
            while not fab.info("services")["services"]:
                time.sleep(0.01)
            fab.request("ask", b"?", headers=TRACE, timeout=PATIENCE_S)
            responder.join()
        assert seen == [TRACE]


def test_without_the_library_nothing_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "tracer", None)
    monkeypatch.setattr(spans, "live", False)
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        fab.publish("a", b"1")
        fab.publish_many("a", [b"2"])
        fab.publish_nowait("a", b"3")
        for message in fab.consume("a", group="g", count=3, timeout=PATIENCE_S):
            with message, message.span() as span:
                assert span is None
                assert message.headers == {}


def calls_of_publishes(fab: fabric_client.Client, count: int) -> list[str]:
    """The names of the functions that run while messages take the fast path."""
    called: list[str] = []
    fab.publish_nowait("a", b"opens the fast path")
    while not fab._publisher.fast_path.topic:  # the block may have been sent at once
        fab.publish_nowait("a", b"opens the fast path")
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    for _ in range(count):
        fab.publish_nowait("a", b"x")
    sys.setprofile(None)
    return called


@pytest.mark.parametrize("library", [False, True])
def test_the_fast_path_calls_nothing_without_spans(
    library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither without the library, nor with it while the program has set no tracer provider."""
    monkeypatch.setattr(spans, "live", False)
    if not library:
        monkeypatch.setattr(spans, "tracer", None)
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        assert calls_of_publishes(fab, 20) == ["publish_nowait"] * 20


LATE = """
import sys
import fabric_client
from fabric_client import spans
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

with fabric_client.connect(sys.argv[1]) as fab:
    fab.publish_nowait("a", b"no provider")
    fab.flush()
    assert not spans.live
    trace.set_tracer_provider(TracerProvider())
    fab.publish_nowait("a", b"no span")
    fab.flush()
    assert spans.live
    with trace.get_tracer("test").start_as_current_span("mine"):
        fab.publish_nowait("a", b"in a span")
    fab.flush()
    print([bool(message.headers) for message in fab.get("a", seq=1, n=3)])
"""


def test_a_provider_that_is_set_after_connecting_counts(hub_process: HubProcess) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    done = subprocess.run(
        [sys.executable, "-c", LATE, hub_process.url], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (done.stdout, done.stderr) == ("[False, False, True]\n", "")
