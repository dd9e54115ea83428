"""Spans of handlers, loops, fetches and requests, in both clients: kinds, parents, links, and what marks a failure."""

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from fabric.hub import Hub
from fabric_client import NoResponders, Reject, Release, RemoteError, Retry
from tests.clients.tracing import Asyncio, Face, Traces, is_child, linked, traceparent
from tests.patience import PATIENCE_S


def about(span: Any) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in span.attributes.items()}


def publish_nowait(n: int, fab: Any) -> None:
    fab.publish_nowait("a", b"%d" % n)


def ids(spans: list[Any]) -> list[int]:
    return [span.context.span_id for span in spans]


def test_a_handler_has_a_span_that_is_linked_to_the_publish(face: Face, traces: Traces) -> None:
    seq = face.do(lambda fab: fab.publish("orders.new", b"12345")).seq
    face.work(lambda message: None, "orders.#", group="g", count=1)
    sent, handled = traces.one("publish orders.new"), traces.one("process orders.new")
    assert (handled.kind.name, handled.parent, linked(handled)) == ("CONSUMER", None, ids([sent]))
    assert handled.status.status_code.name == "UNSET"
    assert about(handled) == {
        "system": "fabric", "operation.name": "process", "operation.type": "process",
        "destination.name": "orders.new", "consumer.group.name": "g",
        "message.id": str(seq), "message.body.size": 5, "fabric.message.attempt": 1,
    }  # fmt: skip


def test_a_message_without_a_trace_is_handled_in_a_span_without_links(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish_many("a", [b"1"]))
    face.work(lambda message: None, "a", group="g", count=1)
    (handled,) = traces.all()
    assert (handled.name, handled.links, handled.parent) == ("process a", (), None)


def test_what_a_handler_publishes_is_a_child_of_its_span_and_has_its_baggage(face: Face, traces: Traces) -> None:
    seen: list[Any] = []
    baggage = pytest.importorskip("opentelemetry.baggage")
    trace = pytest.importorskip("opentelemetry.trace")

    def handler(message: Any, ctx: Any) -> None:
        seen.append(trace.get_current_span().get_span_context().span_id)
        seen.append(baggage.get_baggage("user"))
        ctx.publish("b", b"2")

    face.do(lambda fab: fab.publish("a", b"1", headers={"baggage": "user=5"}))
    face.work(handler, "a", group="g", count=1)
    handled, sent = traces.one("process a"), traces.one("publish b")
    assert seen == [handled.context.span_id, "5"]
    assert is_child(sent, handled)
    (message,) = face.do(lambda fab: fab.get("b", seq=1))
    assert message.headers == {"traceparent": traceparent(sent), "baggage": "user=5"}


@pytest.mark.parametrize("error", [ValueError("no"), Retry(0, "later"), Reject("never")])
def test_an_exception_of_a_handler_marks_its_span(face: Face, traces: Traces, error: Exception) -> None:
    def handler(message: Any) -> None:
        raise error

    face.do(lambda fab: fab.publish("a", b"1"))
    face.work(handler, "a", group="g", count=1)
    handled = traces.one("process a")
    name = type(error).__name__
    assert (handled.status.status_code.name, handled.attributes["error.type"]) == ("ERROR", name)
    assert handled.status.description == f"{name}: {error}"
    assert handled.events[0].attributes["exception.type"].endswith(name)


def test_a_release_is_no_failure(face: Face, traces: Traces) -> None:
    def handler(message: Any) -> None:
        raise Release

    face.do(lambda fab: fab.publish("a", b"1"))
    face.work(handler, "a", group="g", count=1)
    assert traces.one("process a").status.status_code.name == "UNSET"


def test_each_attempt_is_linked_to_the_same_publish(face: Face, traces: Traces) -> None:
    def handler(message: Any) -> None:
        if message.attempt < 3:
            raise Retry(0)

    face.do(lambda fab: fab.publish("a", b"1"))
    face.work(handler, "a", group="g", count=3)
    handled = traces.named("process a")
    assert [about(span)["fabric.message.attempt"] for span in handled] == [1, 2, 3]
    assert [linked(span) for span in handled] == [ids(traces.named("publish a"))] * 3
    assert len({span.context.trace_id for span in handled}) == 3


class Charging:
    """A handler that is an object with an async `__call__`."""

    async def __call__(self, message: Any) -> None:
        await asyncio.sleep(0)
        raise ValueError("no")


async def plain(message: Any) -> None:
    await asyncio.sleep(0)
    raise ValueError("no")


@pytest.mark.parametrize("handler", [plain, Charging(), lambda message: plain(message)])
def test_the_span_of_a_coroutine_ends_with_it(handler: Callable[[Any], Any], traced_hub: Hub, traces: Traces) -> None:
    with contextlib.closing(Asyncio(traced_hub)) as face:
        face.do(lambda fab: fab.publish("a", b"1"))
        face.work(handler, "a", group="g", count=1)
    assert traces.one("process a").status.status_code.name == "ERROR"


def test_a_loop_makes_a_receive_span_for_each_message_with_a_trace(face: Face, traces: Traces) -> None:
    first = face.do(lambda fab: fab.publish("a", b"1")).seq
    face.do(lambda fab: fab.publish_many("a", [b"2"], headers={"mine": "no trace"}))
    face.do(lambda fab: fab.publish("a", b"3"))
    seen: list[int] = []
    face.loop(lambda message: seen.append(len(traces.named("receive a"))), "a", group="g", count=3)
    sent, received = traces.named("publish a"), traces.named("receive a")
    assert seen == [1, 1, 2]  # made when the program gets the message, and not before
    assert [linked(span) for span in received] == [[number] for number in ids(sent)]
    assert [(span.kind.name, span.parent) for span in received] == [("CLIENT", None)] * 2
    assert about(received[0]) == {
        "system": "fabric", "operation.name": "receive", "operation.type": "receive",
        "destination.name": "a", "consumer.group.name": "g",
        "message.id": str(first), "message.body.size": 1, "fabric.message.attempt": 1,
    }  # fmt: skip
    assert received[0].start_time <= received[0].end_time


def test_a_loop_in_a_sampled_span_makes_receive_spans_for_all_messages(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish_many("a", [b"1", b"2"]))
    with traces.span("mine"):
        face.loop(lambda message: None, "a", group="g", count=2)
    received = traces.named("receive a")
    assert len(received) == 2
    assert all(is_child(span, traces.one("mine")) and not span.links for span in received)


def test_the_program_makes_the_process_span_of_a_loop(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish("a", b"1"))

    def handle(message: Any) -> None:
        with message.span() as span, traces.span("inside"):
            span.set_attribute("mine", 1)

    face.loop(handle, "a", group="g", count=1)
    handled = traces.one("process a")
    assert (handled.kind.name, linked(handled)) == ("CONSUMER", ids(traces.named("publish a")))
    assert handled.attributes["mine"] == 1
    assert is_child(traces.one("inside"), handled)


def test_a_batch_has_one_span_with_a_link_to_each_message(face: Face, traces: Traces) -> None:
    with traces.span("mine"):
        for n in range(3):
            face.do(functools.partial(publish_nowait, n))
    face.do(lambda fab: fab.flush())
    counts: list[int] = []

    def handle(batch: Any) -> None:
        counts.append(len(batch))
        with batch.span():
            pass

    face.loop(handle, "a", batches=True, group="g", count=3)
    for name, kind in (("receive a", "CLIENT"), ("process a", "CONSUMER")):
        found = traces.named(name)
        assert [about(span)["batch.message_count"] for span in found] == counts
        assert [number for span in found for number in linked(span)] == ids(traces.named("publish a"))
        assert {span.kind.name for span in found} == {kind}
        assert all("messaging.message.id" in link.attributes for span in found for link in span.links)


def test_a_fetch_makes_one_receive_span(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish("a.1", b"1"))
    face.do(lambda fab: fab.publish("a.2", b"2"))
    fetched = face.do(lambda fab: fab.fetch("a.*", group="g", count=2, at_least=2, timeout=PATIENCE_S))
    span = traces.one("fetch")  # without a topic, because there are two
    assert (span.kind.name, linked(span)) == ("CLIENT", [ids(traces.named(f"publish a.{n}"))[0] for n in (1, 2)])
    assert about(span) == {
        "system": "fabric", "operation.name": "fetch", "operation.type": "receive",
        "consumer.group.name": "g", "batch.message_count": 2,
    }  # fmt: skip
    for message in fetched:
        message.ack()


def test_a_fetch_without_a_trace_makes_a_span_in_a_sampled_span_only(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish_many("a", [b"1"]))
    for message in face.do(lambda fab: fab.fetch("a", group="g", timeout=PATIENCE_S)):
        message.ack()
    face.do(lambda fab: fab.fetch("a", group="g", timeout=0.01))
    assert traces.all() == []
    with traces.span("mine"):
        assert face.do(lambda fab: fab.fetch("a", group="g", timeout=0.01)) == []
    assert about(traces.one("fetch"))["batch.message_count"] == 0
    assert is_child(traces.one("fetch"), traces.one("mine"))


def test_a_verdict_that_the_program_waits_for_has_a_span(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish("a", b"1"))
    (message,) = face.do(lambda fab: fab.fetch("a", group="g", timeout=PATIENCE_S))
    with traces.span("mine"):
        face.do(lambda fab: message.settle("touch"))
        face.do(lambda fab: message.settle())
    span = traces.one("ack a")
    assert (span.kind.name, about(span)["operation.type"], about(span)["message.id"]) == (
        "CLIENT", "settle", str(message.seq),
    )  # fmt: skip
    assert is_child(span, traces.one("mine"))
    assert linked(span) == ids(traces.named("publish a"))


def test_a_responder_has_a_span_that_is_a_child_of_the_request(face: Face, traces: Traces) -> None:
    headers = {"mine": "1"}
    seen: list[Any] = []

    def handler(request: Any) -> bytes:
        seen.append(request.headers)
        with traces.span("inside"):
            return b"yes"

    with traces.span("mine"):
        reply = face.ask(handler, lambda fab: fab.request("ask", b"?", headers=headers, timeout=PATIENCE_S))
    assert reply.body == b"yes"
    asked, answered = traces.one("request ask"), traces.one("respond ask")
    assert (asked.kind.name, answered.kind.name) == ("CLIENT", "SERVER")
    assert is_child(asked, traces.one("mine"))
    assert is_child(answered, asked)
    assert is_child(traces.one("inside"), answered)
    assert seen == [{"traceparent": traceparent(asked), "mine": "1"}]
    assert headers == {"mine": "1"}
    assert (about(asked)["operation.type"], about(answered)["operation.type"]) == ("send", "process")


def test_a_failed_request_marks_both_spans(face: Face, traces: Traces) -> None:
    def handler(request: Any) -> bytes:
        raise ValueError("no")

    with pytest.raises(RemoteError):
        face.ask(handler, lambda fab: fab.request("ask", b"?", timeout=PATIENCE_S))
    assert traces.one("request ask").attributes["error.type"] == "RemoteError"
    assert traces.one("respond ask").attributes["error.type"] == "ValueError"


def test_a_request_without_responders_marks_its_span(face: Face, traces: Traces) -> None:
    with pytest.raises(NoResponders):
        face.do(lambda fab: fab.request("ask", b"?", timeout=PATIENCE_S))
    assert traces.one("request ask").attributes["error.type"] == "NoResponders"


def test_a_request_with_many_replies_has_one_span_which_is_not_the_current_one(face: Face, traces: Traces) -> None:
    trace = pytest.importorskip("opentelemetry.trace")

    def handler(request: Any) -> Any:
        for n in range(3):
            yield b"%d" % n

    replies = face.ask(handler, lambda fab: fab.request("ask", b"?", replies_max=9, timeout=PATIENCE_S))
    assert [reply.body for reply in replies] == [b"0", b"1", b"2"]
    assert not trace.get_current_span().get_span_context().is_valid
    assert is_child(traces.one("respond ask"), traces.one("request ask"))


def test_the_span_of_a_request_ends_with_the_last_reply(face: Face, traces: Traces) -> None:
    """Also if the program keeps the iterator."""
    ended: list[int] = []

    def blocking(fab: Any) -> Any:
        replies = fab.request("ask", b"?", replies_max=9, timeout=PATIENCE_S)
        first = next(replies)
        ended.append(len(traces.named("request ask")))
        return first

    async def awaited(fab: Any) -> Any:
        replies = await fab.request("ask", b"?", replies_max=9, timeout=PATIENCE_S)
        first = await anext(replies)
        ended.append(len(traces.named("request ask")))
        return first

    face.ask(lambda request: b"yes", awaited if isinstance(face, Asyncio) else blocking)
    assert ended == [1]


def test_a_durable_request_is_a_message_like_others(face: Face, traces: Traces) -> None:
    with contextlib.suppress(Exception):  # nothing answers
        face.do(lambda fab: fab.request("jobs", b"?", durable=True, correlation="c-1", timeout=1.0))
    face.work(lambda message, ctx: ctx.reply(b"done"), "jobs", group="g", count=1)
    reply = face.do(lambda fab: fab.request("jobs", b"?", durable=True, correlation="c-1", timeout=PATIENCE_S))
    assert reply.body == b"done"
    first, again = traces.named("request jobs")
    assert (first.kind.name, about(first)["message.conversation_id"]) == ("PRODUCER", "c-1")
    assert (first.status.status_code.name, again.status.status_code.name) == ("ERROR", "UNSET")
    assert linked(traces.one("process jobs")) == ids([first])
    assert traces.one("publish inbox.tests").kind.name == "PRODUCER"


def test_nothing_breaks_if_the_exporter_raises(face: Face, traces: Traces, caplog: pytest.LogCaptureFixture) -> None:
    export = pytest.importorskip("opentelemetry.sdk.trace.export")

    class Broken(export.SpanExporter):  # type: ignore[misc, name-defined]
        def export(self, spans: Any) -> Any:
            raise OSError("the collector is gone")

    traces.provider.add_span_processor(export.SimpleSpanProcessor(Broken()))
    with traces.span("mine"):
        face.do(lambda fab: fab.publish("a", b"1"))
        face.do(lambda fab: fab.publish_nowait("a", b"2"))
        face.do(lambda fab: fab.publish_many("a", [b"3"]))
    face.do(lambda fab: fab.flush())
    assert face.work(lambda message, ctx: ctx.publish("b", b"4"), "a", group="g", count=3) == 3
    seen: list[bytes] = []
    face.loop(lambda message: seen.append(message.body), "b", group="h", count=3)
    assert seen == [b"4"] * 3
    assert face.ask(lambda request: b"yes", lambda fab: fab.request("ask", b"?", timeout=PATIENCE_S)).body == b"yes"
    end = time.monotonic() + PATIENCE_S
    while face.do(lambda fab: fab.info("group", "g"))["ready"]:
        assert time.monotonic() < end
    assert any("the collector is gone" in str(record.exc_info) for record in caplog.records)
