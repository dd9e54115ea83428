"""Encodes dead letters, redriven messages, and the original form of redriven messages for the consumer.

    message      --dead_letters--> a dead letter in topic $dlq.<group>, with headers that tell why
    dead letter  --redriven-->     a message in topic $redrive.<group>, which only this group matches; it has a new seq
                                   and no failures
    redriven     --original-->     a delivery with the original topic and headers, and with `fabric-redriven`

Headers that start with `fabric-` are set by the hub. `index` keeps which dead letters exist.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from fabric_protocol.block import IDS, KEYS, SPARSE, Block, encode, stamp
from fabric_protocol.block_parts import cut
from fabric_protocol.columns import HeaderValue
from fabric_protocol.errors import BlockError
from fabric_protocol.names import DEAD, REDRIVE

if TYPE_CHECKING:
    from fabric.router.groups.lease import DeadLetter

# A rejected block of many messages must become neither one block for each message nor one block that is too large.
LETTERS_PER_BLOCK: Final = 256
# A message that was dead this often is parked: only a redrive that names its seq moves it.
HOPS_MAX: Final = 3

REASON: Final = "fabric-reason"
ERROR: Final = "fabric-error"
GROUP: Final = "fabric-group"
TOPIC: Final = "fabric-topic"
SEQ: Final = "fabric-seq"
ATTEMPTS: Final = "fabric-attempts"
TIME: Final = "fabric-time"
HOPS: Final = "fabric-hops"
REDRIVEN: Final = "fabric-redriven"
OMITTED: Final = "fabric-omitted"
# Headers of the latest failure only; and headers of a redriven message that consumers do not see.
_OF_A_FAILURE: Final = (REASON, ERROR, GROUP, ATTEMPTS)
_CARRIED: Final = (TOPIC, SEQ, TIME, HOPS)
_FLAGS_AT: Final = 5  # in the head of a block

Notes = dict[str, HeaderValue]


class _Part(NamedTuple):
    """Messages that become one block."""

    topic: str
    priority: int
    payloads: Sequence[bytes]
    keys: Sequence[bytes] | None
    ids: Sequence[bytes] | None
    headers: Sequence[Notes]

    def encoded(self) -> bytes:
        return encode(
            self.topic, self.payloads, keys=self.keys, ids=self.ids, headers=self.headers, priority=self.priority
        )

    def alone(self, at: int) -> "_Part":
        keys, ids = self.keys and self.keys[at : at + 1], self.ids and self.ids[at : at + 1]
        return _Part(self.topic, self.priority, self.payloads[at : at + 1], keys, ids, self.headers[at : at + 1])


# From messages to dead letters.


def dead_letters(group: str, letter: "DeadLetter", block: Block, first: int, last: int) -> Iterator[bytes]:
    """Unstamped blocks with the dead letters of messages first..last of a block."""
    block = Block(
        cut(block, first - block.base_seq, last - block.base_seq + 1)
    )  # so that the other messages are not decoded
    topics, headers, payloads = block.topic_names(), block.headers(), block.payloads()
    keys, ids = _columns(block)
    for start in range(0, block.count, LETTERS_PER_BLOCK):
        places = slice(start, min(start + LETTERS_PER_BLOCK, block.count))
        about = [
            _about(group, letter, topics[at], headers[at], block.base_seq + at, block.ts_us)
            for at in range(places.start, places.stop)
        ]
        marked = [{**have, **note} for have, note in zip(headers[places], about, strict=True)]
        part = _Part(DEAD + group, block.priority, payloads[places], keys and keys[places], ids and ids[places], marked)
        try:
            yield part.encoded()
        except BlockError:  # the dead letters are too large for one block
            for at, note in enumerate(about):
                yield _alone(part.alone(at), note)


def _about(group: str, letter: "DeadLetter", topic: str, headers: Notes, seq: int, ts_us: int) -> Notes:
    """The headers of a dead letter. Of a redriven message, they name the original topic, seq and time."""
    notes: Notes = {
        REASON: letter.reason,
        GROUP: group,
        TOPIC: topic,
        SEQ: str(seq),
        ATTEMPTS: str(letter.attempts),
        TIME: str(ts_us),
        HOPS: str(number(headers, HOPS) + 1),
    }
    if letter.error:
        notes[ERROR] = letter.error
    if topic.startswith(REDRIVE):
        notes |= {name: headers[name] for name in (TOPIC, SEQ, TIME) if name in headers}
    return notes


def _alone(part: _Part, note: Notes) -> bytes:
    try:
        return part.encoded()
    except BlockError:
        # The message fills a block, so there is no room for the headers. The dead letter has the seq instead of the
        # body.
        size = len(part.payloads[0])
        note = {**note, OMITTED: f"body of {size} bytes and its headers; read them at {SEQ}"}
        return part._replace(payloads=[b""], headers=[note]).encoded()


# From dead letters to messages.


def redriven(group: str, block: Block, places: Sequence[int], headers: Sequence[Notes]) -> bytes:
    """An unstamped block that redrives the dead letters at some places of a block, with their headers, to their
    group."""
    payloads = block.payloads()
    keys, ids = _columns(block)
    part = _Part(
        REDRIVE + group,
        block.priority,
        [payloads[at] for at in places],
        keys and [keys[at] for at in places],
        ids and [ids[at] for at in places],
        [_redriven_headers(notes) for notes in headers],
    )
    return part.encoded()


def _redriven_headers(headers: Notes) -> Notes:
    kept = {name: value for name, value in headers.items() if name not in _OF_A_FAILURE}
    return {**kept, REDRIVEN: str(number(headers, REDRIVEN) + 1)}


def original(raw: bytes) -> bytes:
    """A stamped block as a consumer gets it: redriven messages have their original topics and headers."""
    block = Block(raw)
    if not any(topic.startswith(REDRIVE) for topic in block.topics):
        return raw
    topics, headers = block.topic_names(), block.headers()
    for at, topic in enumerate(topics):
        if topic.startswith(REDRIVE):
            topics[at] = str(headers[at].get(TOPIC, topic))
            headers[at] = {name: value for name, value in headers[at].items() if name not in _CARRIED}
    keys, ids = _columns(block)
    made = encode(
        topics[0] if len(set(topics)) == 1 else topics,
        block.payloads(),
        keys=keys,
        ids=ids,
        headers=headers,
        priority=block.priority,
        expires_us=block.expires_us,
    )
    if block.flags & SPARSE:
        made = made[:_FLAGS_AT] + bytes([made[_FLAGS_AT] | SPARSE]) + made[_FLAGS_AT + 1 :]
    return stamp(made, block.base_seq, block.ts_us)


def number(headers: Notes, name: str) -> int:
    """A number in a header; 0 when the header is missing or not a number."""
    value = headers.get(name, "")
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else 0


def _columns(block: Block) -> tuple[list[bytes] | None, list[bytes] | None]:
    return (block.keys() if block.flags & KEYS else None), (block.ids() if block.flags & IDS else None)
