"""Spans of OpenTelemetry, if `opentelemetry-api` is installed: PRODUCER for a publish, CONSUMER for a handler's run.

The context of the producer travels in the headers `traceparent`, `tracestate` and `baggage`. The span of a handler is
linked to it, and is no child of it: a message may be handled hours later, more than once, and by several groups.
Without the library the tracer is None, which is the only thing that a publish looks at.
"""

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fabric_protocol.columns import HeaderValue

SYSTEM: Final = "fabric"

try:  # by name, because the library is optional, for type checkers as well
    _trace: Any = importlib.import_module("opentelemetry.trace")
    _propagate: Any = importlib.import_module("opentelemetry.propagate")
    tracer: Any = _trace.get_tracer("fabric_client")
except ImportError:
    tracer = None


@contextlib.contextmanager
def publishing(topic: str, headers: Mapping[str, HeaderValue] | None) -> Iterator[Mapping[str, HeaderValue]]:
    """A PRODUCER span around a publish; gives the headers of the message, with the context of the span."""
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
    }
    kind = _trace.SpanKind.PRODUCER
    with tracer.start_as_current_span(f"publish {topic}", kind=kind, attributes=attributes):
        carried: dict[str, str] = {}
        _propagate.inject(carried)
        if headers is None or isinstance(headers, dict):
            yield {**carried, **(headers or {})}  # the headers of the caller count
        else:
            yield headers  # refused as without a span


def handling(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The handler with a CONSUMER span around each run, if the library is installed."""
    if tracer is None:
        return call
    if inspect.iscoroutinefunction(call):

        @functools.wraps(call)
        async def run_async(message: Any) -> Any:
            with _handled(message):
                return await call(message)

        return run_async

    @functools.wraps(call)
    def run(message: Any) -> Any:
        with _handled(message):
            return call(message)

    return run


def _handled(message: Any) -> Any:
    """The span of one run of a handler."""
    texts = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    sent = _trace.get_current_span(_propagate.extract(texts)).get_span_context() if "traceparent" in texts else None
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": message.topic,
        "messaging.consumer.group.name": message.group or "",
        "messaging.message.id": str(message.seq),
        "messaging.message.body.size": len(message.body),
        "fabric.attempt": message.attempt,
    }
    links = [_trace.Link(sent)] if sent is not None and sent.is_valid else []
    kind = _trace.SpanKind.CONSUMER
    return tracer.start_as_current_span(f"process {message.topic}", kind=kind, attributes=attributes, links=links)
