"""One command for each row of the table of numbers, and the values that are sent with it."""

import struct
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import msgpack

from fabric_protocol import block as b
from fabric_protocol.bounds import NUMBER_MAX, TABLE, Bound
from fabric_protocol.wire import Verb

CHAN: Final = 65_000  # of a subscription to topic `t` in group `g`, which has been sent ordinal 1
Frames = list[bytes]
Fields = dict[str, Any]

# Within the range, and refused with the same code for another reason: too far ahead; not as many as there are.
# Or for a numbered source only: test_sources has these.
REFUSED_ANYHOW: Final = {("PUB", "at_us"), ("PUB", "block: count"), ("PUB", "last"), ("PUB", "after")}
_HEAD_FIELDS: Final = {"priority": (6, "<B"), "count": (8, "<I"), "expires_us": (32, "<q")}
_chans: Final = count(1)
_names: Final = count(1)


def values(bound: Bound) -> list[Any]:
    """The edges, what is just beyond them, and what is no such number at all."""
    edges = {bound.least - 1, bound.least, bound.most, bound.most + 1}
    far = {NUMBER_MAX, NUMBER_MAX + 1, (1 << 64) - 1, -(1 << 63)}
    numbers = sorted(n for n in edges | far if -(1 << 63) <= n < 1 << 64)
    return [*numbers, True, float(bound.least), bound.least + 0.5, float("nan"), float("inf"), str(bound.least)]


def is_within(bound: Bound, value: Any) -> bool:
    return type(value) is int and bound.least <= value <= bound.most


def command(bound: Bound, value: Any, rid: int) -> Frames | None:
    """A command that says this value; None when the field has no way to say it."""
    verb, _, op = bound.verb.partition(" ")
    return _COMMANDS[verb](bound.field, op, value, rid)


def tries() -> Iterator[tuple[Bound, Any]]:
    for bound in TABLE:
        for value in values(bound):
            yield bound, value


def _pack(verb: Verb, chan: Any, rid: Any, *fields: Any) -> bytes:
    packed: bytes = msgpack.packb([int(verb), chan, rid, *fields])
    return packed


def _name() -> str:
    return f"n{next(_names)}"


def _one(topic: str = "elsewhere") -> bytes:
    return b.encode(topic, [b"1"])


def _nested(field: str, value: Any) -> Fields:
    """`a.b` is a map in a map; `a: b` is one of two in a list."""
    outer, dot, inner = field.partition(".")
    return {outer: {inner: value}} if dot else {field: value}


def _any(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.PING, value, rid) if field == "chan" else _pack(Verb.PING, 0, value)]


def _hello(field: str, op: str, value: Any, rid: int) -> Frames:
    fields: Fields = {"proto": 1}
    match field:
        case "producer.epoch":
            fields["producer"] = {"name": _name(), "epoch": value}
        case "resume.subs: chan":
            fields["resume"] = {"session": b"?", "subs": [[value, 0]]}
        case "resume.subs: ordinal":
            fields["resume"] = {"session": b"?", "subs": [[1, value]]}
        case _:
            fields[field] = value
    return [_pack(Verb.HELLO, 0, rid, fields)]


def _pub(field: str, op: str, value: Any, rid: int) -> Frames | None:
    if field == "pseq":
        return [_pack(Verb.PUB, 0, rid, value, 0), _one()]
    if field == "level":
        return [_pack(Verb.PUB, 0, rid, 0, value), _one()]
    if field.startswith("origin: "):
        numbers = {"epoch": 1, "seq": 1, "time_us": 0, field.removeprefix("origin: "): value}
        return [_pack(Verb.PUB, 0, rid, 0, 0, {"origin": [b"?" * 16, *numbers.values()]}), _one()]
    if not field.startswith("block: "):
        return [_pack(Verb.PUB, 0, rid, 0, 0, {field: value}), _one()]
    at, form = _HEAD_FIELDS[field.removeprefix("block: ")]
    raw = bytearray(_one())
    try:
        struct.pack_into(form, raw, at, value if type(value) is int else "not a number")
    except struct.error:
        return None
    return [_pack(Verb.PUB, 0, rid, 0, 0), bytes(raw)]


def _sub(field: str, op: str, value: Any, rid: int) -> Frames | None:
    if field == "chan" and not (type(value) is int and 0 <= value <= NUMBER_MAX):
        return None  # that is the row of all verbs
    chan = value if field == "chan" else next(_chans) % 60_000 + 2
    fields: Fields = {"patterns": ["nothing"], "group": _name(), "lease_ms": 100}
    if field.startswith("credit"):
        fields["credit"] = [value, 0] if field.endswith("ordinal_max") else [0, value]
    elif field != "chan":
        fields |= _nested(field, value)
    return [_pack(Verb.SUB, chan, rid, fields)]


def _credit(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.CREDIT, CHAN, 0, *((value, 1000) if field == "ordinal_max" else (1000, value)))]


def _row(field: str, value: Any) -> list[Any]:
    match field:
        case "verdict":
            return [value, 1, 1]
        case "first":
            return [0, value, NUMBER_MAX]
        case "last":
            return [0, 1, value]
        case "delay of RETRY":
            return [1, 1, 1, value]
    return [4, 1, 1, value]


def _texts(field: str, value: Any) -> bool:
    """A text in place of a delay is a reason."""
    return isinstance(value, str) and field in ("delay of RETRY", "lease of TOUCH")


def _ack(field: str, op: str, value: Any, rid: int) -> Frames | None:
    return None if _texts(field, value) else [_pack(Verb.ACK, CHAN, rid, [_row(field, value)])]


def _txn(field: str, op: str, value: Any, rid: int) -> Frames | None:
    if _texts(field, value):
        return None
    if field == "pseq":
        return [_pack(Verb.TXN, 0, rid, value, [[CHAN, [[0, 1, 1]]]]), _one()]
    settles = [[value, [[0, 1, 1]]]] if field == "chan" else [[CHAN, [_row(field, value)]]]
    return [_pack(Verb.TXN, 0, rid, 0, settles), _one()]


def _fetch(field: str, op: str, value: Any, rid: int) -> Frames:
    return [
        _pack(Verb.FETCH, CHAN, rid, *{"count": (value, 0), "expires_ms": (1, value), "enough": (1, 0, value)}[field])
    ]


def _ready(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.READY, CHAN, rid, value)]


def _get(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.GET, 0, rid, {field: value, **({"last": True} if field == "before" else {})})]


_ASKED: Final[dict[str, Fields]] = {"story": {"seq": 1}, "copies": {"seq": 1}, "find": {"key": "k"}}


def _info(field: str, op: str, value: Any, rid: int) -> Frames:
    fields: Fields = {"what": op or "groups"}
    fields |= _ASKED.get(op, {})
    if field.startswith("after: "):
        fields["after"] = [value, 1] if field.endswith("due_us") else [1, value]
    else:
        fields[field] = value
    return [_pack(Verb.INFO, 0, rid, fields)]


def _admin(field: str, op: str, value: Any, rid: int) -> Frames:
    fields: Fields = {"op": op}
    match op.partition(".")[0], op:
        case _, "group.create":
            fields |= {"group": _name(), "patterns": ["nothing"], "lease_ms": 100, field: value}
        case _, "group.update":
            fields |= {"group": "g", "lease_ms": 100, field: value}
        case "group", _:
            fields |= {"group": "g", **_nested(field, value)}
        case _, "dlq.redrive" if field == "seqs":
            fields |= {"group": "g", "seqs": [value]}
        case _, "dlq.redrive" if field.startswith("filter"):
            fields |= {"group": "g", **_nested(field, value)}
        case _, "dlq.redrive":
            fields |= {"group": "g", "all": True, field: value}
        case "dlq", _:
            fields |= {"group": "g", field: value}
        case _, "topic.purge" if field == "after":
            fields |= {"topic": _name(), "dry_run": True, field: value}
        case "topic", _:
            fields |= {"topic": _name(), field: value}
        case _:
            fields |= {field: value}
    return [_pack(Verb.ADMIN, 0, rid, fields)]


def _cancel(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.CANCEL, 0, rid, {field: value})]


def _req(field: str, op: str, value: Any, rid: int) -> Frames:
    return [_pack(Verb.REQ, 0, rid, {field: value}), _one("nobody.answers")]


_COMMANDS: Final[dict[str, Callable[[str, str, Any, int], Frames | None]]] = {
    "all": _any,
    "HELLO": _hello,
    "PUB": _pub,
    "SUB": _sub,
    "CREDIT": _credit,
    "ACK": _ack,
    "FETCH": _fetch,
    "READY": _ready,
    "GET": _get,
    "INFO": _info,
    "ADMIN": _admin,
    "CANCEL": _cancel,
    "TXN": _txn,
    "REQ": _req,
}
