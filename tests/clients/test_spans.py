"""The headers of a trace pass through everything, and spans are made if OpenTelemetry is installed."""

import importlib.util
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fabric_client
from fabric.hub.hub import Hub, HubOptions
from fabric_client import spans
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


@pytest.mark.skipif(importlib.util.find_spec("opentelemetry") is None, reason="opentelemetry-sdk is not installed")
def test_a_handler_has_a_span_that_is_linked_to_the_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter").InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    monkeypatch.setattr(spans, "tracer", provider.get_tracer("test"))
    with Hub(tmp_path, HubOptions(binds=[BIND])) as hub, fabric_client.connect(BIND, context=hub.context) as fab:
        seq = fab.publish("orders.new", b"12345", headers={"mine": "1"}).seq
        seen: list[dict[str, Any]] = []
        fab.work("orders.#", group="g", start="first", handler=lambda message: seen.append(message.headers), count=1)
    sent, handled = memory.get_finished_spans()
    assert (sent.name, sent.kind.name) == ("publish orders.new", "PRODUCER")
    assert (handled.name, handled.kind.name) == ("process orders.new", "CONSUMER")
    assert seen[0]["mine"] == "1"
    assert f"{sent.context.trace_id:032x}-{sent.context.span_id:016x}" in seen[0]["traceparent"]
    assert handled.parent is None
    assert [link.context.span_id for link in handled.links] == [sent.context.span_id]
    found = dict(handled.attributes)
    assert found["messaging.message.id"] == str(seq)
    assert found["messaging.destination.name"] == "orders.new"
    assert found["messaging.consumer.group.name"] == "g"
    assert found["messaging.message.body.size"] == 5


def test_without_the_library_a_handler_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "tracer", None)
    assert spans.handling(print) is print
