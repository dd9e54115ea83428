"""Checks the rows of an ACK or TXN before they are applied: merges rows where possible, and bounds their number.

Each row costs the hub some microseconds whatever its range, so the cost of a frame is its number of rows.
"""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fabric.router.groups.lease import Lease
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.messages import Verdict

if TYPE_CHECKING:
    from fabric.router.groups.subscription import Subscription

ROWS_MAX: Final = 4_096  # of one ACK or TXN, after rows were merged
# Bounds for messages of one ACK or TXN that fail, because a dead letter is a copy of the message.
FAILED_MAX: Final = 131_072  # messages: two of the largest blocks
FAILED_WHOLE_MAX: Final = 8_192  # of one TXN: the hub writes all their dead letters in one turn, some 60 ms
FAILED_BYTES_MAX: Final = 64 << 20  # bytes, without the bytes of the largest delivery

_FAILURES: Final = frozenset({Verdict.RETRY, Verdict.REJECT})

Row = tuple[int, int, int, Any]  # verdict, first ordinal, last ordinal, argument


def checked(sub: "Subscription", rows: Sequence[Row]) -> Sequence[Row]:
    """The rows of an ACK, merged. Raises if a row names an ordinal that was never sent, or if rows cost too much."""
    highest = rows[0][2] if len(rows) == 1 else max(last for _, _, last, _ in rows)
    if highest > sub.sent:
        raise ProtocolError(Code.BAD_ORDINAL, f"ordinal {highest} was never sent; the last ordinal is {sub.sent}")
    if len(rows) == 1 and rows[0][0] not in _FAILURES:  # most ACKs
        return rows
    rows = merged(rows)
    require_few(len(rows))
    require_light([(sub, rows)])
    return rows


def merged(rows: Sequence[Row], *, twice: bool = True) -> Sequence[Row]:
    """Consecutive rows with the same verdict and argument whose ranges follow each other, as one row each.

    Only consecutive rows are merged, so the order in which verdicts take effect is kept. Ranges may overlap where the
    second verdict on an ordinal is no different from the first: a TOUCH, unless `twice` is False.
    """
    if len(rows) == 1:
        return rows
    found: list[Row] = []
    verdict, first, last, arg = rows[0]
    repeatable = Verdict.TOUCH if twice else None
    for row in islice(rows, 1, None):
        kind, start, end, argument = row
        if start > last + 1 or kind != verdict or argument != arg:
            joins = False
        else:
            joins = start == last + 1 or (kind == repeatable and end >= first - 1)
        if joins:
            first, last = min(first, start), max(last, end)
        else:
            found.append((verdict, first, last, arg))
            verdict, first, last, arg = row
    found.append((verdict, first, last, arg))
    return found


def require_few(count: int) -> None:
    """Refuse an ACK or TXN with more rows than one frame may make the hub apply."""
    if count > ROWS_MAX:
        raise ProtocolError(
            Code.TOO_LARGE,
            f"{count} rows remain after rows that follow each other were merged; at most {ROWS_MAX} are allowed: "
            "send the other rows in another frame",
        )


def require_light(work: "Sequence[tuple[Subscription, Sequence[Row]]]", *, whole: bool = False) -> None:
    """Refuse an ACK or TXN with more failed messages or bytes than the hub may copy for one frame; `whole`: all their
    dead letters are written in one turn."""
    failed = [(sub, row) for sub, rows in work for row in rows if row[0] in _FAILURES]
    if not failed:
        return
    count, sizes = 0, dict[Lease, int]()
    for sub, (_, first, last, _) in failed:
        for lease in sub.leases_in(first, last):
            count += min(last, lease.last) - max(first, lease.first) + 1
            sizes[lease] = lease.size
    size = sum(sizes.values()) - max(sizes.values(), default=0)
    count_max = FAILED_WHOLE_MAX if whole else FAILED_MAX
    if count > count_max or size > FAILED_BYTES_MAX:
        raise ProtocolError(
            Code.TOO_LARGE,
            f"{count} messages of {size} bytes are rejected or retried; at most {count_max} messages of "
            f"{FAILED_BYTES_MAX} bytes are allowed in one frame: send the other rows in another frame",
        )
