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


class Happening(IntEnum):
    """What delivery events speak of."""

    DELIVER = 0
    ACK = 1
    RETRY = 2
    RELEASE = 3
    LAPSE = 4
    LOST = 5  # the consumer's session ended
    DEAD = 6
    EXPIRED = 7


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
    options: Mapping[str, Any] = {}  # ttl_ms, delay_ms, at_us, every_ms, cron, name: when it is not simply now


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
    unsure: int = 0  # so many of the oldest unsettled may be begun or done; 0: as many as SUB's concurrency are begun


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
    enough: int = 0  # end it when so many were sent and no more are ready; 0: when all were sent


class Info(NamedTuple):
    rid: int
    fields: Mapping[str, Any]


class Admin(NamedTuple):
    rid: int
    fields: Mapping[str, Any]  # op and what it needs


class Get(NamedTuple):
    """Read messages without a group."""

    rid: int
    fields: Mapping[str, Any]


class Cancel(NamedTuple):
    """Take back a scheduled publish."""

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


# Both ways: a request travels from the client that asks to the hub and on to one that answers, its replies back.


class Request(NamedTuple):
    chan: int  # of the answering subscription; 0 on the way to the hub
    rid: int
    fields: Mapping[str, Any]
    block: bytes


class Reply(NamedTuple):
    chan: int  # of the answering subscription; 0 on the way to the client that asked
    rid: int
    fields: Mapping[str, Any]  # final: whether it is the last one
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
    fields: Mapping[str, Any]  # retry_ms, expected pseq and the like


class Notice(NamedTuple):
    kind: str
    fields: Mapping[str, Any]


# (rid, first seq, stored, duplicates) of one publish; with (index, seq) of the messages that have not the next seq
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


class Reset(NamedTuple):
    """Reload the local copy: phase `begin`, and `end` when all up to the target has been delivered and settled."""

    chan: int
    fields: Mapping[str, Any]  # refresh, phase, target


class Got(NamedTuple):
    """A block that GET found. OK follows when that was all."""

    rid: int
    seqs: tuple[int, ...]  # flat (first seq, count) runs; empty: contiguous from the block's base_seq
    block: bytes


_Session = Hello | Goodbye | Ping
_Producing = Publish | Transact | Cancel
_Consuming = Subscribe | Unsubscribe | Credit | Settle | Fetch | Ready
_Asking = Info | Admin | Get | Request | Reply
ToHub = _Session | _Producing | _Consuming | _Asking
ToClient = Welcome | Pong | Ok | Err | Notice | PubOk | Flow | Deliver | End | Gap | Reset | Got | Request | Reply


# What is written down. One turn's records are one transaction.


class Append(NamedTuple):
    """A stamped block; its base_seq is the journal's last seq + 1."""

    block: bytes


class GroupSettings(NamedTuple):
    """What a group is. Changed by ADMIN only; a SUB that asks for something else is refused."""

    patterns: tuple[str, ...]
    lease_ms: int = 30_000  # how long a consumer may hold a delivery without a sign of life
    attempts_max: int = 5  # failures until a message is a dead letter; 0: endless
    level: int = Level.JOURNALED
    lease_max_ms: int = 3_600_000  # how long at most, touched or not
    backoff: str = "exponential"  # how the wait grows with each failure: fixed, linear or exponential
    backoff_ms: int = 500
    backoff_max_ms: int = 300_000
    jitter_pct: int = 10  # the wait is longer or shorter by up to this much
    order: str = "none"  # none; key: one session for each key, in order; strict: one consumer, in order
    ack: str = "explicit"  # auto: settled when sent
    on_expire: str = "drop"  # or dead: what expires before it was delivered becomes a dead letter


class SaveGroup(NamedTuple):
    """A group's settings and position: all below `cursor` is settled, except the `open` seqs.

    Messages of a priority that has a lane of its own are counted by the lane's cursor instead.
    """

    name: str
    settings: GroupSettings
    cursor: int
    open: tuple[tuple[int, int], ...]  # (first seq, last seq), ascending
    lanes: tuple[tuple[int, int], ...] = ()  # (priority, cursor)
    paused: bool = False
    refresh: tuple[int, int, int] = (0, 0, 0)  # number of the latest refresh, its target seq, its phase
    untold: tuple[tuple[int, int, str], ...] = ()  # gaps that no consumer has heard of: first seq, last seq, reason
    # (priority, seq): messages up to the seq may have been handed out; the first one counts for priorities that are not
    # named. None: written before this was kept.
    handed: tuple[tuple[int, int], ...] | None = None


class DropGroup(NamedTuple):
    """The group goes, and its failures with it."""

    name: str


class SaveFailure(NamedTuple):
    """Messages first..last of a group have failed; found by (group, first)."""

    group: str
    first: int
    last: int
    failures: int
    due_us: int  # not to be delivered again before; 0: at once
    reason: str


class DropFailure(NamedTuple):
    group: str
    first: int


class TopicSettings(NamedTuple):
    """What is kept of a topic, and how long its idempotency keys are remembered. 0 means no limit."""

    max_age_ms: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    on_full: str = "refuse"  # or drop_old
    keep: str = "limits"  # until_acked: by all groups that want it; last_per_key: the latest of each key
    dedupe: str = "window"  # slide: a duplicate starts the window anew; until_ack: until all groups have settled it
    dedupe_ms: int = 600_000
    queue: bool = False  # made by queue.create, together with the group of the same name


class SaveTopic(NamedTuple):
    name: str
    settings: TopicSettings
    floor: int  # messages of this topic below are removed
    msgs: int  # how many there are at or above the floor; -1: they are being counted
    bytes: int  # and the bytes of their payloads
    deleted: bool = False  # no settings any more: the floor alone is kept, for as long as something lies below it
    reaped: int = 0  # blocks below were looked at, and those without any messages left discarded


class DropTopic(NamedTuple):
    name: str


class SaveSchedule(NamedTuple):
    """A block that is published when it is due; found by its id."""

    id: int
    due_us: int
    block: bytes  # not stamped
    ttl_ms: int = 0  # from the time it is due
    every_ms: int = 0  # repeated so often,
    cron: str = ""  # or by the calendar
    name: str = ""  # at most one schedule has a name


class DropSchedule(NamedTuple):
    id: int
    due_us: int
    name: str = ""


class CountSchedules(NamedTuple):
    """How a turn changes the number of messages that wait, by topic; and the highest number given to a schedule."""

    last_id: int
    changes: tuple[tuple[str, int], ...]  # (topic, messages more, or fewer)


class SaveIds(NamedTuple):
    """A part of the index of idempotency keys; only the index knows what is in it."""

    key: int  # ascending
    value: bytes


class DropIds(NamedTuple):
    key: int


class SaveEvents(NamedTuple):
    """A block of delivery events; kept by the number of its first event."""

    first: int
    count: int  # type: ignore[assignment]
    value: bytes


class SaveSetting(NamedTuple):
    """A setting of the hub as a whole, or a row that some part of the router keeps under its own name."""

    name: str
    value: Any  # what msgpack can say; None: the row goes


class Discard(NamedTuple):
    """Blocks that retention of single topics has emptied: they are removed, though older ones stay."""

    bases: tuple[int, ...]  # their base_seqs


class SaveProducer(NamedTuple):
    """How far a producer got, and which seqs its latest messages have, so that a resend finds its first seq."""

    name: str
    epoch: int
    last_pseq: int
    recent: tuple[int, ...]  # flat (count, first seq) runs, oldest first; the last run ends with last_pseq
    seen_us: int
    since_pseq: int = 0  # the first number of this epoch; 0: not known, as in rows of older programs
    blocks: bytes = b""  # flat (count, CRC of the body), u32 each, of the latest blocks; the last ends with last_pseq


_Groups = SaveGroup | DropGroup | SaveFailure | DropFailure
_Topics = SaveTopic | DropTopic | Discard
_Later = SaveSchedule | DropSchedule | CountSchedules
_Others = SaveProducer | SaveIds | DropIds | SaveEvents | SaveSetting
Record = Append | _Groups | _Topics | _Later | _Others
