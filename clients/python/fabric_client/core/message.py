"""One message of a batch, as a consumer gets it."""

import json
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from fabric_client import spans
from fabric_client.core.outgoing import CONTENT_TYPE, JSON, TEXT
from fabric_client.core.transaction import Transaction
from fabric_client.core.verdict_exceptions import (
    SETTLE_S,
    Argument,
    HandlerVerdict,
    Release,
    Seconds,
    SettleName,
    decision,
    milliseconds,
    reason_text,
    retry_argument,
    verdict_of,
)
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import FabricError
from fabric_protocol.messages import Verdict
from fabric_protocol.origin import Origin

if TYPE_CHECKING:
    from fabric_client.core.batch import Batch

ADVISORIES: Final = "$sys."  # topics of the hub's advisories, which are JSON


class Message:
    """One message. In a group it needs a verdict; `with msg:` gives it: ack at the end of the block, retry if the block
    raises. `batch` is the delivery that it belongs to, `index` its place there."""

    __slots__ = ("_data", "_open", "batch", "body", "index")

    def __init__(self, batch: "Batch", index: int, body: bytes) -> None:
        self.batch = batch
        self.index = index
        self._open = True
        self.body = body

    def __repr__(self) -> str:
        return f"<Message {self.topic} seq {self.seq}, {len(self.body)} bytes, attempt {self.attempt}>"

    @property
    def topic(self) -> str:
        topics = self.batch.block.topics
        return topics[0] if len(topics) == 1 else self.batch.topics[self.index]

    @property
    def seq(self) -> int:
        return self.batch.seq_of(self.index)

    @property
    def data(self) -> Any:
        """The published data, decoded as the content-type header says: JSON or text; otherwise bytes. Advisories of the
        hub are JSON."""
        try:
            return self._data
        except AttributeError:
            pass
        self._data: Any = self.body
        content_type = self.headers.get(CONTENT_TYPE)
        if content_type == JSON or self.topic.startswith(ADVISORIES):
            self._data = json.loads(self.body)
        elif content_type == TEXT:
            self._data = self.body.decode()
        return self._data

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return self.batch.headers[self.index]

    @property
    def key(self) -> str | None:
        return self.batch.keys[self.index].decode(errors="replace") or None

    @property
    def id(self) -> str | None:
        """The idempotency id of its publish: the hub stores one message per topic and id."""
        return self.batch.ids[self.index].decode(errors="replace") or None

    @property
    def attempt(self) -> int:
        """1 for the first delivery; more if the message was delivered before."""
        return self.batch.attempt

    @property
    def priority(self) -> int:
        """0..9; 9 is delivered first."""
        return self.batch.priority

    @property
    def ts(self) -> float:
        """When the hub accepted it, in seconds since 1970."""
        return self.batch.ts

    @property
    def origin(self) -> Origin | None:
        """Where it was born, if another journal had it first: journal, epoch, seq and time there. None if it was
        published to this hub."""
        return self.batch.origin_of(self.index)

    @property
    def group(self) -> str | None:
        return self.batch.group

    @property
    def lost(self) -> bool:
        """Whether the hub has taken it back, because its lease lapsed or an earlier message of its key failed. It is
        delivered again; a verdict on it has no effect."""
        return self.batch.is_gone(self.index)

    def ack(self) -> None:
        """The message is handled."""
        if self._open:
            self._open = False
            batch = self.batch
            verdicts = batch.verdicts
            acked = verdicts.acked
            acked.append(self.index)
            if len(acked) >= verdicts.due:
                batch.noted()

    def retry(self, delay: Seconds | None = None, reason: str | None = None) -> None:
        """Handling failed: deliver the message again, after `delay` (seconds or a timedelta) or the group's backoff.
        Counts as a failed attempt."""
        self._give(Verdict.RETRY, retry_argument(delay, reason))

    def release(self) -> None:
        """Return the message to its group, for any consumer. Does not count as an attempt."""
        self._give(Verdict.RELEASE, None)

    def reject(self, reason: str = "") -> None:
        """Make the message a dead letter, with the reason."""
        self._give(Verdict.REJECT, reason_text(reason))

    def settle(
        self,
        verdict: SettleName = "ack",
        *,
        delay: Seconds | None = None,
        reason: str | None = None,
        lease: Seconds | None = None,
        timeout: Seconds | None = SETTLE_S,
    ) -> Any:
        """Give a verdict ("ack", "retry" with its `delay` and `reason`, "release", or "reject" with its `reason`), and
        wait until the hub has it on disk. Blocks in the blocking client; in the asyncio client the result is awaited.
        "touch", with its `lease`, extends the lease and leaves the message without a verdict.

        Returns when the verdict was applied. Raises Stale if it had no effect, because the hub had taken the message
        back; VerdictsUnconfirmed if the hub forgot the session, so that the outcome is unknown; Timeout or
        ConnectionLost if there was no answer in time: the verdict may still be applied, and `flush` waits for it."""
        decided = verdict_of(verdict, delay, reason, lease)
        if not self._open:
            raise FabricError(
                "the message has a verdict already", "the first verdict counts; settle() gives one itself"
            )
        self._open = verdict == "touch"
        return self.batch.settle_now(self.index, decided, timeout)

    def touch(self, lease: Seconds | None = None) -> None:
        """Extend the lease. The client does this by itself; call it for another length, in seconds."""
        if self._open:
            length = None if lease is None else milliseconds("lease", lease)
            self.batch.subscription.touch(self.batch, self.index, self.index, length)

    def span(self) -> spans.Span:
        """`with msg, msg.span():` makes a span of OpenTelemetry for the handling of this message, linked to the span of
        its publish. An exception marks the span as failed. `work` does this for each run of a handler. Does nothing if
        `opentelemetry-api` is not installed."""
        return spans.processing(self, Release)

    def transaction(self) -> Transaction:
        """`with msg.transaction() as txn: txn.publish(...)`: the hub stores the publishes together with the ack of this
        message, or stores nothing. An exception in the block publishes nothing and asks for a retry."""
        return Transaction(self.batch, self.index)

    @property
    def context(self) -> Transaction:
        """The transaction of this message: its publishes are sent with the ack that `with msg:`, or a handler that
        returns, gives."""
        contexts = self.batch.contexts
        if contexts is None:
            contexts = self.batch.contexts = {}
        context = contexts.get(self.index)
        if context is None:
            context = contexts[self.index] = Transaction(self.batch, self.index)
        return context

    def _give(self, verdict: Verdict, arg: Argument) -> None:
        if self._open:
            self._open = False
            self.batch.give(verdict, self.index, arg)

    def _pending(self) -> Transaction | None:
        """The transaction to commit instead of an ack, if it has publishes."""
        contexts = self.batch.contexts
        found = contexts.pop(self.index, None) if contexts else None
        if found is None or not found.publishes or not self._open:
            return None
        self._open = False
        return found

    def fail_with(self, error: BaseException) -> bool:
        """Give the verdict for an exception of the block. True if the exception is only a verdict, such as Retry."""
        if self.batch.contexts:
            self.batch.contexts.pop(self.index, None)
        verdict, arg = decision(error, self.batch.subscription.on_error)
        if verdict is Verdict.ACK:
            self.ack()
        else:
            self._give(verdict, arg)
        return isinstance(error, HandlerVerdict)

    def __enter__(self) -> "Message":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            return self.fail_with(error)
        if self.batch.contexts and (context := self._pending()) is not None:
            context.commit_now()
        else:
            self.ack()
        return False

    async def __aenter__(self) -> "Message":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            return self.fail_with(error)
        if self.batch.contexts and (context := self._pending()) is not None:
            await context.commit_soon()
        else:
            self.ack()
        return False
