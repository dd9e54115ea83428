"""The range of every number that a peer sends, in one table.

A number is compared with its range where it enters the hub, before any arithmetic: positional fields by `wire`
(BAD_META), fields of maps by the router (BAD_OPTION), fields of a block by `block` (BAD_BLOCK). The ranges ensure that
every number the hub derives from them fits the 64 bits of the wire and of the journal's rows."""

from typing import Final, NamedTuple

from fabric_protocol.errors import Code

NUMBER_MAX: Final = (1 << 63) - 1
YEAR_MS: Final = 366 * 86_400_000
HORIZON_MS: Final = 10 * YEAR_MS  # the longest wait; a longer one is most likely a mistake of units
TIME_US_MAX: Final = (
    253_402_300_799_000_000  # the last second of the year 9999, the last that date types of clients can hold
)
CHANNEL_MAX: Final = 65_535
EPOCH_MAX: Final = (1 << 62) - 1  # more claims of a producer name than a real program can make

# Least, default, most.
HEARTBEAT_MS: Final = (200, 5_000, 60_000)
TTL_MS: Final = (1_000, 30_000, 600_000)
LEASE_MS: Final = (100, 30_000, 43_200_000)
LEASE_MAX_MS: Final = (100, 3_600_000, 604_800_000)
ATTEMPTS: Final = (0, 5, 1_000)
BACKOFF_MS: Final = (0, 500, 86_400_000)
BACKOFF_MAX_MS: Final = (0, 300_000, 604_800_000)
JITTER_PCT: Final = (0, 10, 100)
CONCURRENCY: Final = (1, 1, 65_536)
IN_FLIGHT: Final = (0, 0, 1_000_000)  # of a group; 0: no limit. More messages than consumers can hold need no limit
RATE: Final = (0, 0, 1_000_000)  # messages in `rate_ms`; 0: no limit. A faster group needs no limit
RATE_MS: Final = (1_000, 1_000, 86_400_000)  # a second to a day
GROUP_EXPIRES_MS: Final = (0, 0, HORIZON_MS)  # 0: a group stays until it is deleted
EVERY_MS: Final = (100, 0, HORIZON_MS)  # a shorter interval is a stream, not a schedule
REQUEST_MS: Final = (1, 10_000, 600_000)
REPLIES: Final = (1, 1, 65_536)
REFRESH_MS: Final = (1_000, 600_000, 86_400_000)
GET_N: Final = (1, 1, 1_000)
INFO_N: Final = (1, 1_000, 1_000)
PULSE_SINCE: Final = (0, 0, NUMBER_MAX)
SCHEDULES_N: Final = (1, 100, 500)
INVITATION_MS: Final = (1_000, 3_600_000, 30 * 86_400_000)  # how long an invitation is open; an hour
LETTERS_N: Final = (1, 100, 1_000)
TOPIC_COUNT_MAX: Final = 1 << 53  # of messages or bytes: the integers that a double holds exactly


class Bound(NamedTuple):
    """One row: a field of a verb, the accepted range, and the error code for all other values."""

    verb: str
    field: str
    least: int
    most: int
    code: Code


def _positional(verb: str, field: str, least: int = 0, most: int = NUMBER_MAX) -> Bound:
    return Bound(verb, field, least, most, Code.BAD_META)


def _named(verb: str, field: str, least: int = 0, most: int = NUMBER_MAX) -> Bound:
    return Bound(verb, field, least, most, Code.BAD_OPTION)


def _setting(verb: str, field: str, bounds: tuple[int, int, int]) -> Bound:
    return _named(verb, field, bounds[0], bounds[2])


def _group(verb: str) -> tuple[Bound, ...]:
    return (
        _setting(verb, "lease_ms", LEASE_MS),
        _setting(verb, "lease_max_ms", LEASE_MAX_MS),
        _setting(verb, "attempts_max", ATTEMPTS),
        _setting(verb, "backoff_ms", BACKOFF_MS),
        _setting(verb, "backoff_max_ms", BACKOFF_MAX_MS),
        _setting(verb, "jitter_pct", JITTER_PCT),
        _setting(verb, "max_in_flight", IN_FLIGHT),
        _setting(verb, "rate", RATE),
        _setting(verb, "rate_ms", RATE_MS),
        _setting(verb, "expires_ms", GROUP_EXPIRES_MS),
    )


def _verdicts(verb: str) -> tuple[Bound, ...]:
    return (
        _positional(verb, "verdict", 0, 4),
        _positional(verb, "first", 1),
        _positional(verb, "last", 1),
        _positional(verb, "delay of RETRY", 0, HORIZON_MS),
        _positional(verb, "lease of TOUCH", 0, HORIZON_MS),
    )


TABLE: Final = (
    _positional("all", "chan"),
    _positional("all", "rid"),
    Bound("HELLO", "proto", 1, 1, Code.UNSUPPORTED_VERSION),
    _setting("HELLO", "hb_ms", HEARTBEAT_MS),
    _setting("HELLO", "ttl_ms", TTL_MS),
    _named("HELLO", "producer.epoch", 1, EPOCH_MAX),
    _named("HELLO", "resume.subs: chan"),
    _named("HELLO", "resume.subs: ordinal"),
    _positional("PUB", "pseq"),
    _positional("PUB", "level", 0, 1),
    _named("PUB", "ttl_ms", 1, HORIZON_MS),
    _named("PUB", "delay_ms", 0, HORIZON_MS),
    _named("PUB", "at_us"),
    _setting("PUB", "every_ms", EVERY_MS),
    _named("PUB", "last", 1),
    _named("PUB", "after"),
    _named("PUB", "origin: epoch", 1),
    _named("PUB", "origin: seq", 1),
    _named("PUB", "origin: time_us"),
    Bound("PUB", "block: priority", 0, 9, Code.BAD_BLOCK),
    Bound("PUB", "block: count", 1, 65_536, Code.BAD_BLOCK),
    Bound("PUB", "block: expires_us", 0, NUMBER_MAX, Code.BAD_BLOCK),
    _named("SUB", "chan", 1, CHANNEL_MAX),
    *_group("SUB"),
    _setting("SUB", "concurrency", CONCURRENCY),
    _named("SUB", "credit: ordinal_max"),
    _named("SUB", "credit: bytes_max"),
    _named("SUB", "unsure"),
    _named("SUB", "start.seq"),
    _named("SUB", "start.time_us"),
    _positional("CREDIT", "ordinal_max"),
    _positional("CREDIT", "bytes_max"),
    _positional("CREDIT", "unsure"),
    *_verdicts("ACK"),
    _positional("FETCH", "count", 1),
    _positional("FETCH", "expires_ms", 0, HORIZON_MS),
    _positional("FETCH", "enough"),
    _positional("READY", "refresh"),
    _named("GET", "seq"),
    _named("GET", "time_us"),
    _named("GET", "before"),
    _setting("GET", "n", GET_N),
    _setting("INFO", "n", INFO_N),
    _setting("INFO schedules", "n", SCHEDULES_N),
    _named("INFO schedules", "after: due_us"),
    _named("INFO schedules", "after: id"),
    _named("INFO sessions", "after"),
    _setting("INFO pulse", "since", PULSE_SINCE),
    _setting("INFO pulse", "n", INFO_N),
    _named("INFO story", "seq", 1),
    _named("INFO story", "after"),
    _setting("INFO story", "n", INFO_N),
    _named("INFO find", "before"),
    _setting("INFO find", "n", GET_N),
    _named("INFO copies", "seq", 1),
    _named("INFO copies", "after"),
    _named("INFO copies", "time_us"),
    *_group("ADMIN group.create"),
    *_group("ADMIN group.update"),
    _named("ADMIN group.seek", "to.seq"),
    _named("ADMIN group.seek", "to.time_us"),
    _named("ADMIN group.settle", "up_to"),
    _setting("ADMIN group.refresh", "timeout_ms", REFRESH_MS),
    _named("ADMIN group.refresh", "from.seq"),
    _named("ADMIN group.refresh", "from.time_us"),
    _named("ADMIN dlq.list", "after_seq"),
    _setting("ADMIN dlq.list", "n", LETTERS_N),
    _named("ADMIN dlq.redrive", "seqs"),
    _named("ADMIN dlq.redrive", "max", 1),
    _named("ADMIN dlq.redrive", "after_seq"),
    _named("ADMIN dlq.redrive", "filter.before_us"),
    _named("ADMIN topic.create", "max_age_ms", 0, HORIZON_MS),
    _named("ADMIN topic.create", "max_msgs", 0, TOPIC_COUNT_MAX),
    _named("ADMIN topic.create", "max_bytes", 0, TOPIC_COUNT_MAX),
    _named("ADMIN topic.create", "dedupe_ms", 0, HORIZON_MS),
    _named("ADMIN topic.purge", "up_to"),
    _named("ADMIN topic.purge", "before_us"),
    _named("ADMIN topic.purge", "after"),
    _named("ADMIN session.kick", "session"),
    _setting("ADMIN keys.invite", "ttl_ms", INVITATION_MS),
    _named("CANCEL", "id", 1),
    _positional("TXN", "pseq"),
    _positional("TXN", "chan"),
    *_verdicts("TXN"),
    _setting("REQ", "timeout_ms", REQUEST_MS),
    _setting("REQ", "replies_max", REPLIES),
)
