"""Delivery events: what happened to messages in groups, as blocks of columns. The hub writes them, analysis reads them.

An event says that messages first_seq..last_seq were delivered, settled or lost by a group, when, by which client and
at which attempt. A block of events has the layout of a block of messages: little-endian arrays that each start on a
multiple of eight, so that a reader may map a column without copying. Names are in two tables; an event has the place of
its names.

    head 40  magic "FEV1" | version u8 | spare u8[3] | count u32 | n_groups u32 | n_clients u32 | spare u32
             first u64, the number of the first event | body_len u32 | crc u32, of all bytes but these four
    body     groups      column of n_groups
             clients     column of n_clients
             first_seq   u64[count]
             last_seq    u64[count]
             ts_us       i64[count]
             group_idx   u16[count]
             client_idx  u16[count]
             attempt     u16[count]      65,535 means 65,535 or more
             kind        u8[count]       as `messages.Happening`

Events of a journal are numbered 1, 2, 3, …: event i of a block has number first + i.
"""

import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from fabric_protocol.columns import aligned, check_column, column, column_end, items
from fabric_protocol.errors import BlockError

if sys.byteorder != "little":
    raise ImportError("fabric blocks are little-endian; this machine is not")

MAGIC: Final = b"FEV1"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sB3xIII4xQII")
HEAD_BYTES: Final = HEAD.size  # 40
EVENTS_MAX: Final = 65_536  # in one block, so that the places of names fit into 16 bits
ATTEMPT_MAX: Final = 65_535
_CRC_AT: Final = HEAD_BYTES - 4
_HEAD_BEFORE_CRC: Final = struct.Struct("<4sB3xIII4xQI")
_CRC: Final = struct.Struct("<I")
# The columns after the tables, in order, with their types.
FIXED: Final[tuple[tuple[str, Literal["Q", "q", "H", "B"]], ...]] = (
    ("first_seq", "Q"),
    ("last_seq", "Q"),
    ("ts_us", "q"),
    ("group_idx", "H"),
    ("client_idx", "H"),
    ("attempt", "H"),
    ("kind", "B"),
)


Mark = tuple[int, int, str, str, int]  # an event without its seqs: ts_us, kind, group, client, attempt


class Event(NamedTuple):
    number: int
    ts_us: int
    kind: int  # a `messages.Happening`
    group: str
    client: str  # the client of the consumer, as in HELLO; empty when the event has no consumer
    attempt: int
    first_seq: int
    last_seq: int


class Columns(NamedTuple):
    """Views into the bytes of a block of events, which `numpy.frombuffer` accepts."""

    first: int  # the number of the first event
    groups: list[str]
    clients: list[str]
    first_seq: "memoryview[int]"
    last_seq: "memoryview[int]"
    ts_us: "memoryview[int]"
    group_idx: "memoryview[int]"
    client_idx: "memoryview[int]"
    attempt: "memoryview[int]"
    kind: "memoryview[int]"


class OpenEventBlock:
    """Events that will become a block. `add` must be cheap: each verdict calls it. Other work is in `encode`."""

    __slots__ = ("_after", "_firsts", "_lasts", "_marks")

    def __init__(self) -> None:
        self._marks: list[Mark] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._after = -1  # the seq after the last event

    def __len__(self) -> int:
        return len(self._marks)

    def add(self, mark: Mark, first_seq: int, last_seq: int) -> int:
        """Add an event, and return how many events the block has. The event is merged with the last one when their
        marks are equal and their seqs are adjacent."""
        if first_seq == self._after and mark == self._marks[-1]:
            self._lasts[-1] = last_seq
        else:
            self._marks.append(mark)
            self._firsts.append(first_seq)
            self._lasts.append(last_seq)
        self._after = last_seq + 1
        return len(self._marks)

    def pairs(self) -> list[tuple[int, int]]:
        """The first and the last seq of each event."""
        return list(zip(self._firsts, self._lasts, strict=True))

    def about(self, seq: int, first: int) -> list[Event]:
        """The events about a message; the events of the block are numbered from `first` on."""
        rows = zip(range(first, first + len(self)), self._marks, self._firsts, self._lasts, strict=True)
        return [Event(number, *mark, a, b) for number, mark, a, b in rows if a <= seq <= b]

    def encode(self, first: int) -> bytes:
        """The block; its events are numbered from `first` on. A quiet hub writes a block with each commit, and most
        blocks have few events: the columns are packed by one call."""
        count = len(self._marks)
        times, kinds, groups, clients, attempts = zip(*self._marks, strict=True)
        n_groups, group_table, group_idx = _interned(groups)
        n_clients, client_table, client_idx = _interned(clients)
        if max(attempts) > ATTEMPT_MAX:
            attempts = tuple(min(attempt, ATTEMPT_MAX) for attempt in attempts)
        columns_ = _packer(count).pack(
            *self._firsts, *self._lasts, *times, *group_idx, *client_idx, *attempts, *kinds
        )  # fmt: skip
        body_len = len(group_table) + len(client_table) + len(columns_)
        head = _HEAD_BEFORE_CRC.pack(MAGIC, VERSION, count, n_groups, n_clients, first, body_len)
        body = group_table + client_table + columns_
        return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body


@lru_cache(maxsize=256)
def _packer(count: int) -> struct.Struct:
    """Packs the columns of a block of so many events; each column is filled up to a multiple of eight."""
    sizes = ((code, -count * struct.calcsize(code) % 8) for _, code in FIXED)
    return struct.Struct("<" + "".join(f"{count}{code}{fill}x" for code, fill in sizes))


def _interned(names: Sequence[str]) -> tuple[int, bytes, Sequence[int]]:
    """The number of distinct names, their table, and the place of each name in the table."""
    name, count = names[0], len(names)
    if names.count(name) == count:
        return 1, _table_of_one(name), (0,) * count
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return len(places), column([name.encode() for name in places]), [places[name] for name in names]


@lru_cache(maxsize=1024)
def _table_of_one(name: str) -> bytes:
    return column([name.encode()])


def encode(first: int, events: Iterable[Event]) -> bytes:
    """A block of the events, numbered from `first` on; their own numbers are ignored."""
    block = OpenEventBlock()
    for event in events:
        block.add((event.ts_us, event.kind, event.group, event.client, event.attempt), event.first_seq, event.last_seq)
    return block.encode(first)


class Extent(NamedTuple):
    """The numbers of the first and the last event of a block."""

    first: int
    last: int


def extent_of(raw: bytes | memoryview) -> Extent:
    """The extent of a block, read from its head. `columns` checks the rest."""
    count, _, _, first, _ = _head(raw)
    return Extent(first, first + count - 1)


def time_of(raw: bytes | memoryview) -> int:
    """The time of the last event of a block. Only the head and the lengths of the tables are checked."""
    count, n_groups, n_clients, _, _ = _head(raw)
    try:
        at = column_end(raw, column_end(raw, HEAD_BYTES, n_groups), n_clients)
        ts_us: int = struct.unpack_from("<q", raw, at + 16 * count + 8 * (count - 1))[0]
    except struct.error:
        raise BlockError("a column of events runs past the end of the block") from None
    return ts_us


def columns(raw: bytes | memoryview) -> Columns:
    """The columns of a block, checked. They are views into `raw`."""
    count, n_groups, n_clients, first, crc = _head(raw)
    view = memoryview(raw)
    if zlib.crc32(view[HEAD_BYTES:], zlib.crc32(view[:_CRC_AT])) != crc:
        raise BlockError("the block of events does not match its CRC")
    data = bytes(raw) if isinstance(raw, memoryview) else raw
    at, tables = HEAD_BYTES, []
    for n in (n_groups, n_clients):
        offsets = check_column(data, at, n)
        try:
            tables.append([item.decode() for item in items(data, at, n)] if n else [])
        except UnicodeDecodeError:
            raise BlockError("a name in a block of events is not UTF-8") from None
        at = aligned(at + 4 * (n + 1) + offsets[-1])
    found = []
    for _, code in FIXED:
        end = at + count * struct.calcsize(code)
        if end > len(view):
            raise BlockError("a column of events runs past the end of the block")
        found.append(view[at:end].cast("B").cast(code))
        at = aligned(end)
    if at != len(view):
        raise BlockError("the columns do not fill the block of events")
    for places, table in ((found[3], tables[0]), (found[4], tables[1])):
        if max(places) >= len(table):
            raise BlockError("an event names a place outside its table")
    return Columns(first, tables[0], tables[1], *found)


def rows(raw: bytes | memoryview) -> Iterator[Event]:
    """The events of a block, one by one."""
    block = columns(raw)
    groups: Sequence[str] = [block.groups[i] for i in block.group_idx]
    clients: Sequence[str] = [block.clients[i] for i in block.client_idx]
    numbers = range(block.first, block.first + len(groups))
    fixed = (block.attempt, block.first_seq, block.last_seq)
    return map(Event._make, zip(numbers, block.ts_us, block.kind, groups, clients, *fixed, strict=True))


def about(raw: bytes | memoryview, seq: int) -> list[Event]:
    """The events of a block that are about a message. The columns are checked only if there are such events."""
    count, n_groups, n_clients, _, _ = _head(raw)
    view = memoryview(raw)
    at = column_end(view, column_end(view, HEAD_BYTES, n_groups), n_clients)
    middle, end = at + 8 * count, at + 16 * count
    if end > len(view):
        raise BlockError("a column of events runs past the end of the block")
    pairs = zip(view[at:middle].cast("Q"), view[middle:end].cast("Q"), strict=True)
    if not any(first <= seq <= last for first, last in pairs):
        return []
    return [event for event in rows(raw) if event.first_seq <= seq <= event.last_seq]


def _head(raw: bytes | memoryview) -> tuple[int, int, int, int, int]:
    """(count, n_groups, n_clients, first, crc)."""
    if len(raw) < HEAD_BYTES:
        raise BlockError(f"a block of events has at least {HEAD_BYTES} bytes, not {len(raw)}")
    magic, version, count, n_groups, n_clients, first, body_len, crc = HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION:
        raise BlockError(f"not a block of events of version {VERSION}: it begins with {magic!r} and version {version}")
    if body_len != len(raw) - HEAD_BYTES or not 1 <= count <= EVENTS_MAX or max(n_groups, n_clients) > count:
        raise BlockError("the head of a block of events does not fit its body")
    return count, n_groups, n_clients, first, crc
