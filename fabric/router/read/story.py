"""The story of one message, for INFO: the message, its delivery events, and what it waits for in each group.

Events are found by their index, and a command reads a bounded number of them: `more` says that there may be others, and
`next` is the `after` of the next command. Nothing is remembered between two commands. The first answer has the message
and the groups as well.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fabric.event_block import Event, about
from fabric.router.access.rights import shown
from fabric.router.fields import bounded, is_number
from fabric.router.groups.message_state import message_state
from fabric.router.sessions.session import Session
from fabric_protocol.block import Block
from fabric_protocol.block_parts import cut
from fabric_protocol.bounds import INFO_N, NUMBER_MAX
from fabric_protocol.errors import BlockError, Code, ProtocolError
from fabric_protocol.messages import Happening

if TYPE_CHECKING:
    from fabric.router.router import Router

# Work of one command, at most: some ten milliseconds.
BLOCKS_MAX: Final = 256  # blocks of events read
BYTES_MAX: Final = 1 << 20  # of these blocks; and the rest of the last
GROUPS_MAX: Final = 1_000  # described in one answer
TEXT_MAX: Final = 1_000  # characters of a key, an id or a header in the answer
OWN_HEADERS: Final = "fabric-"  # headers that the hub sets

Fields = Mapping[str, Any]
Row = dict[str, Any]
Sees = Callable[[str], bool]  # whether a principal may see a group


def story(router: "Router", session: Session, fields: Fields) -> Row:
    """The answer to INFO {what: "story", seq, after?, n?}."""
    shared, seq = router.shared, required_seq(fields)
    if seq > shared.committed_seq:
        stored = f"has {shared.first_seq}..{shared.committed_seq}" if shared.committed_seq else "is empty"
        raise ProtocolError(Code.NOT_FOUND, f"no message has seq {seq}: the journal {stored}")
    after, sees = bounded(fields, "after", 0, 0, NUMBER_MAX), session.principal.sees_group
    require_readable(router, session, seq)
    block = shared.block_store.at(seq)
    events, following = _events(router, seq, after + 1, bounded(fields, "n", *INFO_N), sees)
    answer: Row = {
        "seq": seq,
        "events": [_event_row(event) for event in events],
        "more": following is not None,
    }
    if following is not None:
        answer["next"] = following - 1
    if after == 0:
        answer["recording"] = router.events.is_on
        answer["message"] = describe(block, seq) if isinstance(block, Block) else None
        answer["groups"] = _groups(router, block, seq, sees) if isinstance(block, Block) else []
    return answer


def require_readable(router: "Router", session: Session, seq: int) -> None:
    """Raise unless the principal may read the topic of a message, or all topics when the message cannot be read. The
    text does not name the topic."""
    if session.principal.is_free:
        return
    block = router.shared.block_store.at(seq)
    topic = block.topics[block.topic_idx()[seq - block.base_seq]] if isinstance(block, Block) else "#"
    if not session.principal.may_subscribe([topic]):
        raise ProtocolError(
            Code.FORBIDDEN,
            f"principal {session.principal.name!r} may not see message {seq}: role {session.principal.role.name!r} "
            f"allows {shown(session.principal.role.subscribe) or 'no topic'}, and its topic is not among them",
        )


def required_seq(fields: Fields) -> int:
    seq = fields.get("seq")
    if not is_number(seq) or seq == 0:
        raise ProtocolError(Code.BAD_OPTION, f"seq is the seq of a message, 1 or more, not {seq!r:.60}")
    assert isinstance(seq, int)
    return seq


def describe(block: Block, seq: int) -> Row:
    """A message without its payload; of its headers those that the hub has set."""
    one = Block(cut(block, seq - block.base_seq, seq - block.base_seq + 1))
    headers = {name: str(value)[:TEXT_MAX] for name, value in one.headers()[0].items() if name.startswith(OWN_HEADERS)}
    row: Row = {"topic": one.topic_names()[0], "time_us": block.ts_us, "bytes": len(one.payloads()[0])}
    for name, value in (("key", one.keys()[0]), ("id", one.ids()[0])):
        if value:
            row[name] = value.decode(errors="replace")[:TEXT_MAX]
    if (origin := block.origin_of(seq - block.base_seq)) is not None:
        row["origin"] = {**origin._asdict(), "journal": origin.journal.hex()}
    return {**row, "priority": block.priority, "expires_us": block.expires_us, "headers": headers}


def _groups(router: "Router", block: Block, seq: int, sees: Sees) -> list[Row]:
    """The state of a message in each group whose patterns match, and that the principal may see."""
    place = seq - block.base_seq
    topic, key = block.topics[block.topic_idx()[place]], block.keys()[place]
    groups = (group for group in router.shared.trie.match(topic) if group.durable and sees(group.name))
    found = sorted(groups, key=lambda one: one.name)
    return [{"group": group.name, **message_state(group, seq, block, key)} for group in found[:GROUPS_MAX]]


def _event_row(event: Event) -> Row:
    """An event, as in an answer."""
    kind = Happening(event.kind).name.lower()
    row: Row = {"number": event.number, "time_us": event.ts_us, "kind": kind, "group": event.group}
    row |= {"client": event.client, "attempt": event.attempt}
    return {**row, "reason": event.reason} if event.reason else row


def _events(router: "Router", seq: int, number: int, n: int, sees: Sees) -> tuple[list[Event], int | None]:
    """Events about a message from a number on, ascending, of groups that the principal may see; and the number at
    which to continue, None if there are no others."""
    reader, index = router.shared.reader, router.events.index
    found: dict[int, Event] = {}
    number, blocks_left, bytes_left = max(number, reader.first_event()), BLOCKS_MAX, BYTES_MAX
    while (place := index.next_place(number, seq)) is not None:
        number, last = place
        if blocks_left <= 0 or bytes_left <= 0:
            return list(found.values()), number
        for end, raw in reader.event_blocks(number, blocks_left, bytes_left):
            if last and number > last:
                break
            for event in _about(raw, seq):
                if event.number >= number and sees(event.group):
                    if len(found) >= n:
                        return list(found.values()), event.number
                    found[event.number] = event
            number, blocks_left, bytes_left = max(end + 1, number), blocks_left - 1, bytes_left - len(raw)
        if number == place[0] and blocks_left > 0 and bytes_left > 0:
            break  # the journal has no events from this number on
    for event in router.events.unwritten(seq):
        if event.number >= number and sees(event.group):
            found[event.number] = event
    return list(found.values()), None


def _about(raw: bytes, seq: int) -> list[Event]:
    """The events of a block about a message; none if the block is damaged."""
    try:
        return about(raw, seq) if raw else []
    except BlockError:
        return []
