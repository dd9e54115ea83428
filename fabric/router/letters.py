"""Dead letters: what a group gives up is written once more, under `$dlq.<group>`, with the reason in its headers."""

from collections.abc import Iterator
from typing import Any, Final

from fabric.block import Block, encode
from fabric.errors import BlockError
from fabric.router.groups import DeadLetter

# Rejecting a large block must not hold up the hub by a block for each message, nor make one that is too large.
LETTERS_PER_BLOCK: Final = 256


def letters(group: str, letter: DeadLetter, block: Block, first: int, last: int) -> Iterator[bytes]:
    """The messages first..last of a block as unstamped blocks of dead letters."""
    places = range(first - block.base_seq, last - block.base_seq + 1)
    topics, headers, keys, payloads = block.topic_names(), block.headers(), block.keys(), block.payloads()
    about = [_about(group, letter, topics[at], block.base_seq + at) for at in places]
    for start in range(0, len(places), LETTERS_PER_BLOCK):
        part = places[start : start + LETTERS_PER_BLOCK]
        notes = about[start : start + LETTERS_PER_BLOCK]
        try:
            yield _encode(
                group,
                block,
                [payloads[at] for at in part],
                [keys[at] for at in part],
                [{**headers[at], **note} for at, note in zip(part, notes, strict=True)],
            )
        except BlockError:  # together they are too large
            for at, note in zip(part, notes, strict=True):
                yield _alone(group, block, payloads[at], keys[at], headers[at], note)


def _about(group: str, letter: DeadLetter, topic: str, seq: int) -> dict[str, Any]:
    return {
        "fabric-reason": letter.reason,
        "fabric-group": group,
        "fabric-topic": topic,
        "fabric-seq": str(seq),
        "fabric-attempts": str(letter.attempts),
    }


def _alone(
    group: str, block: Block, payload: bytes, key: bytes, headers: dict[str, Any], note: dict[str, Any]
) -> bytes:
    try:
        return _encode(group, block, [payload], [key], [{**headers, **note}])
    except BlockError:
        # The message fills a block by itself, so there is no room for a reason. The letter points to it.
        omitted = {"fabric-omitted": f"body of {len(payload)} bytes and its headers; read them at fabric-seq"}
        return _encode(group, block, [b""], [key], [{**note, **omitted}])


def _encode(group: str, block: Block, payloads: list[bytes], keys: list[bytes], headers: list[dict[str, Any]]) -> bytes:
    return encode(f"$dlq.{group}", payloads, keys=keys, headers=headers, priority=block.priority)
