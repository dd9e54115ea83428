"""Messages of the wire protocol, as immutable named tuples.

`wire` encodes them into frames and decodes frames into them; the router and the clients handle nothing else. This
module knows nothing of msgpack or sockets.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from fabric_protocol.origin import Origin

PROTOCOL_VERSION: Final = 1
META_BYTES_MAX: Final = 1 << 20  # an ACK of tens of thousands of ranges still fits

PeerId = bytes  # the routing id that the hub's ROUTER gave to a connection


class Level(IntEnum):
    """When a publish is confirmed, and what the confirmation promises."""

    JOURNALED = 0  # after the fsync that covers it: the default
    RECEIVED = 1  # on receipt, journaled with the next commit. Unsafe: a crash in between loses it


class Verdict(IntEnum):
    """The verdict of a consumer on deliveries."""

    ACK = 0  # the message is handled
    RETRY = 1  # handling failed: deliver again, after `arg` milliseconds; counts as a failed attempt
    RELEASE = 2  # not begun: deliver to any consumer; does not count as an attempt
    REJECT = 3  # make it a dead letter, with `arg` as the reason
    TOUCH = 4  # extend the lease


class Happening(IntEnum):
    """The kinds of delivery events."""

    DELIVER = 0
    ACK = 1
    RETRY = 2
    RELEASE = 3
    LAPSE = 4
    LOST = 5  # the consumer's session ended
    DEAD = 6
    EXPIRED = 7
    TAKEN = 8  # the hub has taken the delivery back, or its consumer has left; the reason tells which


# Client to hub. Every message has the channel and the request id of its frame; a message with rid 0 gets no answer.


class Hello(NamedTuple):
    rid: int
    fields: Mapping[str, Any]


class Goodbye(NamedTuple):
    rid: int


class Ping(NamedTuple):
    rid: int


class Publish(NamedTuple):
    rid: int
    pseq: int  # number of the block's first message in its producer's own sequence; 0: unnumbered
    level: int
    block: bytes
    # ttl_ms, last, after, origin; and delay_ms, at_us, every_ms, cron, name of a schedule
    options: Mapping[str, Any] = {}


class Subscribe(NamedTuple):
    chan: int
    rid: int
    fields: Mapping[str, Any]


class Unsubscribe(NamedTuple):
    chan: int
    rid: int


class Credit(NamedTuple):
    chan: int
    ordinal_max: int  # cumulative since SUB: deliver up to this ordinal,
    bytes_max: int  # and up to this many bytes of blocks
    unsure: int = (
        0  # this many of the oldest unsettled may be begun or handled; 0: as many as SUB's concurrency are begun
    )


class Settle(NamedTuple):
    """The ACK frame: verdicts on ordinal ranges."""

    chan: int
    rid: int
    verdicts: tuple[tuple[int, int, int, Any], ...]  # (verdict, first ordinal, last ordinal, arg)


class Fetch(NamedTuple):
    chan: int
    rid: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here
    expires_ms: int
    enough: int = 0  # end it after this many messages if no more are ready; 0: only after `count`


class Info(NamedTuple):
    rid: int
    fields: Mapping[str, Any]


class Admin(NamedTuple):
    rid: int
    fields: Mapping[str, Any]  # op, and the arguments of the operation


class Get(NamedTuple):
    """Read messages without a group."""

    rid: int
    fields: Mapping[str, Any]


class Cancel(NamedTuple):
    """Cancel a scheduled publish."""

    rid: int
    fields: Mapping[str, Any]


class Transact(NamedTuple):
    """The TXN frame: verdicts and a publish in one commit, or neither."""

    rid: int
    pseq: int
    settles: tuple[tuple[int, tuple[tuple[int, int, int, Any], ...]], ...]  # (channel, verdicts as in Settle)
    block: bytes


class Ready(NamedTuple):
    """A consumer has reloaded its local copy."""

    chan: int
    rid: int
    refresh: int


# Both ways: a request goes from the requester to the hub and on to a responder, its replies go back the same way.


class Request(NamedTuple):
    chan: int  # of the responder's subscription; 0 on the way to the hub
    rid: int
    fields: Mapping[str, Any]
    block: bytes


class Reply(NamedTuple):
    chan: int  # of the responder's subscription; 0 on the way to the requester
    rid: int
    fields: Mapping[str, Any]  # final: whether it is the last reply
    block: bytes


# Hub to client.


class Welcome(NamedTuple):
    rid: int
    fields: Mapping[str, Any]


class Pong(NamedTuple):
    rid: int


class Ok(NamedTuple):
    chan: int
    rid: int
    fields: Mapping[str, Any]


class Err(NamedTuple):
    chan: int
    rid: int
    code: int
    text: str
    fields: Mapping[str, Any]  # details: retry_ms, expected ...


class Notice(NamedTuple):
    kind: str
    fields: Mapping[str, Any]


# (rid, first seq, stored, duplicates) of one publish; then (index, seq) of each message that does not have the next seq
Confirm = tuple[int, int, int, int] | tuple[int, int, int, int, tuple[tuple[int, int], ...]]


class PubOk(NamedTuple):
    """One frame confirms all publishes of one session that one commit covered."""

    level: int
    confirms: tuple[Confirm, ...]


class Flow(NamedTuple):
    blocks_max: int  # unconfirmed publishes allowed from now on
    bytes_max: int


class Deliver(NamedTuple):
    chan: int
    first_ordinal: int
    attempt: int
    seqs: tuple[int, ...]  # flat (first seq, count) runs; empty: contiguous from the block's base_seq
    block: bytes
    origin: Origin | None = None  # of the first message, if another journal had it first


class End(NamedTuple):
    """Ends a FETCH."""

    chan: int
    rid: int
    sent: int


class Gap(NamedTuple):
    """Retention or damage removed messages that the group had not settled."""

    chan: int
    first_seq: int
    last_seq: int
    reason: str


class Reset(NamedTuple):
    """Reload the local copy: phase `begin`, and `end` once every message up to the target was delivered and settled."""

    chan: int
    fields: Mapping[str, Any]  # refresh, phase, target


class Got(NamedTuple):
    """A block that GET found. An OK follows the last one."""

    rid: int
    seqs: tuple[int, ...]  # flat (first seq, count) runs; empty: contiguous from the block's base_seq
    block: bytes
    origin: Origin | None = None  # of the first message, if another journal had it first


_Session = Hello | Goodbye | Ping
_Producing = Publish | Transact | Cancel
_Consuming = Subscribe | Unsubscribe | Credit | Settle | Fetch | Ready
_Asking = Info | Admin | Get | Request | Reply
ToHub = _Session | _Producing | _Consuming | _Asking
ToClient = Welcome | Pong | Ok | Err | Notice | PubOk | Flow | Deliver | End | Gap | Reset | Got | Request | Reply
