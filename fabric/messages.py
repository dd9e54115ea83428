"""All that can be said on the wire, and all that is written down.

Plain immutable tuples with names: the router reads and writes these, `wire` turns the first kind into frames and the
journal turns the second kind into rows. Nothing here knows about msgpack, sockets or LMDB.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

PROTOCOL_VERSION: Final = 1
META_BYTES_MAX: Final = 1 << 20  # an ACK of tens of thousands of ranges still fits

PeerId = bytes  # the routing id that the hub's ROUTER gave to a connection


class Level(IntEnum):
    """When a publish is confirmed, and what the confirmation promises."""

    JOURNALED = 0  # after the fsync that covers it: the default
    RECEIVED = 1  # on receipt, journaled with the next commit. Unsafe: a crash in between loses it


class Verdict(IntEnum):
    """What a consumer says about deliveries."""

    ACK = 0  # done
    RETRY = 1  # failed: deliver again, after `arg` milliseconds; counts as an attempt
    RELEASE = 2  # not started: give it to someone else; not counted
    REJECT = 3  # never again: to the dead letters, with `arg` as the reason
    TOUCH = 4  # still at work: extend the lease


# Client to hub. Every message has the channel and the request id that its frame carried; rid 0 wants no answer.


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


class Settle(NamedTuple):
    """The ACK frame: verdicts on ordinal ranges."""

    chan: int
    rid: int
    verdicts: tuple[tuple[int, int, int, Any], ...]  # (verdict, first ordinal, last ordinal, arg)


class Fetch(NamedTuple):
    chan: int
    rid: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no one needs here
    expires_ms: int


class Info(NamedTuple):
    rid: int
    fields: Mapping[str, Any]


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
    fields: Mapping[str, Any]  # retry_ms, expected pseq and the like


class Notice(NamedTuple):
    kind: str
    fields: Mapping[str, Any]


class PubOk(NamedTuple):
    """One frame confirms all publishes of one session that one commit covered."""

    level: int
    confirms: tuple[tuple[int, int, int, int], ...]  # (rid, first seq, stored, duplicates)


class Flow(NamedTuple):
    blocks_max: int  # unconfirmed publishes allowed from now on
    bytes_max: int


class Deliver(NamedTuple):
    chan: int
    first_ordinal: int
    attempt: int
    seqs: tuple[int, ...]  # flat (first seq, count) runs; empty: contiguous from the block's base_seq
    block: bytes


class End(NamedTuple):
    """Closes a FETCH."""

    chan: int
    rid: int
    sent: int


class Gap(NamedTuple):
    """Messages that the group had not settled are gone by retention or damage."""

    chan: int
    first_seq: int
    last_seq: int
    reason: str


ToHub = Hello | Goodbye | Ping | Publish | Subscribe | Unsubscribe | Credit | Settle | Fetch | Info
ToClient = Welcome | Pong | Ok | Err | Notice | PubOk | Flow | Deliver | End | Gap


# What is written down. One turn's records are one transaction.


class Append(NamedTuple):
    """A stamped block; its base_seq is the journal's last seq + 1."""

    block: bytes


class GroupSettings(NamedTuple):
    """What a group is. Fixed when it is created."""

    patterns: tuple[str, ...]
    lease_ms: int = 30_000
    attempts_max: int = 5
    level: int = Level.JOURNALED


class SaveGroup(NamedTuple):
    """A group's settings and position: all below `cursor` is settled, except the `open` seqs."""

    name: str
    settings: GroupSettings
    cursor: int
    open: tuple[tuple[int, int], ...]  # (first seq, last seq), ascending


class DropGroup(NamedTuple):
    name: str


class SaveProducer(NamedTuple):
    """How far a producer got, and which seqs its latest messages have, so that a resend finds its first seq."""

    name: str
    epoch: int
    last_pseq: int
    recent: tuple[int, ...]  # flat (count, first seq) runs, oldest first; the last run ends with last_pseq
    seen_us: int


Record = Append | SaveGroup | DropGroup | SaveProducer
