"""Records of the journal, as immutable named tuples.

The router returns the records of a turn; the journal writes them in one transaction, each as a row of its table. This
module knows nothing of LMDB or of the encoding of rows.
"""

from typing import Any, NamedTuple

from fabric_protocol.messages import Level


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


class Restored(NamedTuple):
    """What a restart begins with: all that the journal knows. The defaults are those of a new journal."""

    first_seq: int = 1
    last_seq: int = 0
    last_ts_us: int = 0
    groups: tuple[SaveGroup, ...] = ()
    producers: tuple[SaveProducer, ...] = ()
    failures: tuple[SaveFailure, ...] = ()
    topics: tuple[SaveTopic, ...] = ()
    settings: tuple[SaveSetting, ...] = ()
    was_clean: bool = True  # the hub before this one was stopped in good order
    findings: tuple[Any, ...] = ()  # damage in the tail; worth a line in the log


_Groups = SaveGroup | DropGroup | SaveFailure | DropFailure
_Topics = SaveTopic | DropTopic | Discard
_Later = SaveSchedule | DropSchedule | CountSchedules
_Others = SaveProducer | SaveIds | DropIds | SaveEvents | SaveSetting
Record = Append | _Groups | _Topics | _Later | _Others
