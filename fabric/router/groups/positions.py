"""Position: where a group begins, or where a seek moves it."""

from typing import Any, NamedTuple

from fabric.router.fields import is_number
from fabric.router.ranges import Ranges
from fabric.router.searches import Searches
from fabric_protocol.errors import Code, ProtocolError


class Position(NamedTuple):
    """A cursor, and open messages below it that are delivered too."""

    cursor: int
    open: tuple[tuple[int, int], ...] = ()  # (first seq, last seq), ascending


class Ends(NamedTuple):
    """The first and last seqs of the journal."""

    first_seq: int
    committed_seq: int  # the last seq on disk; searches end here
    next_seq: int  # the seq of the next message


def find_position(requested: Any, ends: Ends, patterns: tuple[str, ...], searches: Searches, field: str) -> Position:
    """The position that a client requests in a field. Raises BUSY while the search for it goes on."""
    first_seq, committed_seq, next_seq = ends
    match requested:
        case "first":
            return Position(first_seq)
        case "new":
            return Position(next_seq)
        case "last":
            found = searches.last(patterns, first_seq, committed_seq)
            return Position(committed_seq + 1 if found is None else found)
        case "last_per_key":
            latest = Ranges()
            for seq in searches.last_per_key(patterns, first_seq, committed_seq):
                latest.add(seq, seq)
            return Position(committed_seq + 1, tuple(latest))
        case {"seq": seq} if is_number(seq) and len(requested) == 1:
            return Position(min(max(seq, first_seq), next_seq))
        case {"time_us": time_us} if is_number(time_us) and len(requested) == 1:
            return Position(max(searches.reader.seek_time(time_us), first_seq))
    raise ProtocolError(
        Code.BAD_OPTION,
        f"{field} is 'first', 'new', 'last', 'last_per_key', {{seq: n}} or {{time_us: t}}, not {requested!r:.60}",
    )
