"""The meta frame of a command, unpacked at a bounded cost.

msgpack allocates an array before it reads its elements, at each of up to 1,024 levels of nesting: a frame of three
kilobytes could make it allocate half a gigabyte. So frames for the hub are unpacked with bounds that follow from their
own bytes; ACK and TXN, whose arrays are long, are read row by row.
"""

from itertools import islice
from typing import Any, Final

import msgpack

from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import META_BYTES_MAX

ROWS_MAX: Final = 65_536  # verdicts of one ACK or TXN on arrival; and elements of any array
CONTROL_BYTES_MAX: Final = 32 << 10  # of every command that takes a map: the longest list in one is 1,024 rows
_SHORT_BYTES: Final = 256  # a frame up to this length cannot cost much
_SLOTS_MAX: Final = 1 << 18  # elements for which one frame may make msgpack allocate memory: 2 MiB
_NESTED_MAX: Final = 1_024  # msgpack's own bound
_FIELDS_MAX: Final = 16  # of a row, and of the meta of ACK and TXN
_HEAD_BYTES: Final = 64  # verb, chan and rid are within these
_ACK: Final = 36
_TXN: Final = 53


def unpack(data: bytes) -> list[Any]:
    """The meta of any frame."""
    _require_size(data, META_BYTES_MAX)
    return _checked(data, ROWS_MAX)


def unpack_command(data: bytes) -> list[Any]:
    """The meta of a frame for the hub, from a peer that may be hostile."""
    if len(data) <= _SHORT_BYTES:
        return _checked(data, _SHORT_BYTES)
    if data[1] in (_ACK, _TXN):
        _require_size(data, META_BYTES_MAX)
        return _in_rows(data)
    _require_size(data, CONTROL_BYTES_MAX)
    headers = min(
        data.count(b"\xdc") + data.count(b"\xdd"), _NESTED_MAX
    )  # bytes that begin arrays of more than 15 elements, or other data
    return _checked(data, min(_SLOTS_MAX // (headers + 1), len(data)))


def request_id(data: bytes) -> tuple[int, int]:
    """(chan, rid) of a meta that did not decode; zeros when they cannot be read."""
    unpacker = _unpacker(data[:_HEAD_BYTES])
    try:
        unpacker.read_array_header()
        _, chan, rid = (unpacker.unpack() for _ in range(3))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return 0, 0
    return chan if is_uint(chan) else 0, rid if is_uint(rid) else 0


def is_uint(value: object) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _require_size(data: bytes, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise ProtocolError(Code.TOO_LARGE, f"meta is at most {bytes_max} bytes, not {len(data)}")


def _checked(data: bytes, array_max: int) -> list[Any]:
    try:
        meta = msgpack.unpackb(data, raw=False, strict_map_key=True, max_array_len=array_max)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise _bad(error) from None
    if not isinstance(meta, list) or len(meta) < 3:
        raise ProtocolError(Code.BAD_META, "meta is an array [verb, chan, rid, …]")
    return meta


def _in_rows(data: bytes) -> list[Any]:
    """The meta of an ACK or a TXN. Only the arrays that hold rows may be long."""
    unpacker = _unpacker(data)
    try:
        length = unpacker.read_array_header()
        if not 3 <= length <= _FIELDS_MAX:
            raise ValueError(f"meta has 3..{_FIELDS_MAX} fields, not {length}")
        meta = [unpacker.unpack() for _ in range(min(length, 3 + (data[1] == _TXN)))]
        if len(meta) < length:
            meta.append(_rows(unpacker) if data[1] == _ACK else _settles(unpacker))
        meta += [unpacker.unpack() for _ in range(length - len(meta))]
        if unpacker.tell() != len(data):
            raise ValueError("bytes follow")
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise _bad(error) from None
    return meta


def _rows(unpacker: "msgpack.Unpacker") -> list[Any]:
    count = unpacker.read_array_header()
    if count > ROWS_MAX:
        raise ValueError(f"{count} rows exceed {ROWS_MAX}")
    rows = list(islice(unpacker, count))
    if len(rows) < count:
        raise ValueError("rows are missing")
    return rows


def _settles(unpacker: "msgpack.Unpacker") -> list[Any]:
    """[[channel, rows], …] of a TXN; the rows of all channels together are bounded."""
    channels = unpacker.read_array_header()
    if channels > ROWS_MAX:
        raise ValueError(f"{channels} channels exceed {ROWS_MAX}")
    settles: list[Any] = []
    count = 0
    for _ in range(channels):
        if unpacker.read_array_header() != 2:
            raise ValueError("what a TXN settles is [channel, rows]")
        settles.append([unpacker.unpack(), _rows(unpacker)])
        count += len(settles[-1][1])
        if count > ROWS_MAX:
            raise ValueError(f"{count} rows exceed {ROWS_MAX}")
    return settles


def _unpacker(data: bytes) -> "msgpack.Unpacker":
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_array_len=_FIELDS_MAX)
    unpacker.feed(data)
    return unpacker


def _bad(error: Exception) -> ProtocolError:
    return ProtocolError(Code.BAD_META, f"meta is not msgpack: {error or type(error).__name__}")
