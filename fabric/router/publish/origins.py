"""Origins of published blocks: the option of PUB, checked, and what is left of a block when some of it is known.

Only the first message of a block has its origin on disk, and each message behind it is one seq further in both
journals. So a block from which duplicates were taken is stored as several blocks, each with its own origin.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fabric_protocol.block import Block
from fabric_protocol.block_parts import select
from fabric_protocol.bounds import NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.origin import Origin, read_origin
from fabric_protocol.runs import runs_of


def origin_of(options: Mapping[str, Any], count: int, own_journal: bytes) -> Origin | None:
    """The origin that a PUB gives; None when it has none. A message of this hub's own journal is refused: it went in a
    circle, and would go on."""
    given = options.get("origin")
    if given is None:
        return None
    try:
        origin = read_origin(given)
    except ValueError as error:
        raise ProtocolError(Code.BAD_OPTION, str(error)) from None
    if origin.seq + count - 1 > NUMBER_MAX:
        raise ProtocolError(Code.BAD_OPTION, f"seq of an origin is that of the first of {count} messages: too high")
    if origin.journal == own_journal:
        raise ProtocolError(
            Code.BAD_OPTION,
            f"the origin names this hub's own journal ({own_journal.hex()}), at seq {origin.seq}: the message came "
            "back in a circle; publish messages of other journals only",
        )
    return origin


def parts_with_origins(block: Block, repeats: Sequence[tuple[int, int]]) -> list[Block]:
    """The messages of a block with an origin that are not duplicates: a block for each run of them."""
    assert block.origin is not None
    known = {index for index, _ in repeats}
    parts = []
    for start, stop in runs_of([index for index in range(block.count) if index not in known]):
        part = Block(select(block, [(start, stop)]))
        part.origin = block.origin.shifted(start)
        parts.append(part)
    return parts
