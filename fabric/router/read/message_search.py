"""Searches for messages, for INFO: by id or key, from the newest on, and the copies of a message that died.

A command searches a bounded part of the journal: `more` says that there is more to search, and `next` is the `before`
or `after` of the next command. Nothing is remembered between two commands.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.router.dead_letters.blocks import ATTEMPTS, ERROR, HOPS, REASON, REDRIVEN, SEQ, number
from fabric.router.fields import bounded, text
from fabric.router.read.story import require_readable, required_seq
from fabric.router.sessions.session import Session
from fabric_protocol.block import IDS, KEYS, Block
from fabric_protocol.bounds import GET_N, NUMBER_MAX
from fabric_protocol.errors import Code, ProtocolError
from fabric_protocol.names import DEAD, REDRIVE

if TYPE_CHECKING:
    from fabric.router.router import Router

# Work of one command, at most: some ten milliseconds.
FINDS_MAX: Final = 128  # reads of a summary of the journal's index, or of a block
MESSAGES_MAX: Final = 16_384  # whose keys or ids are decoded; and the rest of a block
BYTES_MAX: Final = 16 << 20  # of blocks read
TOPICS_MAX: Final = 8_192  # compared with the patterns
LETTERS_MAX: Final = 4_096  # whose headers are decoded; and the rest of a block
NAME_MAX: Final = 65_536  # characters of a key or an id that is searched
COPIES: Final = (f"{DEAD}>", f"{REDRIVE}>")

Fields = Mapping[str, Any]
Row = dict[str, Any]


def find(router: "Router", session: Session, fields: Fields) -> Row:
    """The answer to INFO {what: "find", id? | key?, topic? | pattern?, before?, n?}: seqs, the newest first."""
    if (fields.get("id") is None) == (fields.get("key") is None):
        raise ProtocolError(Code.BAD_OPTION, "find searches for an id or for a key: give one of them")
    name = "id" if fields.get("id") is not None else "key"
    wanted, flag = text(fields, name, "", NAME_MAX).encode(), IDS if name == "id" else KEYS
    shared, view = router.shared, router.reading.view(fields)
    session.principal.require_subscribe(view.patterns)
    n = bounded(fields, "n", *GET_N)
    before = min(bounded(fields, "before", 0, NUMBER_MAX, NUMBER_MAX), shared.committed_seq + 1)
    seqs: list[int] = []
    messages, size, looked_max = 0, 0, view.looked + TOPICS_MAX
    for _ in range(FINDS_MAX):
        if before <= shared.first_seq or messages >= MESSAGES_MAX or size >= BYTES_MAX or view.looked >= looked_max:
            break
        block, reached = shared.reader.previous_block(before, view)
        if block is not None:
            size += len(block.raw)
            if block.flags & flag and wanted in block.raw:
                messages += block.count
                names = block.ids() if flag == IDS else block.keys()
                topics, places = [view(topic) for topic in block.topics], block.topic_idx()
                top = min(before, block.last_seq + 1) - block.base_seq
                for place in range(top - 1, max(shared.first_seq - block.base_seq, 0) - 1, -1):
                    if names[place] == wanted and topics[places[place]]:
                        seqs.append(block.base_seq + place)
                        if len(seqs) == n:
                            return {"seqs": seqs, "more": seqs[-1] > shared.first_seq, "next": seqs[-1]}
        before = reached
    return {"seqs": seqs, "more": before > shared.first_seq, "next": before}


def copies(router: "Router", session: Session, fields: Fields) -> Row:
    """The answer to INFO {what: "copies", seq, group?, after?, time_us?}: dead letters of a message and redriven
    messages, ascending; those that are not in the list of dead letters any more included."""
    seq, shared = required_seq(fields), router.shared
    require_readable(router, session, seq)
    group = text(fields, "group", "", NAME_MAX)
    patterns = [DEAD + group, REDRIVE + group] if group else list(COPIES)
    view = router.reading.view({"pattern": patterns})
    cursor = max(bounded(fields, "after", 0, 0, NUMBER_MAX) + 1, seq + 1, shared.first_seq)
    if fields.get("time_us") is not None:
        cursor = max(cursor, shared.reader.seek_time(bounded(fields, "time_us", 0, 0, NUMBER_MAX)))
    found: list[Row] = []
    letters, size, looked_max = 0, 0, view.looked + TOPICS_MAX
    for _ in range(FINDS_MAX):
        if cursor > shared.committed_seq or letters >= LETTERS_MAX or size >= BYTES_MAX or view.looked >= looked_max:
            break
        block, cursor_now, more = shared.block_store.find(cursor, shared.committed_seq, view)
        cursor = max(cursor, cursor_now)
        if isinstance(block, Block):
            letters, size = letters + block.count, size + len(block.raw)
            rows = _copies_in(router, block, cursor, seq)
            found += [row for row in rows if session.principal.sees_group(row["group"])]
            cursor = max(cursor, block.last_seq + 1)
        elif block is not None:
            cursor = block.last_seq + 1
        elif not more:
            cursor = shared.committed_seq + 1
    return {"copies": found, "more": cursor <= shared.committed_seq, "next": cursor - 1}


def _copies_in(router: "Router", block: Block, first: int, seq: int) -> list[Row]:
    """The copies of a message in a block, from a seq on."""
    if b"%d" % seq not in block.raw:  # the header is text
        return []
    rows, wanted, last = [], str(seq), router.shared.committed_seq
    for place, (topic, headers) in enumerate(zip(block.topic_names(), block.headers(), strict=True), block.base_seq):
        if first <= place <= last and headers.get(SEQ) == wanted and topic.startswith((DEAD, REDRIVE)):
            is_letter = topic.startswith(DEAD)
            row: Row = {
                "seq": place,
                "kind": "dead letter" if is_letter else "redrive",
                "group": topic.removeprefix(DEAD if is_letter else REDRIVE),
                "time_us": block.ts_us,
                "attempts": number(headers, ATTEMPTS),
                "hops": number(headers, HOPS),
                "redriven": number(headers, REDRIVEN),
            }
            if is_letter:
                row |= {"reason": str(headers.get(REASON, "")), "error": str(headers.get(ERROR, ""))}
                row["listed"] = router.dead_letters.holds(topic, place)
            rows.append(row)
    return rows
