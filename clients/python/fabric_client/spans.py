"""Spans of OpenTelemetry, if `opentelemetry-api` is installed, by its semantic conventions for messaging.

The context of a message travels in its headers `traceparent`, `tracestate` and `baggage`. It is that of the PRODUCER
span of its publish. A span that handles the message is linked to it and is no child of it: a message may be handled
hours later, more than once, and by several groups. A request is different: its requester waits, so the SERVER span of
the responder is a child of the CLIENT span of the request.

Without the library `tracer` is None, which is the only thing that a call looks at. Calls for many messages, and loops,
make no span that begins a trace: `joins` says whether the current span is sampled.
"""

import contextlib
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fabric_protocol.columns import HeaderValue

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch
    from fabric_client.core.message import Message
    from fabric_client.core.receipt import Receipt

R = TypeVar("R", bound="Receipt")
Headers = Mapping[str, HeaderValue] | None
Span = contextlib.AbstractContextManager[Any]  # gives the span of OpenTelemetry, or None without the library

SYSTEM: Final = "fabric"
ID: Final = "messaging.message.id"
COUNT: Final = "messaging.batch.message_count"
CONVERSATION: Final = "messaging.message.conversation_id"
LINKS_MAX: Final = 128  # of one span: the SDK keeps as many unless it is told otherwise

try:  # by name, because the library is optional, for type checkers as well
    _trace: Any = importlib.import_module("opentelemetry.trace")
    _propagate: Any = importlib.import_module("opentelemetry.propagate")
    _context: Any = importlib.import_module("opentelemetry.context")
    tracer: Any = _trace.get_tracer("fabric_client")
    current: Callable[[], Any] = _context.get_current
except ImportError:
    tracer = None

live = False  # whether the program has set a tracer provider: without one there are no sampled spans
quiet: Any = None  # a context that has no sampled span; `current` is quicker than `joins`


def joins() -> bool:
    """Whether the current span is sampled, so that calls for many messages make spans as well."""
    global live, quiet
    if tracer is None:
        return False
    if not live:
        live = not isinstance(_trace.get_tracer_provider(), _trace.ProxyTracerProvider)
        if not live:
            return False
    context = current()
    if _trace.get_current_span(context).get_span_context().trace_flags.sampled:
        return True
    quiet = context
    return False


class Sent:
    """A publish: the headers, with the context of its span unless the program has given one."""

    __slots__ = ("context", "headers", "parent", "span", "topic")

    def __init__(self, span: Any, topic: str, headers: Any, context: Any, parent: Any) -> None:
        self.span = span
        self.topic = topic
        self.headers = headers
        self.context = context  # of the message, for links
        self.parent = parent

    def stored(self, receipt: R) -> R:
        """The hub has the message. A scheduled message has no seq yet."""
        if self.span is not None and receipt.seq:
            self.span.set_attribute(ID, str(receipt.seq))
        return receipt


NOT_TRACED: Final = contextlib.nullcontext(Sent(None, "", None, None, None))


def publishing(topic: str, options: Any) -> contextlib.AbstractContextManager[Sent]:
    """A PRODUCER span around a publish. It puts its context into the headers among the options."""
    return NOT_TRACED if tracer is None else _sending("publish", "send", topic, options, {})


def joining(
    kind_of: str, topic: str, options: Any, count: int | None = None
) -> contextlib.AbstractContextManager[Sent]:
    """The same, if the current span is sampled, for a call that only gathers ("create"), or that publishes `count`
    messages ("send")."""
    if not joins():
        return NOT_TRACED
    return _sending("publish", kind_of, topic, options, {} if count is None else {COUNT: count})


def requesting(topic: str, options: Any, correlation: str | None) -> contextlib.AbstractContextManager[Sent]:
    """The same for a durable request, which is a message like others."""
    if tracer is None:
        return NOT_TRACED
    return _sending("request", "send", topic, options, {} if correlation is None else {CONVERSATION: correlation})


@contextlib.contextmanager
def _sending(operation: str, kind_of: str, topic: str, options: Any, more: Mapping[str, Any]) -> Iterator[Sent]:
    sent = _begin_sending(operation, kind_of, topic, options.get("headers"), more)
    options["headers"] = sent.headers
    with _as_current(sent.span, _trace.set_span_in_context(sent.span)):
        yield sent


def _begin_sending(
    operation: str, kind_of: str, topic: str, headers: Any, more: Mapping[str, Any], *, waits: bool = False
) -> Sent:
    """If the headers have a context already, it is left as it is, and the span is linked to it. A CLIENT span instead
    of a PRODUCER if the message does not carry its context, or if the caller waits for what is done with it."""
    given, parent = _context_in(headers), current()
    links = [] if given is None else [_trace.Link(given)]
    kind = _trace.SpanKind.PRODUCER if given is None and not waits else _trace.SpanKind.CLIENT
    about = {**_about(operation, kind_of, topic), **more}
    span = tracer.start_span(_name(operation, topic), kind=kind, attributes=about, links=links)
    if given is not None:
        return Sent(span, topic, headers, given, parent)
    carried: dict[str, HeaderValue] = {}
    _propagate.inject(carried, _trace.set_span_in_context(span))
    if carried and (headers is None or isinstance(headers, Mapping)):  # other headers are refused as without a span
        headers = {**carried, **(headers or {})}
    return Sent(span, topic, headers, span.get_span_context(), parent)


@contextlib.contextmanager
def committing(sent: Sequence[Sent], count: int) -> Iterator[None]:
    """A CLIENT span around the commit of a transaction, beside the spans of its publishes, and linked to them."""
    if not sent:
        yield
        return
    topic = _only(one.topic for one in sent)
    about = {**_about("commit", "send", topic), COUNT: count}
    links = [_trace.Link(one.context) for one in islice(sent, LINKS_MAX)]
    kind, parent = _trace.SpanKind.CLIENT, sent[0].parent
    span = tracer.start_span(_name("commit", topic), context=parent, kind=kind, attributes=about, links=links)
    with _as_current(span, _trace.set_span_in_context(span, parent)):
        yield


class Asking:
    """The CLIENT span of a request, which a `with` block ends. It is not the current span, because an iterator over
    replies leaves the block for the program's own code at each reply."""

    __slots__ = ("_span", "headers")

    def __init__(self, topic: str, headers: Headers) -> None:
        self._span: Any = None
        self.headers = headers
        if tracer is not None:
            sent = _begin_sending("request", "send", topic, headers, {}, waits=True)
            self._span, self.headers = sent.span, sent.headers

    def end(self) -> None:
        """The last reply is there."""
        span, self._span = self._span, None
        if span is not None:
            span.end()

    def __enter__(self) -> "Asking":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._span is not None and isinstance(error, Exception):
            _mark(self._span, error)
        self.end()


def processing(message: "Message", harmless: type[Exception]) -> Span:
    """A CONSUMER span around the handling of a message, linked to the message's context, with its baggage. An exception
    marks it as failed, unless it is `harmless`."""
    if tracer is None:
        return contextlib.nullcontext()
    kind = _trace.SpanKind.CONSUMER
    about = {**_about("process", "process", message.topic, message.group), **_about_message(message)}
    carried = _carried(message.headers)
    sent = _trace.get_current_span(carried).get_span_context()
    links = [_trace.Link(sent)] if sent.is_valid else []
    span = tracer.start_span(_name("process", message.topic), kind=kind, attributes=about, links=links)
    return _as_current(span, _trace.set_span_in_context(span, _joined(carried)), harmless)


def processing_all(batch: "Batch", harmless: type[Exception]) -> Span:
    """The same for all messages of a batch."""
    if tracer is None:
        return contextlib.nullcontext()
    topic = _only(batch.block.topics)
    about = {**_about("process", "process", topic, batch.group), COUNT: batch.count}
    links, kind = _message_links(batch), _trace.SpanKind.CONSUMER
    span = tracer.start_span(_name("process", topic), kind=kind, attributes=about, links=links)
    return _as_current(span, _trace.set_span_in_context(span), harmless)


def responding(request: "Message") -> Span:
    """A SERVER span around the handling of a request: a child of the span of the request."""
    if tracer is None:
        return contextlib.nullcontext()
    about = _about("respond", "process", request.topic)
    about["messaging.message.body.size"] = len(request.body)
    context = _joined(_carried(request.headers))
    kind, name = _trace.SpanKind.SERVER, _name("respond", request.topic)
    span = tracer.start_span(name, context=context, kind=kind, attributes=about)
    return _as_current(span, _trace.set_span_in_context(span, context))


def clock() -> int:
    """When a loop begins to wait, for `received`; 0 without the library."""
    return time.time_ns() if tracer is not None else 0


def is_traced(batch: "Batch") -> bool:
    """Whether a loop looks at each message of a batch: the current span is sampled, or messages may have contexts. The
    names of their headers are sought in the encoded headers, so that nothing is decoded."""
    if tracer is None:
        return False
    if joins():
        return True
    block = batch.block
    begin, end = block.sections.headers, block.sections.payload
    if not live or begin < 0:
        return False
    return any(block.raw.find(name.encode(), begin, end) >= 0 for name in _propagate.get_global_textmap().fields)


def received(message: "Message", began_ns: int) -> int:
    """A CLIENT span for a message that a loop gets, if it or the current span is sampled; it began when the loop began
    to wait. Returns 0: for the messages behind it, which have arrived as well, the loop does not wait."""
    joined, links = joins(), _message_links([message])
    if joined or _any_sampled(links):
        about = {**_about("receive", "receive", message.topic, message.group), **_about_message(message)}
        _past(_name("receive", message.topic), about, links, began_ns)
    return 0


def received_all(operation: str, messages: "Batch | Sequence[Message]", began_ns: int, group: str | None) -> None:
    """The same for messages that the program gets at once, or for none."""
    joined = joins()
    links = _message_links(messages) if live else []
    if joined or _any_sampled(links):
        topic = _only(message.topic for message in messages)
        about = {**_about(operation, "receive", topic, group), COUNT: len(messages)}
        _past(_name(operation, topic), about, links, began_ns)


def _any_sampled(links: Sequence[Any]) -> bool:
    return any(link.context.trace_flags.sampled for link in links)


def _past(name: str, about: Mapping[str, Any], links: Sequence[Any], began_ns: int) -> None:
    """A CLIENT span that ends now: its links are known only afterwards."""
    began, kind = began_ns or time.time_ns(), _trace.SpanKind.CLIENT
    tracer.start_span(name, kind=kind, attributes=about, links=links, start_time=began).end()


@contextlib.contextmanager
def settling(verdict: str, batch: "Batch", index: int | None) -> Iterator[None]:
    """A CLIENT span around a verdict whose answer the program waits for, if the current span is sampled."""
    if verdict == "touch" or not joins():  # a touch settles nothing
        yield
        return
    settled = list(map(batch.message, batch.verdicts.open_indexes() if index is None else (index,)))
    topic = _only(message.topic for message in settled)
    about = _about(verdict, "settle", topic, batch.group)
    about |= {COUNT: len(settled)} if index is None else {ID: str(batch.seq_of(index))}
    kind, links = _trace.SpanKind.CLIENT, _message_links(settled)
    span = tracer.start_span(_name(verdict, topic), kind=kind, attributes=about, links=links)
    with _as_current(span, _trace.set_span_in_context(span)):
        yield


@contextlib.contextmanager
def _as_current(span: Any, context: Any, harmless: type[Exception] | tuple[()] = ()) -> Iterator[Any]:
    """Make a span the current one. An exception marks it; the end of the block ends it."""
    token = _context.attach(context)
    try:
        yield span
    except Exception as error:
        if not isinstance(error, harmless):
            _mark(span, error)
        raise
    finally:
        _context.detach(token)
        span.end()


def _mark(span: Any, error: Exception) -> None:
    span.record_exception(error)
    span.set_status(_trace.Status(_trace.StatusCode.ERROR, f"{type(error).__name__}: {error}"))
    span.set_attribute("error.type", type(error).__qualname__)


def _only(topics: Iterable[str]) -> str | None:
    """The topic, if there is only one."""
    different = set(topics)
    return different.pop() if len(different) == 1 else None


def _name(operation: str, topic: str | None) -> str:
    return operation if topic is None else f"{operation} {topic}"


def _about(operation: str, kind_of: str, topic: str | None, group: str | None = None) -> dict[str, Any]:
    about: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind_of,
    }
    if topic is not None:
        about["messaging.destination.name"] = topic
    if group is not None:
        about["messaging.consumer.group.name"] = group
    return about


def _about_message(message: "Message") -> dict[str, Any]:
    return {
        ID: str(message.seq),
        "messaging.message.body.size": len(message.body),
        "messaging.fabric.message.attempt": message.attempt,
    }


def _carried(headers: Mapping[str, HeaderValue]) -> Any:
    """The context in the headers of a message: its span, if there is one, and its baggage."""
    texts = {name: value for name, value in headers.items() if isinstance(value, str)}
    return _propagate.extract(texts, _context.Context())


def _context_in(headers: object) -> Any:
    """The span context in headers that the program gives; None if there is none."""
    if not isinstance(headers, Mapping) or not headers:
        return None
    found = _trace.get_current_span(_carried(headers)).get_span_context()
    return found if found.is_valid else None


def _joined(carried: Any) -> Any:
    """The current context, with what a message carries in its place."""
    return _context.Context({**current(), **carried})


def _message_links(messages: "Iterable[Message]") -> list[Any]:
    """Links to the contexts of messages, each with the seq of its message."""
    links = []
    for message in messages:
        found = _context_in(message.headers) if message.batch.block.sections.headers >= 0 else None
        if found is not None:
            links.append(_trace.Link(found, {ID: str(message.seq)}))
            if len(links) == LINKS_MAX:
                break
    return links
