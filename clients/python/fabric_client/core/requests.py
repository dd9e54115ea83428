"""Requests and replies, on both sides. They are in memory only, and end with the session of either side.

A requester holds a `Call` whose parts become `Reply`s. A responder has a `Responder`, a subscription whose deliveries
are `Request`s, each answered by one or more replies.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fabric_client import spans
from fabric_client.core import wire_values
from fabric_client.core.arguments import patterns_of
from fabric_client.core.batch import Batch
from fabric_client.core.message import Message
from fabric_client.core.outgoing import check_topic, prepare
from fabric_client.core.subscription import Subscription
from fabric_client.core.subscription_driver import SubscriptionDriver
from fabric_client.core.verdict_exceptions import milliseconds
from fabric_client.errors import RemoteError
from fabric_protocol import block
from fabric_protocol import messages as m
from fabric_protocol.block import Block
from fabric_protocol.bounds import REPLIES, REQUEST_MS
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError
from fabric_protocol.origin import Origin

if TYPE_CHECKING:
    from fabric_client.core.calls import Call

REASON_CHARS_MAX: Final = 1_000
END: Final = "end-of-replies"  # header of an empty last reply
NO_SUBSCRIPTION: Final = Subscription(0, {})  # placeholder for messages that cannot be acked


def read(seqs: tuple[int, ...], raw: bytes, origin: Origin | None = None) -> Batch:
    """A batch of messages without a subscription."""
    parsed = Block(raw)
    parsed.verify_body()
    parsed.origin = origin
    return Batch(NO_SUBSCRIPTION, parsed, 0, 1, seqs, 0.0)


def single_block(topic: str, data: object, key: str | bytes | None, headers: Mapping[str, HeaderValue] | None) -> bytes:
    """A block of one message."""
    check_topic(topic)
    message = prepare(topic, data, key, None, headers)
    keys = [message.key] if message.key else None
    return block.encode(topic, [message.body], keys=keys, headers=[message.headers] if message.headers else None)


class Reply(Message):
    """A reply to a request."""

    __slots__ = ("final", "sender")

    def __init__(self, batch: Batch, index: int, fields: Mapping[str, Any]) -> None:
        super().__init__(batch, index, batch.payloads[index])
        self.sender: str = fields.get("from", "")  # the name of the client that replied
        self.final: bool = fields.get("final", True)


def next_reply(call: "Call", replies_max: int | None) -> Reply | None:
    """The next reply that has arrived, if there is one. Raises RemoteError if the responder failed. Of several replies,
    an empty last one is left out."""
    while call.parts:
        part = call.parts.popleft()
        assert isinstance(part, m.Reply)
        if part.fields.get("error"):
            responder = part.fields.get("from") or "the responder"
            raise RemoteError(str(part.fields["error"]), f"{responder} failed; its log may say more")
        reply = Reply(read((), part.block), 0, part.fields)
        if replies_max is None or not (reply.final and END in reply.headers):
            return reply
    return None


class Request(Message):
    """A request. Answer it with `reply(data)`, with several `reply(data, final=False)` and a final one, or with
    `fail(text)`. The first final reply counts."""

    __slots__ = ("_responder", "_rid", "answered", "timeout_s")

    def __init__(self, responder: "Responder", message: m.Request) -> None:
        batch = read((), message.block)
        super().__init__(batch, 0, batch.payloads[0])
        self._responder = responder
        self._rid = message.rid
        self.answered = False
        self.timeout_s: float = message.fields.get("timeout_ms", 0) / 1000  # how long the requester waits

    def reply(
        self, data: object = b"", *, headers: Mapping[str, HeaderValue] | None = None, final: bool = True
    ) -> None:
        """Send a reply; unless it is `final`, more replies follow."""
        self._answer({"final": final}, single_block(self.topic, data, None, headers))

    def end(self) -> None:
        """End replies that were not final, with an empty reply that has a header."""
        self.reply(b"", headers={END: "1"})

    def fail(self, reason: str) -> None:
        """Reply that the request failed; the requester gets a RemoteError with this text."""
        text = wire_values.reason(reason, REASON_CHARS_MAX)
        self._answer({"final": True, "error": text or "failed"}, single_block(self.topic, b"", None, None))

    def span(self) -> spans.Span:
        """`with request.span():` makes a span for the handling of this request, a child of the requester's span.
        `respond` does this for each run of a handler."""
        return spans.responding(self)

    def _answer(self, fields: dict[str, Any], raw: bytes) -> None:
        if self.answered:
            return
        self.answered = bool(fields["final"])
        self._responder.answer(self._rid, fields, raw)


class Responder(Subscription):
    """A subscription to requests. The hub sends at most `concurrency` requests that have no final reply yet."""

    def __init__(self, chan: int, request: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(chan, request, **settings)
        self.settles = False
        self.requests: deque[Request] = deque()
        self._answers: deque[m.Reply] = deque()

    def _adopt(self, settings: Mapping[str, Any]) -> None:
        self.settles = False

    def subscribe(self, rid: int) -> m.Subscribe:
        return m.Subscribe(self.chan, rid, self.request)

    def asked(self, message: m.Request) -> None:
        self.requests.append(Request(self, message))

    def answer(self, rid: int, fields: Mapping[str, Any], raw: bytes) -> None:
        """Queue a reply. Called from any thread, without a lock."""
        self._answers.append(m.Reply(self.chan, rid, fields, raw))
        self.hook(self, True)

    def collect(self, next_rid: Callable[[], int], now: float | None = None) -> list[m.ToHub]:
        return [self._answers.popleft() for _ in range(len(self._answers))]

    def resumed(self) -> Iterable[m.ToHub]:
        return ()

    def restart(self, same_journal: bool) -> None:
        """Drop all requests: the hub has failed them when the session ended."""
        self.requests.clear()
        self._answers.clear()

    def close(self) -> None:
        super().close()
        self.requests.clear()


def request_fields(timeout: float, replies_max: int | None) -> dict[str, Any]:
    """The fields of REQ."""
    timeout_ms, replies = max(1, milliseconds("timeout", timeout)), 1 if replies_max is None else replies_max
    if timeout_ms > REQUEST_MS[2]:
        raise FabricError(
            f"timeout is at most {REQUEST_MS[2] // 1000} seconds, not {timeout!r}",
            "use durable=True for a request that takes longer",
        )
    if type(replies) is not int or not REPLIES[0] <= replies <= REPLIES[2]:
        raise FabricError(f"replies_max is {REPLIES[0]}..{REPLIES[2]}, not {replies!r}", "ask again for more")
    return {"timeout_ms": timeout_ms, "replies_max": replies}


def responder_maker(
    driver: SubscriptionDriver, patterns: Sequence[str], group: str | None, concurrency: int
) -> Callable[[int], Responder]:
    """A function that builds the subscription to requests for a channel."""
    request: dict[str, Any] = {"patterns": patterns_of(patterns), "respond": True, "concurrency": concurrency}
    if group is not None:
        request["group"] = group
    return lambda chan: Responder(chan, request, hook=driver.verdicts)
