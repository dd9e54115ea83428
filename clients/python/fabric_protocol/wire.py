"""Messages to frames and back. One multipart for each command: `[meta]` or `[meta, block]`.

`meta` is one msgpack array `[verb, chan, rid, …]`. Control verbs take a map, so they can get new fields; frequent verbs
are positional. The decoder is total: every list of byte strings gives a message or a `ProtocolError`, nothing else.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

import msgpack

from fabric_protocol import messages as m
from fabric_protocol import meta as bounded
from fabric_protocol.block import BLOCK_BYTES_MAX
from fabric_protocol.bounds import HORIZON_MS, NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.origin import read_origin

VERDICTS_MAX: Final = bounded.ROWS_MAX
SETTLES_MAX: Final = 64  # channels of one TXN
DEPTH_MAX: Final = 8  # of lists and maps within a map: bounds the recursion of code that walks them
REASON_CHARS_MAX: Final = 1_000  # of a RETRY or REJECT: it is stored with each message of the range
ERROR_CHARS_MAX: Final = 500
_SHOWN_CHARS_MAX: Final = 60  # of a wrong value, in the text of an error
FRAME_BYTES_MAX: Final = BLOCK_BYTES_MAX


class Verb(IntEnum):
    HELLO = 1
    WELCOME = 2
    GOODBYE = 3
    PING = 4
    PONG = 5
    OK = 6
    ERR = 7
    NOTICE = 8
    PUB = 16
    PUBOK = 17
    FLOW = 18
    SUB = 32
    UNSUB = 33
    CREDIT = 34
    DELIVER = 35
    ACK = 36
    FETCH = 37
    END = 38
    GAP = 39
    RESET = 40
    READY = 41
    GET = 48
    GOT = 49
    INFO = 50
    ADMIN = 51
    CANCEL = 52
    TXN = 53
    REQ = 54
    REP = 55


# Looked up by number, because a call of an enum is too slow for every message.
_LEVELS: Final[dict[object, m.Level]] = {int(level): level for level in m.Level}
_VERDICTS: Final[dict[object, m.Verdict]] = {int(verdict): verdict for verdict in m.Verdict}


def encode(message: m.ToHub | m.ToClient) -> list[bytes]:
    """The frames of a message, without the routing id."""
    encoder = _ENCODERS[type(message)]
    frames: list[bytes] = encoder(message)
    return frames


def decode(frames: Sequence[bytes]) -> m.ToHub | m.ToClient:
    """The message in the frames. Raises a ProtocolError whose code can be sent back on the wire."""
    return _decode(frames, bounded.unpack)


def decode_command(frames: Sequence[bytes]) -> m.ToHub | m.ToClient:
    """The same for frames to the hub: a frame that would cost too much is refused before it is decoded."""
    return _decode(frames, bounded.unpack_command)


def _decode(frames: Sequence[bytes], unpack: Callable[[bytes], list[Any]]) -> m.ToHub | m.ToClient:
    if not 1 <= len(frames) <= 2:
        raise ProtocolError(Code.BAD_FRAME, f"a command has 1 or 2 frames, not {len(frames)}")
    meta = unpack(frames[0])
    verb = meta[0]
    if type(verb) is not int or verb not in _DECODERS:  # type first: 1.0 and True would be found as HELLO
        raise ProtocolError(Code.UNKNOWN_VERB, f"verb {_shown(verb)} is not known")
    decoder, with_block = _DECODERS[verb]
    if with_block != (len(frames) == 2):
        needs = "needs a block" if with_block else "takes no block"
        raise ProtocolError(Code.BAD_FRAME, f"verb {Verb(verb).name} {needs}")
    chan, rid = meta[1], meta[2]
    if not (type(chan) is int and type(rid) is int and 0 <= chan <= NUMBER_MAX and 0 <= rid <= NUMBER_MAX):
        raise ProtocolError(Code.BAD_META, "chan and rid are unsigned integers below 2^63")
    try:
        message: m.ToHub | m.ToClient = decoder(chan, rid, meta[3:], frames[-1])
    except IndexError:
        raise ProtocolError(Code.BAD_META, f"{Verb(verb).name}: fields are missing") from None
    except ValueError as error:
        raise ProtocolError(Code.BAD_META, f"{Verb(verb).name}: {error}") from None
    return message


def request_id(frames: Sequence[bytes]) -> tuple[int, int]:
    """(chan, rid) of frames that did not decode, for the ERR; zeros if they cannot be read."""
    return bounded.request_id(frames[0]) if frames else (0, 0)


def _uint(value: object) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{_shown(value)} is not an unsigned integer below 2^63")
    return value


def _level(value: object) -> m.Level:
    level = _LEVELS.get(value) if type(value) is int else None
    if level is None:
        raise ValueError(f"{_shown(value)} is not a level")
    return level


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not text")
    return value


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{_shown(value)} is not an array")
    return value


def _shown(value: object) -> str:
    """A wrong value for the text of an error: short, and without its nested values."""
    return repr(value)[:_SHOWN_CHARS_MAX] if isinstance(value, int | float | str | bytes) else type(value).__name__


def _map(args: list[Any]) -> Mapping[str, Any]:
    if not args or args[0] is None:
        return {}
    if not isinstance(args[0], dict) or not all(isinstance(key, str) for key in args[0]):
        raise ValueError("the argument is a map with text keys")
    level: list[Any] = [args[0]]
    for _ in range(DEPTH_MAX):
        level = [item for value in level if isinstance(value, dict | list) for item in _inside(value)]
        if not level:
            return args[0]
    raise ValueError(f"the argument is nested deeper than {DEPTH_MAX}")


def _inside(value: dict[Any, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _settles(value: object) -> tuple[tuple[int, tuple[tuple[int, int, int, Any], ...]], ...]:
    rows = [_list(row) for row in _list(value)]
    if len(rows) > SETTLES_MAX:
        raise ValueError(f"a TXN settles on at most {SETTLES_MAX} channels")
    return tuple((_uint(row[0]), _verdicts(row[1])) for row in rows)


def _verdicts(value: object) -> tuple[tuple[int, int, int, Any], ...]:
    rows = _list(value)
    if not 1 <= len(rows) <= VERDICTS_MAX:
        raise ValueError(f"an ACK has 1..{VERDICTS_MAX} verdicts")
    out, verdicts = [], _VERDICTS
    for row in map(_list, rows):
        verdict, first, last = row[0], row[1], row[2]
        if type(verdict) is not int or verdict not in verdicts:
            raise ValueError(f"{_shown(verdict)} is not a verdict")
        if not (type(first) is int and type(last) is int and 1 <= first <= last < 1 << 63):
            raise ValueError(f"ordinals {_shown(first)}..{_shown(last)} are not a range")
        arg: Any = row[3] if len(row) > 3 else None
        out.append((verdicts[verdict], first, last, arg if arg is None else _argument(arg)))
    return tuple(out)


def _argument(value: object) -> Any:
    """A number, a text, or both in a list: the wait, and the reason."""
    if isinstance(value, list) and len(value) == 2:
        wait, reason = value
        return (None if wait is None else _wait(wait)), _reason(reason)
    if value is None or isinstance(value, str):
        return value if value is None else _reason(value)
    return _wait(value)


def _count(value: object) -> int:
    if not _uint(value):
        raise ValueError("a count is 1 or more")
    return _uint(value)


def _wait(value: object) -> int:
    """Milliseconds from now; a time derived from them must fit the journal's rows."""
    if _uint(value) > HORIZON_MS:
        raise ValueError(f"a wait is at most {HORIZON_MS} ms (10 years), not {value}")
    return _uint(value)


def _reason(value: object) -> str:
    if len(_text(value)) > REASON_CHARS_MAX:
        raise ValueError(f"a reason is at most {REASON_CHARS_MAX} characters")
    return _text(value)


def _confirms(args: list[Any]) -> tuple[m.Confirm, ...]:
    return tuple(map(_confirm, map(_list, _list(args[1]))))


def _confirm(row: list[Any]) -> m.Confirm:
    rid, first_seq, stored, dups = _uint(row[0]), _uint(row[1]), _uint(row[2]), _uint(row[3])
    if len(row) == 4:
        return rid, first_seq, stored, dups
    return rid, first_seq, stored, dups, tuple((_uint(r[0]), _uint(r[1])) for r in map(_list, _list(row[4])))


def _pack(*meta: Any) -> bytes:
    packed: bytes = msgpack.packb(meta)
    return packed


_ENCODERS: Final[dict[type, Any]] = {
    m.Hello: lambda s: [_pack(Verb.HELLO, 0, s.rid, s.fields)],
    m.Welcome: lambda s: [_pack(Verb.WELCOME, 0, s.rid, s.fields)],
    m.Goodbye: lambda s: [_pack(Verb.GOODBYE, 0, s.rid)],
    m.Ping: lambda s: [_pack(Verb.PING, 0, s.rid)],
    m.Pong: lambda s: [_pack(Verb.PONG, 0, s.rid)],
    m.Ok: lambda s: [_pack(Verb.OK, s.chan, s.rid, s.fields)],
    m.Err: lambda s: [_pack(Verb.ERR, s.chan, s.rid, s.code, s.text[:ERROR_CHARS_MAX], s.fields)],
    m.Notice: lambda s: [_pack(Verb.NOTICE, 0, 0, s.kind, s.fields)],
    m.Publish: lambda s: [
        _pack(Verb.PUB, 0, s.rid, s.pseq, s.level, s.options)
        if s.options
        else _pack(Verb.PUB, 0, s.rid, s.pseq, s.level),
        s.block,
    ],
    m.PubOk: lambda s: [_pack(Verb.PUBOK, 0, 0, s.level, s.confirms)],
    m.Flow: lambda s: [_pack(Verb.FLOW, 0, 0, s.blocks_max, s.bytes_max)],
    m.Subscribe: lambda s: [_pack(Verb.SUB, s.chan, s.rid, s.fields)],
    m.Unsubscribe: lambda s: [_pack(Verb.UNSUB, s.chan, s.rid)],
    m.Credit: lambda s: [
        _pack(Verb.CREDIT, s.chan, 0, s.ordinal_max, s.bytes_max, s.unsure)
        if s.unsure
        else _pack(Verb.CREDIT, s.chan, 0, s.ordinal_max, s.bytes_max)
    ],
    m.Deliver: lambda s: [
        _pack(Verb.DELIVER, s.chan, 0, s.first_ordinal, s.attempt, s.seqs)
        if s.origin is None
        else _pack(Verb.DELIVER, s.chan, 0, s.first_ordinal, s.attempt, s.seqs, s.origin),
        s.block,
    ],
    m.Settle: lambda s: [_pack(Verb.ACK, s.chan, s.rid, s.verdicts)],
    m.Fetch: lambda s: [_pack(Verb.FETCH, s.chan, s.rid, s.count, s.expires_ms, *([s.enough] if s.enough else []))],
    m.End: lambda s: [_pack(Verb.END, s.chan, s.rid, s.sent)],
    m.Gap: lambda s: [_pack(Verb.GAP, s.chan, 0, s.first_seq, s.last_seq, s.reason)],
    m.Reset: lambda s: [_pack(Verb.RESET, s.chan, 0, s.fields)],
    m.Ready: lambda s: [_pack(Verb.READY, s.chan, s.rid, s.refresh)],
    m.Get: lambda s: [_pack(Verb.GET, 0, s.rid, s.fields)],
    m.Got: lambda s: [_pack(Verb.GOT, 0, s.rid, s.seqs, *([s.origin] if s.origin else [])), s.block],
    m.Info: lambda s: [_pack(Verb.INFO, 0, s.rid, s.fields)],
    m.Admin: lambda s: [_pack(Verb.ADMIN, 0, s.rid, s.fields)],
    m.Cancel: lambda s: [_pack(Verb.CANCEL, 0, s.rid, s.fields)],
    m.Transact: lambda s: [_pack(Verb.TXN, 0, s.rid, s.pseq, s.settles), s.block],
    m.Request: lambda s: [_pack(Verb.REQ, s.chan, s.rid, s.fields), s.block],
    m.Reply: lambda s: [_pack(Verb.REP, s.chan, s.rid, s.fields), s.block],
}

# verb -> (decoder of (chan, rid, args, last frame), whether the command has a block)
_DECODERS: Final[dict[int, tuple[Any, bool]]] = {
    Verb.HELLO: (lambda c, r, a, f: m.Hello(r, _map(a)), False),
    Verb.WELCOME: (lambda c, r, a, f: m.Welcome(r, _map(a)), False),
    Verb.GOODBYE: (lambda c, r, a, f: m.Goodbye(r), False),
    Verb.PING: (lambda c, r, a, f: m.Ping(r), False),
    Verb.PONG: (lambda c, r, a, f: m.Pong(r), False),
    Verb.OK: (lambda c, r, a, f: m.Ok(c, r, _map(a)), False),
    Verb.ERR: (lambda c, r, a, f: m.Err(c, r, _uint(a[0]), _text(a[1]), _map(a[2:])), False),
    Verb.NOTICE: (lambda c, r, a, f: m.Notice(_text(a[0]), _map(a[1:])), False),
    Verb.PUB: (lambda c, r, a, f: m.Publish(r, _uint(a[0]), _level(a[1]), f, _map(a[2:])), True),
    Verb.PUBOK: (lambda c, r, a, f: m.PubOk(_uint(a[0]), _confirms(a)), False),
    Verb.FLOW: (lambda c, r, a, f: m.Flow(_uint(a[0]), _uint(a[1])), False),
    Verb.SUB: (lambda c, r, a, f: m.Subscribe(c, r, _map(a)), False),
    Verb.UNSUB: (lambda c, r, a, f: m.Unsubscribe(c, r), False),
    Verb.CREDIT: (
        lambda c, r, a, f: m.Credit(c, _uint(a[0]), _uint(a[1]), _uint(a[2]) if len(a) > 2 else 0),
        False,
    ),
    Verb.DELIVER: (
        lambda c, r, a, f: m.Deliver(
            c, _uint(a[0]), _uint(a[1]), tuple(map(_uint, _list(a[2]))), f, read_origin(a[3]) if len(a) > 3 else None
        ),
        True,
    ),
    Verb.ACK: (lambda c, r, a, f: m.Settle(c, r, _verdicts(a[0])), False),
    Verb.FETCH: (lambda c, r, a, f: m.Fetch(c, r, _count(a[0]), _wait(a[1]), *map(_uint, a[2:3])), False),
    Verb.END: (lambda c, r, a, f: m.End(c, r, _uint(a[0])), False),
    Verb.GAP: (lambda c, r, a, f: m.Gap(c, _uint(a[0]), _uint(a[1]), _text(a[2])), False),
    Verb.RESET: (lambda c, r, a, f: m.Reset(c, _map(a)), False),
    Verb.READY: (lambda c, r, a, f: m.Ready(c, r, _uint(a[0])), False),
    Verb.GET: (lambda c, r, a, f: m.Get(r, _map(a)), False),
    Verb.GOT: (
        lambda c, r, a, f: m.Got(r, tuple(map(_uint, _list(a[0]))), f, read_origin(a[1]) if len(a) > 1 else None),
        True,
    ),
    Verb.INFO: (lambda c, r, a, f: m.Info(r, _map(a)), False),
    Verb.ADMIN: (lambda c, r, a, f: m.Admin(r, _map(a)), False),
    Verb.CANCEL: (lambda c, r, a, f: m.Cancel(r, _map(a)), False),
    Verb.TXN: (lambda c, r, a, f: m.Transact(r, _uint(a[0]), _settles(a[1]), f), True),
    Verb.REQ: (lambda c, r, a, f: m.Request(c, r, _map(a), f), True),
    Verb.REP: (lambda c, r, a, f: m.Reply(c, r, _map(a), f), True),
}
