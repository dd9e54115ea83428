"""What a consumer holds: the Message, and the Batch of messages that came in one delivery.

A verdict (`ack` and its kin) must cost next to nothing, so it is one append to a list of its batch, without a lock
and from any thread; the subscription turns such lists into ranges when it next sends. Everything else about a message
(topic, headers, key, seq) is decoded from the shared block when asked for.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from fabric.block import Block
from fabric.columns import HeaderValue
from fabric.messages import Verdict
from fabric.wire import REASON_CHARS_MAX

if TYPE_CHECKING:
    from fabric_client.subscription import Subscription

VERDICTS_PER_FRAME: Final = 500  # so many verdicts are sent without waiting for more
NEVER: Final = 1 << 62


class Batch:
    """The messages of one delivery, settled together or one by one.

    `payloads` is the fast way through: a list of bytes. Iterating gives `Message`s. `with batch:` acks what is left
    on leaving, and asks for a retry of it when the body raised.
    """

    __slots__ = (
        "_done", "_due", "_headers", "_keys", "_listed", "_other", "_payloads", "_sent", "_settled", "_sub", "_topics",
        "_whole", "attempt", "block", "count", "first_ordinal", "generation", "leased_at", "seqs",
    )  # fmt: skip

    def __init__(
        self, sub: "Subscription", block: Block, first_ordinal: int, attempt: int, seqs: tuple[int, ...], now: float
    ) -> None:
        self._sub = sub
        self.block = block
        self.count = block.count
        self.first_ordinal = first_ordinal
        self.attempt = attempt
        self.seqs = seqs
        self.generation = sub.generation
        self.leased_at = now
        self._payloads: list[bytes] | None = None
        self._topics: list[str] | None = None
        self._headers: list[dict[str, HeaderValue]] | None = None
        self._keys: list[bytes] | None = None
        # Verdicts. `_done` (acked indexes) only ever grows, so that an append from another thread is never lost;
        # `_sent` and `_settled` say what of it has been dealt with. Reaching `_due` takes the slow path.
        self._done: list[int] = []
        self._other: deque[tuple[Verdict, int, Any]] = deque()
        self._sent = 0
        self._settled: set[int] = set()
        self._listed = False
        self._whole = False  # all that has no other verdict is acked
        self._due = 1 if sub.group is not None else NEVER

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator["Message"]:
        for index, body in enumerate(self.payloads):
            yield Message(self, index, body)

    def __repr__(self) -> str:
        return f"<Batch of {self.count} from seq {self.seq}, attempt {self.attempt}>"

    @property
    def payloads(self) -> list[bytes]:
        if self._payloads is None:
            self._payloads = self.block.payloads()
        return self._payloads

    @property
    def topics(self) -> list[str]:
        if self._topics is None:
            self._topics = self.block.topic_names()
        return self._topics

    @property
    def headers(self) -> list[dict[str, HeaderValue]]:
        if self._headers is None:
            self._headers = self.block.headers()
        return self._headers

    @property
    def keys(self) -> list[bytes]:
        if self._keys is None:
            self._keys = self.block.keys()
        return self._keys

    @property
    def seq(self) -> int:
        """Of the first message."""
        return self.seq_of(0)

    @property
    def last_seq(self) -> int:
        return self.seq_of(self.count - 1)

    @property
    def ts(self) -> float:
        """When the hub accepted these messages, in seconds since 1970."""
        return self.block.ts_us / 1e6

    @property
    def group(self) -> str | None:
        return self._sub.group

    def seq_of(self, index: int) -> int:
        if not self.seqs:
            return self.block.base_seq + index
        for first, count in zip(self.seqs[::2], self.seqs[1::2], strict=True):
            if index < count:
                return first + index
            index -= count
        raise IndexError("a batch has no such message")

    def ack(self) -> None:
        """Done with all that has no verdict yet."""
        self._whole = True
        if self._due != NEVER:
            self._noted()

    def retry(self, delay: float | None = None) -> None:
        """What has no verdict yet failed: deliver it again, after `delay` seconds."""
        self._settle_rest(Verdict.RETRY, None if delay is None else round(delay * 1000))

    def release(self) -> None:
        """What has no verdict yet goes to someone else; not counted as an attempt."""
        self._settle_rest(Verdict.RELEASE, None)

    def reject(self, reason: str = "") -> None:
        """What has no verdict yet goes to the dead letters."""
        self._settle_rest(Verdict.REJECT, reason[:REASON_CHARS_MAX])

    def touch(self, lease: float | None = None) -> None:
        """Still at work. The client does this by itself; call it to ask for another length, in seconds."""
        self._sub.touch(self, 0, self.count - 1, lease)

    def __enter__(self) -> "Batch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.retry()
        else:
            self.release()

    async def __aenter__(self) -> "Batch":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def open_indexes(self) -> Sequence[int]:
        """Messages without a verdict."""
        if self._whole:
            return ()
        if not self._done and not self._other:
            return range(self.count)
        closed = self._settled.union(self._done[self._sent :], (index for _, index, _ in self._other))
        return [index for index in range(self.count) if index not in closed]

    def _settle_rest(self, verdict: Verdict, arg: Any) -> None:
        self._other.extend([(verdict, index, arg) for index in self.open_indexes()])
        if self._due != NEVER:
            self._noted()

    def _settle(self, verdict: Verdict, index: int, arg: Any) -> None:
        self._other.append((verdict, index, arg))
        if self._due != NEVER:
            self._noted()

    def _noted(self) -> None:
        """The slow path of a verdict: see to it that the subscription sends it soon.

        Here `_due` is set before `_listed` is read, and `collect` does the two the other way round; so whichever way
        two threads interleave, the batch ends up listed or its next verdict comes through here.
        """
        count = len(self._done)
        self._due = count + VERDICTS_PER_FRAME
        self._sub.noted(self, count - self._sent >= VERDICTS_PER_FRAME)


class Message:
    """One message. In a group it wants a verdict; `with msg:` gives it: ack on leaving, retry when the body raised."""

    __slots__ = ("_batch", "_data", "_index", "_open", "body")

    def __init__(self, batch: Batch, index: int, body: bytes) -> None:
        self._batch = batch
        self._index = index
        self._open = True
        self.body = body

    def __repr__(self) -> str:
        return f"<Message {self.topic} seq {self.seq}, {len(self.body)} bytes, attempt {self.attempt}>"

    @property
    def topic(self) -> str:
        topics = self._batch.block.topics
        return topics[0] if len(topics) == 1 else self._batch.topics[self._index]

    @property
    def seq(self) -> int:
        return self._batch.seq_of(self._index)

    @property
    def data(self) -> Any:
        """The body: decoded when its content-type header says JSON, otherwise the bytes themselves."""
        try:
            return self._data
        except AttributeError:
            pass
        self._data: Any = self.body
        if self.headers.get("content-type") == "application/json":
            self._data = json.loads(self.body)
        return self._data

    @property
    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode()

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return self._batch.headers[self._index]

    @property
    def key(self) -> str | None:
        return self._batch.keys[self._index].decode(errors="replace") or None

    @property
    def attempt(self) -> int:
        """1 the first time; more when it was delivered before."""
        return self._batch.attempt

    @property
    def ts(self) -> float:
        """When the hub accepted it, in seconds since 1970."""
        return self._batch.ts

    @property
    def group(self) -> str | None:
        return self._batch.group

    def ack(self) -> None:
        """Done."""
        if self._open:
            self._open = False
            batch = self._batch
            done = batch._done
            done.append(self._index)
            if len(done) >= batch._due:
                batch._noted()

    def retry(self, delay: float | None = None) -> None:
        """Failed: deliver it again, after `delay` seconds. Counts as an attempt."""
        self._settle(Verdict.RETRY, None if delay is None else round(delay * 1000))

    def release(self) -> None:
        """Not started: give it to someone else. Not counted."""
        self._settle(Verdict.RELEASE, None)

    def reject(self, reason: str = "") -> None:
        """Never again: to the dead letters, with the reason."""
        self._settle(Verdict.REJECT, reason[:REASON_CHARS_MAX])

    def touch(self, lease: float | None = None) -> None:
        """Still at work. The client does this by itself; call it to ask for another length, in seconds."""
        if self._open:
            self._batch._sub.touch(self._batch, self._index, self._index, lease)

    def _settle(self, verdict: Verdict, arg: Any) -> None:
        if self._open:
            self._open = False
            self._batch._settle(verdict, self._index, arg)

    def __enter__(self) -> "Message":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.retry()
        else:  # interrupted or cancelled: nobody's failure
            self.release()

    async def __aenter__(self) -> "Message":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
