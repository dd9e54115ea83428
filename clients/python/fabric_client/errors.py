"""What can go wrong for a caller, each with a `.hint` that says what to do about it.

All of them are `FabricError`s. The hub answers with stable codes; `from_wire` turns an answer into the error that
a caller would look for, and a code without a class of its own stays a `HubError` that carries the number.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from fabric_protocol import messages as m
from fabric_protocol.errors import Code, FabricError


class _Unpublished(FabricError):
    """How many messages of a publish were stored, sent without a confirmation, and withdrawn before they were sent.
    After a flush `.verdicts` names the messages whose verdicts are not confirmed, at most 1,000 of them, as pairs of
    topic and seq."""

    stored = 0
    unconfirmed = 0
    withdrawn = 0
    verdicts: tuple[tuple[str, int], ...] = ()


class ConnectionLost(_Unpublished):
    """There is no hub at the other end, or it went away and did not come back in time. What a publish had not sent is
    withdrawn: it is not stored later."""


class Timeout(_Unpublished, TimeoutError):
    """The answer did not come in time. What a publish had not sent is withdrawn: it is not stored later."""


class Unconfirmed(Timeout, ConnectionLost):
    """Messages were sent and not confirmed: the hub may have stored them, and the client goes on sending them until it
    is closed. A message with an `id` can be published again: the hub stores it once."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint or _UNCONFIRMED_HINT)


class Closed(FabricError):
    """The client, or the subscription that a message belongs to, has been closed."""


class Forked(FabricError):
    """A client was used in a child process; sockets and threads do not survive a fork."""


class BufferFull(FabricError):
    """`publish_nowait` has no room: the hub is slower than the producer."""


class HubError(FabricError):
    """The hub refused a request; `.code` is the stable number, `.fields` what it said besides."""

    def __init__(self, message: str, hint: str = "", *, code: int = 0, fields: dict[str, object] | None = None) -> None:
        super().__init__(message, hint)
        self.code = code
        self.fields = fields or {}


class NotFound(HubError):
    """There is no such group, topic, schedule or subscription."""


class Conflict(HubError):
    """It cannot be done as things are: the name is taken, or something is in the way."""


class Stale(HubError):
    """A transaction came too late: the message is no longer ours. Nothing was done."""


class NoResponders(HubError):
    """Nobody answers requests on that topic."""


class TimedOut(HubError, TimeoutError):
    """A request was not answered in time."""


class RemoteError(FabricError):
    """The one who answers a request failed; the text is theirs."""


class GroupMismatch(HubError):
    """The group exists with other settings."""


class BadPattern(HubError):
    """A pattern that the hub does not understand."""


class Forbidden(HubError):
    """Not allowed."""


class Fenced(HubError):
    """Another client took over this producer name."""


class VerdictsUnconfirmed(FabricError):
    """Verdicts were given, and the hub was restarted or forgot the session before it confirmed them, or the answer was
    lost with a connection. `.messages` names the messages, at most 1,000 of them, as pairs of topic and seq; `.count`
    is how many there are. Most are delivered again; a verdict that did reach the journal stands."""

    def __init__(
        self, messages: Sequence[tuple[str, int]], count: int, why: str = "the hub forgot the session"
    ) -> None:
        some = ", ".join(f"{topic} seq {seq}" for topic, seq in messages[:5]) + (", …" if count > 5 else "")
        super().__init__(
            f"{count} verdict{'s were' if count > 1 else ' was'} not confirmed: {why} ({some})",
            "the hub delivers these messages again; `.messages` names them",
        )
        self.messages = tuple(messages)
        self.count = count


class BadMessage(FabricError, ValueError):
    """A topic, key, id, header or body that no hub would accept; found before anything was sent."""


class Refusal(NamedTuple):
    """Messages that the hub refused for good, returned so that nothing is lost in silence."""

    topics: tuple[str, ...]
    payloads: tuple[bytes, ...]
    code: int
    reason: str


class PublishRefused(HubError):
    """The hub refused messages for good; `.refusals` has them."""

    def __init__(self, refusals: Sequence[Refusal]) -> None:
        first = refusals[0]
        count = sum(len(refusal.payloads) for refusal in refusals)
        what = f"{count} message{'s' if count > 1 else ''} on {first.topics[0]!r}"
        more = " and other topics" if len({topic for r in refusals for topic in r.topics}) > 1 else ""
        super().__init__(
            f"the hub refused {what}{more}: {first.reason}", _HINTS.get(first.code, _REFUSED_HINT), code=first.code
        )
        self.refusals = tuple(refusals)


class TopicFull(PublishRefused):
    """A topic has reached its limit and does not drop old messages."""


def refusal_error(refusals: Sequence[Refusal]) -> PublishRefused:
    """The error for messages that the hub refused."""
    return (TopicFull if refusals[0].code == Code.TOPIC_FULL else PublishRefused)(refusals)


_UNCONFIRMED_HINT: Final = (
    "they may be stored or not; to be sure, publish them again with the same id=, which the hub stores once"
)
_REFUSED_HINT: Final = "`.refusals` of this error holds the messages"
_HINTS: Final[dict[int, str]] = {
    Code.BAD_TOPIC: "a topic is 1..16 words joined by '.', without wildcards, spaces or a leading '$'",
    Code.TOO_LARGE: "send it in smaller pieces, or keep it elsewhere and publish where it is",
    Code.FORBIDDEN: "topics that start with '$' belong to the hub",
    Code.FENCED: "two clients share one producer name; give each its own",
    Code.PSEQ_TAKEN: "nothing of it was stored; two programs published under one producer name: give each its own name",
    Code.GROUP_MISMATCH: "leave the setting out to join the group as it is, or use another group name",
    Code.BAD_PATTERN: "'*' stands for one word, '#' for any number of words, '>' as the last word for one or more",
    Code.NOT_FOUND: "look at the name; info() lists what there is",
    Code.TOPIC_FULL: "consume or purge it, or raise its limits with admin.topics.update",
    Code.STALE: "the lease ran out, or the message was taken back; it will be delivered again",
    Code.NO_RESPONDERS: "start one with respond(), or publish the request durably (durable=True)",
    Code.TIMED_OUT: "give it a longer timeout, or look at those who answer",
    Code.CONFLICT: "look at what exists with info(), then change or delete that",
    Code.DISK_FULL: "free space on the hub's disk; the hub goes on by itself",
    Code.BUSY: "the hub is overloaded; try again a little later",
    Code.SHUTTING_DOWN: "the hub is stopping; the client goes on when it is back",
    Code.UNSUPPORTED_VERSION: "hub and client speak different protocol versions; upgrade the older one",
    Code.AUTH_FAILED: "check the credentials",
}
_CLASSES: Final[dict[int, type[HubError]]] = {
    Code.NOT_FOUND: NotFound,
    Code.GROUP_MISMATCH: GroupMismatch,
    Code.BAD_PATTERN: BadPattern,
    Code.FORBIDDEN: Forbidden,
    Code.AUTH_FAILED: Forbidden,
    Code.FENCED: Fenced,
    Code.CONFLICT: Conflict,
    Code.STALE: Stale,
    Code.NO_RESPONDERS: NoResponders,
    Code.TIMED_OUT: TimedOut,
}


def from_wire(answer: m.Err) -> HubError:
    """The error that an ERR answer stands for."""
    text = answer.text or f"error {answer.code}"
    fields = dict(answer.fields)
    if answer.code == Code.GROUP_MISMATCH and "field" in fields and str(fields["field"]) not in text:
        text = f"{text}: {fields['field']} is {fields.get('have')!r}, not {fields.get('want')!r}"
    return _CLASSES.get(answer.code, HubError)(text, _HINTS.get(answer.code, ""), code=answer.code, fields=fields)


def describe(code: int) -> str:
    """A hint for a code, or nothing."""
    return _HINTS.get(code, "")
