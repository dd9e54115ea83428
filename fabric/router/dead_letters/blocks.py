"""Dead letters as bytes: what a group gives up, what it is given once more, and what its consumers then see.

    original --letters--> topic $dlq.<group>, with what happened in its headers
    letter   --redriven--> topic $redrive.<group>, which that group alone wants; it has a new seq and no failures
    redriven --revived--> on its way to a consumer: the original topic and headers, and `fabric-redriven`

Headers that start with `fabric-` are the hub's. Which letters there are is in `deadletters`.
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

# Rejecting a large block must not hold up the hub by a block for each message, nor make one that is too large.
LETTERS_PER_BLOCK: Final = 256
# A message that died so often is parked: only who names it by its seq can have it tried again.
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
# What is true of one death only, and what a redriven message carries in secret so that it can be revived, or die again.
_OF_A_DEATH: Final = (REASON, ERROR, GROUP, ATTEMPTS)
_CARRIED: Final = (TOPIC, SEQ, TIME, HOPS)
_FLAGS_AT: Final = 5  # in the head of a block

Notes = dict[str, HeaderValue]


class _Part(NamedTuple):
    """Messages on their way into one block."""

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


# Out of messages, letters.


def letters(group: str, letter: "DeadLetter", block: Block, first: int, last: int) -> Iterator[bytes]:
    """The messages first..last of a block as unstamped blocks of dead letters."""
    block = Block(cut(block, first - block.base_seq, last - block.base_seq + 1))  # its others are not decoded each time
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
        except BlockError:  # together they are too large
            for at, note in enumerate(about):
                yield _alone(part.alone(at), note)


def _about(group: str, letter: "DeadLetter", topic: str, headers: Notes, seq: int, ts_us: int) -> Notes:
    """What is said of one death. A message that had been redriven is still the one that was published first."""
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
        # The message fills a block by itself, so there is no room for a reason. The letter points to it.
        size = len(part.payloads[0])
        note = {**note, OMITTED: f"body of {size} bytes and its headers; read them at {SEQ}"}
        return part._replace(payloads=[b""], headers=[note]).encoded()


# Out of letters, messages.


def redriven(group: str, block: Block, places: Sequence[int], headers: Sequence[Notes]) -> bytes:
    """Letters at some places of a block, with their headers, as an unstamped block for the group they came from."""
    payloads = block.payloads()
    keys, ids = _columns(block)
    part = _Part(
        REDRIVE + group,
        block.priority,
        [payloads[at] for at in places],
        keys and [keys[at] for at in places],
        ids and [ids[at] for at in places],
        [_once_more(notes) for notes in headers],
    )
    return part.encoded()


def _once_more(headers: Notes) -> Notes:
    kept = {name: value for name, value in headers.items() if name not in _OF_A_DEATH}
    return {**kept, REDRIVEN: str(number(headers, REDRIVEN) + 1)}


def revived(raw: bytes) -> bytes:
    """A stamped block as a consumer should see it: redriven messages have their own topic and headers again."""
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
    """A count in a header; 0 when it is absent, or was put there by somebody who cannot count."""
    value = headers.get(name, "")
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else 0


def _columns(block: Block) -> tuple[list[bytes] | None, list[bytes] | None]:
    return (block.keys() if block.flags & KEYS else None), (block.ids() if block.flags & IDS else None)
