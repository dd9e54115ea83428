"""Spans of publishes, in both clients: kinds, parents, links, attributes, and the headers on the wire."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fabric.hub import Hub
from fabric_client import BadMessage, spans
from tests.clients.tracing import Asyncio, Blocking, Face, Traces, is_child, linked, traceparent
from tests.patience import PATIENCE_S

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def stored(face: Face, topic: str, count: int) -> list[dict[str, Any]]:
    """The headers of messages of a topic, as the hub has them."""
    face.do(lambda fab: fab.flush())
    found = [message.headers for message in face.do(lambda fab: fab.get(topic, seq=1, n=count + 1))]
    assert len(found) == count
    return found


def about(span: Any) -> dict[str, Any]:
    return {name.removeprefix("messaging."): value for name, value in span.attributes.items()}


def test_a_publish_is_a_child_of_the_current_span_and_the_message_carries_its_context(
    face: Face, traces: Traces
) -> None:
    headers = {"mine": "1"}
    with traces.span("mine"):
        seq = face.do(lambda fab: fab.publish("orders.new", b"12345", headers=headers)).seq
    sent = traces.one("publish orders.new")
    assert sent.kind.name == "PRODUCER"
    assert is_child(sent, traces.one("mine"))
    assert about(sent) == {
        "system": "fabric", "operation.name": "publish", "operation.type": "send",
        "destination.name": "orders.new", "message.id": str(seq),
    }  # fmt: skip
    assert headers == {"mine": "1"}
    assert stored(face, "orders.new", 1) == [{"traceparent": traceparent(sent), "mine": "1"}]


def test_a_publish_without_a_current_span_begins_a_trace(face: Face, traces: Traces) -> None:
    face.do(lambda fab: fab.publish("a", b"1"))
    assert traces.one("publish a").parent is None


def test_a_context_that_the_program_gives_is_left_as_it_is(face: Face, traces: Traces) -> None:
    """No part of another context is added, such as a tracestate."""
    headers = {"traceparent": GIVEN}
    with traces.span("mine"):
        face.do(lambda fab: fab.publish("a", b"1", headers=headers))
        face.do(lambda fab: fab.publish_nowait("a", b"2", headers=headers))
        face.do(lambda fab: fab.publish_many("a", [b"3"], headers=headers))
    assert stored(face, "a", 3) == [headers] * 3
    assert headers == {"traceparent": GIVEN}
    for span in traces.named("publish a"):
        assert span.kind.name == "CLIENT"  # only a span whose context is on the message is a PRODUCER
        assert linked(span) == [0xB7AD6B7169203331]


def test_tracestate_and_baggage_are_on_the_wire(face: Face, traces: Traces) -> None:
    propagate, context = pytest.importorskip("opentelemetry.propagate"), pytest.importorskip("opentelemetry.context")
    came = propagate.extract({"traceparent": GIVEN, "tracestate": "a=b", "baggage": "user=5"})
    token = context.attach(came)
    try:
        face.do(lambda fab: fab.publish("a", b"1"))
        face.do(lambda fab: fab.publish_nowait("a", b"2"))
    finally:
        context.detach(token)
    for headers in stored(face, "a", 2):
        assert headers["traceparent"].startswith(GIVEN[:36])
        assert (headers["tracestate"], headers["baggage"]) == ("a=b", "user=5")


def test_publish_nowait_makes_spans_in_a_sampled_span_only(face: Face, traces: Traces) -> None:
    for _ in range(3):
        face.do(lambda fab: fab.publish_nowait("a", b"plain"))
    with traces.span("mine"):
        face.do(lambda fab: fab.publish_nowait("a", b"x"))
        face.do(lambda fab: fab.publish_nowait("a", b"x", headers={"mine": "1"}))
    face.do(lambda fab: fab.publish_nowait("a", b"plain"))
    headers = stored(face, "a", 6)
    first, second = traces.named("publish a")
    assert [one.get("traceparent") for one in headers] == [
        None, None, None, traceparent(first), traceparent(second), None
    ]  # fmt: skip
    assert headers[4]["mine"] == "1"
    for span in (first, second):
        assert (span.kind.name, about(span)["operation.type"]) == ("PRODUCER", "create")
        assert is_child(span, traces.one("mine"))


def test_messages_in_a_span_and_outside_of_it_share_the_fast_path(traced_hub: Hub, traces: Traces) -> None:
    """The fast path of a message without a span is not taken by a message in a span, although they are alike."""
    with contextlib.closing(Asyncio(traced_hub)) as face:

        def mixed(fab: Any) -> None:
            for n in range(9):
                if n % 3 == 2:
                    with traces.span("mine"):
                        fab.publish_nowait("a", b"%d" % n)
                else:
                    fab.publish_nowait("a", b"%d" % n)

        face.do(mixed)
        assert [bool(headers) for headers in stored(face, "a", 9)] == [False, False, True] * 3


def test_the_fast_path_outside_of_spans_looks_at_the_context_only(face: Face, traces: Traces) -> None:
    called: list[str] = []

    def fast(fab: Any) -> None:
        while not fab._publisher.fast_path.topic:
            fab.publish_nowait("a", b"opens the fast path")
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        for _ in range(10):
            fab.publish_nowait("a", b"x")
        sys.setprofile(None)

    face.do(fast)
    assert called == ["publish_nowait", "get_current", "get_current"] * 10
    assert traces.all() == []


def test_publish_many_makes_one_span_for_all(face: Face, traces: Traces) -> None:
    headers = {"mine": "1"}
    face.do(lambda fab: fab.publish_many("a", [b"1", b"2"]))
    with traces.span("mine"):
        face.do(lambda fab: fab.publish_many("a", iter([b"3", "4", b"5"]), headers=headers))
    sent = traces.one("publish a")
    assert (sent.kind.name, about(sent)["operation.type"], about(sent)["batch.message_count"]) == (
        "PRODUCER",
        "send",
        3,
    )
    assert is_child(sent, traces.one("mine"))
    found = stored(face, "a", 5)
    assert found[:2] == [{}, {}]
    assert [one["traceparent"] for one in found[2:]] == [traceparent(sent)] * 3
    assert headers == {"mine": "1"}


@pytest.mark.parametrize("kind", [Blocking, Asyncio])
def test_a_numbered_source_makes_spans(kind: Callable[..., Face], traced_hub: Hub, traces: Traces) -> None:
    with contextlib.closing(kind(traced_hub, source="ledger")) as face:
        seq = face.do(lambda fab: fab.publish_numbered(5, "a", b"1", headers={"mine": "1"})).seq
        face.do(lambda fab: fab.publish_numbered_nowait(6, "a", b"2"))
        with traces.span("mine"):
            face.do(lambda fab: fab.publish_numbered_nowait(7, "a", b"3"))
        first, last = traces.named("publish a")
        assert (about(first)["operation.type"], about(first)["message.id"]) == ("send", str(seq))
        assert about(last)["operation.type"] == "create"
        expected = [{"traceparent": traceparent(first), "mine": "1"}, {}, {"traceparent": traceparent(last)}]
        assert stored(face, "a", 3) == expected
        assert face.do(lambda fab: fab.publish_numbered(5, "a", b"1")).duplicate
        assert "message.id" not in about(traces.named("publish a")[-1])


def test_a_scheduled_message_carries_the_context_of_its_publish(face: Face, traces: Traces) -> None:
    with traces.span("mine"):
        face.do(lambda fab: fab.publish("a", b"1", delay=0.001))
        face.do(lambda fab: fab.publish_nowait("a", b"2", delay=0.001))
        face.do(lambda fab: fab.publish_many("a", [b"3"], delay=0.001))
    found: dict[bytes, Any] = {}
    face.loop(lambda message: found.update({message.body: message.headers["traceparent"]}), "a", group="g", count=3)
    sent = traces.named("publish a")
    assert found == {b"%d" % n: traceparent(span) for n, span in enumerate(sent, 1)}
    assert all("message.id" not in about(span) for span in sent)
    assert [about(span)["operation.type"] for span in sent] == ["send", "create", "send"]


def test_the_publishes_of_a_transaction_are_made_in_the_handler_and_sent_by_the_commit(
    face: Face, traces: Traces
) -> None:
    def handler(message: Any, ctx: Any) -> None:
        ctx.publish("out", b"1", headers={"mine": "1"})
        ctx.publish("out", b"2")

    face.do(lambda fab: fab.publish("in", b"x"))
    face.work(handler, "in", group="g", count=1)
    handled, (first, second), commit = traces.one("process in"), traces.named("publish out"), traces.one("commit out")
    for span in (first, second):
        assert (span.kind.name, about(span)["operation.type"]) == ("PRODUCER", "create")
        assert is_child(span, handled)
    assert (commit.kind.name, about(commit)["operation.type"], about(commit)["batch.message_count"]) == (
        "CLIENT", "send", 2
    )  # fmt: skip
    assert is_child(commit, handled)
    assert linked(commit) == [first.context.span_id, second.context.span_id]
    assert stored(face, "out", 2) == [
        {"traceparent": traceparent(first), "mine": "1"}, {"traceparent": traceparent(second)}
    ]  # fmt: skip


def test_a_transaction_without_a_current_span_makes_none(traced_hub: Hub, traces: Traces) -> None:
    with contextlib.closing(Blocking(traced_hub)) as face:
        face.fab.publish_many("in", [b"x"])
        for message in face.fab.consume("in", group="g", count=1, timeout=PATIENCE_S):
            with message.transaction() as txn:
                txn.publish("out", b"1")
        assert traces.all() == []
        assert stored(face, "out", 1) == [{}]


def test_a_publish_that_fails_marks_its_span(face: Face, traces: Traces) -> None:
    with traces.span("mine"):
        for call in (
            lambda fab: fab.publish("a", b"1", headers={"n": 5}),
            lambda fab: fab.publish("a", b"1", headers=["n"]),
            lambda fab: fab.publish_many("a", [{1, 2}]),
            lambda fab: fab.publish_nowait("a", {1, 2}),
        ):
            with pytest.raises(BadMessage):
                face.do(call)
    failed = traces.named("publish a")
    assert [span.status.status_code.name for span in failed] == ["ERROR"] * 4
    assert [span.attributes["error.type"] for span in failed] == ["BadMessage"] * 4
    assert all(span.events[0].name == "exception" for span in failed)


def test_a_span_that_is_not_sampled_makes_no_spans_of_many(
    face: Face, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    sampling = pytest.importorskip("opentelemetry.sdk.trace.sampling")
    off = sdk.TracerProvider(sampler=sampling.ALWAYS_OFF).get_tracer("off")
    monkeypatch.setattr(spans, "tracer", off)
    with off.start_as_current_span("mine"):
        face.do(lambda fab: fab.publish_nowait("a", b"1"))
        face.do(lambda fab: fab.publish_many("a", [b"2"]))
        face.do(lambda fab: fab.publish("a", b"3"))
    found = stored(face, "a", 3)
    assert found[:2] == [{}, {}]
    assert not int(found[2]["traceparent"][-2:], 16) & 1  # tells the consumer that nothing was recorded
