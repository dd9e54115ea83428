"""Blocks made of other blocks: a part of one, or several joined.

Columns are sliced without decoding a message; only headers, and the blocks that `join` combines, are encoded again.
"""

from collections.abc import Sequence

from fabric_protocol.block import HEADERS, IDS, KEYS, SPARSE, Block, encode, intern_topics, seal, stamp
from fabric_protocol.columns import column, encode_headers, padded, select_column, select_headers
from fabric_protocol.errors import BlockError


def cut(block: Block, start: int, stop: int) -> bytes:
    """A stamped block of messages start..stop-1, whose base_seq is that of its first message.

    A part of a SPARSE block is SPARSE: the caller lists its seqs separately.
    """
    assert 0 <= start < stop <= block.count
    if start == 0 and stop == block.count:
        return block.raw
    return _select(block, [(start, stop)], block.flags)


def pick(block: Block, runs: Sequence[tuple[int, int]]) -> bytes:
    """A stamped block of several runs of messages (each start..stop-1); SPARSE unless it is one run."""
    assert runs
    if len(runs) == 1:
        return cut(block, *runs[0])
    return _select(block, runs, block.flags | SPARSE)


def select(block: Block, runs: Sequence[tuple[int, int]]) -> bytes:
    """A block of several runs of messages of an unstamped block; the hub numbers them without gaps."""
    assert runs
    return _select(block, runs, block.flags)


def join(blocks: Sequence[Block]) -> bytes:
    """One unstamped block of the messages of several, in the given order. They must agree on priority and expiry."""
    first = blocks[0]
    if len(blocks) == 1:
        return first.raw
    same = all(b.priority == first.priority and b.expires_us == first.expires_us for b in blocks)
    if not same:
        raise BlockError("joined blocks agree on priority and expiry")
    flags = 0
    for b in blocks:
        flags |= b.flags
    names = [name for b in blocks for name in b.topic_names()]
    payloads = [p for b in blocks for p in b.payloads()]
    keys = [k for b in blocks for k in b.keys()] if flags & KEYS else None  # noqa: SIM118 - a block is no dict
    ids = [k for b in blocks for k in b.ids()] if flags & IDS else None
    headers = [h for b in blocks for h in b.headers()] if flags & HEADERS else None
    topics: str | list[str] = names[0] if len(set(names)) == 1 else names
    return encode(
        topics, payloads, keys=keys, ids=ids, headers=headers, priority=first.priority, expires_us=first.expires_us
    )


def _select(block: Block, runs: Sequence[tuple[int, int]], flags: int) -> bytes:
    """A stamped block of the selected runs; columns are sliced, only headers are encoded again."""
    raw, count, at = block.raw, block.count, block.sections
    table, index = list(block.topics), None
    if block.n_topics > 1:
        places = block.topic_idx()
        table, index = intern_topics([table[i] for a, b in runs for i in places[a:b]])
    sections = [column([name.encode() for name in table])]
    if index is not None:
        sections.append(padded(index.tobytes()))
    sections.extend(select_column(raw, pos, count, runs) for pos in (at.keys, at.ids) if pos >= 0)
    if at.headers >= 0:
        sections.append(encode_headers(list(select_headers(raw, at.headers, count, runs))))
    sections.append(select_column(raw, at.payload, count, runs))
    size = sum(b - a for a, b in runs)
    sealed = seal(flags, block.priority, size, len(table), block.expires_us, sections)
    return stamp(sealed, block.base_seq + runs[0][0], block.ts_us)
