"""The columns of each page: how a value is found, how it is shown, and which columns stay on a narrow terminal.

Columns have fixed widths, so that the view does not move while numbers change; the name has the rest of the line.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from fabric.cli.support.values import shown_span
from fabric.top.model import GROUPS, SESSIONS, TOPICS, Model, Row

GAP: Final = 1  # spaces between columns
NAME_MIN: Final = 12  # characters of the name that stay, on a terminal that has as many
STALE_S: Final = 10.0  # the hub's `drain_s` tells nothing when the row has not changed for so long
Value = Callable[[Model, Row, float], Any]


class Column(NamedTuple):
    """`key` is the name in JSON and in --sort. Columns of the highest `rank` are omitted first; the first column, which
    has the name, stays."""

    key: str
    title: str
    value: Value
    shown: Callable[[Any], str]
    width: int
    rank: int
    meaning: str
    alarm: str = ""  # the style of a value that is not 0


# Values as text.


def compact(number: float | None) -> str:
    """`9,999`, `12.3k`, `1.23M`: six characters at most."""
    if number is None:
        return "-"
    if abs(number) < 9_999.5:
        return f"{number:,.0f}"
    for unit in "kMGTP":
        number /= 1000
        if abs(number) < 999.5:
            digits = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
            return f"{number:.{digits}f}{unit}"
    return f"{number:.0e}"


def rate(per_s: float | None) -> str:
    """`0`, `0.3`, `42`, `12.3k`."""
    if per_s is None:
        return "-"
    return f"{per_s:.1f}" if 0 < per_s < 9.95 else compact(per_s)


def size(number: float | None) -> str:
    """`512`, `12.3K`, `1.2M`: bytes in units of 1,024."""
    if number is None:
        return "-"
    for unit in ("", "K", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.1f}{unit}" if unit and number < 99.5 else f"{number:.0f}{unit}"
        number /= 1024
    return f"{number:.0f}P"


def span(span_s: float | None) -> str:
    """`0s`, `42s`, `5m10s`, `3d4h`, `120d`."""
    if span_s is None:
        return "-"
    if span_s < 0.5:
        return "0s"
    days = span_s / 86_400
    if days >= 9_999.5:
        return ">9999d"
    return f"{days:.0f}d" if days >= 10 else shown_span(max(round(span_s), 1))


def text(value: object) -> str:
    return "-" if value is None else str(value)


# Values of rows.


def _field(name: str) -> Value:
    return lambda model, row, now_s: row.fields.get(name)


def _per_s(counter: str) -> Value:
    return lambda model, row, now_s: row.rates.per_s(counter, now_s)


def _name(model: Model, row: Row, now_s: float) -> str:
    return row.label


def since(model: Model, time_us: int | None, now_s: float) -> float | None:
    """Seconds since a time of the hub's clock; None for 0 and None."""
    if not time_us or model.merged_s is None:
        return None
    return max((model.now_us - time_us) / 1e6 + now_s - model.merged_s, 0.0)


def _age(name: str) -> Value:
    return lambda model, row, now_s: since(model, row.fields.get(name), now_s)


def _arrived(model: Model, row: Row, now_s: float) -> float | None:
    return row.rates.per_s("arrived", now_s) if row.fields.get("ready_exact", True) else None


def _ready(model: Model, row: Row, now_s: float) -> "Ready | None":
    ready = row.fields.get("ready")
    return None if ready is None else Ready(ready, bool(row.fields.get("ready_exact", True)))


def _drain(model: Model, row: Row, now_s: float) -> float | None:
    """Seconds until no message waits, as the hub says, unless that is too long ago."""
    if not row.fields.get("ready"):
        return 0.0 if "ready" in row.fields else None
    found: float | None = row.fields.get("drain_s")
    return found if now_s - row.changed_s < STALE_S else None


def _state(model: Model, row: Row, now_s: float) -> str | None:
    if row.fields.get("paused"):
        return "paused"
    members = row.fields.get("members")
    return None if members is None else "active" if members else "no consumers"


class Ready(NamedTuple):
    """A number of messages; while the hub still counts, it is the highest possible number."""

    messages: int
    is_exact: bool


def ready(value: Ready | None) -> str:
    return "-" if value is None else f"{'' if value.is_exact else '≤'}{compact(value.messages)}"


BY_PAGE: Final[dict[str, Sequence[Column]]] = {
    GROUPS: (
        Column("group", "GROUP", _name, text, 0, 0, "the group"),
        Column("in_per_s", "IN/S", _arrived, rate, 6, 4, "messages that arrive for the group, each second"),
        Column("out_per_s", "OUT/S", _per_s("delivered"), rate, 6, 2, "deliveries, each second"),
        Column("acked_per_s", "ACK/S", _per_s("acked"), rate, 6, 2, "acked messages, each second"),
        Column("ready", "READY", _ready, ready, 7, 0, "messages that wait for their first delivery"),
        Column("oldest_s", "OLDEST", _age("oldest_us"), span, 6, 1, "age of the oldest message that is not settled"),
        Column("in_flight", "FLIGHT", _field("in_flight"), compact, 6, 3, "messages that consumers hold"),
        Column("retrying", "RETRY", _field("retrying"), compact, 5, 3, "messages that come again", "yellow"),
        Column("dead", "DEAD", _field("dead"), compact, 5, 1, "dead letters", "red"),
        Column("drain_s", "DRAIN", _drain, span, 6, 2, "time until no message waits, at the present speed"),
        Column("consumers", "CONS", _field("members"), compact, 5, 5, "consumers"),
        Column("state", "STATE", _state, text, 12, 6, "active, paused or no consumers"),
    ),
    TOPICS: (
        Column("topic", "TOPIC", _name, text, 0, 0, "the topic"),
        Column("in_per_s", "IN/S", _per_s("msgs_in"), rate, 6, 1, "messages that are stored, each second"),
        Column("bytes_in_per_s", "B/S", _per_s("bytes_in"), size, 6, 3, "their bytes, each second"),
        Column("msgs", "MESSAGES", _field("msgs"), compact, 8, 0, "messages in the journal"),
        Column("bytes", "BYTES", _field("bytes"), size, 6, 2, "their bytes"),
        Column("oldest_s", "OLDEST", _age("first_us"), span, 6, 4, "age of the oldest message"),
        Column("newest_s", "NEWEST", _age("last_us"), span, 6, 2, "age of the newest message"),
        Column("first_seq", "FIRST SEQ", _field("first_seq"), compact, 9, 6, "seq of the oldest message"),
        Column("last_seq", "LAST SEQ", _field("last_seq"), compact, 8, 5, "seq of the newest message"),
    ),
    SESSIONS: (
        Column("client", "CLIENT", _name, text, 0, 0, "the client's name"),
        Column("session", "SESSION", _field("session"), text, 8, 1, "the session's number"),
        Column("in_per_s", "IN/S", _per_s("messages_in"), rate, 6, 1, "messages from the client, each second"),
        Column("out_per_s", "OUT/S", _per_s("messages_out"), rate, 6, 1, "messages to the client, each second"),
        Column("bytes_in_per_s", "B IN/S", _per_s("bytes_in"), size, 6, 3, "bytes from the client, each second"),
        Column("bytes_out_per_s", "B OUT/S", _per_s("bytes_out"), size, 7, 3, "bytes to the client, each second"),
        Column("outstanding", "FLIGHT", _field("outstanding"), compact, 6, 2, "messages that the client holds"),
        Column("channels", "CHAN", _field("channels"), compact, 5, 5, "its subscriptions"),
    ),
}
SORTS: Final = {GROUPS: "ready", TOPICS: "in_per_s", SESSIONS: "out_per_s"}  # until the user chooses another


def column(page: str, key: str) -> Column:
    return next(found for found in BY_PAGE[page] if found.key == key)


def fitting(page: str, width: int) -> list[Column]:
    """The columns for which a line has room."""
    found = list(BY_PAGE[page])
    while NAME_MIN + sum(column.width + GAP for column in found) > width and (
        spare := [column for column in found if column.rank]
    ):
        found.remove(max(reversed(spare), key=lambda column: column.rank))
    return found
