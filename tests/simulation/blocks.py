"""The blocks that producers send. They are encoded once, so that a life costs what the router does and little else.

Every message of every template is known by a small number, its `ident`; the observer compares idents instead of bytes.
A body is found again by the bytes of its block, and only blocks that were cut or joined are opened.
"""

import random
from typing import Final, NamedTuple

from fabric_protocol.block import HEAD_BYTES, Block, encode

TOPICS: Final = ("a", "a.b", "a.c", "b", "b.c", "b.c.d")
KEYS: Final = (b"", b"k1", b"k2", b"k3")
PRIORITIES: Final = (4, 9, 0, 5)
TEMPLATES_EACH: Final = 24
MEMO_MAX: Final = 20_000  # blocks that were cut or joined, remembered by their bytes


class Ident(NamedTuple):
    """One message of one template."""

    topic: str
    key: bytes
    priority: int
    id: bytes
    later: bool = False  # used by delayed publishes only


class Template(NamedTuple):
    raw: bytes
    idents: tuple[int, ...]


IDENTS: Final[list[Ident]] = []  # by ident
_MEMO: Final[dict[bytes, tuple[int, ...]]] = {}  # body of a block -> idents


def _template(
    rng: random.Random, *, keyed: bool, priority: int, with_ids: bool, later: bool = False, single: bool = False
) -> Template:
    count = 1 if single else rng.choice((1, 1, 1, 2, 3, 4, 6))
    topics = [rng.choice(TOPICS) for _ in range(count)]
    if rng.random() < 0.5:
        topics = topics[:1] * count
    keys = [rng.choice(KEYS) if keyed else b"" for _ in range(count)]
    ids = [b"id%d" % rng.randrange(12) if with_ids and rng.random() < 0.8 else b"" for _ in range(count)]
    idents = tuple(range(len(IDENTS), len(IDENTS) + count))
    IDENTS.extend(Ident(t, k, priority, i, later) for t, k, i in zip(topics, keys, ids, strict=True))
    return Template(
        encode(
            topics,
            [b"%d" % ident for ident in idents],
            keys=keys if keyed else None,
            ids=ids if with_ids else None,
            priority=priority,
        ),
        idents,
    )


def _templates() -> dict[tuple[bool, bool, bool], tuple[Template, ...]]:
    """Templates by what they use: (keys, priorities, ids)."""
    rng = random.Random(1)
    found = {}
    for keyed in (False, True):
        for ranked in (False, True):
            for with_ids in (False, True):
                found[keyed, ranked, with_ids] = tuple(
                    _template(rng, keyed=keyed, priority=rng.choice(PRIORITIES) if ranked else 4, with_ids=with_ids)
                    for _ in range(TEMPLATES_EACH)
                )
    return found


TEMPLATES: Final = _templates()
LATER: Final = tuple(
    _template(random.Random(at), keyed=True, priority=4, with_ids=False, later=True) for at in range(TEMPLATES_EACH)
)
QUESTIONS: Final = tuple(
    _template(random.Random(at), keyed=False, priority=4, with_ids=False, single=True) for at in range(TEMPLATES_EACH)
)


def idents_of(raw: bytes) -> tuple[int, ...]:
    """Which messages a block holds. A message of the hub's own making (a dead letter) has the ident of its original."""
    body = raw[HEAD_BYTES:]
    found = _MEMO.get(body)
    if found is None:
        if len(_MEMO) > MEMO_MAX:
            _MEMO.clear()
        block = Block(raw)
        block.verify()
        found = _MEMO[body] = tuple(map(int, block.payloads()))
        for ident, topic, key, id in zip(found, block.topic_names(), block.keys(), block.ids(), strict=True):
            known = IDENTS[ident]
            own = topic.startswith("$")
            assert own or (known.topic, known.key, known.id) == (topic, key, id), "a message keeps its columns together"
    return found
