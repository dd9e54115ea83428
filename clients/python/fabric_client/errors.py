"""The errors of the client, each with a `.hint` that says what to do.

All of them are `FabricError`s. The hub answers with stable codes; `from_wire` turns an answer into the error class of
its code, and into a `HubError` with the number if the code has no class.
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
    """There is no hub at the address, or the connection was lost and not restored in time. Unsent messages of a publish
    are withdrawn: they are not stored later."""


class Timeout(_Unpublished, TimeoutError):
    """The answer did not come in time. Unsent messages of a publish are withdrawn: they are not stored later."""


class Unconfirmed(Timeout, ConnectionLost):
    """Messages were sent and not confirmed: the hub may have stored them, and the client sends them again until it is
    closed. A message with an `id` can be published again: the hub stores it once."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint or _UNCONFIRMED_HINT)


class Closed(FabricError):
    """The client, or the subscription of a message, is closed."""


class Forked(FabricError):
    """A client was used in a child process; sockets and threads do not survive a fork."""


class BufferFull(FabricError):
    """The publish buffer is full: the hub is slower than the producer."""


class HubError(FabricError):
    """The hub refused a request; `.code` is the stable error code, `.fields` are the details of the hub."""

    def __init__(self, message: str, hint: str = "", *, code: int = 0, fields: dict[str, object] | None = None) -> None:
        super().__init__(message, hint)
        self.code = code
        self.fields = fields or {}


class NotFound(HubError):
    """There is no such group, topic, schedule or subscription."""


class Conflict(HubError):
    """The request conflicts with the state of the hub: the name exists with other settings, or is in use."""


class Stale(HubError):
    """A verdict or a transaction came too late: the hub has taken the message back. Nothing was applied or stored."""


class NoResponders(HubError):
    """No responder answers requests on that topic."""


class TimedOut(HubError, TimeoutError):
    """A request was not answered in time."""


class RemoteError(FabricError):
    """The responder failed; the text is its error message."""


class GroupMismatch(HubError):
    """The group exists with other settings."""


class BadPattern(HubError):
    """The hub refused a malformed pattern."""


class Forbidden(HubError):
    """The hub does not allow this request: the role of the principal has no right to it, or the name is the hub's."""


class AuthFailed(HubError):
    """The hub does not know the key of this client, or hub and client do not agree on encryption, or the hub is not the
    one that the credentials trust. If the handshake failed, `.fields` has `handshake`, such as "key_refused"."""

    def __init__(
        self, message: str, hint: str = "", *, code: int = Code.AUTH_FAILED, fields: dict[str, object] | None = None
    ) -> None:
        super().__init__(message, hint, code=code, fields=fields)


class Fenced(HubError):
    """Another client took over this producer name."""


class VerdictsUnconfirmed(FabricError):
    """The hub was restarted or forgot the session before it confirmed verdicts, or the answer was lost with a
    connection. `.messages` names the messages, at most 1,000 of them, as pairs of topic and seq; `.count` is how many
    there are. Most are delivered again; a verdict that reached the journal is kept."""

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
    """A topic, key, id, header or body that the hub would refuse; nothing was sent."""


class Refusal(NamedTuple):
    """Messages that the hub refused for good, returned to the program."""

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
            f"the hub refused {what}{more}: {first.reason}",
            describe(first.code, first.reason) or _REFUSED_HINT,
            code=first.code,
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
KEY_UNKNOWN_HINT: Final = (
    "join the hub with 'fabric join LINK'; on the hub, 'fabric keys invite NAME' prints the link, and 'fabric keys "
    "list' shows the keys"
)
_HUBS_OWN: Final = "belongs to the hub"  # in the text of a FORBIDDEN that no right can change
_HUBS_OWN_HINT: Final = "topics that start with '$' or end with '.DLQ' belong to the hub; use another name"
_HINTS: Final[dict[int, str]] = {
    Code.BAD_TOPIC: "a topic is 1..16 words joined by '.', without wildcards, spaces or a leading '$'",
    Code.TOO_LARGE: "send it in smaller pieces, or keep it elsewhere and publish where it is",
    Code.FORBIDDEN: "info('me') shows the rights of this client; an administrator of the hub gives more in access.toml",
    Code.FENCED: "two clients share one producer name; give each its own",
    Code.PSEQ_TAKEN: "nothing of it was stored; two programs published under one producer name: give each its own name",
    Code.GROUP_MISMATCH: "leave the setting out to join the group as it is, or use another group name",
    Code.BAD_PATTERN: "'*' stands for one word, '#' for any number of words, '>' as the last word for one or more",
    Code.NOT_FOUND: "check the name; info() lists what exists",
    Code.TOPIC_FULL: "consume or purge its messages, or raise its limits with admin.topics.update",
    Code.STALE: "the lease lapsed, or the hub took the message back; it will be delivered again",
    Code.NO_RESPONDERS: "start one with respond(), or publish the request durably (durable=True)",
    Code.TIMED_OUT: "give it a longer timeout, or check the responders",
    Code.CONFLICT: "info() shows what exists; change or delete that first",
    Code.DISK_FULL: "free space on the hub's disk; the hub then continues by itself",
    Code.BUSY: "the hub is overloaded; try again a little later",
    Code.SHUTTING_DOWN: "the hub is stopping; the client continues when the hub is back",
    Code.UNSUPPORTED_VERSION: "hub and client speak different protocol versions; upgrade the older one",
    Code.AUTH_FAILED: KEY_UNKNOWN_HINT,
}
_CLASSES: Final[dict[int, type[HubError]]] = {
    Code.NOT_FOUND: NotFound,
    Code.GROUP_MISMATCH: GroupMismatch,
    Code.BAD_PATTERN: BadPattern,
    Code.FORBIDDEN: Forbidden,
    Code.AUTH_FAILED: AuthFailed,
    Code.FENCED: Fenced,
    Code.CONFLICT: Conflict,
    Code.STALE: Stale,
    Code.NO_RESPONDERS: NoResponders,
    Code.TIMED_OUT: TimedOut,
}


def from_wire(answer: m.Err) -> HubError:
    """The error for an ERR of the hub."""
    text = answer.text or f"error {answer.code}"
    fields = dict(answer.fields)
    if answer.code == Code.GROUP_MISMATCH and "field" in fields and str(fields["field"]) not in text:
        text = f"{text}: {fields['field']} is {fields.get('have')!r}, not {fields.get('want')!r}"
    return _CLASSES.get(answer.code, HubError)(text, describe(answer.code, text), code=answer.code, fields=fields)


def describe(code: int, text: str = "") -> str:
    """The hint for a code and the text of the hub; empty if it has none."""
    if code == Code.FORBIDDEN and _HUBS_OWN in text:
        return _HUBS_OWN_HINT
    return _HINTS.get(code, "")
