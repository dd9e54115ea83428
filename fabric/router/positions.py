"""Where a group begins, or begins again."""

from collections.abc import Callable
from typing import Any, NamedTuple

from fabric.errors import Code, ProtocolError
from fabric.router.options import is_number
from fabric.router.ranges import Ranges
from fabric.router.shelf import Reader


class Position(NamedTuple):
    """A place in the journal, and messages before it that are wanted nevertheless."""

    cursor: int
    open: tuple[tuple[int, int], ...] = ()  # (first seq, last seq), ascending


class Ends(NamedTuple):
    """Where the journal begins and ends."""

    first_seq: int
    committed_seq: int  # the last one on disk; readers know of none after it
    next_seq: int  # what the next publish gets


def find_position(wish: Any, ends: Ends, wanted: Callable[[str], bool], reader: Reader, field: str) -> Position:
    """The position that a client asks for."""
    first_seq, committed_seq, next_seq = ends
    match wish:
        case "first":
            return Position(first_seq)
        case "new":
            return Position(next_seq)
        case "last":
            found = reader.last_match(wanted)
            return Position(committed_seq + 1 if found is None else found)
        case "last_per_key":
            latest = Ranges()
            for seq in sorted(seq for part in reader.latest_per_key(wanted) for seq in part):
                latest.add(seq, seq)
            return Position(committed_seq + 1, tuple(latest))
        case {"seq": seq} if is_number(seq) and len(wish) == 1:
            return Position(min(max(seq, first_seq), next_seq))
        case {"time_us": time_us} if is_number(time_us) and len(wish) == 1:
            return Position(max(reader.seek_time(time_us), first_seq))
    raise ProtocolError(
        Code.BAD_OPTION,
        f"{field} is 'first', 'new', 'last', 'last_per_key', {{seq: n}} or {{time_us: t}}, not {wish!r:.60}",
    )
