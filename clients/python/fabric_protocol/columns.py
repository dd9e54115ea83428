"""Columns: lists of byte strings and of header maps as flat arrays, the parts of a block.

The one idea: a column of n items is `u32[n+1] offsets | bytes`, padded to eight, so a reader finds item i without
reading the others. `column_end` checks only that the column ends inside the block, `check_*` checks every offset, and
`items` and `decode_headers` may be called only after that. Standard library only.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import Final

from fabric_protocol.errors import BlockError, Code

HeaderValue = str | bytes
Headers = Mapping[str, HeaderValue]

HEADER_NAMES_MAX: Final = 32_768  # 15 bits of name_idx
HEADER_PAIRS_MAX: Final = 262_144  # text values are checked one by one: this many take a reader about 50 ms
TEXT_BIT: Final = 0x8000
_SAME_SIZE_MAX: Final = 1024  # bounds the cache of struct, which keeps a hundred formats, each as long as its count
_U32: Final = struct.Struct("<I")
_PAIR: Final = struct.Struct("<II")


def column(items: Sequence[bytes]) -> bytes:
    try:
        offsets = array("I", accumulate(map(len, items), initial=0))
    except OverflowError:
        raise BlockError("a column holds less than 4 GiB", Code.TOO_LARGE) from None
    return b"".join((offsets.tobytes(), *items, bytes(-(4 * len(offsets) + offsets[-1]) % 8)))


def column_end(raw: bytes | memoryview, pos: int, n: int) -> int:
    """Where the next section starts; raises if that is past the end of the block."""
    start = pos + 4 * (n + 1)
    if start > len(raw):
        raise BlockError("a column runs past the end of the block")
    end = aligned(start + _U32.unpack_from(raw, start - 4)[0])
    if end > len(raw):
        raise BlockError("a column runs past the end of the block")
    return end


def check_column(raw: bytes, pos: int, n: int) -> tuple[int, ...]:
    """The offsets of a column; raises unless they start at 0, never decrease, and end inside the block."""
    column_end(raw, pos, n)
    offsets = struct.unpack_from(f"<{n + 1}I", raw, pos)
    if offsets[0] != 0 or list(offsets) != sorted(offsets):
        raise BlockError("column offsets decrease or do not start at 0")
    return offsets


def longest(offsets: tuple[int, ...]) -> int:
    """Bytes of the longest item."""
    size: int = max(map(sub, offsets[1:], offsets))
    return size


def items(raw: bytes, pos: int, n: int) -> list[bytes]:
    offsets = struct.unpack_from(f"<{n + 1}I", raw, pos)
    start = pos + 4 * (n + 1)
    size = offsets[1] if 0 < n <= _SAME_SIZE_MAX else 0
    # One struct call splits items of one size, about five times faster than slicing in a loop.
    if size and offsets[-1] == n * size and offsets == tuple(range(0, n * size + 1, size)):
        return list(struct.unpack_from(f"{size}s" * n, raw, start))
    data = raw[start : start + offsets[-1]]
    return [data[a:b] for a, b in pairwise(offsets)]


def select_column(raw: bytes, pos: int, n: int, runs: Sequence[tuple[int, int]]) -> bytes:
    """The column of the selected runs, sliced without splitting the items."""
    start, size = pos + 4 * (n + 1), 0
    offsets, pieces = array("I", [0]), []
    for a, b in runs:
        span = struct.unpack_from(f"<{b - a + 1}I", raw, pos + 4 * a)
        shift = size - span[0]
        offsets.extend([offset + shift for offset in span[1:]])
        pieces.append(raw[start + span[0] : start + span[-1]])
        size += span[-1] - span[0]
    return padded(offsets.tobytes() + b"".join(pieces))


# Headers: pairs of name and value, columnar, so that a scan reads them without decoding maps.


def encode_headers(headers: Sequence[Headers | None]) -> bytes:
    names: dict[str, int] = {}
    first_pair, places, values = array("I", [0]), [], []
    for pairs in headers:
        for name, value in (pairs or {}).items():
            index = names.setdefault(name, len(names))
            if isinstance(value, str):
                places.append(index | TEXT_BIT)
                values.append(_utf8(value, "header value"))
            elif isinstance(value, bytes):
                places.append(index)
                values.append(value)
            else:
                raise BlockError(f"header {name!r} is {type(value).__name__}, not str or bytes")
        first_pair.append(len(values))
    if len(names) > HEADER_NAMES_MAX or len(values) > HEADER_PAIRS_MAX:
        raise BlockError(f"a block has at most {HEADER_NAMES_MAX} header names and {HEADER_PAIRS_MAX} headers")
    return b"".join(
        (
            padded(_PAIR.pack(len(names), len(values)) + first_pair.tobytes()),
            column([_utf8(name, "header name") for name in names]),
            padded(array("H", places).tobytes()),
            column(values),
        )
    )


def headers_end(raw: bytes | memoryview, pos: int, count: int) -> int:
    _, n_pairs, _, _, values = header_places(raw, pos, count)
    return column_end(raw, values, n_pairs)


def check_headers(raw: bytes, pos: int, count: int) -> None:
    n_names, n_pairs, at_names, at_idx, at_values = header_places(raw, pos, count)
    first_pair = struct.unpack_from(f"<{count + 1}I", raw, pos + 8)
    if first_pair[0] != 0 or first_pair[-1] != n_pairs or list(first_pair) != sorted(first_pair):
        raise BlockError("header pairs are not in order")
    check_column(raw, at_names, n_names)
    start, end = at_values + 4 * (n_pairs + 1), check_column(raw, at_values, n_pairs)[-1]
    indexes = struct.unpack_from(f"<{n_pairs}H", raw, at_idx)
    if any((i & ~TEXT_BIT) >= n_names for i in set(indexes)):
        raise BlockError("a header name index is outside the name table")
    names = items(raw, at_names, n_names)
    if len(set(names)) != n_names:
        raise BlockError("the header name table has a name twice")
    try:
        for name in names:
            name.decode()
        if not raw[start : start + end].isascii():
            for index, value in zip(indexes, items(raw, at_values, n_pairs), strict=True):
                if index & TEXT_BIT:
                    value.decode()
    except UnicodeDecodeError:
        raise BlockError("a header name or text value is not UTF-8") from None


def decode_headers(raw: bytes, pos: int, count: int) -> list[dict[str, HeaderValue]]:
    n_names, n_pairs, at_names, at_idx, at_values = header_places(raw, pos, count)
    first_pair = struct.unpack_from(f"<{count + 1}I", raw, pos + 8)
    names = [n.decode() for n in items(raw, at_names, n_names)]
    indexes = struct.unpack_from(f"<{n_pairs}H", raw, at_idx)
    values = items(raw, at_values, n_pairs)
    pairs: list[tuple[str, HeaderValue]] = [
        (names[i & ~TEXT_BIT], v.decode() if i & TEXT_BIT else v) for i, v in zip(indexes, values, strict=True)
    ]
    return [dict(pairs[a:b]) for a, b in pairwise(first_pair)]


def select_headers(
    raw: bytes, pos: int, count: int, runs: Sequence[tuple[int, int]]
) -> Iterator[dict[str, HeaderValue]]:
    """The headers of the selected runs; other headers are not decoded."""
    n_names, n_pairs, at_names, at_idx, at_values = header_places(raw, pos, count)
    names: dict[int, str] = {}
    for a, b in runs:
        first_pair = struct.unpack_from(f"<{b - a + 1}I", raw, pos + 8 + 4 * a)
        first, size = first_pair[0], first_pair[-1] - first_pair[0]
        indexes = struct.unpack_from(f"<{size}H", raw, at_idx + 2 * first)
        for i in {i & ~TEXT_BIT for i in indexes} - names.keys():
            names[i] = _items_from(raw, at_names, n_names, i, 1)[0].decode()
        pairs: list[tuple[str, HeaderValue]] = [
            (names[i & ~TEXT_BIT], v.decode() if i & TEXT_BIT else v)
            for i, v in zip(indexes, _items_from(raw, at_values, n_pairs, first, size), strict=True)
        ]
        yield from (dict(pairs[x - first : y - first]) for x, y in pairwise(first_pair))


def _items_from(raw: bytes, pos: int, n: int, first: int, size: int) -> list[bytes]:
    """Some items of a column of n."""
    start = pos + 4 * (n + 1)
    offsets = struct.unpack_from(f"<{size + 1}I", raw, pos + 4 * first)
    return [raw[start + a : start + b] for a, b in pairwise(offsets)]


def header_places(raw: bytes | memoryview, pos: int, count: int) -> tuple[int, int, int, int, int]:
    """(n_names, n_pairs, start of names, start of name_idx, start of values); first_pair starts at pos + 8."""
    if pos + 8 > len(raw):
        raise BlockError("the headers run past the end of the block")
    n_names, n_pairs = _PAIR.unpack_from(raw, pos)
    if n_names > HEADER_NAMES_MAX or n_pairs > HEADER_PAIRS_MAX:
        raise BlockError(f"{n_pairs} headers of {n_names} names are too many for a block")
    at_names = aligned(pos + 8 + 4 * (count + 1))
    at_idx = column_end(raw, at_names, n_names)
    return n_names, n_pairs, at_names, at_idx, aligned(at_idx + 2 * n_pairs)


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except (UnicodeEncodeError, AttributeError):
        raise BlockError(f"a {what} is text that UTF-8 can hold, not {text!r:.80}") from None


def aligned(pos: int) -> int:
    return (pos + 7) & ~7


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)
