"""Records of the journal, as immutable named tuples.

The router returns the records of a turn; the journal writes them in one transaction, each as a row of its table. This
module knows nothing of LMDB or of the encoding of rows.
"""

from typing import Any, NamedTuple

from fabric_protocol.messages import Level
from fabric_protocol.origin import Origin


class Append(NamedTuple):
    """A stamped block; its base_seq is the journal's last seq + 1."""

    block: bytes


class SaveOrigin(NamedTuple):
    """Where the block of this turn that begins at base_seq was born."""

    base_seq: int
    origin: Origin


class GroupSettings(NamedTuple):
    """Settings of a group. Only ADMIN changes them; a SUB that asks for other settings is refused."""

    patterns: tuple[str, ...]
    lease_ms: int = 30_000  # how long a consumer holds a delivery without a touch
    attempts_max: int = 5  # failures until a message is dead; 0: no limit
    level: int = Level.JOURNALED
    lease_max_ms: int = 3_600_000  # how long a consumer holds a delivery at most, with touches
    backoff: str = "exponential"  # fixed, linear or exponential: how the wait grows with each failure
    backoff_ms: int = 500
    backoff_max_ms: int = 300_000
    jitter_pct: int = 10  # the wait is longer or shorter by at most this
    order: str = "none"  # none, key (one message of a key after the other) or strict (one message after the other)
    ack: str = "explicit"  # explicit or auto (settled when sent)
    on_expire: str = "drop"  # drop or dead (a message that expires undelivered becomes a dead letter)
    max_in_flight: int = 0  # messages that all consumers together may hold; 0: no limit
    rate: int = 0  # messages that are delivered in `rate_ms`; 0: no limit
    rate_ms: int = 1_000
    expires_ms: int = 0  # the group is deleted when it had no consumer for so long; 0: never


class SaveGroup(NamedTuple):
    """Settings and position of a group: all messages below `cursor` are settled, except the `open` seqs.

    A priority with an entry in `lanes` has a cursor of its own.
    """

    name: str
    settings: GroupSettings
    cursor: int
    open: tuple[tuple[int, int], ...]  # (first seq, last seq), ascending
    lanes: tuple[tuple[int, int], ...] = ()  # (priority, cursor)
    paused: bool = False
    refresh: tuple[int, int, int] = (0, 0, 0)  # number of the latest refresh, its target seq, its phase
    untold: tuple[tuple[int, int, str], ...] = ()  # gaps that no consumer was told of: first seq, last seq, reason
    # (priority, seq): messages up to the seq may have been delivered. The first entry counts for all priorities without
    # an entry. None: the row is of an older program.
    handed: tuple[tuple[int, int], ...] | None = None
    idle_us: int = 0  # when the last consumer left, for `expires_ms`; 0: a consumer was there, or the group stays
    paced_us: int = 0  # from this time on, a full burst of `rate` may be delivered
    # The messages at or beyond the cursors that match, and the seq up to which they are counted. None: not counted.
    ahead: tuple[int, int] | None = None


class DropGroup(NamedTuple):
    """Removes a group and its failures."""

    name: str


class SaveFailure(NamedTuple):
    """Failures of messages first..last in a group; found by (group, first)."""

    group: str
    first: int
    last: int
    failures: int
    due_us: int  # the next delivery is not before this; 0: at once
    reason: str


class DropFailure(NamedTuple):
    group: str
    first: int


class TopicSettings(NamedTuple):
    """Settings of a topic: what is kept, and how long its idempotency keys are remembered. 0 means no limit."""

    max_age_ms: int = 0
    max_msgs: int = 0
    max_bytes: int = 0
    on_full: str = "refuse"  # refuse or drop_old
    keep: str = "limits"  # limits, until_acked (by all groups that match) or last_per_key (the latest of each key)
    dedupe: str = "window"  # window, slide (a duplicate starts it anew) or until_ack (until all groups have settled)
    dedupe_ms: int = 600_000
    queue: bool = False  # created by queue.create, together with the group of the same name


class SaveTopic(NamedTuple):
    name: str
    settings: TopicSettings
    floor: int  # messages of this topic below it are removed
    msgs: int  # messages at or above the floor; -1: the hub counts them
    bytes: int  # bytes of the payloads of these messages
    deleted: bool = False  # without settings: the row keeps the floor while messages below it are on disk
    cleared: int = 0  # blocks below were checked, and discarded when all their messages were removed


class DropTopic(NamedTuple):
    name: str


class SaveSchedule(NamedTuple):
    """A schedule: a block that is published when it is due; found by its id."""

    id: int
    due_us: int
    block: bytes  # not stamped
    ttl_ms: int = 0  # the ttl of the messages, from the due time on
    every_ms: int = 0  # repeated after this time; 0: not
    cron: str = ""  # repeated by the calendar; empty: not
    name: str = ""  # unique among the schedules of its owner; empty: none
    owner: str = "local"  # the principal that has published it


class DropSchedule(NamedTuple):
    id: int
    due_us: int
    name: str = ""
    owner: str = "local"


class CountSchedules(NamedTuple):
    """How a turn changes the number of scheduled messages by topic, and the highest id of a schedule."""

    last_id: int
    changes: tuple[tuple[str, int], ...]  # (topic, change of the number of messages)
    # The same of owners other than local: (owner, topic, change). With topic "", the change of the number of schedules.
    owned: tuple[tuple[str, str, int], ...] = ()


class SaveIds(NamedTuple):
    """A row of the index of idempotency keys; `dedupe.segment` has its layout."""

    key: int  # ascending
    value: bytes


class DropIds(NamedTuple):
    key: int


class SaveEvents(NamedTuple):
    """A block of delivery events; found by the number of its first event."""

    first: int
    count: int  # type: ignore[assignment]
    value: bytes


class SaveSetting(NamedTuple):
    """A setting of the hub, or a row that a part of the router keeps under a name of its own."""

    name: str
    value: Any  # a value that msgpack can encode; None: the row is removed


class Discard(NamedTuple):
    """Removes blocks in which retention of topics has removed all messages; older blocks stay."""

    bases: tuple[int, ...]  # base_seqs of the blocks


class SaveProducer(NamedTuple):
    """The last pseq of a producer, and the seqs of its latest messages, so that a resend is answered with its seq."""

    name: str
    epoch: int
    last_pseq: int
    recent: tuple[int, ...]  # flat (count, first seq) runs, oldest first; the last run ends with last_pseq
    seen_us: int
    since_pseq: int = 0  # the first pseq of this epoch; 0: not known, in rows of older programs
    blocks: bytes = b""  # flat (count, CRC of the body), u32 each, of the latest blocks; the last ends with last_pseq
    jumps: bool = False  # a numbered source
    spans: bytes = b""  # of a numbered source: flat (first, last position), u64 each, of the same blocks as `blocks`


class DropProducer(NamedTuple):
    name: str


class Restored(NamedTuple):
    """The state in the journal, with which a hub starts. The defaults are of a new journal."""

    first_seq: int = 1
    last_seq: int = 0
    last_ts_us: int = 0
    groups: tuple[SaveGroup, ...] = ()
    producers: tuple[SaveProducer, ...] = ()
    failures: tuple[SaveFailure, ...] = ()
    topics: tuple[SaveTopic, ...] = ()
    settings: tuple[SaveSetting, ...] = ()
    was_clean: bool = True  # the last hub has drained
    findings: tuple[Any, ...] = ()  # damage at the end of the journal, for the log


_Groups = SaveGroup | DropGroup | SaveFailure | DropFailure
_Topics = SaveTopic | DropTopic | Discard
_Later = SaveSchedule | DropSchedule | CountSchedules
_Others = SaveProducer | DropProducer | SaveIds | DropIds | SaveEvents | SaveSetting
Record = Append | SaveOrigin | _Groups | _Topics | _Later | _Others
